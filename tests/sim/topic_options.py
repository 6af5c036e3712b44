"""The topics' options of a seed: brokers, limits, clients, faults. All are drawn."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.broker.types import SubscriptionSettings, TopicSettings

FAULTS: Mapping[str, float] = {
    # kind of fault → mean seconds between two of them, for the most eager seeds
    "broker_killed": 0.9,
    "broker_paused": 1.0,  # often past its session, and resumed with old beliefs
    "broker_loses_metadata": 1.0,  # it is cut off from the metadata store alone
    "broker_expires": 1.5,
    "broker_hands_over": 1.2,  # a graceful stop, and a start under the same id
    "broker_loses_bookies": 1.0,
    "broker_cut_off": 1.2,  # from clients and other brokers
    "topic_client_dies": 0.4,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicOptions:
    brokers: int
    settings: TopicSettings
    subscriptions: Mapping[str, SubscriptionSettings]
    config: Mapping[str, Any]
    producers: int
    publishers: int
    consumers: int
    readers: int
    pipeline: int
    batch_max: int
    pause_s: float
    messages_max: int
    seeks: bool
    calls: Mapping[str, float]
    """Fault rates of calls: request, reply, duplicate."""
    faults: Mapping[str, float]

    @property
    def definite(self) -> bool:
        return not self.calls.get("duplicate_p")


def draw(rng: random.Random, quorums: tuple[tuple[int, int, int], ...]) -> TopicOptions:
    return TopicOptions(
        brokers=rng.choices((1, 2, 3), (1, 5, 3))[0],
        settings=_settings(rng, quorums),
        subscriptions=_subscriptions(rng),
        config=_config(rng),
        producers=rng.choices((0, 1, 2), (1, 4, 3))[0],
        publishers=rng.choices((0, 1, 2), (2, 4, 1))[0],
        consumers=rng.choices((1, 2), (3, 2))[0],
        readers=rng.choices((0, 1), (1, 2))[0],
        pipeline=rng.choice((1, 2, 5)),
        batch_max=rng.choice((1, 3, 6)),
        pause_s=rng.choice((0.005, 0.02, 0.06)),
        messages_max=rng.choice((30, 60, 120)),
        seeks=rng.random() < 0.2,
        calls=_calls(rng),
        faults=_faults(rng),
    )


def draw_clocks(rng: random.Random) -> dict[str, int]:
    return {
        "clock_beat_ms": rng.choice((40, 150)),
        "clock_tolerance_ms": rng.choice((20, 60)),
        "clock_quarantine_ms": rng.choice((80, 300)),
    }


def _settings(rng: random.Random, quorums: tuple[tuple[int, int, int], ...]) -> TopicSettings:
    e, qw, qa = rng.choice(quorums)
    return TopicSettings(
        partitions=rng.choices((1, 2), (3, 1))[0],
        ensemble_size=e,
        write_quorum=qw,
        ack_quorum=qa,
        retention_ms=rng.choice((None, None, 200)),
        retention_bytes=rng.choice((None, 0, 600)),
        rollover_bytes=rng.choice((300, 2_000, 100_000)),
        rollover_entries=rng.choice((1, 3, 8, 1_000)),
        rollover_age_ms=rng.choice((300, 100_000)),
    )


def _subscriptions(rng: random.Random) -> dict[str, SubscriptionSettings]:
    return {
        f"s{number}": SubscriptionSettings(
            type=rng.choice(("shared", "exclusive")), ack_timeout_ms=rng.choice((80, 300, 900))
        )
        for number in range(rng.choices((0, 1, 2), (1, 5, 2))[0])
    }


def _config(rng: random.Random) -> dict[str, Any]:
    return {
        "inflight_bytes_max": rng.choice((300, 2_000, 100_000)),
        "publish_timeout_ms": rng.choice((400, 1_500)),
        "state_ledger_entries_max": rng.choice((2, 6, 1_000)),
        "state_ledger_bytes_max": rng.choice((300, 100_000)),
        "producer_checkpoint_bytes": rng.choice((200, 1_000, 100_000)),
        "reopen_delay_ms": rng.choice((20, 100)),
        "reopen_delay_ms_max": 200,
        "open_timeout_ms": rng.choice((600, 3_000)),
        "trim_interval_ms": rng.choice((60, 250)),
        "tail_cache_bytes_max": rng.choice((200, 2_000, 100_000)),
        "read_ahead_bytes_max": rng.choice((300, 100_000)),
        "leased_messages_max": (leased := rng.choice((3, 20, 1_000))),
        "delayed_messages_max": leased // 2,
        "claim_wait_ms": rng.choice((200, 800)),
        "stop_handover_ms": 400,
        "balance_by_load": False,  # the even spread is judged (S10)
        "handover_timeout_ms": rng.choice((150, 600)),
        "look_ahead_messages_max": 20,
    }


def _calls(rng: random.Random) -> dict[str, float]:
    if rng.random() < 0.5:
        return {}
    return {
        "call_lost_p": rng.choice((0.0, 0.03, 0.1)),
        "reply_lost_p": rng.choice((0.0, 0.03, 0.1)),
        "duplicate_p": rng.choice((0.0, 0.0, 0.1)),
        "late_p": rng.choice((0.0, 0.02, 0.1)),
    }


def _faults(rng: random.Random) -> dict[str, float]:
    share, pace = rng.choice((0.2, 0.4, 0.6)), rng.choice((0.5, 0.8, 1.6))
    return {kind: mean_s * pace for kind, mean_s in FAULTS.items() if rng.random() < share}
