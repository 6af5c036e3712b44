"""Compacted views written by hand: the ledgers and the record that a compaction would leave."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from octavo.ledger.client import LedgerClient
from octavo.metadata.compactions import KIND, KIND_KEY, begun, collected, published, retired_before
from octavo.metadata.offloads import change_partition
from octavo.metadata.topics import CompactedLedger, TopicStore
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_gapped_batch

Kept = tuple[int, Record]
_runs = itertools.count(1)


def gapped(kept: Sequence[Kept], ledger_base: int) -> bytes:
    first = kept[0][0]
    rows = [record._replace(offset_delta=offset - first) for offset, record in kept]
    return build_gapped_batch(rows, first - ledger_base, compression=Compression.ZSTD)


async def write_ledger(ledgers: LedgerClient, entries: Sequence[Sequence[Kept]]) -> CompactedLedger:
    writer = await ledgers.create(custom={KIND_KEY: KIND})
    base = entries[0][0][0]
    size = 0
    for entry in entries:
        data = gapped(entry, base)
        size += len(data)
        await writer.append(data)
    await writer.close()
    count = sum(map(len, entries))
    return CompactedLedger(writer.ledger_id, base, entries[-1][-1][0], count, size)


async def write_view(
    ledgers: LedgerClient,
    topics: TopicStore,
    name: tuple[str, str, int],
    horizon: int,
    contents: Sequence[Sequence[Sequence[Kept]]],
) -> list[CompactedLedger]:
    """Publish a view: a list of ledgers, each a list of entries, each a list of messages."""
    run = f"run-{next(_runs)}"
    await change_partition(topics, name, lambda record: begun(record, run, 1))
    made = [await write_ledger(ledgers, entries) for entries in contents]
    await change_partition(topics, name, lambda record: published(record, run, horizon, made, 2))
    return made


async def delete_retired(
    ledgers: LedgerClient, topics: TopicStore, name: tuple[str, str, int]
) -> list[int]:
    record, _ = await topics.read_partition(*name)
    going = retired_before(record, 2)
    await change_partition(topics, name, lambda record: collected(record, going))
    for ledger_id in going:
        await ledgers.delete(ledger_id)
    return going
