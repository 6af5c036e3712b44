"""What the Spark source asks of a cluster: which partitions there are, where they end, their bytes.

Names and chains come from the metadata; bytes straight from the bookies, through the ledger client
and without fencing anything. An open ledger is read up to its last confirmed entry. Used on the
driver with the real metadata store, in tasks with a copy of the few records they need
(metadata/frozen.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import re
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from dataclasses import replace

import aiohttp
import structlog

from octavo.broker.cluster.registry import decode_broker
from octavo.client.trust import connector
from octavo.clock import wall_clock_ms
from octavo.credentials import TOKEN, bearer, certificates, credentials_file
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
from octavo.metadata.frozen import FrozenStore
from octavo.metadata.ledger_codec import encode_ledger_metadata
from octavo.metadata.ledger_ids import ledger_path
from octavo.metadata.ledgers import LEDGERS_ROOT
from octavo.metadata.opening import open_store
from octavo.metadata.paths import join
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataError, MetadataStore, RecordNotFound
from octavo.metadata.together import all_of
from octavo.metadata.topic_settings import resolved
from octavo.metadata.topics import (
    BROKERS_ROOT,
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    Policies,
    TopicSettings,
    TopicStore,
    broker_path,
)
from octavo.protocol.batch import read_header
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import Entry
from octavo.security.bookie_tokens import LEDGERS_MAX, BookieTokens, prover
from octavo.security.principal import Identity
from octavo.spark.options import InvalidOption, Selection
from octavo.spark.splits import DataLost, Piece, Span, View, copy_to_read

_ANSWER_S = 30.0
_RECORDS_AT_ONCE = 64
"""Of a metadata store far away each takes a journey; of thousands of ledgers, all together."""
_NODE = "spark"
_READER_TOKEN = "/octavo/reader-token"
"""Among records copied for a task: the token that reads the ledgers of these, and no others."""
_TASK_TOKEN_S = 86_400
"""Tasks may wait for long until they run. Then they ask the service for new records."""


class ServiceUnavailable(OctavoError):
    """The cluster that `service` names does not answer."""

    name = "service-unavailable"
    retryable = True


async def metadata_url(service: str) -> str:
    """The metadata's URL: a broker tells it. Raises `ServiceUnavailable`, `InvalidOption`."""
    if not service.startswith(("http://", "https://")):
        return service
    url = service.rstrip("/") + "/v1/cluster"
    try:
        timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
        async with (
            aiohttp.ClientSession(
                timeout=timeout, connector=connector(), headers=bearer()
            ) as session,
            session.get(url) as answer,
        ):
            if answer.status in (401, 403):
                raise ServiceUnavailable(
                    f"{service} does not let us see the cluster ({answer.status}): set {TOKEN} to "
                    "a token that may describe it, or give the metadata store's URL as service"
                )
            answer.raise_for_status()
            found = (await answer.json())["metadata"]["url"]
            assert isinstance(found, str)
            return found
    except (aiohttp.ClientError, TimeoutError, ValueError, KeyError) as error:
        raise ServiceUnavailable(
            f"no broker answers at {service}: {str(error) or 'no answer in 30 s'}. Option service "
            "is the URL of a broker, or of the metadata store"
        ) from error


