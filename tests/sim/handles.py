"""What the simulated loop runs: callbacks that know their process, tasks that keep their order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.process import Process


class SimHandle(asyncio.TimerHandle):
    """A callback to come, of one process."""

    __slots__ = ("process",)

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context,
        process: Process,
        when: float,
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = context
        self.process = process
        self._when = when
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self.process.name}: {name_of(self._callback)} at {self._when:.6f}>"


class SimTask(asyncio.Task):  # type: ignore[type-arg]
    """A task whose place in a set is the same in each run: sets of tasks are common in asyncio."""

    __slots__ = ("number", "process")
    number: int
    process: Process

    def __hash__(self) -> int:
        try:
            return self.number
        except AttributeError:  # asyncio asks once before it is numbered
            return 0


def name_of(callback: Any) -> str:
    """What a callback does, for people."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return f"task {owner.get_name()}"
    return getattr(callback, "__qualname__", None) or type(callback).__name__


def error_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error of a finished task, if it has one."""
    return None if task.cancelled() else task.exception()


def close_quietly(coro: Any) -> None:
    """Unwind a coroutine in a world that is gone: nothing that it does matters."""
    try:
        coro.close()
    except BaseException:
        pass
