"""The journal: group commit. Appends reported durable survive a crash, in order.

A ledger's journal follows from its id, so everything about a ledger stands in one journal, in
order. One executor call at a time writes everything that waits as one block, with one `pwritev` and
one `fdatasync`, while the loop gathers the next group: a lone add waits for one sync, and the
busier the bookie, the larger the groups. `DiskFull` fails one group. `SyncFailed` is final, because
the kernel may have dropped the pages.

A *deferred* append is reported when it is written: a power failure may take it back. The next
append that is not deferred, even an empty one, syncs everything before.

Connections' lanes take turns by bytes, and a lane that was empty goes first, so a client that sends
little waits only for the current group. An append without a lane (a fence, a deletion) keeps its
place among all lanes: an add admitted before a fence is never reported after it.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeVar

from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.files import Disk, DiskError, DiskFull, File, SyncFailed
from octavo.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    BlockKind,
    encode_block_header,
    encode_file_header,
    file_name,
)
from octavo.bookie.journal.mark import Position
from octavo.bookie.journal.reader import journal_files, seal_file
from octavo.bookie.stats import Group, WriteStats

Durable = Callable[[BaseException | None], None]
"""Called once: with None when the append is durable (if deferred: written), or with an error."""

SPARE = "journal.spare"
"""An old file that is kept to be used again."""
_GROUP_APPENDS_MAX = 1024
"""Bounds a group: its callbacks run in a single turn of the loop."""
_JOIN_BELOW_BYTES = 4096
"""Joining short buffers costs less than many iovecs."""
QUANTUM_BYTES = 64 * 1024
"""Bytes that a lane may write in its turn."""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1

T = TypeVar("T")


class JournalWriter:
    """The files of a journal. Blocking; one caller at a time."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        file_bytes_max: int,
        preallocate_bytes: int,
        sync: bool,
    ) -> None:
        assert file_bytes_max > FILE_HEADER_BYTES + BLOCK_HEADER_BYTES
        self._disk = disk
        self._directory = directory
        self._file_bytes_max = file_bytes_max
        self._preallocate_bytes = preallocate_bytes
        self._sync = sync
        self._file: File | None = None
        self.file_id = 0
        self.offset = 0
        self._synced = 0
        self._reserved = 0
        self._next_has_its_name = False
        """`open` failed at the rename: the next file may exist, so the current file must not be
        written any more.
        """
        self.short_of_space = False

    def open(self, file_id: int) -> None:
        """Begin file `file_id`: header and directory are durable on return.

        A spare file's blocks sync a third faster than new ones, and need no space on a full disk.
        Its old blocks have another file id, so a replay ignores them.
        """
        spare, path = f"{self._directory}/{SPARE}", f"{self._directory}/{file_name(file_id)}"
        file = self._disk.open(spare, create=not self._disk.exists(spare), write=True)
        try:
            file.preallocate(min(self._preallocate_bytes, self._file_bytes_max))
            reserved = file.size()
            file.pwritev([encode_file_header(file_id)], 0)
            file.datasync()
            self._next_has_its_name = True
            self._disk.rename(spare, path)
            self._disk.sync_directory(self._directory)
        finally:
            file.close()
        file = self._disk.open(path, write=True)  # so that errors name this path, not the spare
        if self._file is not None:
            self._file.close()
        self._file = file
        self.file_id = file_id
        self.offset = self._synced = FILE_HEADER_BYTES
        self._reserved = reserved
        self._next_has_its_name = False

    def write(self, buffers: list[bytes], length: int, sync: bool = True) -> None:
        """Write a block; durable on return if `sync` is true and syncs are not switched off."""
        if len(buffers) > 1 and length < _JOIN_BELOW_BYTES * len(buffers):
            buffers = [b"".join(buffers)]
        is_long = self.offset + 2 * BLOCK_HEADER_BYTES + length > self._file_bytes_max
        if self._next_has_its_name or (is_long and self.offset > FILE_HEADER_BYTES):
            try:
                self.roll()
            except DiskFull:
                if self._next_has_its_name:
                    raise  # a replay would need the old file's END block
                self.short_of_space = True  # continue in the old file's margin, over its END block
        file = self._file
        assert file is not None
        start = self.offset
        end = start + BLOCK_HEADER_BYTES + length
        self._reserve_for(file, end + BLOCK_HEADER_BYTES)
        head = encode_block_header(BlockKind.GROUP, self.file_id, start, self._synced, buffers)
        file.pwritev([head, *buffers], start)
        if self._sync and sync:
            file.datasync()
            self._synced = end
        self.offset = end

    def _reserve_for(self, file: File, end: int) -> None:
        """Reserve room up to `end` and a margin. Raises `DiskFull` only when `end` does not fit.

        If only the margin does not fit, `short_of_space` becomes true. Then ordinary adds are
        refused, so that the reserved room is left for fences and recovery (BookKeeper #208).
        """
        margin = self._preallocate_bytes // 2
        if end + margin <= self._reserved:
            return
        wanted = max(self._reserved + self._preallocate_bytes, end + margin)
        try:
            file.preallocate(wanted)
        except DiskFull:
            self.short_of_space = True
            if end > self._reserved:
                raise
        else:
            self._reserved = wanted
            self.short_of_space = False

    def remove_below(self, file_id: int) -> None:
        """Keep a file of full length as the spare."""
        directory, disk = self._directory, self._disk
        old = [found for found in journal_files(disk, directory) if found < file_id]
        spare = f"{directory}/{SPARE}"
        for found in old:
            path = f"{directory}/{file_name(found)}"
            if not disk.exists(spare) and self._is_long(path):
                disk.rename(path, spare)
            else:
                disk.unlink(path)
        if old:
            disk.sync_directory(directory)

    def _is_long(self, path: str) -> bool:
        file = self._disk.open(path)
        try:
            return file.size() >= self._file_bytes_max - self._preallocate_bytes
        finally:
            file.close()

    def roll(self) -> None:
        self.seal()
        self.open(self.file_id + 1)

    def seal(self) -> None:
        assert self._file is not None
        seal_file(self._file, self.file_id, self.offset)
        self._synced = self.offset

    @property
    def is_behind(self) -> bool:
        return self._sync and self._synced < self.offset

    def sync(self) -> None:
        """Sync even if syncs are switched off."""
        assert self._file is not None
        self._file.datasync()
        self._synced = self.offset

    def reserve(self) -> None:
        assert self._file is not None
        wanted = max(self._reserved, self.offset + self._preallocate_bytes)
        self._file.preallocate(wanted)
        self._reserved = wanted
        self.short_of_space = False

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class _Lane(Generic[T]):
    __slots__ = ("credit_bytes", "items")

    def __init__(self) -> None:
        self.items: deque[tuple[T, int]] = deque()
        self.credit_bytes = QUANTUM_BYTES


