"""A simulated operating-system process: what belongs to it, and how it dies or stands still.

A callback or task belongs to the process of its `contextvars` context. A dead process keeps its
queue and its tasks, so that no `finally` block runs: `kill -9` runs none.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop

T = TypeVar("T")

PROCESS: ContextVar[Process | None] = ContextVar("PROCESS", default=None)
"""The process of the running code; None is the world that drives the simulation."""


class ProcessCrashed(BaseException):
    """The process died within a blocking call. Production code never catches it."""


def current_process() -> Process | None:
    return PROCESS.get()


class Process:
    def __init__(self, loop: SimLoop, name: str) -> None:
        self.loop = loop
        self.name = name
        self.number = loop.join(self)
        self.rng = loop.stream(f"process {self.number} {name}")
        self.alive = True
        self.power_lost = False
        """Dead with its whole machine: the kernel neither ends its connections nor writes pages."""
        self.paused = False
        self.skew_ms = 0
        """How far its wall clock is ahead."""
        self.drift = 0.0
        """How much faster its wall clock runs: 0.01 is one per cent."""
        self.on_crash: list[Callable[[Process], None]] = []
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task that it started, kept to the end of the seed."""
        # The fields below belong to the loop.
        self.queue: deque[Any] = deque()
        self.listed = False
        """True keeps the loop from listing it as ready: it is listed, or it may not run."""
        self.armed = False
        """Whether the loop has to call `after_step`."""
        self.priority = 0.0
        self._crash_steps = 0
        self._crash_power = True
        self._slow_s = 0.0
        self._pauses = 0
        self._context = copy_context()
        self._context.run(PROCESS.set, self)

    def __repr__(self) -> str:
        state = "" if self.alive else " dead"
        return f"<{self.name}#{self.number}{state}>"

    @property
    def context(self) -> Context:
        return self._context.copy()

    def spawn(self, coro: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        return self.loop.create_task(coro, name=name, context=self._context.copy())

    def run(self, call: Callable[..., T], *args: Any) -> T:
        return self._context.copy().run(call, *args)

    def clock_ms(self) -> int:
        now_ms = self.loop.time() * 1000
        return self.loop.epoch_ms + self.skew_ms + int(now_ms * (1 + self.drift))

    # ------------------------------------------------------------------ faults

    def crash(self, *, power: bool = True) -> None:
        """Die now: no further step of it ever runs. If it calls this itself, only that step
        continues.

        With `power` the machine loses its power (connections fall silent, unsynced writes are
        lost). Otherwise the process is killed, and its kernel cleans up.
        """
        if not self.alive:
            return
        self.alive = False
        self.power_lost = power
        self.loop.unlist(self)
        self.listed = True
        if self.loop.trace.verbose:
            self.loop.trace.say(self.loop.time(), self.name, "crashes")
        for told in tuple(self.on_crash):
            told(self)

    def crash_after(self, steps: int, *, power: bool = True) -> None:
        """Die after that many further steps (at least one)."""
        self._crash_steps = max(1, steps)
        self._crash_power = power
        self._arm()

    def slow_down(self, step_s: float) -> None:
        """Give each step this duration from now on; 0 makes it quick again."""
        self._slow_s = step_s
        self._arm()

    def pause(self, s: float) -> None:
        """Stand still, as under SIGSTOP: other processes continue, and its timers fire late."""
        if not self.alive:
            return
        self._pauses += 1
        if not self.paused:
            self.paused = True
            self.loop.unlist(self)
            self.listed = True
        self.loop.world_later(s, self._resume, self._pauses)

    def resume(self) -> None:
        self._resume(self._pauses)

    def _resume(self, pause: int) -> None:
        if not self.alive or not self.paused or pause != self._pauses:
            return
        self.paused = False
        self._list()

    def _list(self) -> None:
        self.listed = False
        if self.queue:
            self.loop.list(self)

    def _arm(self) -> None:
        self.armed = self._crash_steps > 0 or self._slow_s > 0

    def after_step(self) -> None:
        """Do what is due after a step; the loop calls it when `armed`."""
        if self._crash_steps > 0:
            self._crash_steps -= 1
            if self._crash_steps == 0:
                self._arm()
                self.crash(power=self._crash_power)
        if self._slow_s > 0 and self.alive and not self.paused:
            self._pauses += 1
            self.paused = True
            self.loop.unlist(self)
            self.listed = True
            self.loop.world_later(self._slow_s, self._resume, self._pauses)
