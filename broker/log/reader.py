"""Read batches of a partition from its ledgers: by offset, by time, by message id.

Batches come from bookies, or from an offloaded object. To find an offset, the ledger list gives the
ledger, the sparse index a range of entries, and batch headers the entry. Memory is bounded: readers
per partition, and bytes read ahead over all partitions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

from octavo.broker.errors import (
    MessageNotFound,
    OffsetTrimmed,
    PartitionDamaged,
    PartitionUnavailable,
)
from octavo.broker.log.entry_index import EntryIndex
from octavo.broker.log.ledger_list import Contents, end_offset
from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.types import MessageId, PartitionName, StoredBatch
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import LedgerDamaged, LedgerNotFound
from octavo.ledger.offload.offloaded import OffloadedReader, open_offloaded
from octavo.ledger.read.continuity import Continuity
from octavo.ledger.read.open_batch import Opening, is_large
from octavo.ledger.read.reader import LedgerReader
from octavo.ledger.read.time_search import offset_as_new_as
from octavo.metadata.offloads import is_only_copy
from octavo.metadata.topics import PartitionLedger
from octavo.protocol.append_time import shown
from octavo.protocol.batch import (
    ATTRIBUTE_COMPRESSION,
    BatchHeader,
    InvalidBatch,
    read_header,
    with_base_offset,
)
from octavo.protocol.codes import NoSuchEntry
from octavo.protocol.compression import UnsupportedCompression
from octavo.protocol.entry import Entry
from octavo.protocol.records import front_of_batch, read_records
from octavo.security.keys.errors import KeyMissing

T = TypeVar("T")
AnyReader = LedgerReader | OffloadedReader
Headers = Sequence[tuple[str, bytes | None]]
CHUNK_BYTES = 1024 * 1024
_CHUNK_ENTRIES_MAX = 1_000
_READERS_MAX = 16
_STREAMS_MAX = 8
_HINTS_MAX = 128
_INTERPOLATIONS_MAX = 3
_CONFIRM_WAIT_S = 5.0
_REWRAP_LOOK_S = 1.0


class _Closes(Protocol):
    async def close(self) -> None: ...


_Reader = TypeVar("_Reader", bound=_Closes)


class OpenReaders(Generic[_Reader]):
    """The least recently used reader is closed beyond `readers_max`."""

    def __init__(self, readers_max: int) -> None:
        self._readers_max = readers_max
        self._open: OrderedDict[int, _Reader] = OrderedDict()

    def get(self, ledger_id: int) -> _Reader | None:
        return self._open.get(ledger_id)

    async def get_or_open(
        self, ledger_id: int, opened_by: Callable[[], Awaitable[_Reader]]
    ) -> _Reader:
        reader = self._open.get(ledger_id)
        if reader is None:
            opened = await opened_by()
            reader = self._open.setdefault(ledger_id, opened)
            # Before the first await: other calls may drop it meanwhile.
            self._open.move_to_end(ledger_id)
            if reader is not opened:  # another call opened one first
                await opened.close()
            if len(self._open) > self._readers_max:
                await self._open.popitem(last=False)[1].close()
        else:
            self._open.move_to_end(ledger_id)
        return reader

    async def drop(self, ledger_id: int, reader: _Reader) -> None:
        if self._open.get(ledger_id) is reader:
            del self._open[ledger_id]
        await reader.close()

    async def close(self) -> None:
        self._readers_max = 0
        while self._open:
            await self._open.popitem()[1].close()


class ReadAheadBudget:
    def __init__(self, bytes_max: int) -> None:
        self._left = bytes_max

    def take(self, amount: int) -> bool:
        if amount > self._left:
            return False
        self._left -= amount
        return True

    def give_back(self, amount: int) -> None:
        self._left += amount


class LogReader:
    def __init__(
        self,
        name: PartitionName,
        ledgers: LedgerClient,
        record: PartitionRecordKeeper,
        index: EntryIndex,
        budget: ReadAheadBudget,
        last_entry: Callable[[int], int],
        opening: Opening,
    ) -> None:
        self._name = name
        self._ledgers = ledgers
        self._record = record
        self._index = index
        self._budget = budget
        self._last_entry = last_entry
        self._opening = opening
        self._readers = OpenReaders[AnyReader](_READERS_MAX)
        self._rewrap_looked_s = float("-inf")
        self._hints: OrderedDict[int, tuple[int, int]] = OrderedDict()
        self._ahead: OrderedDict[int, asyncio.Task[list[StoredBatch]]] = OrderedDict()

    def follow(self, last_entry: Callable[[int], int]) -> None:
        self._last_entry = last_entry

    async def close(self) -> None:
        while self._ahead:
            self._drop_stream(next(iter(self._ahead)))
        await self._readers.close()

    async def read(
        self, offset: int, end: int, bytes_max: int, count_max: int
    ) -> list[StoredBatch]:
        assert offset < end
        if offset < self._record.ledgers.earliest_offset:
            raise self._trimmed(offset)
        chunk = await self._chunk(offset, max(bytes_max, CHUNK_BYTES))
        taken: list[StoredBatch] = []
        size = count = 0
        for batch in chunk:
            if taken and (size + len(batch.data) > bytes_max or count >= count_max):
                break
            size += len(batch.data)
            count += batch.next_offset - max(offset, batch.base_offset)
            taken.append(batch)
        following = taken[-1].next_offset
        if len(taken) < len(chunk):
            self._keep(following, chunk[len(taken) :])
            return taken
        following = self._record.ledgers.shown_from(following)
        if following < end and following not in self._ahead:
            self._read_ahead(following)
        return taken

    async def batch_of(self, message_id: MessageId) -> StoredBatch:
        segment = self._record.ledgers.segment_of(message_id.ledger_id)
        if segment is not None and message_id.entry_id <= await self._last_entry_of(segment):
            entry_id = message_id.entry_id
            batches = await self._undamaged(
                segment, lambda: self._entries(segment, entry_id, entry_id)
            )
            if message_id.index < batches[0].header.record_count:
                return batches[0]
        raise MessageNotFound(f"{self._name} has no message {message_id}")

    async def piece(self, segment: PartitionLedger, index: int) -> StoredBatch:
        starts = segment.base_offset + index
        try:
            found = await self._undamaged(
                segment, lambda: self._entries(segment, index, index, starts)
            )
        except LedgerNotFound as error:
            raise self._trimmed(starts) from error
        return found[0]

    async def offset_at(self, time_ms: int, segment: PartitionLedger, least: int = 0) -> int | None:
        """Find the first message as new as `time_ms`; for the cost see `EntrySource.as_new_as`."""
        last = await self._last_entry_of(segment)
        relative = max(0, least - segment.base_offset)
        first = (
            await self._undamaged(segment, lambda: self.entry_of(segment, least)) if relative else 0
        )

        async def search(reader: AnyReader) -> int | None:
            if last > reader.last_add_confirmed:
                await self._catch_up(reader, last)
            return await offset_as_new_as(
                reader,
                time_ms,
                last,
                segment.disorder_ms,
                self._opening,
                first=first,
                least=relative,
                appended=segment.appended,
            )

        found = await self._where_it_lies(segment, await self._reader(segment), search)
        if found is None or (segment.count is not None and found >= segment.count):
            return None  # messages after a cut belong to the forked topic
        return segment.base_offset + found

    async def contents_of(self, segment: PartitionLedger) -> Contents:
        """Count a ledger's messages; a batch at a fork's cut counts with all of them."""
        last = await self._last_entry_of(segment)

        async def read(reader: AnyReader) -> Contents:
            found, order = Contents(), self._order(segment, reader)
            if last > reader.last_add_confirmed:
                await self._catch_up(reader, last)
            async for entry in reader.entries(0, last):
                header = shown(order.follow(entry), segment.appended)
                found = found.plus(header, len(entry.payload))
            return found

        return await self._undamaged(segment, lambda: self._of_closed(segment, read))

    async def header(self, segment: PartitionLedger, entry_id: int) -> BatchHeader:
        """Read a batch header, for callers that do not know how many messages the ledger holds."""

        async def read(reader: AnyReader) -> BatchHeader:
            order = Continuity(segment.ledger_id, base_offset=segment.base_offset)
            entries = await reader.read(max(0, entry_id - 1), entry_id)
            return shown([order.follow(entry) for entry in entries][-1], segment.appended)

        return await self._undamaged(segment, lambda: self._of_closed(segment, read))

    async def header_at(self, segment: PartitionLedger, entry_id: int) -> BatchHeader:
        found = await self._undamaged(segment, lambda: self._one_header(segment, entry_id))
        return shown(found, segment.appended)

    async def headers_from(
        self, segment: PartitionLedger, first_entry: int
    ) -> list[tuple[int, BatchHeader]]:
        last = await self._last_entry_of(segment)
        if first_entry > last:
            return []

        async def read(reader: AnyReader) -> list[tuple[int, BatchHeader]]:
            order = self._order(segment, reader)
            entries = reader.entries(first_entry, last)
            return [(entry.entry_id, order.follow(entry)) async for entry in entries]

        async def attempt() -> list[tuple[int, BatchHeader]]:
            return await self._where_it_lies(segment, await self._reader(segment), read)

        return await self._undamaged(segment, attempt)

    async def heads_from(
        self, segment: PartitionLedger, first_entry: int
    ) -> list[tuple[int, Headers]]:
        """Return each batch's end, relative to the ledger, and its first record's headers.

        For writers of durable streams, whose appends are never compressed.
        """
        last = await self._last_entry_of(segment)
        if first_entry > last:
            return []

        async def read(reader: AnyReader) -> list[tuple[int, Headers]]:
            order = self._order(segment, reader)
            found: list[tuple[int, Headers]] = []
            async for entry in reader.entries(first_entry, last):
                header = order.follow(entry)
                if not header.attributes & ATTRIBUTE_COMPRESSION:
                    record = next(read_records(entry.payload))
                    found.append((header.base_offset + header.record_count, record.headers))
            return found

        async def attempt() -> list[tuple[int, Headers]]:
            return await self._where_it_lies(segment, await self._reader(segment), read)

        return await self._undamaged(segment, attempt)

    async def entry_of(self, segment: PartitionLedger, offset: int) -> int:
        hint = self._hints.get(offset)
        if hint is not None and hint[0] == segment.ledger_id:
            return hint[1]
        relative = offset - segment.base_offset
        if segment.pieces:
            return relative  # in such a ledger each record has a separate entry
        last = await self._last_entry_of(segment)
        if is_only_copy(segment.offload):
            reader = await self._reader(segment)
            if isinstance(reader, OffloadedReader):
                return await reader.entry_holding(relative)
        low, low_offset, high, high_offset = self._index.bounds(segment.ledger_id, relative, last)
        if high_offset is None:
            high_offset = segment.count
        tries = 0
        while low < high:
            guess = (low + high + 1) // 2
            if high_offset is not None and tries < _INTERPOLATIONS_MAX:
                span = max(1, high_offset - low_offset)
                guess = low + (high - low + 1) * (relative - low_offset) // span
                guess = min(max(guess, low + 1), high)
            tries += 1
            header = await self._one_header(segment, guess)
            start = header.base_offset
            self._index.note(segment.ledger_id, start, guess)
            if start > relative:
                high, high_offset = guess - 1, start
            else:
                low, low_offset = guess, start
                if relative < start + header.record_count:
                    break
        return low

    def forget(self, ledger_id: int) -> None:
        self._index.forget(ledger_id)
        for offset, (hinted, _) in list(self._hints.items()):
            if hinted == ledger_id:
                del self._hints[offset]

    async def _chunk(self, offset: int, bytes_wanted: int) -> list[StoredBatch]:
        task = self._ahead.pop(offset, None)
        if task is None:
            return await self._load(offset, bytes_wanted)
        self._budget.give_back(CHUNK_BYTES)
        try:
            batches = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        reader = self._readers.get(batches[0].ledger_id)
        if reader is None:
            return await self._load(offset, bytes_wanted)
        await reader.check_key()  # the key may have been forgotten since this was read
        return batches

    def _read_ahead(self, offset: int) -> None:
        if self._budget.take(CHUNK_BYTES):
            load = self._load(offset, CHUNK_BYTES)
            self._put(offset, asyncio.create_task(load, name=f"read ahead {self._name}"))

    def _keep(self, offset: int, rest: list[StoredBatch]) -> None:
        if offset not in self._ahead and self._budget.take(CHUNK_BYTES):
            self._put(offset, asyncio.create_task(_ready(rest), name=f"keep {self._name}"))

    def _put(self, offset: int, task: asyncio.Task[list[StoredBatch]]) -> None:
        task.add_done_callback(_look_at_error)
        self._ahead[offset] = task
        if len(self._ahead) > _STREAMS_MAX:
            self._drop_stream(next(iter(self._ahead)))

    def _drop_stream(self, offset: int) -> None:
        self._ahead.pop(offset).cancel()
        self._budget.give_back(CHUNK_BYTES)

    async def _load(self, offset: int, bytes_wanted: int) -> list[StoredBatch]:
        if offset < self._record.ledgers.earliest_offset:  # trimmed since the call began
            raise self._trimmed(offset)
        segment = self._record.ledgers.find(offset)
        try:
            batches = await self._run_undamaged(segment, offset, bytes_wanted)
        except LedgerNotFound as error:
            if offset >= self._record.ledgers.earliest_offset:
                raise
            raise self._trimmed(offset) from error
        self._hint(batches[-1].next_offset, segment.ledger_id, batches[-1].entry_id + 1)
        return batches

    async def _run_undamaged(
        self, segment: PartitionLedger, offset: int, bytes_wanted: int
    ) -> list[StoredBatch]:
        try:
            return await self._undamaged(segment, lambda: self._run(segment, offset, bytes_wanted))
        except PartitionDamaged as error:
            # Entries before the damage are good, except the last: too high a count shows at the
            # entry behind.
            with contextlib.suppress(LedgerDamaged):
                front = await self._run(segment, offset, bytes_wanted, error.entry_id - 1)
                if front:
                    return front
            raise

    async def _run(
        self, segment: PartitionLedger, offset: int, bytes_wanted: int, before: int | None = None
    ) -> list[StoredBatch]:
        hint = self._hints.get(offset)
        first = await self.entry_of(segment, offset)
        last = await self._last_entry_of(segment) if before is None else before - 1
        if first > last and before is None:  # the writer has ended since
            raise PartitionUnavailable(f"{self._name}: entry {first} is not confirmed here now")
        if first > last:
            return []
        mean = await self._mean_entry_bytes(segment)
        wanted = min(_CHUNK_ENTRIES_MAX, max(1, bytes_wanted // mean))
        # A hint's entry begins where the batch before it ended.
        starts = offset if segment.pieces or hint == (segment.ledger_id, first) else None
        batches = await self._entries(segment, first, min(last, first + wanted - 1), starts)
        if not batches[0].base_offset <= offset < batches[0].next_offset:
            held = f"{batches[0].base_offset} to {batches[0].next_offset - 1}"
            why = f"holds offsets {held}; expected is one that holds {offset}"
            raise LedgerDamaged(segment.ledger_id, first, why)
        return batches

    def _trimmed(self, offset: int) -> OffsetTrimmed:
        earliest = self._record.ledgers.earliest_offset
        return OffsetTrimmed(
            f"{self._name}: offset {offset} was trimmed; the earliest is {earliest}", earliest
        )

    def _hint(self, offset: int, ledger_id: int, entry_id: int) -> None:
        self._hints[offset] = (ledger_id, entry_id)
        if len(self._hints) > _HINTS_MAX:
            self._hints.popitem(last=False)

    async def _one_header(self, segment: PartitionLedger, entry_id: int) -> BatchHeader:
        """Return an unchecked header: reading the entries checks continuity."""
        (entry,) = await self._read(segment, entry_id, entry_id)
        return Continuity(segment.ledger_id).checked(entry)

    async def _entries(
        self, segment: PartitionLedger, first: int, last: int, starts: int | None = None
    ) -> list[StoredBatch]:
        """Read batches; raise `LedgerDamaged` unless they follow one another.

        `starts`: the first batch's offset; None: the entry before is read as well.
        """
        known = starts is not None or first == 0
        entries = await self._read(segment, first if known else first - 1, last)
        order = self._order(segment, await self._reader(segment), starts)
        found = []
        for entry in entries:
            header = order.follow(entry)
            if entry.entry_id < first:
                continue
            base = segment.base_offset + header.base_offset
            payload = entry.payload
            if entry.entry_id == segment.cut:
                header, payload = await self._cut(segment, entry, header)
            served = shown(header._replace(base_offset=base), segment.appended)
            data = with_base_offset(payload, base, served.partition_leader_epoch)
            found.append(StoredBatch(base, segment.ledger_id, entry.entry_id, served, data))
        return found

    async def _cut(
        self, segment: PartitionLedger, entry: Entry, header: BatchHeader
    ) -> tuple[BatchHeader, bytes]:
        assert segment.count is not None
        kept = segment.count - header.base_offset
        if not 0 < kept <= header.record_count:
            raise LedgerDamaged(
                segment.ledger_id, entry.entry_id,
                f"holds offsets {segment.base_offset + header.base_offset} to "
                f"{segment.base_offset + header.next_offset - 1}; expected is the offset before "
                f"{end_offset(segment)}",
            )  # fmt: skip
        if kept == header.record_count:
            return header, bytes(entry.payload)
        try:
            if is_large(header):
                loop = asyncio.get_running_loop()
                front = await loop.run_in_executor(None, front_of_batch, entry.payload, kept)
            else:
                front = front_of_batch(entry.payload, kept)
        except (InvalidBatch, UnsupportedCompression) as error:
            raise LedgerDamaged(segment.ledger_id, entry.entry_id, str(error)) from None
        epoch = header.partition_leader_epoch
        return read_header(front)._replace(partition_leader_epoch=epoch), front

    async def _read(self, segment: PartitionLedger, first: int, last: int) -> list[Entry]:
        reader = await self._reader(segment)
        if last > reader.last_add_confirmed:
            await self._catch_up(reader, last)
        return await self._where_it_lies(segment, reader, lambda one: one.read(first, last))

    def _order(
        self, segment: PartitionLedger, reader: AnyReader, starts: int | None = None
    ) -> Continuity:
        closed = segment.count is not None and reader.is_closed and segment.cut < 0
        return Continuity(
            segment.ledger_id,
            base_offset=segment.base_offset,
            expected=None if starts is None else starts - segment.base_offset,
            count=segment.count if segment.cut < 0 else None,
            last_entry=reader.last_add_confirmed if closed else None,
        )

    async def _undamaged(self, segment: PartitionLedger, read: Callable[[], Awaitable[T]]) -> T:
        """Call `read`; if entries do not follow one another, try another copy.

        Raises `PartitionDamaged` when every copy is damaged.
        """
        tried = 0
        while True:
            try:
                return await read()
            except LedgerDamaged as damage:
                tried += 1
                self.forget(segment.ledger_id)  # the index may come from the damaged copy
                reader = await self._reader(segment)
                if isinstance(reader, OffloadedReader) or tried >= reader.copies:
                    raise PartitionDamaged(f"{self._name}: {damage}", damage.entry_id) from damage
                reader.turn_away(damage.entry_id, damage)

    async def _of_closed(
        self, segment: PartitionLedger, read: Callable[[AnyReader], Awaitable[T]]
    ) -> T:
        return await self._where_it_lies(segment, await self._closed_reader(segment), read)

    async def _where_it_lies(
        self, segment: PartitionLedger, reader: AnyReader, read: Callable[[AnyReader], Awaitable[T]]
    ) -> T:
        try:
            return await read(reader)
        except KeyMissing:
            # An offloaded copy's data key, in the record, may have been wrapped again.
            if not isinstance(reader, OffloadedReader) or not await self._is_rewrapped(segment):
                raise
            return await read(await self._reader(segment))
        except (LedgerNotFound, NoSuchEntry):
            moved = await self._moved(segment)
            if moved is None:
                raise
            return await read(await self._reader(moved))

    async def _is_rewrapped(self, segment: PartitionLedger) -> bool:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._rewrap_looked_s < _REWRAP_LOOK_S:
            return False
        self._rewrap_looked_s = now_s
        await self._record.look()
        reader = self._readers.get(segment.ledger_id)
        if reader is not None:
            await self._readers.drop(segment.ledger_id, reader)
        return True

    async def _catch_up(self, reader: AnyReader, entry_id: int) -> None:
        try:
            async with asyncio.timeout(_CONFIRM_WAIT_S):
                while await reader.refresh() < entry_id:
                    await reader.wait_for(entry_id - 1, _CONFIRM_WAIT_S)
        except TimeoutError as error:
            raise PartitionUnavailable(
                f"{self._name}: the bookies do not yet confirm entry {entry_id}"
            ) from error

    async def _reader(self, segment: PartitionLedger) -> AnyReader:
        return await self._readers.get_or_open(segment.ledger_id, lambda: self._open(segment))

    async def _open(self, segment: PartitionLedger) -> AnyReader:
        if not is_only_copy(segment.offload):
            try:
                return await self._ledgers.open(segment.ledger_id)
            except LedgerNotFound:
                moved = await self._moved(segment)
                if moved is None:
                    raise
                segment = moved
        segment = self._record.ledgers.segment_of(segment.ledger_id) or segment
        assert segment.offload is not None
        return await open_offloaded(segment.ledger_id, segment.offload, self._ledgers.keys)

    async def _moved(self, segment: PartitionLedger) -> PartitionLedger | None:
        await self._record.look()
        moved = self._record.ledgers.segment_of(segment.ledger_id)
        if moved is None or not is_only_copy(moved.offload):
            return None
        reader = self._readers.get(segment.ledger_id)
        if reader is not None and not isinstance(reader, OffloadedReader):
            await self._readers.drop(segment.ledger_id, reader)
        return moved

    async def _last_entry_of(self, segment: PartitionLedger) -> int:
        if segment.cut >= 0:
            return segment.cut
        if segment.count is None:
            # The ledger may have been closed while the caller waited, and later ledgers as well.
            now = self._record.ledgers.segment_of(segment.ledger_id)
            if now is not None and now.count is None:
                return self._last_entry(segment.ledger_id)
        return (await self._closed_reader(segment)).last_add_confirmed

    async def _closed_reader(self, segment: PartitionLedger) -> AnyReader:
        reader = await self._reader(segment)
        if reader.is_closed or segment.cut >= 0:
            return reader
        # Opened while the ledger was growing: its end may be outdated.
        await self._readers.drop(segment.ledger_id, reader)
        return await self._reader(segment)

    async def _mean_entry_bytes(self, segment: PartitionLedger) -> int:
        if segment.count is None or segment.bytes == 0:
            return 16 * 1024
        return max(1, segment.bytes // max(1, await self._last_entry_of(segment) + 1))


class LedgerTimes:
    """Measures closed ledgers with an unknown `disorder_ms`, as recovery leaves them.

    Reads one ledger at a time, whole, and keeps the result while the partition is open here.
    """

    def __init__(self, reader: LogReader) -> None:
        self._reader = reader
        self._known: dict[int, Contents] = {}
        self._turn = asyncio.Lock()

    async def of(self, segment: PartitionLedger) -> Contents:
        async with self._turn:  # concurrent callers for the same ledger read it only once
            contents = self._known.get(segment.ledger_id)
            if contents is None:
                contents = self._known[segment.ledger_id] = await self._reader.contents_of(segment)
            return contents

    def forget(self, ledger_id: int) -> None:
        self._known.pop(ledger_id, None)


async def _ready(batches: list[StoredBatch]) -> list[StoredBatch]:
    return batches


def _look_at_error(task: asyncio.Task[list[StoredBatch]]) -> None:
    if not task.cancelled():
        task.exception()
