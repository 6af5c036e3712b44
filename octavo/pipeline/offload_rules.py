"""What an offload does with which ledger: decided from records and the time alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from octavo.metadata.offloads import COPYING, DROPPED, OFFLOADED
from octavo.metadata.topics import OffloadIntent, PartitionLedger, PartitionRecord

OFFLOADS_MAX = 1_500
"""Of one partition: each takes some 250 bytes of its record, which holds a megabyte at most."""

_USUAL_BYTES = 200
"""A wrapped data key that is longer takes the room of a copy more."""

PartitionKey = tuple[str, str, int]
"""Namespace, topic, partition."""


@dataclass(frozen=True)
class OffloadPolicy:
    """Which ledgers. Ages in milliseconds; `bytes_min` is of a ledger's payload.

    `age_ms` counts from a ledger's close, `drop_lag_ms` from when its copy was found whole (None:
    bookies keep theirs). Of a copy that no record names any more, counted from when it was begun,
    the objects go after `grace_ms`, and its intent after `forget_ms`: longer than any copy takes.
    Who was taken for dead may have its object written until then, and die before it removes it.
    """

    age_ms: int = 0
    bytes_min: int = 0
    drop_lag_ms: int | None = None
    grace_ms: int = 3_600_000
    forget_ms: int = 24 * 3_600_000


class Job(NamedTuple):
    """One ledger to copy, and the copy that was begun before and takes no effect any more."""

    name: PartitionKey
    link: PartitionLedger
    before: str | None


class Drop(NamedTuple):
    """One ledger that may go from the bookies."""

    name: PartitionKey
    ledger_id: int
    uuid: str


@dataclass(frozen=True)
class Plan:
    """In the order of partitions and offsets."""

    copies: tuple[Job, ...]
    drops: tuple[Drop, ...]
    kept: int
    """Closed ledgers that are not old or not large enough."""
    offloaded: int
    """Those that have a whole copy already."""
    full: tuple[PartitionKey, ...] = ()
    """Partitions whose record has no room for more."""


def planned(
    records: Mapping[PartitionKey, PartitionRecord], policy: OffloadPolicy, now_ms: int
) -> Plan:
    """What is to be done. An open ledger is never touched, and neither is an empty one."""
    copies: list[Job] = []
    drops: list[Drop] = []
    full: list[PartitionKey] = []
    kept = offloaded = 0
    for name, record in records.items():
        room = OFFLOADS_MAX - sum(
            1 + len(link.offload.encryption) // _USUAL_BYTES
            for link in record.ledgers
            if link.offload is not None
        )
        for link in record.ledgers:
            offload = link.offload
            if not link.count or link.shared:  # a fork has the ledgers of others on the bookies
                continue
            if offload is None or offload.state == COPYING:
                if not _is_due(link, policy, now_ms):
                    kept += 1
                elif offload is None and room <= 0:
                    kept += 1
                    full += [name] if name not in full else []
                else:
                    room -= offload is None
                    copies.append(Job(name, link, None if offload is None else offload.uuid))
                continue
            offloaded += 1
            old = policy.drop_lag_ms is not None and (
                now_ms - offload.since_ms >= policy.drop_lag_ms
            )
            # One that is dropped already is dropped again: the run before may have died between.
            if offload.state == DROPPED or (offload.state == OFFLOADED and old):
                drops.append(Drop(name, link.ledger_id, offload.uuid))
    return Plan(tuple(copies), tuple(drops), kept, offloaded, tuple(full))


def _is_due(link: PartitionLedger, policy: OffloadPolicy, now_ms: int) -> bool:
    closed_ms = link.closed_ms if link.closed_ms is not None else link.last_ms
    return now_ms - closed_ms >= policy.age_ms and link.bytes >= policy.bytes_min


def orphans(
    intents: Mapping[str, OffloadIntent],
    records: Mapping[PartitionKey, PartitionRecord],
    policy: OffloadPolicy,
    now_ms: int,
) -> list[str]:
    """The copies that no record names: of trimmed ledgers, deleted topics, dead runs.

    One that was begun a moment ago is spared: its record may name it any moment. `records` must
    have been read after `intents`, and hold every partition that these name, unless it is gone.
    """
    named = {
        link.offload.uuid
        for record in records.values()
        for link in record.ledgers
        if link.offload is not None
    }
    return sorted(
        uuid
        for uuid, intent in intents.items()
        if uuid not in named and now_ms - intent.created_ms >= policy.grace_ms
    )


def is_forgotten(intent: OffloadIntent, policy: OffloadPolicy, now_ms: int) -> bool:
    """Whether nobody can still be writing the objects of this orphan: its intent may go."""
    return now_ms - intent.created_ms >= policy.forget_ms


def pause_s(bytes_done: int, took_s: float, bytes_per_s: float | None) -> float:
    """How long to wait so that no more than so much goes out on the average."""
    if not bytes_per_s:
        return 0.0
    return max(0.0, bytes_done / bytes_per_s - took_s)


def waves(jobs: Iterable[Job], at_once: int) -> list[list[Job]]:
    """So many at a time: what one wave has done is written down before the next begins."""
    every = list(jobs)
    return [every[at : at + at_once] for at in range(0, len(every), at_once)]
