"""Handle adds of entries that the bookie may already have: it keeps the entries it has.

The same entry again succeeds and stores nothing. A batch with a different entry under an existing
id is refused whole. An add mends an entry that cannot be read back or does not match its digest.

Batches are handled in rounds, in which no two batches of a ledger share an entry. A round waits
until everything admitted before it is durable, so a repeated add is answered when it is durable,
and never after the journal has stopped; then it is stored with one sync. A fence may come during
the lookups, so each batch is admitted again at the end.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from octavo.bookie.adds import AddBatch
from octavo.bookie.error_code import code_of
from octavo.bookie.journal.journal import Journal, Journals
from octavo.bookie.ledgers.rules import Likeness, likeness
from octavo.protocol.codes import (
    BadRequest,
    BookieIOError,
    Code,
    NoSuchEntry,
    UnknownState,
    error_for,
)
from octavo.protocol.frames import ADD_PREFIX_BYTES

log = structlog.get_logger()

Results = list[tuple[AddBatch, Code]]
Done = Callable[[Sequence[tuple[AddBatch, Code]]], None]
_READ_BYTES = 1024 * 1024
_ROUND_MAX = 64
"""The first batch of a round is answered only when all are looked up."""


class Held(Protocol):
    """Finds the entries of a ledger that this bookie has (read/path.py)."""

    async def read_many(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int, *, urgent: bool = False
    ) -> list[bytes]: ...

    async def held(self, ledger_id: int) -> list[tuple[int, int]]: ...


class _DuplicateAdd(NamedTuple):
    batch: AddBatch
    done: Done
    lane: Hashable


class DuplicateAdds:
    def __init__(
        self,
        reading: Held,
        admission: Callable[[AddBatch], Code],
        journals: Journals,
        commit: Callable[[Journal, Results, Done, Hashable], None],
        changed: Callable[[], None],
    ) -> None:
        """Take adds; `commit` makes the admitted results durable and reports all.

        `changed`: `bytes` has changed.
        """
        self._reading = reading
        self._admission = admission
        self._journals = journals
        self._commit = commit
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._lines: dict[int, deque[_DuplicateAdd]] = {}
        self._tasks: dict[asyncio.Task[None], None] = {}
        self.bytes = 0
        self.count = 0

    def describe(self) -> dict[str, int]:
        return {
            "batches": self.count,
            "bytes": self.bytes,
            "lines": len(self._lines),
            "tasks": len(self._tasks),
        }

    def take(self, batch: AddBatch, done: Done, lane: Hashable) -> None:
        self.count += 1
        self.bytes += len(batch.frames)
        self._changed()
        line = self._lines.get(batch.ledger_id)
        if line is not None:
            line.append(_DuplicateAdd(batch, done, lane))
            return
        line = self._lines[batch.ledger_id] = deque([_DuplicateAdd(batch, done, lane)])
        task = self._loop.create_task(self._work_off(batch.ledger_id, line))
        self._tasks[task] = None
        task.add_done_callback(lambda ended: self._tasks.pop(ended, None))

    async def replace(self, batch: AddBatch) -> None:
        """Replace the entries that are here under the batch's ids; durable on return.

        Only for a caller that has compared all copies: no frame leads here. Raises the error that
        refuses the batch.
        """
        ended: asyncio.Future[Code] = self._loop.create_future()

        def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
            if not ended.done():
                ended.set_result(results[0][1])

        await self._journals.settled(batch.ledger_id)
        admitted = batch, self._admission(batch)
        self._commit(self._journals.of(batch.ledger_id), [admitted], done, 0)
        if (code := await ended) is not Code.OK:
            where = f"ledger {batch.ledger_id} from entry {batch.first_entry} on"
            raise error_for(code, f"replacing the copy of {where}")

    async def close(self) -> None:
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _work_off(self, ledger_id: int, line: deque[_DuplicateAdd]) -> None:
        together: deque[_DuplicateAdd] = deque()
        try:
            while line:
                together = next_round(line)
                await self._journals.settled(ledger_id)
                looked_up = [await self._look_up(repeat.batch) for repeat in together]
                # No await from here on: all of the round goes to the journal at once.
                for found in looked_up:
                    repeat = together.popleft()
                    self._store(repeat, found)
                    self._leaves(repeat)
        finally:
            del self._lines[ledger_id]
            for repeat in (*together, *line):
                self._leaves(repeat)

    async def _look_up(self, batch: AddBatch) -> bool | Exception:
        """Whether all is here and good, or the error that refuses the batch."""
        try:
            return await self._is_here(batch)
        except Exception as error:
            return error

    def _store(self, repeat: _DuplicateAdd, found: bool | Exception) -> None:
        batch, done, lane = repeat
        try:
            if isinstance(found, Exception):
                raise found
            code = self._admission(batch)
            journal = self._journals.of(batch.ledger_id)
            if found and code is Code.OK:
                journal.append([], 0, partial(_kept, journal, batch, done), lane)
            else:
                self._commit(journal, [(batch, code)], done, lane)
        except Exception as error:
            ledger_id, first = batch.ledger_id, batch.first_entry
            if isinstance(error, BadRequest):
                log.warning("add_refused", ledger=ledger_id, entry=first, reason=str(error))
            done([(batch, code_of(error, "add", ledger_id, first))])

    def _leaves(self, repeat: _DuplicateAdd) -> None:
        self.count -= 1
        self.bytes -= len(repeat.batch.frames)
        self._changed()

    async def _is_here(self, batch: AddBatch) -> bool:
        """Whether the batch is stored already. Raises `BadRequest` if an entry differs."""
        held: list[tuple[int, int]] | None = None
        entry_id, last = batch.first_entry, batch.last_entry
        is_here = True
        while entry_id <= last:
            try:
                here = await self._reading.read_many(
                    batch.ledger_id, entry_id, last - entry_id + 1, _READ_BYTES, urgent=True
                )
            except (NoSuchEntry, UnknownState):
                is_here = False
                if entry_id == last:  # usually a single entry; the list of all entries may be long
                    break
                if held is None:
                    held = await self._reading.held(batch.ledger_id)
                entry_id = next((first for first, _ in held if first > entry_id), last + 1)
            except BookieIOError:  # an unreadable entry counts as missing
                is_here = False
                entry_id += 1
            else:
                for entry in here:
                    found = likeness(entry, _entry(batch, entry_id - batch.first_entry))
                    if found is Likeness.OTHER:
                        what = f"a different entry {entry_id} of ledger {batch.ledger_id}"
                        raise BadRequest(f"{what} is stored here already, and is kept")
                    is_here = is_here and found is Likeness.SAME
                    entry_id += 1
        return is_here


def next_round(line: deque[_DuplicateAdd]) -> deque[_DuplicateAdd]:
    """Take batches from the front of `line` that have no entry in common.

    A batch that shares an entry must be compared with what the round stores.
    """
    found: deque[_DuplicateAdd] = deque()
    spans: list[tuple[int, int]] = []
    while line and len(found) < _ROUND_MAX:
        first, last = line[0].batch.first_entry, line[0].batch.last_entry
        at = bisect_left(spans, (first, first))
        before_ends = spans[at - 1][1] if at else -1
        if before_ends >= first or (at < len(spans) and spans[at][0] <= last):
            break
        spans.insert(at, (first, last))
        found.append(line.popleft())
    return found


def _kept(journal: Journal, batch: AddBatch, done: Done, _: BaseException | None) -> None:
    # The group's write may have failed; these entries were durable before.
    done([(batch, Code.IO if journal.is_stopped else Code.OK)])


def _entry(batch: AddBatch, index: int) -> bytes:
    end = batch.offsets[index + 1] if index + 1 < batch.count else len(batch.frames)
    return batch.frames[batch.offsets[index] + ADD_PREFIX_BYTES : end]
