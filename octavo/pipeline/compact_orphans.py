"""Ledgers that a compaction has written and no record names: found, and deleted.

A run that died, that lost its place to another one, or whose topic was deleted leaves ledgers
behind; a task's twin does too. They tell their partition and their run by their own metadata. Only
the run that the partition's record has may still publish: before a ledger of that one goes, the run
is taken out of the record, so that it cannot publish any more what was deleted.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from octavo.broker.bulkload.rules import PARTITION_KEY
from octavo.clock import wall_clock_ms
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.compactions import (
    KIND,
    KIND_KEY,
    RUN_KEY,
    compacted_ledgers,
    given_up,
    retired_before,
)
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.offloads import change_partition
from octavo.metadata.store import RecordNotFound
from octavo.pipeline.compact import Name, collect_retired, delete_ledger
from octavo.spark.cluster import Cluster, connected

_READS_AT_ONCE = 64


class Leftover(NamedTuple):
    """A ledger, and why it may go."""

    partition: str
    ledger_id: int
    why: str


async def collect_compacted(
    service: str, *, grace_ms: int, dry_run: bool, each: Callable[[Leftover], None]
) -> None:
    """Delete what is older than `grace_ms`; with `dry_run` only say it. `each` hears of it."""
    until_ms = wall_clock_ms() - grace_ms
    async with connected(service) as cluster:
        # Listed before the records are read: what is published meanwhile, they name.
        old = await _older_than(cluster, until_ms)
        for name in await _partitions(cluster):
            for left in await _retired(cluster, name, until_ms, dry_run=dry_run):
                each(left)
        for name, ledgers in old.items():
            for left in await _unnamed(cluster, name, ledgers, dry_run=dry_run):
                each(left)


async def _partitions(cluster: Cluster) -> list[Name]:
    return [
        (namespace, topic, number)
        for namespace in await cluster.topics.list_namespaces()
        for topic in await cluster.topics.list_topics(namespace)
        for number in await cluster.topics.list_partitions(namespace, topic)
    ]


async def _retired(cluster: Cluster, name: Name, until_ms: int, *, dry_run: bool) -> list[Leftover]:
    if not dry_run:
        going = await collect_retired(cluster, name, until_ms)
    else:
        try:
            record, _ = await cluster.topics.read_partition(*name)
        except RecordNotFound:
            return []
        going = retired_before(record, until_ms)
    return [Leftover(_words(name), one, "of a view that was replaced") for one in going]


async def _unnamed(
    cluster: Cluster, name: Name, ledgers: list[LedgerMetadata], *, dry_run: bool
) -> list[Leftover]:
    try:
        record, _ = await cluster.topics.read_partition(*name)
        named = set(compacted_ledgers(record))
        run = record.compaction.run if record.compaction is not None else None
    except RecordNotFound:
        named, run = set(), None
    found = []
    for one in ledgers:
        if one.ledger_id in named:
            continue
        if not dry_run:
            mine = one.custom[RUN_KEY].decode()
            if mine == run and await _published_after_all(cluster, name, mine, one.ledger_id):
                continue
            await delete_ledger(cluster, one.ledger_id)
        found.append(Leftover(_words(name), one.ledger_id, "of a run that did not publish it"))
    return found


async def _published_after_all(cluster: Cluster, name: Name, run: str, ledger_id: int) -> bool:
    """End the run; whether it has published this ledger before that."""
    try:
        record = await change_partition(cluster.topics, name, lambda record: given_up(record, run))
    except RecordNotFound:
        return False
    return ledger_id in compacted_ledgers(record)


async def _older_than(cluster: Cluster, until_ms: int) -> dict[Name, list[LedgerMetadata]]:
    """Compacted ledgers that were made before then, by partition."""
    turn = asyncio.Semaphore(_READS_AT_ONCE)

    async def read(ledger_id: int) -> LedgerMetadata | None:
        async with turn:
            try:
                return await cluster.ledgers.metadata(ledger_id)
            except LedgerNotFound:
                return None

    found: dict[Name, list[LedgerMetadata]] = defaultdict(list)
    for one in await asyncio.gather(*map(read, await cluster.ledgers.list())):
        if one is not None and one.custom.get(KIND_KEY) == KIND and one.created_ms <= until_ms:
            namespace, topic, number = one.custom[PARTITION_KEY].decode().split("/")
            found[namespace, topic, int(number)].append(one)
    return found


def _words(name: Name) -> str:
    return "/".join(map(str, name))
