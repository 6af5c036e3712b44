"""What the simulated loop runs: callbacks that know their process, tasks that keep their order."""

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
"""A function and its arguments."""
WHEN, CALL, CONTEXT, PROCESS_OF = 0, 2, 3, 4
_UNWINDINGS_MAX = 20


class SimHandle(list[Any]):
    """A callback to come, of one process: when, its number, `Call`, context, process.

    A list, for the heap compares it as it is, and nothing is made as quickly. Cancelled, its
    `Call` is None.
    """

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
"""What code may end with; OSError includes TimeoutError. Anything else is a mistake in it, whoever
catches it: a `gather` that wants no exceptions, a `suppress`, a caller that has gone."""


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose place in a set is the same in each run: sets of tasks are common in asyncio."""

    __slots__ = ("number", "process")
    number: int
    process: Process

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:  # asyncio asks once before it is numbered, for a set of weak ones
            return id(self)


def name_of(callback: Any) -> str:
    """What a callback does, for people."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def place_of(error: BaseException) -> str:
    """Where it was raised, for people."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error of a finished task, if it has one."""
    return None if task.cancelled() else task.exception()


def close_quietly(coro: Any) -> None:
    """Unwind a coroutine in a world that is gone: nothing that it does matters."""
    for _ in range(_UNWINDINGS_MAX):  # each finally block that waits for something takes one
        try:
            coro.close()
            return
        except BaseException:
            pass
