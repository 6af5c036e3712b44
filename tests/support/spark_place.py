"""A cluster in this process for tests of Spark's reads without a JVM: bookies, a broker, one
topic."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from octavo.broker.types import PartitionName
from octavo.spark.columns import checked_schema, schema_of
from octavo.spark.options import source_options
from octavo.spark.readers import OctavoReader
from octavo.spark.reading import Split
from tests.support.cluster import (
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    running_cluster,
    until,
)

BATCHES = 24
ROWS = 10
LEDGER_BATCHES = 4
WHOLE = [f"b{number:03d}-{row}" for number in range(BATCHES) for row in range(ROWS)]


class Place:
    def __init__(self, cluster: Cluster, broker: RunningBroker, name: PartitionName) -> None:
        self.cluster = cluster
        self.running = broker
        self.broker = broker.broker
        self.ledgers = broker.ledgers
        self.name = name

    @property
    def service(self) -> str:
        """Return the metadata service itself, which needs no broker."""
        return f"file://{self.cluster.folder / 'metadata.db'}"

    async def publish(self, first: int, count: int) -> None:
        partition = await owned(self.broker, self.name)
        for number in range(first, first + count):
            await partition.publish(batch(ROWS, tag=f"b{number:03d}"))

    async def planned(self, **options: str) -> tuple[OctavoReader, list[Split]]:
        reader = reader_of(self.service, **options)
        found = await asyncio.to_thread(reader.partitions)
        assert all(isinstance(split, Split) for split in found)
        return reader, found  # type: ignore[return-value]

    async def forget(self, ledger_id: int) -> None:
        """Remove a ledger's entries as garbage collection does 15 minutes after its record is
        deleted."""
        for node in self.cluster.nodes.values():
            await node.storage.delete_ledger(ledger_id)


def reader_of(service: str, **options: str) -> OctavoReader:
    given = {"service": service, "subscribe": "flights", "columns": "value,offset", **options}
    checked = source_options(given, streaming=False)
    return OctavoReader(checked, checked_schema(schema_of(checked), checked))


@contextlib.asynccontextmanager
async def running_place(folder: Path) -> AsyncIterator[Place]:
    async with running_cluster(folder, session_timeout_ms=60_000) as cluster:
        broker = await cluster.start("A", tail_cache_bytes_max=1)  # read from ledgers
        name = await make_topic(broker.broker, rollover_entries=LEDGER_BATCHES)
        made = Place(cluster, broker, name)
        for first in range(0, BATCHES, LEDGER_BATCHES):
            await made.publish(first, LEDGER_BATCHES)
            # The partition rolls over after the entry in flight: here, after exactly this entry.
            ledgers = first // LEDGER_BATCHES + 2
            partition = await owned(broker.broker, name)
            await until(lambda p=partition, n=ledgers: len(p.ledgers) == n, "a new ledger", 60)
        yield made


def values_of(rows: list[Any]) -> list[str]:
    return [value.decode() for some in rows for value in some.column("value").to_pylist()]
