"""The types of a seed's subscriptions, and the keys of its messages.

Drawn in a share of the seeds from a separate stream, so that other seeds stay as they were.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace

from octavo.broker.types import SubscriptionSettings
from tests.sim.client_load import LOOP

_SHARE = 0.25
KeyOf = Callable[[str], bytes | None]


def draw(
    rng: random.Random, subscriptions: Mapping[str, SubscriptionSettings]
) -> dict[str, SubscriptionSettings]:
    """Return the seed's subscriptions with types; empty in a seed without them."""
    if rng.random() >= _SHARE:
        return {}
    those = {n: one for n, one in subscriptions.items() if n != LOOP} or {
        "s0": SubscriptionSettings(ack_timeout_ms=300)
    }
    return {name: _drawn(rng, settings) for name, settings in those.items()}


def _drawn(rng: random.Random, settings: SubscriptionSettings) -> SubscriptionSettings:
    return replace(
        settings,
        type=rng.choices(("key_shared", "failover", "shared", "exclusive"), (4, 2, 1, 1))[0],
        consumer_timeout_ms=rng.choice((20, 60, 300)),
        max_unacked=rng.choice((None, None, 5)),
        max_unacked_per_consumer=rng.choice((None, None, 2)),
        filter_key_prefix=rng.choice((None, None, None, "k1", "k")),
    )


def key_of(subscriptions: Mapping[str, SubscriptionSettings], keys: int) -> KeyOf:
    """Derive the key from the value: one of `keys`, or none."""
    matters = any(
        one.type == "key_shared" or one.filter_key_prefix is not None
        for one in subscriptions.values()
    )

    def keyed(value: str) -> bytes | None:
        if not matters:
            return None
        number = zlib.crc32(value.encode()) % (keys + 1)
        return b"k%d" % number if number < keys else None

    return keyed
