"""Decide what an offload does with each ledger, from records and the time alone. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from octavo.metadata.offloads import COPYING, DROPPED, OFFLOADED
from octavo.metadata.topics import OffloadIntent, PartitionLedger, PartitionRecord

OFFLOADS_MAX = 1_500
"""Each takes some 250 bytes of a partition's record, which holds 1 MB."""

_USUAL_BYTES = 200
"""A copy counts once more for each such length of its wrapped data key, for the room in the
record.
"""

PartitionKey = tuple[str, str, int]


@dataclass(frozen=True)
class OffloadPolicy:
    """Selects ledgers. Times are in milliseconds; `bytes_min` is a ledger's payload size.

    `age_ms` counts from a ledger's close. `drop_lag_ms` counts from when the copy was found whole;
    None: bookies keep their copies. The objects of a copy that no record names are removed
    `grace_ms` after its beginning, and its intent after `forget_ms`. `forget_ms` must be longer
    than any copy takes: a run that was thought dead may write its object so late.
    """

    age_ms: int = 0
    bytes_min: int = 0
    drop_lag_ms: int | None = None
    grace_ms: int = 3_600_000
    forget_ms: int = 24 * 3_600_000


class Job(NamedTuple):
    name: PartitionKey
    link: PartitionLedger
    before: str | None


class Drop(NamedTuple):
    name: PartitionKey
    ledger_id: int
    uuid: str


@dataclass(frozen=True)
class Plan:
    copies: tuple[Job, ...]
    drops: tuple[Drop, ...]
    kept: int
    offloaded: int
    full: tuple[PartitionKey, ...] = ()


def planned(
    records: Mapping[PartitionKey, PartitionRecord], policy: OffloadPolicy, now_ms: int
) -> Plan:
    """Open ledgers and empty ledgers are never touched."""
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
            if not link.count or link.shared:  # a fork keeps shared ledgers on the bookies
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
            # Repeat a drop: the earlier run may have died between the record and the deletion.
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
    """Return the copies that no record names: of trimmed ledgers, deleted topics, dead runs.

    A copy begun within `grace_ms` is spared: a record may name it at any moment. `records` must
    have been read after `intents`, and hold every partition that they name, unless it is gone.
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
    """Return whether no run can still be writing this copy, so that its intent may go."""
    return now_ms - intent.created_ms >= policy.forget_ms


def pause_s(bytes_done: int, took_s: float, bytes_per_s: float | None) -> float:
    if not bytes_per_s:
        return 0.0
    return max(0.0, bytes_done / bytes_per_s - took_s)


def waves(jobs: Iterable[Job], at_once: int) -> list[list[Job]]:
    """Split into waves of `at_once` jobs: each wave's results are recorded before the next."""
    every = list(jobs)
    return [every[at : at + at_once] for at in range(0, len(every), at_once)]
