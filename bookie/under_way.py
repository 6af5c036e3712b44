"""What one connection has asked for, adds apart, and has not been answered yet.

Plain reads wait in line for one of a few readers, and wait there while the peer does not take its
answers: that bounds what they occupy. Fencing reads, priority reads and the extension's requests
overtake that line while they are few. A long-poll never stands in it: the bookie counts those.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from protocol.codes import ProtocolError
from protocol.extension import Op, Request
from protocol.frames import BatchReadRequest, Flag, ReadRequest

if TYPE_CHECKING:
    from bookie.requests import Requests

_READERS_MAX = 32
"""Plain reads of one connection that run at once."""
_READS_PER_TURN = 32
_AT_ONCE = int(Flag.FENCE | Flag.HIGH_PRIORITY)
_AT_ONCE_MAX = 64
"""Requests that may run beside the readers; the next ones stand in line like others."""

_Request = ReadRequest | BatchReadRequest | Request


class UnderWay:
    """The tasks of one connection; all are cancelled with it."""

    def __init__(
        self,
        requests: Requests,
        answer: Callable[[bytes], None],
        on_done: Callable[[BaseException | None], None],
    ) -> None:
        self._requests = requests
        self._answer = answer
        self._on_done = on_done
        self._lined_up: deque[_Request] = deque()
        self._readers = 0
        self._held = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: set[asyncio.Task[None]] = set()
        """Those of `_tasks` that are long-polls."""

    @property
    def count(self) -> int:
        """Requests not answered yet, long-polls apart."""
        return len(self._tasks) - len(self._waits) + len(self._lined_up)

    @property
    def is_empty(self) -> bool:
        """Whether everything has been answered."""
        return not self._tasks and not self._lined_up

    def read(self, request: ReadRequest | BatchReadRequest) -> None:
        """Answer a read, in line or, with a flag that says so, at once."""
        self._take(request, at_once=bool(request.flags & _AT_ONCE))

    def extension(self, request: Request) -> None:
        """Answer a request of ours. Raises `ProtocolError` when it is none."""
        if request.op is Op.ADDED:
            raise ProtocolError("ADDED is an answer, never a request")
        if request.op is Op.WAIT_LAC:
            self._waits.add(self._spawn(self._answer_with(request)))
        else:
            self._take(request, at_once=True)

    def _take(self, request: _Request, *, at_once: bool) -> None:
        running = len(self._tasks) - len(self._waits) - self._readers
        if at_once and running < _AT_ONCE_MAX:
            self._spawn(self._answer_with(request))
        else:
            self._lined_up.append(request)
            self._start_readers(1)

    def hold(self) -> None:
        """The peer does not take its answers: begin no further plain read."""
        self._held = True

    def go_on(self) -> None:
        """It takes them again."""
        self._held = False
        self._start_readers(len(self._lined_up))

    def end_waits(self) -> None:
        """Nobody waits for the long-polls any more."""
        for wait in self._waits:
            wait.cancel()

    def cancel(self) -> None:
        """Nobody waits for anything any more."""
        self._lined_up.clear()
        for task in self._tasks:
            task.cancel()

    def _answer_to(self, request: _Request) -> Coroutine[Any, Any, bytes]:
        if isinstance(request, ReadRequest):
            return self._requests.read(request)
        if isinstance(request, BatchReadRequest):
            return self._requests.batch_read(request)
        return self._requests.extension(request)

    async def _answer_with(self, request: _Request) -> None:
        self._answer(await self._answer_to(request))

    def _start_readers(self, count: int) -> None:
        for _ in range(min(count, _READERS_MAX - self._readers)):
            self._readers += 1
            self._spawn(self._read_on())

    async def _read_on(self) -> None:
        """Answer what is lined up, until nothing is or the peer takes no more."""
        try:
            while self._lined_up and not self._held:
                for _ in range(_READS_PER_TURN):
                    self._answer(await self._answer_to(self._lined_up.popleft()))
                    if not self._lined_up or self._held:
                        return
                await asyncio.sleep(0)  # reads from a cache never wait: let others have a turn
        finally:
            self._readers -= 1

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._waits.discard(task)
        self._on_done(None if task.cancelled() else task.exception())