class Cluster:
    """Open with `async with connected(service)`, or over a copy of records."""

    def __init__(self, store: MetadataStore, read_from: str = "auto") -> None:
        """`read_from`: where closed ledgers that are offloaded are read (splits.py)."""
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

    async def start(self) -> None:
        """Raises `MetadataUnavailable`, `MetadataUnusable`."""
        await self.store.start()
        await self._trust()
        await self.ledgers.bookies.start()

    async def _trust(self) -> None:
        """How bookies come to know us: as a node, who has the cluster's secret, or by the token
        that came with a copy of records."""
        if isinstance(self.store, FrozenStore):
            with contextlib.suppress(RecordNotFound):
                token = (await self.store.get(_READER_TOKEN)).value
                self.ledgers.bookies.prove = lambda _: token
            return
        secret = await cluster_secret(self.store)
        self.ledgers.cluster_password = secret.ledger_password
        self._tokens = BookieTokens(secret, wall_clock_ms)
        self.ledgers.bookies.prove = prover(self._tokens, _NODE)

    async def close(self) -> None:
        """Let go of everything."""
        while self._open:
            _, reader = self._open.popitem()
            await reader.close()
        await self.ledgers.close()
        await self.store.close()

    # ------------------------------------------------------------------ which partitions

    async def partitions(self, selection: Selection) -> dict[str, list[int]]:
        """By topic. Raises `InvalidOption` for a topic or partition that does not exist."""
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
        """As in Kafka an expression fits a whole name: here `namespace/topic`, or `topic` of
        `public`."""
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
        """How many partitions a topic has; None when there is no such topic (any more)."""
        settings = await self.settings(name)
        return None if settings is None else settings.partitions

    async def settings(self, name: str) -> TopicSettings | None:
        """A topic's settings, with the policies that hold for it; None when there is no such topic
        (any more)."""
        namespace, topic = _parts(name)
        try:
            record, _ = await self.topics.read_topic(namespace, topic)
        except RecordNotFound:
            return None
        if not record.stands:
            return None
        said = Policies()
        with contextlib.suppress(RecordNotFound):
            said = (await self.topics.read_namespace(namespace))[0].policies
        return replace(record.settings, policies=resolved(record.settings.policies, said))

    async def incarnation(self, name: str) -> str:
        """What tells the topic from others of its name; "" when there is no such topic."""
        try:
            record, _ = await self.topics.read_topic(*_parts(name))
        except RecordNotFound:
            return ""
        return record.identity if record.stands else ""

    async def named_ledgers(self) -> set[int]:
        """Every ledger that a partition's record names."""
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
        """Where the live brokers are reached."""
        found = []
        for broker_id in await self.store.children(BROKERS_ROOT):
            with contextlib.suppress(RecordNotFound):
                info = decode_broker((await self.store.get(broker_path(broker_id))).value)
                if info is not None:
                    found.append(info.url)
        return found

    # ------------------------------------------------------------------ where a partition ends

    async def record(
        self, topic: str, partition: int, incarnation: str | None = None
    ) -> PartitionRecord:
        """The partition's record; an empty one when nobody has used it yet.

        With an `incarnation` one that is of another topic of that name, or of a topic that is being
        deleted, does not count.
        """
        with contextlib.suppress(RecordNotFound):
            record, _ = await self.topics.read_partition(*_parts(topic), partition)
            if incarnation is None:
                return record
            if not record.deleted and record.incarnation in ("", incarnation):
                return record
        return PartitionRecord()

    async def view(self, topic: str, partition: int) -> View:
        """The partition up to the last confirmed message. Empty when nobody has used it yet.

        Raises `ReadFailed` when no bookie of the open ledger says how far it has come.
        """
        incarnation = await self.incarnation(topic)
        record = await self.record(topic, partition, incarnation)
        return await self.view_of(topic, partition, record, incarnation)

    async def view_of(
        self, topic: str, partition: int, record: PartitionRecord, incarnation: str = ""
    ) -> View:
        """The same, by a record that was read already."""
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
        """One past the last confirmed offset of a ledger that was open."""
        reader = await self.reader(link.ledger_id)
        lac = await reader.refresh()
        if lac < 0:
            return link.base_offset
        header = await header_of(reader, lac)
        return link.base_offset + header.base_offset + header.record_count

    async def reader(
        self, ledger_id: int, offload: OffloadRecord | None = None
    ) -> LedgerReader | OffloadedReader:
        """The ledger, or its copy, open for reading; kept while this lives.

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
        """It is needed no more."""
        reader = self._open.pop(ledger_id, None)
        if reader is not None:
            await reader.close()

    async def offset_at(self, view: View, time_ms: int) -> int | None:
        """The first offset whose message has this timestamp or a newer one; None: all are older.

        Kafka's rule. An open ledger, and one that was closed by a take-over, is read from its first
        message on until there is one (`EntrySource.as_new_as`).
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
            # Behind the end of the view are messages that came after it was made; behind a fork's
            # cut such as it does not have.
            if found is not None and span.base + found < span.end:
                return span.base + found
        return None

    # ------------------------------------------------------------------ records for the tasks

    async def records_for(self, ledger_ids: Iterable[int]) -> dict[str, bytes]:
        """A copy of what reading these ledgers needs: their records, the bookies' addresses, and a
        token for bookies that ask who reads.

        A ledger that is gone is left out: whoever reads it finds out, and asks why.
        """
        records = {
            join(LEDGERS_ROOT, "available", info.bookie_id): encode_service_info(info)
            for info in self.ledgers.bookies.available.values()
        }
        wanted = dict.fromkeys(ledger_ids)
        if self._tokens is not None and len(wanted) <= LEDGERS_MAX:  # more: to be refused there
            token, _ = self._tokens.reader(
                Identity(f"node:{_NODE}", source="node"), None, wanted, _TASK_TOKEN_S
            )
            records[_READER_TOKEN] = token.encode()
        gate = asyncio.Semaphore(_RECORDS_AT_ONCE)

        async def one(ledger_id: int) -> None:
            async with gate:
                with contextlib.suppress(LedgerNotFound):
                    found = await self.ledgers.metadata(ledger_id)
                    records[ledger_path(LEDGERS_ROOT, ledger_id)] = encode_ledger_metadata(found)

        await all_of(one(ledger_id) for ledger_id in wanted)
        return records

    # ------------------------------------------------------------------ bytes

    async def entries(self, piece: Piece) -> AsyncGenerator[list[Entry]]:
        """The entries that hold the piece, about a megabyte at a time, the next under way.

        Raises `ReadFailed`, `NoSuchEntry`, `LedgerNotFound`; `LedgerDamaged` where one entry does
        not follow from the one before it.
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
        # A compacted view has gaps, by its nature.
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
        """All entries of the piece's ledger from `first` on, whatever offsets their batches claim.

        Raises `ReadFailed`, `NoSuchEntry`, `LedgerNotFound`.
        """
        reader = await self.reader(piece.ledger_id, piece.offload)
        last = await reader.refresh()
        if first <= last:
            async with contextlib.aclosing(reader.batches(first, last)) as batches:
                async for batch in batches:
                    yield batch


def _keep_quiet() -> None:
    """In Spark's processes nobody has set the logs up: warnings only, on standard error."""
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
    """The cluster that `service` names, for the driver."""
    store = open_store(
        await metadata_url(service), credentials_file=credentials_file(), tls=certificates()
    )
    cluster = Cluster(store, read_from)
    try:
        try:
            await cluster.start()
        except MetadataError as error:
            if service.startswith("http"):
                raise type(error)(
                    f"{error}. Spark learns from the metadata store what there is to read; "
                    f"{service} names it, and says no more: this host has to reach it (and to have "
                    "OCTAVO_METADATA_CREDENTIALS_FILE, OCTAVO_TLS_CA where it asks for them)"
                ) from error
            raise
        yield cluster
    finally:
        await cluster.close()
