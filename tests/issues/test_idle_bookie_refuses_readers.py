"""Readers were answered TOO_MANY_REQUESTS, seconds later, by a bookie that had nothing to do.

When all tasks for reads of the disk were taken, the next connections waited until one ended, and
each end let one of them go on. One that then found its entry in the cache, brought by the task that
had ended, needed no task: nothing ended any more, and the rest waited until they were refused.
Found by reading the engine.
"""

from __future__ import annotations

import asyncio

from octavo.bookie.back_pressure import Budget
from octavo.bookie.wire.read_scheduler import ReadScheduler


class Reader:
    """A connection with one read."""

    def __init__(self, line: ReadScheduler, cached: set[str]) -> None:
        self._line = line
        self._cached = cached
        self.waits = True
        self.refused = False

    @property
    def wants_turn(self) -> bool:
        return self.waits

    def serve(self) -> int | None:
        if not self._cached:
            if not self._line.has_task:
                return None
            self._line.tasks += 1
        self.waits = False
        return 1

    def refuse_waiting(self) -> None:
        self.refused = True


async def test_those_behind_who_found_it_in_the_cache_go_on_too() -> None:
    line = ReadScheduler(Budget(1000), waiting_max=10, tasks_max=1, wait_ms_max=400)
    cached: set[str] = set()
    readers = [Reader(line, cached) for _ in range(5)]
    for reader in readers:
        line.join(reader)
    await asyncio.sleep(0.05)
    assert [reader.waits for reader in readers] == [False, True, True, True, True]
    cached.add("what the first of them brought")
    line.task_ended()
    await asyncio.sleep(0.05)
    assert not any(reader.waits for reader in readers)
    await asyncio.sleep(0.6)
    assert not any(reader.refused for reader in readers)
    line.close()
