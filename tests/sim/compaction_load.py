"""Compactions and readers of compacted topics.

A compaction runs the job's own steps and reads; a dictionary replaces Spark. Views are cut
anywhere. Jobs race, die, give up, and remove earlier views at once or later. Options come from
separate streams, so other seeds stay as they were.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from octavo.broker.errors import OffsetTrimmed
from octavo.broker.partition.compacted import CompactedPage
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.options import LedgerOptions
from octavo.metadata.compactions import (
    KIND,
    KIND_KEY,
    CompactionLost,
    begun,
    collected,
    given_up,
    published,
    retired_before,
)
from octavo.metadata.offloads import change_partition
from octavo.metadata.store import RecordNotFound
from octavo.metadata.topics import CompactedLedger
from octavo.protocol.append_time import readable, shown
from octavo.protocol.batch import read_header
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_gapped_batch, read_gapped_records
from octavo.spark.planning import with_compacted
from octavo.spark.splits import View, compacted_pieces, pieces
from tests.sim.brokers import watch_ledgers
from tests.sim.compaction_audit import CompactedHistory, Seen
from tests.sim.process import current_process
from tests.sim.time_load import telling_time
from tests.sim.tools import ToolCluster
from tests.sim.topic_client import EXPECTED, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_SHARE = 0.4
_PAUSE_S = 0.08
_CHANGE_S = 3.0
_READ_PAUSE_S = 0.02
_PASSES = 3
_ASKED_IN_THE_END = 4
_BYTES_MAX = (1, 200, 400, 900, 10_000)
_COUNTS_MAX = (1, 3, 6, 12, 1_000)

Message = tuple[int, Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    jobs: int = 0
    readers: int = 0
    keys: int = 0
    """The number of keys. In some seeds a share of the messages has no key."""
    keyless: bool = False
    entry_max: int = 1
    ledger_max: int = 1
    grace_ms: int = 0
    """How long ledgers of earlier views stay."""
    lookups: int = 0
    """Clients that ask where a time begins in such a read."""

    def key_of(self, value: str) -> bytes | None:
        """Derive the key from the value, so that other draws of a client do not change."""
        if not self.jobs:
            return None
        number = zlib.crc32(value.encode()) % (self.keys + self.keyless)
        return b"k%d" % number if number < self.keys else None


def draw(rng: random.Random) -> CompactionOptions:
    if rng.random() >= _SHARE:
        return CompactionOptions()
    return CompactionOptions(
        jobs=rng.choices((1, 2), (3, 1))[0],
        readers=rng.choice((1, 2)),
        keys=rng.choice((2, 5, 20, 60)),
        keyless=rng.random() < 0.3,
        entry_max=rng.choice((1, 3, 8)),
        ledger_max=rng.choice((1, 2, 5, 5, 100)),
        grace_ms=rng.choice((-3_600_000, 0, 200, 3_600_000)),
        lookups=rng.choice((0, 1)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCompaction:
    """The options of a seed whose brokers compact its topic, as the jobs do."""

    settings: Mapping[str, Any]
    config: Mapping[str, Any]
    tombstones: bool
    """Whether a share of the messages are tombstones."""

    def is_tombstone(self, value: str) -> bool:
        return self.tombstones and zlib.adler32(value.encode()) % 4 == 0


def draw_own(rng: random.Random) -> OwnCompaction | None:
    if rng.random() < 0.35:
        return None
    return OwnCompaction(
        settings={
            "compaction_after_bytes": rng.choice((1, 1, 400)),
            "compaction_dirty_ratio": rng.choice((0.0, 0.0, 0.5)),
            "compaction_tombstones_ms": rng.choice((0, 200, 10**9)),
            "compaction_delete_raw": rng.random() < 0.5,
        },
        config={
            "compaction_keys_max": rng.choice((1, 3, 1_000)),
            "compaction_bytes_per_s": rng.choice((2_000, 20_000, 10**7)),
            "compaction_grace_ms": rng.choice((1, 200, 3_600_000)),
            "compaction_yield_ms": rng.choice((1, 100, 500)),
        },
        tombstones=rng.random() < 0.6,
    )


class CompactionLoad:
    def __init__(self, load: TopicLoad, options: CompactionOptions) -> None:
        self.load = load
        self.options = options
        cluster = load.cluster
        self.views = {
            name: CompactedHistory(
                load.audit.logs[name], options.key_of, cluster.trace, cluster.audit.fail
            )
            for name in load.partitions
        }
        self._runs = 0

    def clients(self) -> list[TopicClient]:
        options = self.options
        return [
            *[TopicClient(self.load, f"m{n}", self._compact) for n in range(1, options.jobs + 1)],
            *[TopicClient(self.load, f"z{n}", self._read) for n in range(1, options.readers + 1)],
            *[
                TopicClient(self.load, f"y{n}", self._look_up)
                for n in range(1, options.lookups + 1)
            ],
        ]

    async def finish(self, client: TopicClient) -> None:
        """Make a view of each partition and read it whole, when the faults are over."""
        for name in self.load.partitions:
            await self._until_done(client, partial(self._run, client, name, whole=True))
            await self.read_all(client, name)

    async def read_all(self, client: TopicClient, name: PartitionName) -> None:
        for _ in range(_PASSES):
            while not await self._pass(client, name):
                await client.pause(_PAUSE_S)
            await self._look(client, name)
            for _ in range(_ASKED_IN_THE_END if self.options.lookups else 0):
                await self._until_done(client, partial(self._ask, client, name))

    async def _until_done(self, client: TopicClient, work: Callable[[], Awaitable[object]]) -> None:
        while True:
            with contextlib.suppress(*EXPECTED):
                await work()
                return
            await client.pause(_PAUSE_S)

    # ------------------------------------------------------------------ jobs

    async def _compact(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            name = client.rng.choice(self.load.partitions)
            try:
                await self._run(client, name)
                await self._collect(client, name)
            except EXPECTED as error:
                self._probe(f"job_ends.{type(error).__name__}")

    async def _run(self, client: TopicClient, name: PartitionName, *, whole: bool = False) -> None:
        self._runs += 1
        rng, run = client.rng, f"run-{self._runs}"
        async with self._connected() as cluster:
            start = partial(begun, run=run, now_ms=self._now_ms())
            record = await change_partition(
                cluster.topics,
                (name.namespace, name.topic, name.partition),
                start,
                timeout_s=_CHANGE_S,
            )
            view = with_compacted(
                await cluster.view_of(str(name.topic_name), name.partition, record), record
            )
            horizon = view.end
            if not whole and rng.random() < 0.3:
                old = 0 if view.compacted is None else view.compacted.horizon
                horizon = rng.randint(min(old, view.end), view.end)
            kept = await self._newest(cluster, view, horizon)
            made = [
                await self._ledger(client, cluster, name, part) for part in self._cut(rng, kept)
            ]
            if not whole and rng.random() < 0.1:
                await change_partition(
                    cluster.topics,
                    (name.namespace, name.topic, name.partition),
                    partial(given_up, run=run),
                    timeout_s=_CHANGE_S,
                )
                return
            finish = partial(
                published, run=run, horizon=horizon, ledgers=made, now_ms=self._now_ms()
            )
            try:
                await change_partition(
                    cluster.topics,
                    (name.namespace, name.topic, name.partition),
                    finish,
                    timeout_s=_CHANGE_S,
                )
            except CompactionLost:
                self._probe("lost_to_another_run")
                if whole:
                    raise

    async def _newest(self, cluster: ToolCluster, view: View, horizon: int) -> list[Message]:
        """Return the newest message of each key below the horizon, and the messages without a
        key."""
        old = [] if view.compacted is None else compacted_pieces(view, horizon)
        first = max(0 if view.compacted is None else view.compacted.horizon, view.earliest)
        newest: dict[bytes, int] = {}
        found: dict[int, Record] = {}
        for piece in [*old, *pieces(view, min(first, horizon), horizon)]:
            async for entries in cluster.entries(piece):
                for entry in entries:
                    header = shown(read_header(entry.payload), piece.appended)
                    records = list(read_gapped_records(readable(header, entry.payload)))
                    base = piece.base + header.base_offset
                    for record in records:
                        offset = base + record.offset_delta
                        if piece.start <= offset < piece.end:
                            found[offset] = record
                            if record.key is not None:
                                newest[record.key] = offset
        return [
            (offset, record)
            for offset, record in sorted(found.items())
            if record.key is None or newest[record.key] == offset
        ]

    def _cut(self, rng: random.Random, kept: list[Message]) -> list[list[list[Message]]]:
        ledgers: list[list[list[Message]]] = []
        left = 0
        while kept:
            size = rng.randint(1, self.options.entry_max)
            entry, kept = kept[:size], kept[size:]
            if not left:
                ledgers.append([])
                left = rng.randint(1, self.options.ledger_max)
            ledgers[-1].append(entry)
            left -= 1
        return ledgers

    async def _ledger(
        self,
        client: TopicClient,
        cluster: ToolCluster,
        name: PartitionName,
        entries: list[list[Message]],
    ) -> CompactedLedger:
        settings = self.load.options.settings
        writer = await cluster.ledgers.create(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            custom={KIND_KEY: KIND},
        )
        base, size = entries[0][0][0], 0
        for entry in entries:
            first = entry[0][0]
            rows = [record._replace(offset_delta=offset - first) for offset, record in entry]
            how = client.rng.choice((Compression.NONE, Compression.ZSTD))
            data = build_gapped_batch(rows, first - base, compression=how)
            size += len(data)
            await writer.append(data)
        await writer.close()
        offsets = [offset for entry in entries for offset, _ in entry]
        log = self.load.audit.logs[name]
        for entry in entries:  # the referee may not have seen them: their answers are on the way
            for offset, record in entry:
                log.stands([log.odd.name_of(record, "a job")], offset, f"the view of {name}")
        self.views[name].wrote(writer.ledger_id, offsets)
        return CompactedLedger(writer.ledger_id, base, offsets[-1], len(offsets), size)

    async def _collect(self, client: TopicClient, name: PartitionName) -> None:
        """Delete ledgers of earlier views once no record names them."""
        if client.rng.random() < 0.3:
            return
        until_ms = self._now_ms() - self.options.grace_ms
        async with self._connected() as cluster:
            record = await cluster.record(str(name.topic_name), name.partition)
            going = retired_before(record, until_ms)
            await change_partition(
                cluster.topics,
                (name.namespace, name.topic, name.partition),
                partial(collected, ledger_ids=going),
                timeout_s=_CHANGE_S,
            )
            for ledger_id in going:
                with contextlib.suppress(LedgerNotFound):
                    await cluster.ledgers.delete(ledger_id)
                    self._probe("retired_deleted")

    # ------------------------------------------------------------------ readers

    async def _read(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_READ_PAUSE_S)
            name = client.rng.choice(self.load.partitions)
            await self._pass(client, name)
            await self._look(client, name)

    async def _look(self, client: TopicClient, name: PartitionName) -> None:
        for _ in range(client.rng.randint(0, 4)):
            with contextlib.suppress(*EXPECTED):
                end = await client.ask(name, _end_offset)
                await self._page(client, name, client.rng.randint(0, end))

    async def _pass(self, client: TopicClient, name: PartitionName) -> bool:
        """Read from the beginning; return whether the end was reached."""
        history = self.views[name]
        before = history.newest
        seen: set[int] = set()
        try:
            at = await client.ask(name, lambda p: p.compacted.resolve(at="earliest"))
            while True:
                following, found = await self._page(client, name, at)
                if following == at and not found:
                    break
                seen.update(found)
                at = following
                if client.rng.random() < 0.3:
                    await client.pause(0.02)
        except OffsetTrimmed:
            self._probe("trimmed_behind_the_horizon")
            return True
        except (*EXPECTED, RecordNotFound) as error:
            self._probe(f"read_ends.{type(error).__name__}")
            return False
        history.passed(before, seen, at)
        return True

    async def _page(
        self, client: TopicClient, name: PartitionName, at: int
    ) -> tuple[int, list[int]]:
        bytes_max, count_max = client.rng.choice(_BYTES_MAX), client.rng.choice(_COUNTS_MAX)

        async def work(partition: Partition) -> CompactedPage:
            compacted = partition.compacted
            await compacted.resolve(at=at)
            return await compacted.read(at, bytes_max=bytes_max, count_max=count_max)

        page: CompactedPage = await client.ask(name, work)
        log, batches = self.load.audit.logs[name], []
        for batch in page.batches:
            records = list(read_gapped_records(readable(batch.header, batch.data)))
            messages = [
                (batch.base_offset + record.offset_delta, log.odd.name_of(record, client.name))
                for record in records
            ]
            for (offset, value), record in zip(messages, records, strict=True):
                log.stands([value], offset, f"compacted reader {client.name}")
                log.viewed(offset, record.timestamp_ms, client.name)
            batches.append(Seen(batch.ledger_id, batch.base_offset, batch.next_offset, messages))
        return page.following, self.views[name].page(at, page.start, page.following, batches)

    async def _look_up(self, client: TopicClient) -> None:
        while not self.load.over:
            with contextlib.suppress(*EXPECTED):
                await self._ask(client, client.rng.choice(self.load.partitions))
            await client.pause(_READ_PAUSE_S)

    async def _ask(self, client: TopicClient, name: PartitionName) -> None:
        time_ms = telling_time(self.load, client.rng, name)

        async def work(partition: Partition) -> tuple[int, int, tuple[int, int]]:
            compacted, end = partition.compacted, partition.next_offset
            known = compacted._view.now.horizon
            found = await compacted.resolve(time_ms=time_ms)
            return found, end, (known, compacted._view.now.horizon)

        found, end, horizons = await client.ask(name, work)
        self.views[name].looked_up(time_ms, found, end, horizons)

    # ------------------------------------------------------------------ the world

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[ToolCluster]:
        process = current_process()
        assert process is not None
        cluster = self.load.cluster
        store = cluster.metadata_store(process)
        ledgers = LedgerClient(
            store,
            rng=process.rng,
            options=LedgerOptions(**cluster.options.client),
            clock=process.clock_ms,
        )
        watch_ledgers(ledgers, cluster.audit, process.name)
        made = ToolCluster(store, ledgers, "auto")
        try:
            await made.start()
            yield made
        finally:
            await made.close()

    @staticmethod
    def _now_ms() -> int:
        process = current_process()
        assert process is not None
        return process.clock_ms()

    def _probe(self, what: str) -> None:
        self.load.cluster.trace.probe(f"compacted.{what}")


async def _end_offset(partition: Partition) -> int:
    return partition.next_offset
