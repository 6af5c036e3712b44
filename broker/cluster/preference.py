"""Which broker should own which partition. Pure: topic, number of partitions, live brokers.

Every broker that sees the same live brokers computes the same answer, so no leader assigns
anything. Each broker gets as many partitions of a topic as any other, or one fewer or more. Within
that bound the highest random weight decides (rendezvous hashing, Thaler/Ravishankar 1998), so that
few partitions move when a broker comes or goes: its own share, and on average half as many again.
Topics with a single partition are spread at random.
"""

from __future__ import annotations

import hashlib

from octavo.broker.types import TopicName

_WEIGHT_BYTES = 8
_WEIGHTS_PER_DIGEST = hashlib.blake2b.MAX_DIGEST_SIZE // _WEIGHT_BYTES


def preferred_brokers(
    topic: TopicName, partitions: int, broker_ids: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the broker that should own each partition, by number.

    `broker_ids` must be sorted, without duplicates and not empty.
    """
    assert broker_ids
    assert list(broker_ids) == sorted(set(broker_ids)), broker_ids
    # Each broker gets `full` partitions, and `fuller` brokers get one more.
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
            if not fuller:  # the others get one fewer
                room = [left - 1 if left else 0 for left in room]
        chosen.append(broker_ids[best])
    return tuple(chosen)


def _weights(topic: TopicName, broker_id: str, partitions: int) -> list[bytes]:
    """Return a weight for each partition, pseudo-random and the same on every broker."""
    digests = b"".join(
        hashlib.blake2b(f"{broker_id} {topic} {part}".encode()).digest()
        for part in range(-(-partitions // _WEIGHTS_PER_DIGEST))
    )
    return [
        digests[start : start + _WEIGHT_BYTES]
        for start in range(0, partitions * _WEIGHT_BYTES, _WEIGHT_BYTES)
    ]
