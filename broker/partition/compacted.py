"""Read a partition through its compacted view: the view below the horizon, then the log.

Jobs publish views without the owner, so a read first looks at the record, and again at most once a
second. If a replaced view's ledgers are gone, the read continues in the new view at the same
offset: a message missing there was superseded, or was a tombstone. If the record still names a
missing ledger, the read fails.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar

from octavo.broker.errors import COMPACTED_VIEW_UNREADABLE, MessageNotFound, NotOwner
from octavo.broker.log.compaction_rules import CompactedBatch, Hints, Room, View, batch_of
from octavo.broker.log.ledger_list import Contents
from octavo.broker.log.reader import OpenReaders
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.log import PartitionLog
from octavo.broker.types import MessageId, PartitionName, StoredBatch
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerNotFound
from octavo.ledger.read.open_batch import Opening
from octavo.ledger.read.reader import LedgerReader
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.metadata.store import MetadataUnavailable, SessionExpired
from octavo.metadata.topics import CompactedLedger, CompactionRecord
from octavo.protocol.batch import InvalidBatch
from octavo.protocol.codes import NoSuchEntry, OctavoError
from octavo.protocol.compression import UnsupportedCompression

T = TypeVar("T")
_READERS_MAX = 8
_ENTRIES_MAX = 1_000
_LEDGERS_IN_PAGE_MAX = 8
"""Bounds the calls for a page: a view may have many small ledgers."""
_TRIES_MAX = 4
_LOOK_EVERY_S = 1.0
_LOOK_S_MAX = 2.0


class CompactedPage(NamedTuple):
    """Batches in the order of offsets, from the view and then from the log.

    Messages before `start` do not belong to the answer. Continue at `following`.
    """

    batches: list[StoredBatch]
    start: int
    following: int


class CompactedLog:
    def __init__(
        self,
        name: PartitionName,
        ledgers: LedgerClient,
        record: PartitionRecordKeeper,
        log: PartitionLog,
        opening: Opening,
    ) -> None:
        self._log = log
        self._view = CompactedReader(name, ledgers, record, opening)

    @property
    def view(self) -> CompactedReader:
        return self._view

    async def close(self, error: NotOwner) -> None:
        await self._view.close(error)

    async def resolve(
        self, *, at: MessageId | int | str | None = None, time_ms: int | None = None
    ) -> int:
        """See `Partition.resolve`; with a view, `earliest` is 0."""
        await self._view.learn(at_once=not isinstance(at, int) or at == 0)
        if time_ms is not None:
            return await self._offset_at(time_ms)
        if isinstance(at, MessageId):
            found = await self._view.position(at)
            return await self._log.position(at) if found is None else found
        if isinstance(at, int):
            return at
        assert at in ("earliest", "latest"), at
        if at == "latest":
            return self._log.end_offset
        return 0 if self._view.now.horizon else self._log.earliest_offset

    async def _offset_at(self, time_ms: int) -> int:
        while True:
            found, horizon = await self._view.offset_at(time_ms)
            if found is None:
                found = await self._log.offset_at(time_ms, horizon)
            if self._view.now.horizon == horizon or self._log.earliest_offset <= horizon:
                return found

    async def read(
        self, offset: int, *, bytes_max: int, count_max: int, wait_s: float = 0.0
    ) -> CompactedPage:
        """Read the view; at the end, wait. Raises `OffsetTrimmed` only from the horizon on."""
        start = offset
        if offset < self._view.now.horizon:
            room = Room(bytes_max, count_max)
            found, start, horizon = await self._view.read(offset, room)
            batches: list[StoredBatch] = list(found)
            for batch in found:
                room = room.without(batch)
            if batches:
                if start == horizon and room.is_left:
                    batches += await self._behind(horizon, room)
                return CompactedPage(batches, offset, max(start, batches[-1].next_offset))
        behind = await self._log.read(start, bytes_max, count_max, wait_s)
        following = behind[-1].next_offset if behind else start
        return CompactedPage(behind, start, following)

    async def _behind(self, horizon: int, room: Room) -> list[StoredBatch]:
        with contextlib.suppress(OctavoError):
            found = await self._log.read(horizon, room.bytes, room.messages, 0)
            if found and len(found[0].data) <= room.bytes:
                return found
        return []


class CompactedReader:
    def __init__(
        self,
        name: PartitionName,
        ledgers: LedgerClient,
        record: PartitionRecordKeeper,
        opening: Opening,
    ) -> None:
        self._name = name
        self._opening = opening
        self._ledgers = ledgers
        self._record = record
        self._loop = asyncio.get_running_loop()
        self._known: CompactionRecord | None = None
        self._view = View(None)
        self._readers = OpenReaders[LedgerReader](_READERS_MAX)
        self._hints = Hints()
        self._times: dict[int, Contents] = {}
        self._looked_s = float("-inf")
        self._turn = asyncio.Lock()
        self._closed: NotOwner | None = None

    @property
    def now(self) -> View:
        known = self._record.value.compaction
        if known is not self._known:
            self._view = View(known)
            self._known = known
            kept = {one.ledger_id for one in self._view.ledgers}
            self._times = {one: times for one, times in self._times.items() if one in kept}
        return self._view

    async def learn(self, *, at_once: bool) -> None:
        """Look for a newer view, unless the last look was recent and `at_once` is false.

        If the metadata store does not answer, the known view is safe: the owner trims by
        compare-and-set of the record, so it knows every view published before a trim.
        """
        asked_s = self._loop.time()
        lately = asked_s < self._looked_s + _LOOK_EVERY_S
        if not at_once and (lately or self._turn.locked()):
            return
        async with self._turn:
            if self._looked_s > asked_s:
                return  # a look that began after this call is enough
            self._looked_s = self._loop.time()
            with contextlib.suppress(MetadataUnavailable, SessionExpired, TimeoutError):
                async with asyncio.timeout(_LOOK_S_MAX):
                    # A metadata server may be behind, and after a trim a key may be in the newest
                    # view only.
                    await self._record.look(newest=at_once)

    async def close(self, error: NotOwner) -> None:
        self._closed = error
        self._hints.clear()
        await self._readers.close()

    async def read(self, offset: int, room: Room) -> tuple[list[CompactedBatch], int, int]:
        """Return batches from `offset` on, where to continue, and the view's horizon.

        If the place to continue is the horizon, or there are no batches, the view has no more.
        """
        return await self._in_view(lambda view: self._read(view, offset, room))

    async def _read(
        self, view: View, offset: int, room: Room
    ) -> tuple[list[CompactedBatch], int, int]:
        found: list[CompactedBatch] = []
        number = view.number_at(offset)
        for ledger in view.ledgers[number : number + _LEDGERS_IN_PAGE_MAX]:
            try:
                taken = await self._of_ledger(ledger, offset, room, must=not found)
            except (LedgerNotFound, NoSuchEntry):
                if not found:
                    raise
                break
            for batch in taken:
                room = room.without(batch)
            found += taken
            if not room.is_left or not taken or taken[-1].next_offset <= ledger.last_offset:
                break
        following = found[-1].next_offset if found else offset
        if view.number_at(following) == len(view.ledgers):
            following = max(offset, view.horizon)
        return found, following, view.horizon

    async def position(self, message_id: MessageId) -> int | None:
        """Return a message's offset; None if its ledger is not in the view."""

        async def find(view: View) -> int | None:
            ledger = view.ledger(message_id.ledger_id)
            if ledger is None:
                return None
            reader = await self._reader(ledger)
            if message_id.entry_id <= reader.last_add_confirmed:
                batch = await self._batch(ledger, message_id.entry_id)
                if message_id.index < batch.header.record_count:
                    return batch.base_offset + await self._delta(batch, message_id.index)
            raise MessageNotFound(f"{self._name} has no message {message_id}")

        return await self._in_view(find)

    async def offset_at(self, time_ms: int) -> tuple[int | None, int]:
        """Return the first offset with a message as new as `time_ms`, and the horizon.

        None: all are older. The first call reads each ledger of the view completely, and keeps the
        result.
        """

        async def find(view: View) -> tuple[int | None, int]:
            for ledger in view.ledgers:
                times = await self._times_of(ledger)
                if times.last_ms < time_ms:
                    continue
                reader = await self._reader(ledger)
                found = await offset_as_new_as(
                    reader, time_ms, reader.last_add_confirmed, times.disorder_ms, self._opening,
                    gaps=True,
                )  # fmt: skip
                if found is not None:
                    return ledger.first_offset + found, view.horizon
            return None, view.horizon

        return await self._in_view(find)

    async def _delta(self, batch: CompactedBatch, index: int) -> int:
        try:
            async with self._opening(batch.data) as windows:
                first, records = windows.gapped_window(index)
                return records[index - first].offset_delta
        except (InvalidBatch, UnsupportedCompression) as error:
            raise COMPACTED_VIEW_UNREADABLE(
                f"entry {batch.entry_id} of ledger {batch.ledger_id}, of the compacted view, "
                f"cannot be opened: {error}"
            ) from error

    async def _times_of(self, ledger: CompactedLedger) -> Contents:
        found = self._times.get(ledger.ledger_id)
        if found is None:
            found, reader = Contents(), await self._reader(ledger)
            async for entry in reader.entries(0, reader.last_add_confirmed):
                batch = batch_of(ledger, entry)
                found = found.plus(batch.header, len(batch.data))
            self._times[ledger.ledger_id] = found
        return found

    async def _in_view(self, work: Callable[[View], Awaitable[T]]) -> T:
        """Repeat `work` if the view was replaced and deleted meanwhile."""
        for _ in range(_TRIES_MAX):
            view = self.now
            try:
                return await work(view)
            except (LedgerNotFound, NoSuchEntry) as error:
                await self._record.look()
                if self.now.ledgers == view.ledgers:
                    raise COMPACTED_VIEW_UNREADABLE(
                        f"{self._name}: its compacted view is incomplete: {error}. A read without "
                        "compacted=true returns the messages that retention has left"
                    ) from error
                self._hints.clear()
        raise COMPACTED_VIEW_UNREADABLE(
            f"{self._name}: its compacted view was replaced {_TRIES_MAX} times while it was read"
        )

    async def _of_ledger(
        self, ledger: CompactedLedger, offset: int, room: Room, *, must: bool
    ) -> list[CompactedBatch]:
        """Read a ledger's batches, at least one if `must`."""
        reader = await self._reader(ledger)
        last = reader.last_add_confirmed
        first = await self._entry_at(ledger, offset, last)
        wanted = min(_ENTRIES_MAX, room.entries(ledger, last + 1))
        entries = await reader.read(first, min(last, first + wanted - 1))
        taken: list[CompactedBatch] = []
        following = offset
        for entry in entries:
            batch = batch_of(ledger, entry)
            if (taken and batch.base_offset < following) or batch.next_offset <= following:
                self._refuse(batch, f"it comes after offset {following - 1}")
            if entry.entry_id == last and batch.next_offset != ledger.last_offset + 1:
                self._refuse(batch, f"it is the last; the ledger ends at {ledger.last_offset}")
            if (taken or not must) and (len(batch.data) > room.bytes or room.messages <= 0):
                break
            taken.append(batch)
            room = room.without(batch)
            following = batch.next_offset
        if taken:
            self._hints.note(taken[-1], is_last=taken[-1].entry_id == last)
        return taken

    def _refuse(self, batch: CompactedBatch, why: str) -> None:
        raise COMPACTED_VIEW_UNREADABLE(
            f"{self._name}: entry {batch.entry_id} of ledger {batch.ledger_id}, of the compacted "
            f"view, has offsets {batch.base_offset} to {batch.next_offset - 1}: {why}"
        )

    async def _entry_at(self, ledger: CompactedLedger, offset: int, last: int) -> int:
        if offset <= ledger.first_offset:
            return 0
        hint = self._hints.entry_of(ledger.ledger_id, offset)
        if hint is not None:
            return hint

        async def reaches(entry_id: int) -> bool:
            return (await self._batch(ledger, entry_id)).next_offset > offset

        return await _first(0, last, reaches)

    async def _batch(self, ledger: CompactedLedger, entry_id: int) -> CompactedBatch:
        (entry,) = await (await self._reader(ledger)).read(entry_id, entry_id)
        return batch_of(ledger, entry)

    async def _reader(self, ledger: CompactedLedger) -> LedgerReader:
        if self._closed is not None:
            raise self._closed
        return await self._readers.get_or_open(ledger.ledger_id, lambda: self._open(ledger))

    async def _open(self, ledger: CompactedLedger) -> LedgerReader:
        opened = await self._ledgers.open(ledger.ledger_id)
        if not opened.is_closed or opened.last_add_confirmed < 0 or self._closed is not None:
            await opened.close()
            raise self._closed or COMPACTED_VIEW_UNREADABLE(
                f"{self._name}: ledger {ledger.ledger_id} of its compacted view is open or "
                "empty; its writer closes it before it is published"
            )
        return opened


async def _first(low: int, high: int, holds: Callable[[int], Awaitable[bool]]) -> int:
    while low < high:
        middle = (low + high) // 2
        if await holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
