"""Run an event loop on its own thread, for callers that are not asynchronous.

It ends by `stop`, with the last reference to its `LoopThread`, or with the program. Calls that
still wait then fail with `InvalidCall`.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from octavo.client.errors import InvalidCall
from octavo.client.of_this_process import OfThisProcess

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
CLOSE_TIMEOUT_S = 10.0
"""`stop` waits this long for the thread, and a program's end for clients that are still open."""
END_TASKS_S = 2.0
GivenUp = asyncio.Future[None]
"""Is cancelled when the time for closing is over."""
_CLOSED = "this client is closed: make a new one"

log = logging.getLogger("octavo.client")


class _Life:
    """The loop and its thread. Has no reference to its users, so they can be collected."""

    def __init__(
        self,
        name: str,
        close: Callable[[GivenUp], Coroutine[Any, Any, None]] | None,
        forked: Callable[[InvalidCall], object] | None,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.refusal = ""
        self._process = os.getpid()
        self._close = close
        self._tell_forked = forked
        self._given_up: GivenUp = self.loop.create_future()
        self._ending: asyncio.Task[None] | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        _lives.add(self)
        self.thread.start()

    def stop(self) -> None:
        self.refusal = self.refusal or _CLOSED
        self._soon(self.loop.stop)

    def end(self) -> None:
        """Close, then stop, in the background. The garbage collector calls this on any thread."""
        if not self.refusal:
            self.refusal = _CLOSED
            self._soon(self._begin_to_end)

    def give_up(self) -> None:
        self._soon(self._given_up.cancel)

    def forked(self) -> None:
        """Refuse calls in a forked process, which does not have the thread."""
        self.refusal = (
            f"this client belongs to process {self._process}; its thread does not exist in the "
            f"forked process {os.getpid()}: make a new client there"
        )
        if self._tell_forked is not None:
            self._tell_forked(InvalidCall(self.refusal))

    def _soon(self, call: Callable[[], object]) -> None:
        with contextlib.suppress(RuntimeError):  # it has ended
            self.loop.call_soon_threadsafe(call)

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_end_tasks())
        finally:
            self.loop.close()
            _lives.discard(self)

    def _begin_to_end(self) -> None:
        self._ending = self.loop.create_task(self._end())

    async def _end(self) -> None:
        try:
            if self._close is not None:
                await self._close(self._given_up)
        except Exception as error:
            log.warning("a client that was never closed: %s", error)
        finally:
            self.loop.stop()


_lives: set[_Life] = set()


def _forget_all() -> None:
    for life in _lives:
        life.forked()
    _lives.clear()


def _end_all() -> None:
    """Close clients that are open at the program's end, within `CLOSE_TIMEOUT_S`."""
    left = [*_lives]
    for life in left:
        life.end()
    deadline = time.monotonic() + CLOSE_TIMEOUT_S
    for call in (_Life.give_up, _Life.stop):
        for life in left:
            life.thread.join(max(0.0, deadline - time.monotonic()))
            if life.thread.is_alive():
                call(life)
        deadline += END_TASKS_S


os.register_at_fork(after_in_child=_forget_all)
atexit.register(_end_all)


class LoopThread:
    """Takes calls from any thread except its own.

    If `stop` was not called, `close` is awaited on the loop when the object is collected or the
    program ends; its argument is cancelled when its time is over. In a forked process, `forked` is
    called with the error that every call raises there.
    """

    def __init__(
        self,
        name: str,
        close: Callable[[GivenUp], Coroutine[Any, Any, None]] | None = None,
        forked: Callable[[InvalidCall], object] | None = None,
    ) -> None:
        self._life = _Life(name, close, forked)
        weakref.finalize(self, self._life.end).atexit = False
        _end_with_this_process()

    @property
    def is_stopped(self) -> bool:
        return bool(self._life.refusal)

    def check(self) -> None:
        if self._life.refusal:
            raise InvalidCall(self._life.refusal)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self._is_here:
            coroutine.close()
            raise InvalidCall(
                "a callback runs on the client's thread and must not wait for it: make the call "
                "on another thread"
            )
        future = self.start(coroutine)
        try:
            return future.result()
        except CancelledError:
            self.check()  # cancelled because the loop was stopped: raise that error
            raise
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run on the loop; do not wait. Raises `InvalidCall` if the loop has ended."""
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(coroutine, self._life.loop)
        except (InvalidCall, RuntimeError):
            coroutine.close()
            self.check()
            raise

    def soon(self, call: Callable[[], None]) -> None:
        self.check()
        self._life.loop.call_soon_threadsafe(call)

    @property
    def _is_here(self) -> bool:
        return threading.current_thread() is self._life.thread

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        try:
            while True:
                try:
                    yield self.call(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                # After Ctrl-C the interrupted call still runs, and closes the source itself.
                with contextlib.suppress(RuntimeError):
                    self._finish(close)

    @contextlib.contextmanager
    def entered(self, manager: contextlib.AbstractAsyncContextManager[T]) -> Iterator[T]:
        """Enter an asynchronous context manager. Its exit is not told of errors of the block."""
        found = self.call(manager.__aenter__())
        try:
            yield found
        finally:
            self._finish(lambda: manager.__aexit__(None, None, None))

    def _finish(self, last: Callable[[], Awaitable[object]]) -> None:
        """Run the last call, if the loop still runs. The collector may do this on any thread."""
        if self.is_stopped:
            return
        if self._is_here:
            self.start(_awaited(last))
        else:
            self.call(_awaited(last))

    def stop(self) -> None:
        if not self.is_stopped:
            self._life.stop()
            self._life.thread.join(CLOSE_TIMEOUT_S)


class OnLoopThread(OfThisProcess, Generic[T]):
    def __init__(self, inner: T, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __repr__(self) -> str:
        closed = ", closed" if self._thread.is_stopped else ""
        inside = repr(self._inner).partition("(")[2].removesuffix(")")
        return f"{type(self).__name__}({inside}{closed})"


def blocking(
    call: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[OnLoopThread[T], P], R]:
    """Make the waiting form of an asynchronous method, with its types and docstring."""

    def wait(self: OnLoopThread[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(call(self._inner, *args, **kwargs))

    functools.update_wrapper(wait, call)
    del wait.__wrapped__  # type: ignore[attr-defined]  # else tools would show `async def`
    wait.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    return wait


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


async def _awaited(last: Callable[[], Awaitable[object]]) -> None:
    await last()


async def _end_tasks() -> None:
    """Cancel the running tasks, except tasks that are already being cancelled."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_TASKS_S)


_ended_with = 0


def _end_with_this_process() -> None:
    """End clients with this process: `multiprocessing` ends it without `atexit`."""
    global _ended_with
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _ended_with != os.getpid():
        _ended_with = os.getpid()
        util.Finalize(None, _end_all, exitpriority=0)