class _Stretch(Generic[T]):
    __slots__ = ("_lanes", "_new", "_old")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, _Lane[T]] = {}
        self._new: deque[Hashable] = deque()
        self._old: deque[Hashable] = deque()

    def push(self, item: T, size: int, key: Hashable) -> None:
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
            self._new.append(key)
        lane.items.append((item, size))

    def next(self) -> tuple[Hashable, _Lane[T]] | None:
        """Return the lane whose turn it is; None when nothing waits."""
        while True:
            turns = self._new or self._old
            if not turns:
                return None
            key = turns[0]
            lane = self._lanes[key]
            if not lane.items and turns is self._old:
                turns.popleft()
                del self._lanes[key]
            elif not lane.items or lane.credit_bytes <= 0:
                # The lane became empty in its first turn, or has used up its bytes: others first.
                lane.credit_bytes = min(QUANTUM_BYTES, lane.credit_bytes + QUANTUM_BYTES)
                turns.popleft()
                self._old.append(key)
            else:
                return key, lane


class JournalQueue(Generic[T]):
    def __init__(self) -> None:
        self._stretches: deque[_Stretch[T] | tuple[T, int]] = deque()
        self._count = 0

    def describe(self) -> dict[str, int]:
        return {"items": self._count}

    def __len__(self) -> int:
        return self._count

    def push(self, item: T, size: int, lane: Hashable | None) -> None:
        """Queue an item in its lane; without a lane, after everything queued so far."""
        self._count += 1
        if lane is None:
            self._stretches.append((item, size))
            return
        last = self._stretches[-1] if self._stretches else None
        if not isinstance(last, _Stretch):
            last = _Stretch()
            self._stretches.append(last)
        last.push(item, size, lane)

    def pop(self, bytes_max: int) -> T | None:
        """Take the next item; None if there is none, or if it is longer than `bytes_max`."""
        while self._stretches:
            first = self._stretches[0]
            if not isinstance(first, _Stretch):
                item, size = first
                if size > bytes_max:
                    return None
                self._stretches.popleft()
                self._count -= 1
                return item
            found = first.next()
            if found is None:
                if len(self._stretches) == 1:
                    return None  # keep the empty stretch for the next items
                self._stretches.popleft()
                continue
            _, lane = found
            item, size = lane.items[0]
            if size > bytes_max:
                return None
            lane.items.popleft()
            lane.credit_bytes -= size
            self._count -= 1
            return item
        return None


class _Append(NamedTuple):
    buffers: list[bytes]
    length: int
    done: Durable
    queued: float
    deferred: bool


