"""The driver of bulk loads: commit, abort, and completing unfinished batches (rules.py).

A commit that returned is visible in every partition; after a retryable error it may be repeated
unchanged. Every broker watches all records, and completes batches for its own partitions. Before a
commit, the parts are checked against metadata and bookies: closed ledgers, of this batch and
partition, with the promised content.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from octavo.broker.bulkload import rules
from octavo.broker.bulkload.rules import Caller
from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import (
    BULK_LOAD_UNFINISHED,
    INVALID_BULK_LOAD,
    BrokerError,
    PartitionNotFound,
    TooManyLedgers,
    TopicNotFound,
)
from octavo.broker.state.log import delete_quietly
from octavo.broker.types import PartitionName, TopicName
from octavo.ledger.client import LedgerClient
from octavo.ledger.encryption import plain_length, wrapped_of
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.bulk_loads import (
    BulkLoadPart,
    BulkLoadRecord,
    BulkLoadStore,
    PrivateLedger,
)
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.metadata.one_record import ABSENT
from octavo.metadata.store import RecordExists, RecordNotFound, VersionConflict, Watch
from octavo.metadata.topics import PartitionRecord, TopicRecord, TopicStore
from octavo.protocol.batch import read_header
from octavo.protocol.codes import OctavoError
from octavo.protocol.large import large_body_of
from octavo.protocol.records import read_records

_log = structlog.get_logger()


class Offer(NamedTuple):
    name: PartitionName
    ledgers: tuple[PrivateLedger, ...]


class Checks:
    def __init__(self, records: TopicStore, ledgers: LedgerClient) -> None:
        self._records = records
        self._ledgers = ledgers

    async def topic(self, namespace: str, topic: str) -> TopicRecord | None:
        """Read the store: a watched copy may be of a deleted topic."""
        try:
            record, _ = await self._records.read_topic(namespace, topic)
        except RecordNotFound:
            return None
        return record if record.stands else None

    async def partition_record(self, name: PartitionName) -> PartitionRecord:
        try:
            return (await self._records.read_partition(*name))[0]
        except RecordNotFound:
            return PartitionRecord()

    async def parts(
        self, bulk_load: str, batch: int, offers: Sequence[Offer], at_once: int
    ) -> tuple[BulkLoadPart, ...]:
        ids = [ledger.ledger_id for offer in offers for ledger in offer.ledgers]
        names = [offer.name for offer in offers]
        if len(set(ids)) < len(ids) or len(set(names)) < len(names):
            raise INVALID_BULK_LOAD("a ledger, or a partition, is named twice in the bulk load")
        if len(ids) > rules.LEDGERS_MAX:
            raise TooManyLedgers(
                f"{len(ids)} ledgers in one bulk load; at most {rules.LEDGERS_MAX}: write with "
                "fewer tasks (coalesce), or in smaller batches"
            )
        turn = asyncio.Semaphore(at_once)

        async def one(offer: Offer) -> BulkLoadPart:
            topic, there = await self._check_partition(offer)
            if any(ledger.pieces for ledger in offer.ledgers):
                rules.check_large_taken(offer.name, topic.settings, len(there))
            for ledger in offer.ledgers:
                async with turn:
                    await self._check_ledger(bulk_load, batch, offer.name, ledger, topic)
                if ledger.ledger_id in there:
                    # A repeat of a remembered batch never gets here.
                    raise INVALID_BULK_LOAD(
                        f"{offer.name} has ledger {ledger.ledger_id} already: the batch was "
                        "committed, and its bulk load forgotten since"
                    )
            return BulkLoadPart(
                *offer.name, topic.created_ms, offer.ledgers, topic_incarnation=topic.identity
            )

        return tuple(await asyncio.gather(*(one(offer) for offer in offers if offer.ledgers)))

    async def _check_partition(self, offer: Offer) -> tuple[TopicRecord, set[int]]:
        topic = await self._check_exist(offer.name.topic_name, [offer.name])
        there = {segment.ledger_id for segment in (await self.partition_record(offer.name)).ledgers}
        count = len(there)
        if count + len(offer.ledgers) > rules.LEDGERS_MAX:
            raise TooManyLedgers(
                f"{offer.name} has {count} ledgers; with {len(offer.ledgers)} more it would have "
                f"more than {rules.LEDGERS_MAX}: let retention remove some, or write larger batches"
            )
        return topic, there

    async def exist(self, names: Iterable[PartitionName]) -> None:
        by_topic: dict[TopicName, list[PartitionName]] = {}
        for name in names:
            by_topic.setdefault(name.topic_name, []).append(name)
        for topic, of in by_topic.items():
            await self._check_exist(topic, of)

    async def _check_exist(
        self, name: TopicName, partitions: Iterable[PartitionName]
    ) -> TopicRecord:
        topic = await self.topic(*name)
        if topic is None:
            raise TopicNotFound(f"there is no topic {name}; PUT /v1/topics/{name} makes it")
        for one in partitions:
            if not 0 <= one.partition < topic.settings.partitions:
                raise PartitionNotFound(
                    f"topic {name} has partitions 0 to {topic.settings.partitions - 1}, "
                    f"not {one.partition}"
                )
        return topic

    async def _check_ledger(
        self,
        bulk_load: str,
        batch: int,
        name: PartitionName,
        ledger: PrivateLedger,
        topic: TopicRecord,
    ) -> None:
        try:
            found = await self._ledgers.metadata(ledger.ledger_id)
        except LedgerNotFound as error:
            raise INVALID_BULK_LOAD(f"{error}; write the batch again") from error
        check_owner(found, bulk_load, batch)
        meant_for = found.custom.get(rules.PARTITION_KEY, b"").decode("utf-8", "replace")
        if meant_for != str(name):
            raise INVALID_BULK_LOAD(f"ledger {ledger.ledger_id} is for {meant_for}, not {name}")
        if found.state is not LedgerState.CLOSED or found.last_entry < 0:
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} is {found.state.name} with last entry "
                f"{found.last_entry}; it must be closed and not empty"
            )
        if ledger.pieces is not None and not found.last_entry == ledger.pieces == ledger.count - 1:
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} has {ledger.count} messages in {found.last_entry + 1} "
                f"entries: with {ledger.pieces} pieces of a large message it would have one more "
                "of each"
            )
        wrapped = wrapped_of(found)
        if topic.settings.encrypted and (wrapped is None or wrapped.namespace != name.namespace):
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} is not encrypted for namespace {name.namespace}, whose "
                "topics are: write the batch again with that namespace's key"
            )
        reader = await self._ledgers.open(ledger.ledger_id)
        try:
            (entry,) = await reader.read(found.last_entry, found.last_entry)
        finally:
            await reader.close()
        header = read_header(entry.payload)
        count = header.base_offset + header.record_count
        size = plain_length(found)
        if (count, size) != (ledger.count, ledger.bytes):
            raise INVALID_BULK_LOAD(
                f"ledger {ledger.ledger_id} has {count} messages in {size} bytes, "
                f"not {ledger.count} in {ledger.bytes}"
            )
        if ledger.pieces is not None:
            *_, message = read_records(entry.payload)
            large = large_body_of(message.headers)
            is_one = header.record_count == 1 and not message.value
            if not is_one or large is None or large.pieces != ledger.pieces:
                raise INVALID_BULK_LOAD(
                    f"ledger {ledger.ledger_id} does not end with a large message in "
                    f"{ledger.pieces} pieces"
                )


def check_owner(found: LedgerMetadata, bulk_load: str, batch: int) -> None:
    """Refuse ledgers of other batches: only their writer may commit or delete them."""
    custom = found.custom
    is_ours = (
        custom.get(rules.KIND_KEY) == rules.KIND
        and custom.get(rules.BULK_LOAD_KEY) == bulk_load.encode()
        and custom.get(rules.BATCH_KEY) == str(batch).encode()
        and rules.PARTITION_KEY in custom
    )
    if not is_ours:
        raise INVALID_BULK_LOAD(
            f"ledger {found.ledger_id} was not written for batch {batch} of {bulk_load}"
        )


_CHANGES_TRIED_MAX = 16
_AT_ONCE = 64
_SWEEP_AFTER_MS = 10_000
"""Leaves a batch to its committer this long, by a steady clock."""
KEPT_MS = 7 * 24 * 3600 * 1000
"""How long a completed batch is remembered after the id's last use; a later repeat counts
as new.
"""

LoadPart = Callable[[PartitionName, str, int], Awaitable[int | None]]
"""Asks the owner for `Partition.load_part`; raises `TopicNotFound` when it is deleted."""
CheckTaken = Callable[[PartitionName], Awaitable[None]]
"""Asks the owner whether it takes bulk loads; raises `TopicIsStream`."""
ANYBODY = Caller()
_LOST_RACE = (VersionConflict, RecordExists, RecordNotFound)


async def takes_all(_: PartitionName) -> None: ...


class TakesPart(Protocol):
    async def load_part(self, bulk_load: str, batch: int) -> int | None: ...


class Committed(NamedTuple):
    """`offsets`: of each partition's part, as far as known."""

    record: BulkLoadRecord
    repeated: bool
    offsets: dict[PartitionName, int | None]


