"""The simulated event loop: virtual time, and a scheduler that the seed decides.

Time jumps to the next timer when nothing is ready; each step costs a microsecond, so a loop that
never waits runs out of time. Within a process callbacks run in order, as asyncio promises; the seed
decides which process runs next: in turn (fifo), at random (uniform), by priorities that change
twice (pct). `run_in_executor` runs the function as a delayed step of its process.

Errors that a real loop would only log fail the seed.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from random import Random
from typing import Any

from tests.sim.executor import SimExecutors
from tests.sim.handles import (
    CALL,
    CONTEXT,
    FORESEEN,
    PROCESS_OF,
    WHEN,
    Call,
    SimHandle,
    SimTask,
    close_quietly,
    error_of,
    name_of,
    place_of,
)
from tests.sim.process import PROCESS, Process, ProcessCrashed
from tests.sim.running import running
from tests.sim.trace import Trace

STEP_S = 1e-6
EPOCH_MS = 1_767_225_600_000
"""The wall clock at the start of a seed: 2026-01-01."""
CHECK_STEPS = 16
"""Conditions are checked after this many steps, and before the clock jumps far."""
_FAR_S = 0.0005
_PCT_STEPS = 6_000
_PCT_CHANGES = 2
_NEVER: Any = (float("inf"), 0, None)


class SimStuck(AssertionError):
    """An awaited condition did not come: time is over, or nothing is left to do."""


class SimLoop(asyncio.AbstractEventLoop):
    def __init__(self, seed: int, *, trace: Trace) -> None:
        self.seed = seed
        self.trace = trace
        self.epoch_ms = EPOCH_MS
        self.errors: list[str] = []
        """Errors that a real loop would only log."""
        self.network: Any = None
        self.now = 0.0
        """The value of `time()`; the simulator's own parts read it directly to save the call."""
        self._timers: list[SimHandle] = []
        self._next_number = count(1).__next__
        self._ready: list[Process] = []
        self._processes: list[Process] = []
        self._streams: dict[str, Random] = {}
        self._rng = self.stream("schedule")
        self.mode = self._rng.choice(("fifo", "uniform", "pct"))
        self._changes = {self._rng.randrange(_PCT_STEPS) for _ in range(_PCT_CHANGES)}
        self._discarded = False
        self.world = Process(self, "world")
        self.executors = SimExecutors(self)
        self.run_in_executor = self.executors.submit  # type: ignore[method-assign, assignment]
        self.create_future = partial(asyncio.Future, loop=self)  # type: ignore[method-assign]

    # ------------------------------------------------------------------ the seed's own

    def stream(self, name: str) -> Random:
        """Return the random stream of a purpose, so that no part shifts another's draws."""
        found = self._streams.get(name)
        if found is None:
            found = self._streams[name] = Random(f"{self.seed} {name}")
        return found

    @property
    def steps(self) -> int:
        return len(self.trace.steps)

    def time(self) -> float:
        return self.now

    def wall_ms(self) -> int:
        """True wall-clock time; processes have their own, see `Process.clock_ms`."""
        return self.epoch_ms + int(self.now * 1000)

    def world_later(self, s: float, *call: Any) -> SimHandle:
        """Schedule a call of the world, from within any process."""
        return self.put(self.now + s, Context(), self.world, call)

    def put(self, when: float, context: Context, process: Process, call: Call) -> SimHandle:
        handle = SimHandle((when, self._next_number(), call, context, process))
        heappush(self._timers, handle)
        return handle

    def run_until(
        self, done: Callable[[], object] | asyncio.Future[Any], *, virtual_s_max: float
    ) -> None:
        """Run until a future is done or a condition holds. Raises `SimStuck`."""
        with running(self):
            if isinstance(done, asyncio.Future):
                self._run(done.done, 1, self.now + virtual_s_max)
            else:
                self._run(done, CHECK_STEPS, self.now + virtual_s_max)

    def run_until_complete(self, future: Any) -> Any:
        task = asyncio.ensure_future(future, loop=self)
        self.run_until(task, virtual_s_max=3600)
        return task.result()

    def _run(self, done: Callable[[], object], check_steps: int, end: float) -> None:
        ready, timers, ran = self._ready, self._timers, self.trace.steps.append
        jumped, verbose = self.trace.jumps.append, self.trace.verbose
        choose = {"fifo": self._next, "uniform": self._any, "pct": self._first}[self.mode]
        unchecked = 0
        while True:
            unchecked += 1
            if unchecked >= check_steps:
                unchecked = 0
                if done():
                    return
                if self.now > end:
                    raise SimStuck(self._stuck("time is over"))
            if timers and timers[0][0] <= self.now:
                self._move_due()
            if ready:
                process = ready[0] if len(ready) == 1 else choose()
                queue = process.queue
                item = queue.popleft()
                if not queue:
                    ready.remove(process)
                    process.listed = False
                if type(item) is tuple:
                    context, call = item
                else:
                    call, context = item[CALL], item[CONTEXT]
                    if call is None:
                        continue
            else:
                top = timers[0] if timers else _NEVER
                if top[WHEN] < self.now + _FAR_S and top[CALL] is not None:
                    handle = heappop(timers)
                elif (later := self._next_timer(done, end)) is None:
                    return
                else:
                    handle = later
                self.now, _, call, context, process = handle
                jumped(self.now)
                if process.listed:  # dead or paused, which is like having nothing ready
                    process.queue.append(handle)
                    continue
            ran(process.number & 255)
            self.now += STEP_S
            if verbose:
                self.trace.say(self.now, process.name, name_of(call[0]))
            try:
                context.run(*call)
            except (SystemExit, KeyboardInterrupt):
                raise
            except ProcessCrashed:
                if process.alive:
                    self._error(process, "a live process was told that it crashed", None)
            except BaseException as error:
                self._error(process, f"unhandled in {name_of(call[0])}", error)
            task = getattr(call[0], "__self__", None)
            if (
                type(task) is SimTask and task._exception is not None  # type: ignore[attr-defined]
            ):
                self.foresee(process, f"task {task.get_name()}", task._exception)  # type: ignore[attr-defined]
            if process.armed:
                process.after_step()

    def foresee(self, process: Process, what: str, error: BaseException) -> None:
        """Note that `what` ended with `error`. An unexpected error fails the seed, even if code
        swallowed it."""
        if not isinstance(error, FORESEEN):
            self._error(process, f"{what} ended with", error)

    def _next(self) -> Process:
        ready = self._ready
        process = ready.pop(0)
        ready.append(process)
        return process

    def _any(self) -> Process:
        ready = self._ready
        return ready[int(self._rng.random() * len(ready))]

    def _first(self) -> Process:
        process = max(self._ready, key=_priority)
        if self.steps in self._changes:
            process.priority = -self._rng.random()
        return process

    def _move_due(self) -> None:
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            handle = heappop(timers)
            if handle[CALL] is not None:
                process = handle[PROCESS_OF]
                process.queue.append(handle)
                if not process.listed:
                    process.listed = True
                    self._ready.append(process)

    def _next_timer(self, done: Callable[[], object], end: float) -> SimHandle | None:
        """Return the next process to run when nothing is ready, or None at the end. Raises
        `SimStuck`."""
        timers = self._timers
        while timers and timers[0][CALL] is None:
            heappop(timers)
        when = timers[0][WHEN] if timers else _NEVER[WHEN]
        if (when > end or when > self.now + _FAR_S) and done():
            return None
        if when <= end:
            return heappop(timers)
        raise SimStuck(self._stuck("time is over" if timers else "nothing is left to do"))

    def _stuck(self, why: str) -> str:
        pending = [
            f"{task.get_name()} of {process.name}"
            for process in self._processes
            if process.alive
            for task in process.tasks
            if not task.done()
        ]
        return f"{why} at {self.now:.3f} s; pending: {', '.join(pending[:40]) or 'no task'}"

    # ------------------------------------------------------------------ processes

    def join(self, process: Process) -> int:
        self._processes.append(process)
        process.priority = self._rng.random()
        return len(self._processes) - 1

    def list(self, process: Process) -> None:
        if not process.listed:
            process.listed = True
            self._ready.append(process)

    def unlist(self, process: Process) -> None:
        if process in self._ready:
            self._ready.remove(process)

    def look_for_unseen_errors(self, *ending: Process) -> None:
        """Count errors of tasks that no code has read as errors of the seed: of all processes, or
        of the stopping ones."""
        for process in ending or self._processes:
            for task in process.tasks:
                if not (process.alive and task.done() and task._log_traceback):  # type: ignore[attr-defined]
                    continue
                if not _about_to_look(process, task):
                    task._log_traceback = False  # type: ignore[attr-defined]
                    self._error(process, f"nobody looked at task {task.get_name()}", error_of(task))

    def close(self) -> None:
        """Discard the rest. The seed has been judged: finally blocks that run here are no part of
        it."""
        self.look_for_unseen_errors()
        self._discarded = True
        hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
        with running(self):
            for process in self._processes:
                for task in process.tasks:
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    if task.done():
                        task._log_traceback = False  # type: ignore[attr-defined]
                    else:
                        close_quietly(task.get_coro())
                process.tasks.clear()
                process.on_crash.clear()
            for process in self._processes:  # what unwound here has added to it
                process.queue.clear()
            self._timers.clear()
            self._ready.clear()
            self.executors.close()
        sys.unraisablehook = hook

    # ------------------------------------------------------------------ asyncio's

    # As asyncio's, with as little work as possible: it is called millions of times.
    def call_soon(  # type: ignore[override]
        self, *call: Any, context: Context | None = None
    ) -> Any:
        item: Any
        if context is None:
            context = copy_context()
            process = context.get(PROCESS) or self.world
            handle = item = SimHandle((self.now, 0, call, context, process))
        else:  # tasks and futures, which ignore the result
            process = context.get(PROCESS) or self.world  # type: ignore[arg-type]
            handle, item = None, (context, call)
        process.queue.append(item)
        if not process.listed:
            process.listed = True
            self._ready.append(process)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_at(  # type: ignore[override]
        self, when: float, *call: Any, context: Context | None = None
    ) -> Any:
        if context is None:
            context = copy_context()
        process = context.get(PROCESS) or self.world
        handle = SimHandle((when, self._next_number(), call, context, process))
        heappush(self._timers, handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, *call: Any, context: Context | None = None
    ) -> Any:
        if context is None:
            context = copy_context()
        process = context.get(PROCESS) or self.world
        handle = SimHandle((self.now + delay, self._next_number(), call, context, process))
        heappush(self._timers, handle)
        return handle

    def create_task(  # type: ignore[override]
        self,
        coro: Coroutine[Any, Any, Any],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[Any]:
        process = (PROCESS.get() if context is None else context.get(PROCESS)) or self.world
        if self._discarded:
            # Close the coroutine and return a task that never ends. A caller may make several tasks
            # at once; an error here would leave the other coroutines to the garbage collector.
            close_quietly(coro)
            task = SimTask(coro, loop=self, name=name or "task", context=context)
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            return task
        number = self._next_number()
        task = SimTask(coro, loop=self, name=name or "task", context=context)
        task.number = number
        task.process = process
        process.tasks.append(task)
        return task

    def spend(self, s: float) -> None:
        self.executors.spend(s)

    async def create_server(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any
    ) -> Any:
        return await self.network.create_server(protocol_factory, host, port, **kwargs)

    async def create_connection(
        self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any
    ) -> Any:
        return await self.network.create_connection(protocol_factory, host, port, **kwargs)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        task = context.get("task") or context.get("future")
        process = task.process if isinstance(task, SimTask) else PROCESS.get() or self.world
        self._error(process, context.get("message", "unhandled"), context.get("exception"))

    default_exception_handler = call_exception_handler

    def _error(self, process: Process, message: str, error: BaseException | None) -> None:
        if not self._discarded and process.alive:
            where = "" if error is None else place_of(error)
            self.errors.append(f"{self.now:.6f} {process.name}: {message}: {error!r}{where}")

    get_debug = staticmethod(bool)  # type: ignore[assignment]
    """Every future asks for it. `bool()` is False without a Python frame."""

    def is_running(self) -> bool:
        return events._get_running_loop() is self

    def is_closed(self) -> bool:
        return False

    async def shutdown_asyncgens(self) -> None: ...

    async def shutdown_default_executor(self) -> None: ...

    def finalize_generator(self, generator: Any) -> None:
        if not self._discarded:
            self.create_task(generator.aclose(), name="close generator")


def _priority(process: Process) -> float:
    return process.priority


def _about_to_look(process: Process, task: asyncio.Task[Any]) -> bool:
    """Whether a callback of the task still has to run: the seed ended between the two."""
    calls = (item[CALL] if isinstance(item, SimHandle) else item[1] for item in process.queue)
    return any(call is not None and any(arg is task for arg in call[1:]) for call in calls)
