"""The thread of a journal, with a short way back to the loop.

A thread pool takes 25 of the 290 µs of processor time that a commit of a single entry costs; this
thread calls the loop itself (docs/performance.md, B4).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

T = TypeVar("T")

_Job = tuple[asyncio.AbstractEventLoop, asyncio.Future[Any], Callable[..., Any], tuple[Any, ...]]


class JournalThread(Executor):
    def __init__(self, name: str) -> None:
        self._name = name
        self._max_workers = 1
        self._shutdown = False
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._thread: Thread | None = None

    def submit(  # type: ignore[override]
        self, call: Callable[..., T], /, *args: Any
    ) -> asyncio.Future[T]:
        """Queue a call for the thread; the future belongs to the running loop.

        A call that is cancelled before its turn is not made. Raises `RuntimeError` after
        `shutdown`.
        """
        if self._shutdown:
            raise RuntimeError(f"{self._name} takes no more calls")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        if self._thread is None:
            # A daemon may be cut off at the end of the process: the calls left were never acked.
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._jobs.put((loop, future, call, args))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: ARG002
        """Calls in the queue are still made."""
        self._shutdown = True
        self._jobs.put(None)
        if wait and self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            loop, future, call, args = job
            if not future.cancelled():
                _make(loop, future, call, args)
            del job, loop, future, call, args


def _make(
    loop: asyncio.AbstractEventLoop,
    future: asyncio.Future[Any],
    call: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    result, error = None, None
    try:
        result = call(*args)
    except BaseException as raised:
        error = raised
    try:
        loop.call_soon_threadsafe(_settle, future, result, error)
    except RuntimeError:
        if not loop.is_closed():  # on a closed loop no caller waits any more
            raise


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