class _Seen:
    __slots__ = ("changed_ms", "complete", "since_s", "stale", "version", "watch")

    def __init__(self, watch: Callable[[Callable[[], None]], Watch]) -> None:
        self.stale = self.complete = True
        self.changed_ms = 0
        self.version = ABSENT
        """The version of an incomplete record."""
        self.since_s = 0.0
        """Since when this broker knows that version of the record."""
        self.watch = watch(self._changed)  # before the first read, so that no change is missed

    def _changed(self) -> None:
        self.stale = True


class BulkLoads:
    def __init__(
        self,
        store: BulkLoadStore,
        records: TopicStore,
        ledgers: LedgerClient,
        clock: Callable[[], int],
        deletion_time: Callable[[], DeletionTime | None],
    ) -> None:
        self._store = store
        self._ledgers = ledgers
        self._checks = Checks(records, ledgers)
        self._clock = clock
        self._deletion_time = deletion_time
        self._seen: dict[str, _Seen] = {}
        self._list_watch: Watch | None = None
        self._list_stale = True
        self._reads = asyncio.Semaphore(_AT_ONCE)
        """Bounds reads: after a reconnect all records may have changed."""
        self._cluster = ""

    async def cluster(self) -> str:
        if not self._cluster:
            self._cluster = await self._ledgers.records.instance_id()
        return self._cluster

    async def newest(self, bulk_load: str) -> BulkLoadRecord:
        """Read the record; batch -1 if there is none."""
        return (await self._store.read(bulk_load))[0]

    async def commit(
        self,
        bulk_load: str,
        batch: int,
        offers: Sequence[Offer],
        load_part: LoadPart,
        *,
        published: bool = False,
        caller: Caller = ANYBODY,
        check_taken: CheckTaken = takes_all,
    ) -> Committed:
        """Make a batch part of its partitions, all or nothing; return when all is visible.

        `published`: the writer began and published it itself. Raises `BULK_LOAD_UNFINISHED` if it
        is committed but not visible everywhere: call again. After any other error, also of
        `check_taken`, nothing is committed.
        """
        parts: tuple[BulkLoadPart, ...] | None = None
        for _ in range(_CHANGES_TRIED_MAX):
            record, version, offsets = await self._at_turn(bulk_load, batch, load_part, caller)
            if offsets is not None:
                return Committed(record, True, offsets)
            if parts is None:
                parts = await self._checks.parts(bulk_load, batch, offers, _AT_ONCE)
                await _check_streams((offer.name for offer in offers), check_taken)
            wanted = rules.committing(
                record, batch, parts, self._clock(), published=published, digest=caller.digest
            )
            try:
                await self._store.write(bulk_load, wanted, version)
            except _LOST_RACE:
                continue
            _log.info("bulk_load_committed", bulk_load=bulk_load, batch=batch)
            return Committed(wanted, False, await self._finish(bulk_load, wanted, load_part))
        raise _crowded(bulk_load)

    async def begin(
        self,
        bulk_load: str,
        batch: int,
        content: Mapping[PartitionName, str],
        load_part: LoadPart,
        caller: Caller = ANYBODY,
        check_taken: CheckTaken = takes_all,
    ) -> bool:
        """Note that the caller publishes this batch; return False if it is committed."""
        words = {str(name): said for name, said in content.items()}
        for _ in range(_CHANGES_TRIED_MAX):
            record, version, offsets = await self._at_turn(bulk_load, batch, load_part, caller)
            if offsets is not None:
                return False
            wanted = rules.beginning(record, batch, words, self._clock(), caller.digest)
            try:
                if wanted is not None:
                    # A batch that cannot be published would block the id.
                    await self._checks.exist(content)
                    await _check_streams(content, check_taken)
                    await self._store.write(bulk_load, wanted, version)
            except _LOST_RACE:
                continue
            return True
        raise _crowded(bulk_load)

    async def _at_turn(
        self, bulk_load: str, batch: int, load_part: LoadPart, caller: Caller
    ) -> tuple[BulkLoadRecord, int, dict[PartitionName, int | None] | None]:
        """Complete the batches before this batch; also return a repeat's offsets."""
        for _ in range(_CHANGES_TRIED_MAX):
            record, version = await self._store.read(bulk_load)
            rules.check_caller(record, caller)
            rules.check_order(record, batch, caller.after)
            found = rules.standing(record, batch)
            if found is rules.Standing.NEW:
                return record, version, None
            offsets = await self._finish(bulk_load, record, load_part)
            if found is rules.Standing.REPEATED:
                return record, version, offsets
        raise _crowded(bulk_load)

    async def abort(
        self, bulk_load: str, batch: int, ledgers: Iterable[int], caller: Caller = ANYBODY
    ) -> list[int]:
        """Give up private ledgers of this batch, and delete the ledgers that no partition has.

        Binds no id to a token: other processes may give up orphans.
        """
        rules.check_caller(await self.newest(bulk_load), caller)
        own = []
        for ledger_id in dict.fromkeys(ledgers):
            try:
                found = await self._ledgers.metadata(ledger_id)
            except LedgerNotFound:
                continue
            check_owner(found, bulk_load, batch)
            own.append(found)
        ids = [one.ledger_id for one in own]
        record = await self._change(
            bulk_load, lambda record: rules.aborting(record, batch, ids, self._clock())
        )
        deleted = []
        for one in own:
            if not await self._is_needed(record, one):
                await delete_quietly(self._ledgers, one.ledger_id)
                deleted.append(one.ledger_id)
        return deleted

    def close(self) -> None:
        for bulk_load in tuple(self._seen):
            self._forget(bulk_load)
        if self._list_watch is not None:
            self._list_watch.cancel()

    @property
    def known(self) -> Collection[str]:
        return self._seen.keys()

    async def due(self) -> list[str]:
        """Return the ids whose record changed, is not complete, or is old."""
        if self._list_watch is None:
            self._list_watch = self._store.watch_list(self._list_changed)
        if self._list_stale:
            self._list_stale = False
            try:
                found = await self._store.list()
            except BaseException:
                self._list_stale = True
                raise
            for gone in self._seen.keys() - set(found):
                self._forget(gone)
            for bulk_load in found:
                self._watched(bulk_load)
        return [
            bulk_load
            for bulk_load, seen in self._seen.items()
            if seen.stale or not seen.complete or self._is_old(seen.changed_ms)
        ]

    def _list_changed(self) -> None:
        self._list_stale = True

    def _watched(self, bulk_load: str) -> _Seen:
        seen = self._seen.get(bulk_load)
        if seen is None:
            seen = self._seen[bulk_load] = _Seen(partial(self._store.watch, bulk_load))
        return seen

    def _forget(self, bulk_load: str) -> None:
        seen = self._seen.pop(bulk_load, None)
        if seen is not None:
            seen.watch.cancel()

    def _is_old(self, changed_ms: int) -> bool:
        # A batch forgotten too early would be stored again.
        time = self._deletion_time()
        return time is not None and time.now_ms - changed_ms > KEPT_MS

    async def _read_watched(self, bulk_load: str, seen: _Seen) -> tuple[BulkLoadRecord, int]:
        seen.stale = False
        try:
            async with self._reads:
                record, version = await self._store.read(bulk_load)
        except BaseException:
            seen.stale = True
            raise
        seen.complete, seen.changed_ms = record.complete, record.changed_ms
        return record, version

    async def sweep(
        self, bulk_load: str, local: Callable[[PartitionName], Awaitable[TakesPart | None]]
    ) -> None:
        """Complete a batch for the partitions served here, or forget an old record.

        After an error of store or partitions: call again.
        """
        seen = self._watched(bulk_load)
        record, version = await self._read_watched(bulk_load, seen)
        if version == ABSENT:
            self._forget(bulk_load)
            self._list_stale = True  # the record may have been created again
            return
        if record.complete:
            if self._is_old(record.changed_ms):
                with contextlib.suppress(*_LOST_RACE):  # another broker changed the record
                    await self._store.delete(bulk_load, version)
            return
        now_s = asyncio.get_running_loop().time()
        if seen.version != version:
            seen.version, seen.since_s = version, now_s
        if now_s - seen.since_s < _SWEEP_AFTER_MS / 1000:
            return
        done = True
        for part in record.parts:
            name = _name(part)
            if await self._is_done(bulk_load, record, part):
                continue
            try:
                partition = await local(name)
                if partition is None:
                    done = False
                else:
                    await partition.load_part(bulk_load, record.batch)
            except (TopicNotFound, PartitionNotFound) as error:
                await self._drop(part, error)
        if done:
            await self._complete(bulk_load, record.batch)

    async def _finish(
        self, bulk_load: str, record: BulkLoadRecord, load_part: LoadPart
    ) -> dict[PartitionName, int | None]:
        if record.complete:
            return {}
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(part: BulkLoadPart) -> int | None:
            async with turn:
                try:
                    return await load_part(_name(part), bulk_load, record.batch)
                except (TopicNotFound, PartitionNotFound) as error:
                    await self._drop(part, error)
                    return None

        found = await asyncio.gather(*map(one, record.parts), return_exceptions=True)
        offsets: dict[PartitionName, int | None] = {}
        for part, result in zip(record.parts, found, strict=True):
            if isinstance(result, OctavoError):
                raise BULK_LOAD_UNFINISHED(
                    f"batch {record.batch} of bulk load {bulk_load} is committed, but "
                    f"{_name(part)} does not have its part yet: {result}"
                ) from result
            if isinstance(result, BaseException):
                raise result
            offsets[_name(part)] = result
        await self._complete(bulk_load, record.batch)
        return offsets

    async def _complete(self, bulk_load: str, batch: int) -> None:
        await self._change(bulk_load, lambda record: rules.completed(record, batch))

    async def _change(
        self, bulk_load: str, make: Callable[[BulkLoadRecord], BulkLoadRecord | None]
    ) -> BulkLoadRecord:
        """Set the record to `make(record)`, unless that is None; return the record before."""
        for _ in range(_CHANGES_TRIED_MAX):
            record, version = await self._store.read(bulk_load)
            wanted = make(record)
            try:
                if wanted is not None:
                    await self._store.write(bulk_load, wanted, version)
            except _LOST_RACE:
                continue
            return record
        raise _crowded(bulk_load)

    async def _drop(self, part: BulkLoadPart, error: OctavoError) -> None:
        """Delete a part's ledgers, or raise `error` if its topic exists."""
        await self._store.sync()
        topic = await self._checks.topic(part.namespace, part.topic)
        if topic is not None and part.is_of(topic):
            raise error
        _log.info("part_void", partition=str(_name(part)))
        for ledger in part.ledgers:
            await delete_quietly(self._ledgers, ledger.ledger_id)

    async def _is_done(self, bulk_load: str, record: BulkLoadRecord, part: BulkLoadPart) -> bool:
        marks = (await self._checks.partition_record(_name(part))).bulk_loads
        return rules.is_loaded(marks, rules.mark_of(bulk_load, record), record.batch)

    async def _is_needed(self, record: BulkLoadRecord, ledger: LedgerMetadata) -> bool:
        """Return whether a partition has this ledger, or will get it.

        The abort has refused it before `record` was read: if the record does not name it, no
        partition will get it.
        """
        if not record.complete and ledger.ledger_id in rules.ledger_ids(record.parts):
            return True
        namespace, topic, number = ledger.custom[rules.PARTITION_KEY].decode().split("/")
        partition = await self._checks.partition_record(
            PartitionName(namespace, topic, int(number))
        )
        return any(segment.ledger_id == ledger.ledger_id for segment in partition.ledgers)


def _name(part: BulkLoadPart) -> PartitionName:
    return PartitionName(part.namespace, part.topic, part.partition)


def _crowded(bulk_load: str) -> BrokerError:
    return BULK_LOAD_UNFINISHED(f"bulk load {bulk_load} is being changed by others; try again")


async def _check_streams(names: Iterable[PartitionName], check: CheckTaken) -> None:
    """Ask one partition of each topic: a stream has only one."""
    for name in names:
        if name.partition == 0:
            await check(name)
