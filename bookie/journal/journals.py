"""All journals of one bookie, each with a folder, a thread and group commits of its own.

A ledger's journal is fixed by its id and their number (`journal_of`), so everything about one
ledger stands in one journal, in order; nothing is promised about the order between ledgers. What
one journal reports durable does not wait for another. A sync that fails in one stops all: the
process has to end. Positions are vectors, one `Position` for each journal, and are taken on the
loop in one step: everything before them has been reported. Relies on writer.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from octavo.bookie.adds import AddBatch
from octavo.bookie.journal.mark import Position
from octavo.bookie.journal.writer import Journal, JournalWriter
from octavo.bookie.stats import WriteStats

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


def journal_of(ledger_id: int, count: int) -> int:
    """Which of `count` journals holds a ledger. Part of the format: docs/formats/journal.md.

    Ids are given one after another, and often in a pattern (a data ledger, then a state ledger):
    multiplied by the golden ratio they spread evenly.
    """
    return (ledger_id * _GOLDEN & _MASK) * count >> 64


class Journals:
    """The journals, by their index in the settings."""

    def __init__(self, journals: Sequence[Journal], stats: WriteStats | None = None) -> None:
        assert journals
        self.stats = stats or WriteStats()
        self._all = tuple(journals)
        self.only = self._all[0] if len(self._all) == 1 else None
        """The journal, if there is just one."""

    def of(self, ledger_id: int) -> Journal:
        """The journal of a ledger."""
        return self.only or self._all[journal_of(ledger_id, len(self._all))]

    def settled(self, ledger_id: int) -> asyncio.Future[None]:
        """Ends when all that the ledger's journal was given until now is durable, or failed."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reported(_: BaseException | None) -> None:
            if not future.done():
                future.set_result(None)

        self.of(ledger_id).append([], 0, reported)
        return future

    def split(self, runs: Sequence[AddBatch]) -> Iterator[tuple[Journal, Sequence[AddBatch]]]:
        """Each journal with those of `runs` that go there, in order."""
        parts: dict[int, list[AddBatch]] = {}
        for run in runs:
            parts.setdefault(journal_of(run.ledger_id, len(self._all)), []).append(run)
        for index, part in parts.items():
            yield self._all[index], part

    def __iter__(self) -> Iterator[Journal]:
        return iter(self._all)

    @property
    def written_bytes(self) -> int:
        """Made durable since the start."""
        return sum(journal.written_bytes for journal in self._all)

    @property
    def pending_bytes(self) -> int:
        """Queued or being written: not yet reported."""
        if self.only is not None:
            return self.only.pending_bytes
        return sum([journal.pending_bytes for journal in self._all])

    @property
    def pending_buffers(self) -> int:
        """The same, in buffers."""
        return sum([journal.pending_buffers for journal in self._all])

    @property
    def durable_positions(self) -> tuple[Position, ...]:
        """Everything before them has been reported to its callback."""
        return tuple([journal.durable_position for journal in self._all])

    async def drain(self) -> None:
        """Wait until all that was queued has been reported."""
        await _all_of([journal.drain() for journal in self._all])

    async def reserve(self) -> None:
        """Try again to reserve room ahead, in all. Raises `DiskFull`."""
        await _all_of([journal.reserve() for journal in self._all])

    async def remove_below(self, positions: Sequence[Position]) -> None:
        """Remove the files before `positions`: the mark has passed them."""
        for journal, position in zip(self._all, positions, strict=True):
            await journal.remove_below(position.file_id)

    def stop(self, error: BaseException) -> None:
        """Report nothing durable any more, in none of them."""
        for journal in self._all:
            journal.stop(error)

    async def close(self) -> None:
        """Report all that is queued, then give the files back."""
        await _all_of([journal.close() for journal in self._all])


def drive(
    writers: Sequence[JournalWriter],
    executors: Sequence[Executor],
    *,
    group_bytes_max: int,
    on_fatal: Callable[[BaseException], None],
    stats: WriteStats,
) -> Journals:
    """The journals of these writers, each on its thread."""
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
    """Wait for all, then raise the first error of any."""
    results = await asyncio.gather(*works, return_exceptions=True)  # type: ignore[call-overload]
    for result in results:
        if isinstance(result, BaseException):
            raise result
