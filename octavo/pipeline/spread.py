"""Spread work on ledgers over Spark tasks.

A task gets some ledgers and a copy of their records, so it needs no metadata store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.pipeline.outcome import SHOWN_MAX, Finding, Outcome
from octavo.pipeline.runner import Run
from octavo.spark.cluster import Cluster, connected

TASKS_PER_SLOT = 4
"""More tasks than slots, so that a slow task does not delay the end."""


class Part(NamedTuple):
    ledger_id: int
    first: int
    last: int


class Found(NamedTuple):
    findings: list[Finding]
    counts: dict[str, int]
    figures: dict[str, int]


class Task(NamedTuple):
    parts: list[Part]
    records: dict[str, bytes]
    service: str


Work = Callable[[Cluster, list[Part]], Awaitable[Found]]


def confirmed_end(metadata: LedgerMetadata) -> int:
    """Return the last entry that is surely confirmed, judging by the record alone; −1: none.

    In an open ledger, all entries before the last fragment are confirmed: an ensemble change begins
    at the first unconfirmed entry.
    """
    if metadata.state is LedgerState.CLOSED:
        return metadata.last_entry
    return metadata.fragments[-1].first_entry - 1


def parts_of(found: Iterable[LedgerMetadata], *, entries_max: int) -> list[Part]:
    parts = []
    for metadata in found:
        end = confirmed_end(metadata) + 1
        parts += [
            Part(metadata.ledger_id, first, min(first + entries_max, end) - 1)
            for first in range(0, end, entries_max)
        ]
    return parts


def dealt(parts: list[Part], hands: int) -> list[list[Part]]:
    total = sum(part.last - part.first + 1 for part in parts)
    share = max(1, -(-total // max(1, hands)))
    found: list[list[Part]] = []
    filled = share
    for part in parts:
        if filled >= share:
            found.append([])
            filled = 0
        found[-1].append(part)
        filled += part.last - part.first + 1
    return found


def spread(run: Run, outcome: Outcome, parts: list[Part], work: Work) -> dict[str, int]:
    context = run.spark.sparkContext
    hands = dealt(parts, TASKS_PER_SLOT * context.defaultParallelism)
    if not hands:
        return {}

    async def tasks() -> list[Task]:
        async with connected(run.service) as cluster:
            return [
                Task(
                    hand,
                    await cluster.records_for(dict.fromkeys(part.ledger_id for part in hand)),
                    run.service,
                )
                for hand in hands
            ]

    made = asyncio.run(tasks())
    figures: dict[str, int] = {}
    for found in context.parallelize(made, len(made)).map(lambda task: _do(task, work)).collect():
        outcome.found(found.findings, found.counts)
        for name, number in found.figures.items():
            figures[name] = figures.get(name, 0) + number
    return figures


def _do(task: Task, work: Work) -> Found:
    async def run() -> Found:
        cluster = Cluster(SnapshotStore(task.records, task.service))
        await cluster.start()
        try:
            return await work(cluster, task.parts)
        finally:
            await cluster.close()

    return asyncio.run(run())


async def current(service: str, ledger_id: int) -> LedgerMetadata | None:
    """Return the ledger's record as it is now; None if retention has deleted it meanwhile."""
    async with connected(service) as cluster:
        try:
            return await cluster.ledgers.metadata(ledger_id)
        except LedgerNotFound:
            return None


class Findings:
    def __init__(self) -> None:
        self.kept: list[Finding] = []
        self.counts: dict[str, int] = {}

    def add(self, kind: str, where: str, what: str, count: int = 1) -> None:
        if sum(one.kind == kind for one in self.kept) < SHOWN_MAX:
            self.kept.append(Finding(kind, where, what))
        self.counts[kind] = self.counts.get(kind, 0) + count

    def take(self, other: Findings) -> None:
        for one in other.kept:
            self.add(*one, count=0)
        for kind, count in other.counts.items():
            self.counts[kind] = self.counts.get(kind, 0) + count
