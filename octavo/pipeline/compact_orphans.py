"""Find and delete ledgers that a compaction has written but no record names.

Only the run named in the partition's record may still publish: before its ledgers are deleted, it
is removed from the record.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from octavo.broker.bulkload.rules import PARTITION_KEY
from octavo.clock import wall_clock_ms
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


class Leftover(NamedTuple):
    partition: str
    ledger_id: int
    why: str


async def collect_compacted(
    service: str, *, grace_ms: int, dry_run: bool, each: Callable[[Leftover], None]
) -> None:
    until_ms = wall_clock_ms() - grace_ms
    async with connected(service) as cluster:
        # List the ledgers before reading the records: a ledger published meanwhile is then named.
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
    """End the run, so that it cannot publish. Returns whether it had published this ledger."""
    try:
        record = await change_partition(cluster.topics, name, lambda record: given_up(record, run))
    except RecordNotFound:
        return False
    return ledger_id in compacted_ledgers(record)


async def _older_than(cluster: Cluster, until_ms: int) -> dict[Name, list[LedgerMetadata]]:
    found: dict[Name, list[LedgerMetadata]] = defaultdict(list)
    for one in (await cluster.ledgers.standing(await cluster.ledgers.list())).values():
        if one.custom.get(KIND_KEY) == KIND and one.created_ms <= until_ms:
            namespace, topic, number = one.custom[PARTITION_KEY].decode().split("/")
            found[namespace, topic, int(number)].append(one)
    return found


def _words(name: Name) -> str:
    return "/".join(map(str, name))
