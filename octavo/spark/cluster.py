"""Reads partitions, their ends and their entries from a cluster, for the Spark source.

Names and ledger lists come from the metadata store. Entries come from the bookies, through the
ledger client; nothing is fenced. An open ledger is read up to its last confirmed entry. The driver
uses this with the real metadata store, tasks with a copy of the few records that they need
(metadata/snapshot_store.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import TYPE_CHECKING

import structlog

from octavo.clock import wall_clock_ms
from octavo.credentials import certificates
from octavo.keys import keys_of_environment
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.offload.offloaded import OffloadedReader, open_offloaded
from octavo.ledger.options import LedgerOptions
from octavo.ledger.read.continuity import Continuity
from octavo.ledger.read.entry_source import DISORDER_UNKNOWN, first_entry, header_of
from octavo.ledger.read.open_batch import opening
from octavo.ledger.read.reader import LedgerReader
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.metadata.bookies import encode_service_info
from octavo.metadata.compactions import compacted_ledgers
from octavo.metadata.gather_all import gather_all
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledger_ids import ledger_path
from octavo.metadata.ledgers import LEDGERS_ROOT
from octavo.metadata.paths import join
from octavo.metadata.secret import cluster_secret
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.metadata.store import MetadataStore, RecordNotFound
from octavo.metadata.topics import (
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    TopicSettings,
    TopicStore,
)
from octavo.protocol.batch import read_header
from octavo.protocol.entry import Entry
from octavo.spark.options import InvalidOption, Selection
from octavo.spark.service import live_urls, naming, settings_of, store_of
from octavo.spark.splits import DataLost, Piece, Span, View, copy_to_read

if TYPE_CHECKING:
    from octavo.security.bookie_tokens import BookieTokens

_RECORDS_AT_ONCE = 64
"""Records are read in parallel: each read may be a round trip to a far metadata store."""
_NODE = "spark"
_READER_TOKEN = "/octavo/reader-token"
"""The path, among the records copied for a task, of the token that reads their ledgers."""
_AGAIN_MS = 3_600_000
_TASK_TOKEN_S = 86_400
"""Long, because tasks may wait before they run. When the token has ended, a task asks the service
for new records."""


class Cluster:
    """A connection to a cluster. Open with `connected(service)`, or over a copy of records."""

    def __init__(self, store: MetadataStore, read_from: str = "auto") -> None:
        """Read the cluster; `read_from`: which copy of offloaded ledgers (`copy_to_read`)."""
        _keep_quiet()
        self._read_from = read_from
        self.store = store
        self.topics = TopicStore(store)
        self.ledgers = LedgerClient(
            store,
            rng=random.SystemRandom(),
            options=LedgerOptions(),
            clock=wall_clock_ms,
            tls=certificates(),
            keys=keys_of_environment(),
        )
        self._open: dict[int, LedgerReader | OffloadedReader] = {}
        self._tokens: BookieTokens | None = None
        self._newest: tuple[tuple[int, ...], bytes, int] | None = None
        """The newest reader token: for which ledgers, and until when it is given out again."""

    async def start(self) -> None:
        """Connect. Raises `MetadataUnavailable`, `MetadataUnusable`."""
        await self.store.start()
        await self._trust()
        await self.ledgers.bookies.start()

    async def _trust(self) -> None:
        """Choose the proof for bookies: as a node, by the cluster's secret, or the reader token
        that came with a copy of records."""
        if isinstance(self.store, SnapshotStore):
            with contextlib.suppress(RecordNotFound):
                token = (await self.store.get(_READER_TOKEN)).value
                self.ledgers.bookies.prove = lambda _: token
            return
        from octavo.security.bookie_tokens import BookieTokens, prover  # slow to import

        secret = await cluster_secret(self.store)
        self.ledgers.cluster_password = secret.ledger_password
        self._tokens = BookieTokens(secret, wall_clock_ms)
        self.ledgers.bookies.prove = prover(self._tokens, _NODE)

    async def close(self) -> None:
        """Close all connections."""
        while self._open:
            _, reader = self._open.popitem()
            await reader.close()
        await self.ledgers.close()
        await self.store.close()

    # ------------------------------------------------------------------ partitions

    async def partitions(self, selection: Selection) -> dict[str, list[int]]:
        """Return partitions by topic. Raises `InvalidOption` for an unknown topic or partition."""
        if selection.pattern is not None:
            return await self._matching(re.compile(selection.pattern))
        names = selection.topics or tuple(selection.partitions)
        found = {}
        for name in names:
            count = await self._count(name)
            if count is None:
                raise InvalidOption(f"there is no topic {name}")
            wanted = selection.partitions.get(name)
            if wanted is not None and wanted[-1] >= count:
                raise InvalidOption(
                    f"option assign: topic {name} has partitions 0 to {count - 1}, not {wanted[-1]}"
                )
            found[name] = list(wanted if wanted is not None else range(count))
        return found

    async def _matching(self, pattern: re.Pattern[str]) -> dict[str, list[int]]:
        """Find topics.

        As in Kafka, the expression must match a whole name: `namespace/topic`, or just `topic` in
        the namespace `public`.
        """
        found = {}
        for namespace in await self.topics.list_namespaces():
            for topic in await self.topics.list_topics(namespace):
                name = f"{namespace}/{topic}"
                fits = pattern.fullmatch(name) or (
                    namespace == "public" and pattern.fullmatch(topic)
                )
                if fits and (count := await self._count(name)) is not None:
                    found[name] = list(range(count))
        return found

    async def _count(self, name: str) -> int | None:
        """Return the number of partitions; None if the topic does not exist."""
        settings = await self.settings(name)
        return None if settings is None else settings.partitions

    async def settings(self, name: str) -> TopicSettings | None:
        """Return the topic's settings, with the namespace's policies applied; None if the topic
        does not exist."""
        return await settings_of(self.topics, name)

    async def incarnation(self, name: str) -> str:
        """Return the topic's incarnation; "" if the topic does not exist."""
        try:
            record, _ = await self.topics.read_topic(*_parts(name))
        except RecordNotFound:
            return ""
        return record.identity if record.stands else ""

    async def named_ledgers(self) -> set[int]:
        """Return every ledger that a partition's record names."""
        found: set[int] = set()
        for namespace in await self.topics.list_namespaces():
            for topic in await self.topics.list_topics(namespace):
                for number in await self.topics.list_partitions(namespace, topic):
                    with contextlib.suppress(RecordNotFound):
                        record, _ = await self.topics.read_partition(namespace, topic, number)
                        found.update(link.ledger_id for link in record.ledgers)
                        found.update(compacted_ledgers(record))
        return found

    async def broker_urls(self) -> list[str]:
        """Return the URLs of the live brokers."""
        return await live_urls(self.store)

    # ------------------------------------------------------------------ ends of partitions

    async def record(
        self, topic: str, partition: int, incarnation: str | None = None
    ) -> PartitionRecord:
        """Return the partition's record; an empty record if the partition was never used.

        With an `incarnation`, a record of another topic of the same name, or of a topic that is
        being deleted, is ignored.
        """
        with contextlib.suppress(RecordNotFound):
            record, _ = await self.topics.read_partition(*_parts(topic), partition)
            if incarnation is None:
                return record
            if not record.deleted and record.incarnation in ("", incarnation):
                return record
        return PartitionRecord()

    async def view(self, topic: str, partition: int) -> View:
        """Return the partition up to its last confirmed message; empty if it was never used.

        Raises `ReadFailed` if no bookie of the open ledger answers with its last confirmed entry.
        """
        incarnation = await self.incarnation(topic)
        record = await self.record(topic, partition, incarnation)
        return await self.view_of(topic, partition, record, incarnation)

    async def view_of(
        self, topic: str, partition: int, record: PartitionRecord, incarnation: str = ""
    ) -> View:
        """Return the view as `view` does, for a record that was read already."""
        spans = []
        for link in record.ledgers:
            if link.count is not None:
                end, size = link.base_offset + link.count, link.bytes
            else:
                end, size = await self._end_of(link), 0
            copy = copy_to_read(link.offload, self._read_from)
            spans.append(
                Span(
                    link.ledger_id, link.base_offset, end, size, link.last_ms, copy,
                    link.disorder_ms, link.cut >= 0, link.pieces or 0, link.appended,
                )
            )  # fmt: skip
        trimmed_to = record.trimmed_offset
        return View(topic, partition, tuple(spans), trimmed_to, incarnation=incarnation)

    async def _end_of(self, link: PartitionLedger) -> int:
        """Return the offset after the last confirmed message of an open ledger."""
        reader = await self.reader(link.ledger_id)
        lac = await reader.refresh()
        if lac < 0:
            return link.base_offset
        header = await header_of(reader, lac)
        return link.base_offset + header.base_offset + header.record_count

    async def reader(
        self, ledger_id: int, offload: OffloadRecord | None = None
    ) -> LedgerReader | OffloadedReader:
        """Open the ledger, or its offloaded copy, and keep it open.

        Raises `LedgerNotFound`, `OffloadUnavailable`, `OffloadDamaged`.
        """
        reader = self._open.get(ledger_id)
        if reader is None:
            if offload is not None:
                reader = await open_offloaded(ledger_id, offload, self.ledgers.keys)
            else:
                reader = await self.ledgers.open(ledger_id)
            self._open[ledger_id] = reader
        return reader

    async def release(self, ledger_id: int) -> None:
        """Close the ledger."""
        reader = self._open.pop(ledger_id, None)
        if reader is not None:
            await reader.close()

    async def offset_at(self, view: View, time_ms: int) -> int | None:
        """Return the first offset whose timestamp is `time_ms` or later; None if there is none.

        This is Kafka's rule. An open ledger, or a ledger closed by a take-over, has no time index:
        it is read from its first message until a match (`EntrySource.as_new_as`).
        """
        for span in view.spans:
            known = span.disorder_ms != DISORDER_UNKNOWN
            if span.end == span.base or (known and span.newest_ms < time_ms):
                continue
            reader = await self.reader(span.ledger_id, span.offload)
            last = await reader.refresh()
            least = max(0, view.earliest - span.base)
            found = await offset_as_new_as(
                reader, time_ms, last, span.disorder_ms, opening,
                least=least, appended=span.appended,
            )  # fmt: skip
            # Ignore messages after the view's end, which came later, and messages after a fork's
            # cut, which the fork does not have.
            if found is not None and span.base + found < span.end:
                return span.base + found
        return None

    # ------------------------------------------------------------------ records for the tasks

    async def records_for(self, ledger_ids: Iterable[int]) -> dict[str, bytes]:
        """Return a copy of what a task needs to read these ledgers: their records, the bookies'
        addresses, and a token for bookies that require authentication.

        A deleted ledger is left out; the task finds that out and asks the service.
        """
        records = {
            join(LEDGERS_ROOT, "available", info.bookie_id): encode_service_info(info)
            for info in self.ledgers.bookies.available.values()
        }
        wanted = tuple(dict.fromkeys(ledger_ids))
        if (token := self._reader_token(wanted)) is not None:
            records[_READER_TOKEN] = token
        gate = asyncio.Semaphore(_RECORDS_AT_ONCE)

        async def one(ledger_id: int) -> None:
            async with gate:
                with contextlib.suppress(LedgerNotFound):
                    found = await self.ledgers.metadata(ledger_id)
                    records[ledger_path(LEDGERS_ROOT, ledger_id)] = encode_ledger_metadata(found)

        await gather_all(one(ledger_id) for ledger_id in wanted)
        return records

    def _reader_token(self, wanted: tuple[int, ...]) -> bytes | None:
        """Return a token that reads these ledgers; None if bookies would refuse it.

        The newest token is given out again for an hour: with equal records, tasks of a stream keep
        their connections (kept.py).
        """
        from octavo.security.bookie_tokens import LEDGERS_MAX
        from octavo.security.principal import Identity

        if self._tokens is None or len(wanted) > LEDGERS_MAX:
            return None
        now_ms = wall_clock_ms()
        if self._newest is None or self._newest[0] != wanted or now_ms >= self._newest[2]:
            identity = Identity(f"node:{_NODE}", source="node")
            token, _ = self._tokens.reader(identity, None, wanted, _TASK_TOKEN_S)
            self._newest = wanted, token.encode(), now_ms + _AGAIN_MS
        return self._newest[1]

    # ------------------------------------------------------------------ entries

    async def entries(self, piece: Piece) -> AsyncGenerator[list[Entry]]:
        """Return the entries of the piece, about a megabyte at a time, with read-ahead.

        Raises `ReadFailed`, `NoSuchEntry`, `LedgerNotFound`, and `LedgerDamaged` if an entry's
        offsets do not follow the offsets of the entry before.
        """
        reader = await self.reader(piece.ledger_id, piece.offload)
        last = await reader.refresh()
        start = piece.start - piece.base
        first = 0
        if start > 0 and isinstance(reader, OffloadedReader):
            first = await reader.entry_holding(start)
        elif start > 0:
            found = await first_entry(reader, last, lambda header: header.next_offset > start)
            if found is None:
                raise DataLost(
                    f"ledger {piece.ledger_id} of topic {piece.topic} partition {piece.partition} "
                    f"ends before offset {piece.start}"
                )
            first = found
        # A compacted view has gaps by design.
        order = None if piece.compacted else Continuity(piece.ledger_id, base_offset=piece.base)
        async with contextlib.aclosing(reader.batches(first, last)) as batches:
            async for batch in batches:
                if order is not None:
                    order.follow_all(batch, from_or_before=start)
                yield batch
                header = read_header(batch[-1].payload)
                if piece.base + header.next_offset >= piece.end:
                    return

    async def entries_as_stored(self, piece: Piece, first: int) -> AsyncGenerator[list[Entry]]:
        """Return all entries of the piece's ledger from `first` on, without checking offsets.

        Raises `ReadFailed`, `NoSuchEntry`, `LedgerNotFound`.
        """
        reader = await self.reader(piece.ledger_id, piece.offload)
        last = await reader.refresh()
        if first <= last:
            async with contextlib.aclosing(reader.batches(first, last)) as batches:
                async for batch in batches:
                    yield batch


def _keep_quiet() -> None:
    """Log only warnings, to standard error: Spark's processes do not configure structlog."""
    if not structlog.is_configured():
        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )


def _parts(topic: str) -> tuple[str, str]:
    namespace, _, name = topic.partition("/")
    return namespace, name


@contextlib.asynccontextmanager
async def connected(service: str, read_from: str = "auto") -> AsyncIterator[Cluster]:
    """Connect to the cluster that `service` names. For the driver."""
    cluster = Cluster(await store_of(service), read_from)
    try:
        with naming(service):
            await cluster.start()
        yield cluster
    finally:
        await cluster.close()
