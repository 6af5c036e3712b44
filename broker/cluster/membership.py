"""Which broker should own which partition. Pure.

Every broker that sees the same live brokers computes the same answer, so no leader assigns
partitions. The brokers' counts of a topic's partitions differ by at most one; within that,
rendezvous hashing (Thaler/Ravishankar 1998) decides, so that few partitions move when a broker
comes or goes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.types import BrokerInfo, TopicName

_WEIGHT_BYTES = 8
_WEIGHTS_PER_DIGEST = hashlib.blake2b.MAX_DIGEST_SIZE // _WEIGHT_BYTES


def preferred_brokers(
    topic: TopicName, partitions: int, broker_ids: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the preferred brokers; `broker_ids` must be sorted, not empty, without duplicates."""
    assert broker_ids
    assert list(broker_ids) == sorted(set(broker_ids)), broker_ids
    full, fuller = divmod(partitions, len(broker_ids))
    weights = [_weights(topic, broker_id, partitions) for broker_id in broker_ids]
    room = [full + 1 if fuller else full] * len(broker_ids)
    chosen: list[str] = []
    for number in range(partitions):
        best = max(
            (index for index in range(len(broker_ids)) if room[index]),
            key=lambda index: weights[index][number],
        )
        room[best] -= 1
        if fuller and not room[best]:
            fuller -= 1
            if not fuller:
                room = [left - 1 if left else 0 for left in room]
        chosen.append(broker_ids[best])
    return tuple(chosen)


def _weights(topic: TopicName, broker_id: str, partitions: int) -> list[bytes]:
    """Weigh the broker for each partition, with the same result on every broker."""
    digests = b"".join(
        hashlib.blake2b(f"{broker_id} {topic} {part}".encode()).digest()
        for part in range(-(-partitions // _WEIGHTS_PER_DIGEST))
    )
    return [
        digests[start : start + _WEIGHT_BYTES]
        for start in range(0, partitions * _WEIGHT_BYTES, _WEIGHT_BYTES)
    ]


REMEMBERED_S = 3_600.0
REMEMBERED_MAX = 100


class GoneBroker(NamedTuple):
    info: BrokerInfo
    since_s: float


class GoneBrokers:
    """Remembers for an hour which live brokers went."""

    def __init__(self) -> None:
        self._gone: dict[str, GoneBroker] = {}

    def follow(
        self, before: Mapping[str, BrokerInfo], live: Mapping[str, BrokerInfo], now_s: float
    ) -> None:
        for name in live:
            self._gone.pop(name, None)
        for name, info in sorted(before.items()):
            if name not in live:
                self._gone[name] = GoneBroker(info, now_s)
        while len(self._gone) > REMEMBERED_MAX:
            del self._gone[next(iter(self._gone))]

    def at(self, now_s: float) -> list[GoneBroker]:
        for name, one in tuple(self._gone.items()):
            if now_s - one.since_s > REMEMBERED_S:
                del self._gone[name]
        return [one for _, one in sorted(self._gone.items())]
