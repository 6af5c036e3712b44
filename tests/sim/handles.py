"""Parts of the simulated loop: callbacks that know their process, tasks with a stable order."""

from __future__ import annotations

import asyncio
import traceback
from typing import TYPE_CHECKING, Any

from octavo.bookie.gc.compaction import Kept
from octavo.ledger.read.speculative_read import AllFailed
from octavo.protocol.codes import OctavoError
from tests.sim.process import ProcessCrashed

if TYPE_CHECKING:
    from tests.sim.process import Process

Call = tuple[Any, ...]
WHEN, CALL, CONTEXT, PROCESS_OF = 0, 2, 3, 4
_UNWINDINGS_MAX = 20


class SimHandle(list[Any]):
    """A future callback of a process: time, number, `Call`, context, process. A list, because the
    heap compares lists directly and making one is fastest. A cancelled handle has None as its
    `Call`."""

    __slots__ = ()

    def cancel(self) -> None:
        self[CALL] = None

    def cancelled(self) -> bool:
        return self[CALL] is None

    def when(self) -> float:
        return float(self[WHEN])

    def __repr__(self) -> str:
        what = "cancelled" if self[CALL] is None else name_of(self[CALL][0])
        return f"<{self[PROCESS_OF].name}: {what} at {self[WHEN]:.6f}>"


FORESEEN = (OctavoError, AllFailed, Kept, OSError, asyncio.CancelledError, ProcessCrashed)
"""Errors that code may end with; OSError includes TimeoutError. Any other error is a defect,
even if some code catches it: a `gather` that returns exceptions, a `suppress`, a caller that has
gone."""


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task with the same place in a set in each run: asyncio has many sets of tasks."""

    __slots__ = ("number", "process")
    number: int
    process: Process

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:  # asyncio hashes the task for a weak set before it has a number
            return id(self)


def name_of(callback: Any) -> str:
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def place_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return None if task.cancelled() else task.exception()


def close_quietly(coro: Any) -> None:
    """Unwind a coroutine of a finished world, whose actions no longer matter."""
    for _ in range(_UNWINDINGS_MAX):  # each waiting finally block takes one round
        try:
            coro.close()
            return
        except BaseException:
            pass
