"""An event loop on a thread of its own, for callers that are not asynchronous.

It ends by `stop`; where that is forgotten, with the last who has it, or with the program. Whoever
waits for it then is told, and nobody waits for a loop that runs no more.
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
"""So long `stop` waits for the thread, and the end of a program for all that was not closed."""
END_TASKS_S = 2.0
"""So long tasks that were cancelled may take."""
GivenUp = asyncio.Future[None]
"""Cancelled when there is no more time."""
_CLOSED = "this client is closed: make a new one"

log = logging.getLogger("octavo.client")


class _Life:
    """The loop and its thread. Knows nobody who uses it, so they can be forgotten."""

    def __init__(
        self,
        name: str,
        close: Callable[[GivenUp], Coroutine[Any, Any, None]] | None,
        forked: Callable[[InvalidCall], object] | None,
    ) -> None:
        self.loop = asyncio.new_event_loop()
        self.refusal = ""
        """Why no call is taken any more."""
        self._process = os.getpid()
        self._close = close
        self._tell_forked = forked
        self._given_up: GivenUp = self.loop.create_future()
        self._ending: asyncio.Task[None] | None = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        _lives.add(self)
        self.thread.start()

    def stop(self) -> None:
        """Break off what is under way."""
        self.refusal = self.refusal or _CLOSED
        self._soon(self.loop.stop)

    def end(self) -> None:
        """Close, then stop, in the background: the collector calls this, on any thread."""
        if not self.refusal:
            self.refusal = _CLOSED
            self._soon(self._begin_to_end)

    def give_up(self) -> None:
        """What has begun to end has no more time."""
        self._soon(self._given_up.cancel)

    def forked(self) -> None:
        """This is another process: its thread is not here."""
        self.refusal = (
            f"this client is of process {self._process}, and its thread did not come along "
            f"into {os.getpid()}, which a fork has made: make a new one there"
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
    """In a process that a fork has just made."""
    for life in _lives:
        life.forked()
    _lives.clear()


def _end_all() -> None:
    """At the end of the program: what nobody has closed is closed, if that takes no longer."""
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
    """Calls may come from any thread but its own.

    `close` is awaited on the loop where nobody has called `stop`, when the last one who has this
    lets go of it, or at the end of the program; what it is given is cancelled when there is
    no more time. `forked` is told, in a process that a fork has made, why nothing here works there.
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
        """Whether it takes no more calls."""
        return bool(self._life.refusal)

    def check(self) -> None:
        """Raises `InvalidCall` where it takes no more calls."""
        if self._life.refusal:
            raise InvalidCall(self._life.refusal)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the loop and wait."""
        if self._is_here:
            coroutine.close()
            raise InvalidCall("a callback must not wait for the client's thread: it is on it")
        future = self.start(coroutine)
        try:
            return future.result()
        except CancelledError:
            self.check()  # that is why
            raise
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run on the loop; do not wait. Raises `InvalidCall` where there is no loop any more."""
        try:
            self.check()
            return asyncio.run_coroutine_threadsafe(coroutine, self._life.loop)
        except (InvalidCall, RuntimeError):
            coroutine.close()
            self.check()
            raise

    def soon(self, call: Callable[[], None]) -> None:
        """Call on the loop; do not wait. Raises as `start` does."""
        self.check()
        self._life.loop.call_soon_threadsafe(call)

    @property
    def _is_here(self) -> bool:
        return threading.current_thread() is self._life.thread

    def iterate(self, source: AsyncIterator[T]) -> Iterator[T]:
        """An asynchronous iterator as an ordinary one."""
        try:
            while True:
                try:
                    yield self.call(_next(source))
                except StopAsyncIteration:
                    return
        finally:
            close = getattr(source, "aclose", None)
            if close is not None:
                # A call that was given up, by Ctrl-C say, is still under way and closes it itself.
                with contextlib.suppress(RuntimeError):
                    self._finish(close)

    @contextlib.contextmanager
    def entered(self, manager: contextlib.AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An asynchronous context manager as an ordinary one; it hears of no error of the block."""
        found = self.call(manager.__aenter__())
        try:
            yield found
        finally:
            self._finish(lambda: manager.__aexit__(None, None, None))

    def _finish(self, last: Callable[[], Awaitable[object]]) -> None:
        """Run what comes last, if the loop is there. The collector may call this anywhere."""
        if self.is_stopped:
            return
        if self._is_here:
            self.start(_awaited(last))
        else:
            self.call(_awaited(last))

    def stop(self) -> None:
        """End the thread."""
        if not self.is_stopped:
            self._life.stop()
            self._life.thread.join(CLOSE_TIMEOUT_S)


class OnLoopThread(OfThisProcess, Generic[T]):
    """Stands on any thread for `inner`, which lives on the loop's."""

    def __init__(self, inner: T, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __repr__(self) -> str:
        """As of the asynchronous one."""
        closed = ", closed" if self._thread.is_stopped else ""
        inside = repr(self._inner).partition("(")[2].removesuffix(")")
        return f"{type(self).__name__}({inside}{closed})"


def blocking(
    call: Callable[Concatenate[T, P], Coroutine[Any, Any, R]],
) -> Callable[Concatenate[OnLoopThread[T], P], R]:
    """The same call, as it is typed and described, for who stands for the object: it waits."""

    def wait(self: OnLoopThread[T], /, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._thread.call(call(self._inner, *args, **kwargs))

    functools.update_wrapper(wait, call)
    del wait.__wrapped__  # type: ignore[attr-defined]  # by it tools would say `async def`
    wait.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    return wait


async def _next(source: AsyncIterator[T]) -> T:
    return await source.__anext__()


async def _awaited(last: Callable[[], Awaitable[object]]) -> None:
    await last()


async def _end_tasks() -> None:
    """All that is still under way ends; what is ending already is left alone."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        if not task.cancelling():
            task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=END_TASKS_S)


_ended_with = 0
"""The process whose end is looked after."""


def _end_with_this_process() -> None:
    """A process of `multiprocessing` ends without `atexit`, but has a list of its own."""
    global _ended_with
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _ended_with != os.getpid():
        _ended_with = os.getpid()
        util.Finalize(None, _end_all, exitpriority=0)
