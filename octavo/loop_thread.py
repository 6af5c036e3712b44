"""An event loop on a thread of its own, for callers that are not asynchronous."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from octavo.client.errors import InvalidCall

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
CLOSE_TIMEOUT_S = 10.0


class LoopThread:
    """Runs until `stop`, or the end of the process. Calls may come from any thread but its own."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._stopped = False
        self._process = os.getpid()
        self._thread.start()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run on the loop and wait."""
        future = self.start(coroutine)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run on the loop; do not wait. Raises `InvalidCall` where there is no loop any more."""
        try:
            self._check()
        except InvalidCall:
            coroutine.close()
            raise
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def soon(self, call: Callable[[], None]) -> None:
        """Call on the loop; do not wait. Raises as `start` does."""
        self._check()
        self._loop.call_soon_threadsafe(call)

    def _check(self) -> None:
        if self._stopped:
            raise InvalidCall("this client is closed: make a new one")
        if self._process != os.getpid():
            raise InvalidCall(
                f"this client is of process {self._process}, and its thread did not come along "
                f"into {os.getpid()}, which a fork has made: make a new one there"
            )

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
            if close is not None and not self._stopped:
                # A call that was given up, by Ctrl-C say, is still under way and closes it itself.
                with contextlib.suppress(RuntimeError):
                    self.call(close())

    @contextlib.contextmanager
    def entered(self, manager: contextlib.AbstractAsyncContextManager[T]) -> Iterator[T]:
        """An asynchronous context manager as an ordinary one; it hears of no error of the block."""
        found = self.call(manager.__aenter__())
        try:
            yield found
        finally:
            if not self._stopped:
                self.call(manager.__aexit__(None, None, None))

    def stop(self) -> None:
        """End the thread."""
        if self._stopped or self._process != os.getpid():
            return
        self._stopped = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CLOSE_TIMEOUT_S)
        if not self._thread.is_alive():
            self._loop.close()


class OnLoopThread(Generic[T]):
    """Stands on any thread for `inner`, which lives on the loop's."""

    def __init__(self, inner: T, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread


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
