"""Profile `still`: hardly any faults, and ticks and timeouts come a hundred times later.

A tick or timeout hides a lost wake-up; here it comes too late for S8 and S9, and Q2 sees the wait.
Ticks that are the only cause of something stay as they are. Faults that only a timeout detects are
left out.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.sim.fleet import FleetOptions
from tests.sim.options import SimOptions
from tests.sim.topic_options import TopicOptions

FACTOR = 100
_BOOKIE = (
    "answer_stall_ms_max", "disk_check_interval_ms", "pressed_stall_ms_max",
)  # fmt: skip
_CLIENT = (
    "add_timeout_s", "connect_timeout_s", "long_poll_ms",
    "metadata_timeout_s", "read_timeout_s", "retry_failed_bookie_ms", "speculative_read_ms",
    "stall_timeout_s", "suspect_ms",
)  # fmt: skip
_BROKER = ("claim_wait_ms", "handover_timeout_ms", "publish_timeout_ms", "trim_interval_ms")
_FAULTS = ("crash_client", "slow_disk")
_TOPIC_FAULTS = ("broker_hands_over", "topic_client_dies")


def stretched(settings: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value * FACTOR if name in names else value for name, value in settings.items()}


def stilled(options: SimOptions, rng: random.Random) -> SimOptions:
    """Adapt the options: few faults, late ticks, and little room, so that much waits."""
    bookie = {
        **stretched(options.bookie, _BOOKIE),
        "read_threads": 1,
        "read_tasks_max": rng.choice((2, 4, 64)),
        "read_wait_ms_max": 3_000 * FACTOR,
    }
    client = {
        **stretched(options.client, _CLIENT),
        "pending_bytes_max": rng.choice((400, 4_000)),
        "pending_entries_max": rng.choice((2, 3, 10)),
        "connection_buffer_bytes_max": rng.choice((300, 2_000)),
    }
    return replace(
        options,
        bookie=bookie,
        client=client,
        faults={
            **{kind: s for kind, s in options.faults.items() if kind in _FAULTS},
            "busy": rng.choice((0.05, 0.3)),
        },
        metadata={},
        ambush=0.0,
        damage_max=0,
        safety_s=rng.choice((0.7, 1.5)),
        writers=rng.choice((1, 2)),
        pipeline=rng.choice((3, 8, 20)),
    )


def still_topics(options: TopicOptions) -> TopicOptions:
    return replace(
        options,
        config=stretched(options.config, _BROKER),
        calls={},
        faults={kind: s for kind, s in options.faults.items() if kind in _TOPIC_FAULTS},
    )


def still_fleet(options: FleetOptions) -> FleetOptions:
    """Adapt the brokers' options: none falls ill, and the store always writes."""
    return replace(options, ill=None, held_s=None)