class Journal:
    def __init__(
        self,
        writer: JournalWriter,
        *,
        executor: Executor,
        group_bytes_max: int,
        on_fatal: Callable[[BaseException], None],
        on_group: Callable[[Group], None],
    ) -> None:
        self._writer = writer
        self._executor = executor
        self._group_bytes_max = group_bytes_max
        self._on_fatal = on_fatal
        self._on_group = on_group
        self._queue: JournalQueue[_Append] = JournalQueue()
        self._loop = asyncio.get_running_loop()
        self._committer: asyncio.Task[None] | None = None
        self._scheduled = False
        self._dead: BaseException | None = None
        self.pending_bytes = 0
        self.written_bytes = 0
        self.pending_buffers = 0
        self.durable_position = Position(writer.file_id, writer.offset)

    def describe(self) -> dict[str, int]:
        return {"bytes": self.pending_bytes, "buffers": self.pending_buffers}

    def waits_in_vain(self) -> str:
        """Name work that could run; empty when there is none."""
        works = self._committer is not None or self._scheduled
        return "appends wait for no committer" if self._queue and not works else ""

    def append(
        self,
        buffers: list[bytes],
        length: int,
        done: Durable,
        lane: Hashable | None = None,
        *,
        deferred: bool = False,
    ) -> None:
        """Call `done` when the buffers are durable, or written if `deferred`.

        An append without bytes is reported when all appends reported earlier are durable; a full
        disk does not fail it.
        """
        if self._dead is not None:
            self._loop.call_soon(done, self._dead)
            return
        append = _Append(buffers, length, done, self._loop.time(), deferred)
        self._queue.push(append, length, lane)
        self.pending_bytes += length
        self.pending_buffers += len(buffers)
        if self._committer is None and not self._scheduled:
            self._scheduled = True  # appends of the same turn of the loop join the group
            self._loop.call_soon(self._start)

    async def drain(self) -> None:
        """Wait until everything queued has been reported and is durable."""
        while self._queue or self._committer is not None or self.is_behind:
            with suppress(Exception):  # each append's own callback gets the error
                await self.synced()

    def synced(self) -> asyncio.Future[None]:
        """Ends when everything appended so far is durable or refused.

        With an error when the journal has stopped.
        """
        future: asyncio.Future[None] = self._loop.create_future()

        def reported(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self.append([], 0, reported)
        return future

    @property
    def is_behind(self) -> bool:
        """Whether a deferred append was reported that is not durable yet."""
        return self._dead is None and self._writer.is_behind

    async def sync(self) -> None:
        """Make everything reported durable, even if syncs are switched off. Raises `SyncFailed`."""
        await self._loop.run_in_executor(self._executor, self._writer.sync)

    async def reserve(self) -> None:
        await self._loop.run_in_executor(self._executor, self._writer.reserve)

    async def remove_below(self, file_id: int) -> None:
        await self._loop.run_in_executor(self._executor, self._writer.remove_below, file_id)

    @property
    def short_of_space(self) -> bool:
        """Whether the disk refused to reserve room: refuse ordinary adds."""
        return self._writer.short_of_space

    @property
    def is_stopped(self) -> bool:
        return self._dead is not None

    def stop(self, error: BaseException) -> None:
        if self._dead is not None:
            return
        self._dead = error
        while (item := self._queue.pop(sys.maxsize)) is not None:
            self.pending_bytes -= item.length
            self.pending_buffers -= len(item.buffers)
            item.done(error)

    async def close(self) -> None:
        await self.drain()
        await self._loop.run_in_executor(self._executor, self._writer.close)

    def _start(self) -> None:
        self._scheduled = False
        if self._committer is None and self._queue:
            self._committer = self._loop.create_task(self._commit_all(), name="journal")

    async def _commit_all(self) -> None:
        try:
            while self._queue:
                await self._commit_one()
        except BaseException as error:
            self._die(error)
            raise
        finally:
            self._committer = None

    async def _commit_one(self) -> None:
        group: list[_Append] = []
        buffers: list[bytes] = []
        length = 0
        oldest = started = self._loop.time()
        while len(group) < _GROUP_APPENDS_MAX:
            room = self._group_bytes_max - length if length else sys.maxsize
            item = self._queue.pop(room)
            if item is None:
                break
            oldest = min(oldest, item.queued)
            buffers += item.buffers
            length += item.length
            group.append(item)
        # In a group with both, the sync is a separate call, so that deferred appends do not wait
        # for it.
        early = [item for item in group if item.deferred]
        late = [item for item in group if not item.deferred]
        full: BaseException | None = None
        if length:
            full = await self._try(self._writer.write, buffers, length, not early)
            if full is None and self._dead is None:
                self.written_bytes += length
                took = self._loop.time() - started
                self._on_group(Group(length, len(group), started - oldest, took))
        if early:
            self._report(early, full)
        if late and self.is_behind:
            await self._try(self._writer.sync)
        if self._dead is None and not self._writer.is_behind:
            self.durable_position = Position(self._writer.file_id, self._writer.offset)
        self._report(late, full)

    async def _try(self, call: Callable[..., None], *args: Any) -> DiskError | None:
        """Return an error that fails only this group; after any other error, stop the journal."""
        try:
            await self._loop.run_in_executor(self._executor, call, *args)
        except Exception as error:
            if isinstance(error, DiskError) and not isinstance(error, SyncFailed):
                return error
            self._die(error)
        return None

    def _report(self, group: list[_Append], full: BaseException | None) -> None:
        """Report a group; a failed write fails appends with bytes, a stopped journal all."""
        self.pending_bytes -= sum([item.length for item in group])
        self.pending_buffers -= sum([len(item.buffers) for item in group])
        for item in group:
            item.done(self._dead or (full if item.length else None))

    def _die(self, error: BaseException) -> None:
        if self._dead is None:
            self.stop(error)
            if not isinstance(error, asyncio.CancelledError):
                self._on_fatal(error)


def journal_of(ledger_id: int, count: int) -> int:
    """Return the ledger's journal, as the format (docs/formats/journal.md) fixes it.

    Ledger ids often come in a pattern (a data ledger, then a state ledger). Multiplication by the
    golden ratio spreads them evenly.
    """
    return (ledger_id * _GOLDEN & _MASK) * count >> 64


class Journals:
    """All journals of a bookie, in the order of the settings."""

    def __init__(self, journals: Sequence[Journal], stats: WriteStats | None = None) -> None:
        assert journals
        self.stats = stats or WriteStats()
        self._all = tuple(journals)
        self.only = self._all[0] if len(self._all) == 1 else None

    def of(self, ledger_id: int) -> Journal:
        return self.only or self._all[journal_of(ledger_id, len(self._all))]

    async def settled(self, ledger_id: int) -> None:
        """Wait until every append so far to the ledger's journal is durable or has failed."""
        with suppress(Exception):
            await self.of(ledger_id).synced()

    async def catch_up(self) -> None:
        behind = [journal.synced() for journal in self._all if journal.is_behind]
        if behind:
            await _all_of(behind)

    def split(self, batches: Sequence[AddBatch]) -> Iterator[tuple[Journal, Sequence[AddBatch]]]:
        """Yield each journal with its `batches`, in order."""
        parts: dict[int, list[AddBatch]] = {}
        for batch in batches:
            parts.setdefault(journal_of(batch.ledger_id, len(self._all)), []).append(batch)
        for index, part in parts.items():
            yield self._all[index], part

    def __iter__(self) -> Iterator[Journal]:
        return iter(self._all)

    @property
    def written_bytes(self) -> int:
        return sum(journal.written_bytes for journal in self._all)

    @property
    def pending_bytes(self) -> int:
        if self.only is not None:
            return self.only.pending_bytes
        return sum([journal.pending_bytes for journal in self._all])

    @property
    def pending_buffers(self) -> int:
        return sum([journal.pending_buffers for journal in self._all])

    @property
    def durable_positions(self) -> tuple[Position, ...]:
        return tuple([journal.durable_position for journal in self._all])

    async def drain(self) -> None:
        await _all_of([journal.drain() for journal in self._all])

    async def reserve(self) -> None:
        """Try again to reserve room ahead. Raises `DiskFull`."""
        await _all_of([journal.reserve() for journal in self._all])

    async def remove_below(self, positions: Sequence[Position]) -> None:
        for journal, position in zip(self._all, positions, strict=True):
            await journal.remove_below(position.file_id)

    def stop(self, error: BaseException) -> None:
        for journal in self._all:
            journal.stop(error)

    async def close(self) -> None:
        await _all_of([journal.close() for journal in self._all])


def drive(
    writers: Sequence[JournalWriter],
    executors: Sequence[Executor],
    *,
    group_bytes_max: int,
    on_fatal: Callable[[BaseException], None],
    stats: WriteStats,
) -> Journals:
    return Journals(
        [
            Journal(
                writer,
                executor=executor,
                group_bytes_max=group_bytes_max,
                on_fatal=on_fatal,
                on_group=stats.group,
            )
            for writer, executor in zip(writers, executors, strict=True)
        ],
        stats,
    )


async def _all_of(works: Sequence[object]) -> None:
    results = await asyncio.gather(*works, return_exceptions=True)  # type: ignore[call-overload]
    for result in results:
        if isinstance(result, BaseException):
            raise result
