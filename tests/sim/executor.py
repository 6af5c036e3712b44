"""Thread pools without threads: a blocking call is one delayed step of its process.

A process may die with the work done and no answer given.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from tests.sim.handles import name_of
from tests.sim.process import PROCESS, Process, ProcessCrashed

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop

_DEFAULT_WORKERS = 4
_START_S_MAX = 60e-6
_RETURN_S_MAX = 80e-6
_AT_ONCE_P = 0.5
"""How often a call takes effect at its very end, right before its answer."""

_Job = tuple[Callable[..., Any], tuple[Any, ...], "asyncio.Future[Any]", Context, Process]


class _Pool:
    __slots__ = ("busy", "executor", "jobs", "workers")

    def __init__(self, executor: Any, workers: int) -> None:
        self.executor = executor
        self.workers = workers
        self.busy = 0
        self.jobs: deque[_Job] = deque()


class SimExecutors:
    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop
        self._random = loop.stream("executors").random
        self._pools: dict[int, _Pool] = {}
        self._spent_s = 0.0

    def submit(self, executor: Any, call: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        loop = self._loop
        context = copy_context()
        process = context.get(PROCESS) or loop.world
        if executor is None:
            pool = self._pools.get(id(process)) or self._pool(process, _DEFAULT_WORKERS)
        elif executor._shutdown:
            raise RuntimeError("cannot schedule new futures after shutdown")
        else:
            pool = self._pools.get(id(executor)) or self._pool(executor, executor._max_workers)
        future: asyncio.Future[Any] = asyncio.Future(loop=loop)
        job = (call, args, future, context, process)
        if pool.busy < pool.workers:  # then no job waits
            self._start(pool, job)
        else:
            pool.jobs.append(job)
        return future

    def spend(self, s: float) -> None:
        self._spent_s += s

    def close(self) -> None:
        self._pools.clear()

    def _pool(self, owner: Any, workers: int) -> _Pool:
        # keeps the owner alive, so its id is never reused
        made = self._pools[id(owner)] = _Pool(owner, workers)
        return made

    def _start(self, pool: _Pool, job: _Job) -> None:
        pool.busy += 1
        when = self._loop.now + self._random() * _START_S_MAX
        self._loop.put(when, job[3], job[4], (self._run, pool, job))

    def _run(self, pool: _Pool, job: _Job) -> None:
        call, args, future, context, process = job
        result, error = None, None
        self._spent_s = 0.0
        try:
            if not future.cancelled():
                result = call(*args)
        except (ProcessCrashed, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as raised:
            self._loop.foresee(process, name_of(call), raised)
            error = raised
        drawn = self._random() - _AT_ONCE_P
        if drawn < 0 and self._spent_s == 0:
            self._answer(pool, future, result, error)
            return
        delay_s = self._spent_s
        if drawn > 0:
            delay_s += drawn * _RETURN_S_MAX
        when = self._loop.now + delay_s
        self._loop.put(when, context, process, (self._answer, pool, future, result, error))

    def _answer(
        self,
        pool: _Pool,
        future: asyncio.Future[Any],
        result: Any,
        error: BaseException | None,
    ) -> None:
        pool.busy -= 1
        if pool.jobs and pool.busy < pool.workers:
            self._start(pool, pool.jobs.popleft())
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)
