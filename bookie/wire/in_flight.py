"""Keep the requests of a connection that are not answered yet, except adds.

Plain reads wait for their turn (read_scheduler.py), and while the peer takes no answers. Fencing
reads, priority reads and extension requests overtake them, up to a bound. The bookie bounds the
number of long polls; above it, a long poll that would have to wait is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from octavo.bookie.wire.requests import AT_ONCE
from octavo.protocol import v3
from octavo.protocol.codes import ProtocolError
from octavo.protocol.extension import Op, Request
from octavo.protocol.fair_queue import FairQueue
from octavo.protocol.frames import BatchReadRequest, ReadRequest

if TYPE_CHECKING:
    from octavo.bookie.wire.read_scheduler import ReadScheduler
    from octavo.bookie.wire.requests import Read, Requests
    from octavo.bookie.wire.v3_calls import V3Calls

_RUNNING_MAX = 32
"""Reads of a connection that use the disk at once."""
_AT_ONCE_MAX = 64
"""Requests above this wait for their turn."""

_Request = ReadRequest | BatchReadRequest | Request | v3.Read | v3.Call


class InFlight:
    def __init__(
        self,
        requests: Requests,
        v3_calls: V3Calls,
        scheduler: ReadScheduler,
        answer: Callable[[bytes], None],
        on_done: Callable[[BaseException | None], None],
    ) -> None:
        self._requests = requests
        self._v3_calls = v3_calls
        self._scheduler = scheduler
        self._answer = answer
        self._on_done = on_done
        self._loop = asyncio.get_running_loop()
        self._waiting: FairQueue[int, tuple[_Request, float]] = FairQueue()
        self._running = 0
        self._stuck = False
        """`_RUNNING_MAX` tasks run and the next request needs one more."""
        self._held = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._waits: set[asyncio.Task[None]] = set()

    def describe(self) -> dict[str, int]:
        return {
            "waiting": len(self._waiting),
            "running": self._running,
            "tasks": len(self._tasks),
            "long_polls": len(self._waits),
        }

    @property
    def count(self) -> int:
        """Count requests that are not answered yet, without long polls."""
        return len(self._tasks) - len(self._waits) + len(self._waiting)

    @property
    def is_empty(self) -> bool:
        return not self._tasks and not self._waiting

    def read(self, request: Read) -> None:
        """Answer a read in its turn, or at once if its flags say so."""
        if isinstance(request, v3.Read) and request.waits:
            self._wait(request)
        else:
            self._take(request, request.ledger_id, at_once=bool(request.flags & AT_ONCE))

    def call(self, request: v3.Call) -> None:
        """Answer a v3 request that is neither a read nor an add."""
        self._take(request, -1, at_once=True)

    def extension(self, request: Request) -> None:
        """Answer an extension request. Raises `ProtocolError` if the frame is an answer."""
        if request.op is Op.ADDED:
            raise ProtocolError("ADDED is an answer, never a request")
        if request.op is Op.WAIT_LAC:
            self._wait(request)
        else:
            self._take(request, -1, at_once=True)

    def _wait(self, request: Request | v3.Read) -> None:
        """Wait for a long poll, refuse it, or treat it as a plain read."""
        if not self._requests.takes_polls:
            if self._requests.would_wait(request):
                self._answer(self._requests.refusal(request, "long_polls"))
            else:
                self._take(request, -1, at_once=False)
            return
        self._requests.polls += 1
        task = self._spawn(self._answer_with(request))
        self._waits.add(task)
        task.add_done_callback(self._waited)

    def _take(self, request: _Request, ledger_id: int, *, at_once: bool) -> None:
        running = len(self._tasks) - len(self._waits) - self._running
        if at_once and running < _AT_ONCE_MAX and self._scheduler.has_task:
            self._run(request, self._ran)
        elif self._scheduler.is_full(urgent=at_once):
            self._answer(self._requests.refusal(request, "reads"))
        else:
            self._waiting.push(ledger_id, (request, self._loop.time()))
            self._scheduler.waiting += 1
            if self.wants_turn:
                self._scheduler.join(self)

    def hold(self) -> None:
        """Stop starting plain reads while the peer does not take its answers."""
        self._held = True
        self._scheduler.leave(self)

    def go_on(self) -> None:
        self._held = False
        if self.wants_turn:
            self._scheduler.join(self)

    def end_waits(self) -> None:
        """Cancel the long polls: the peer sends no more."""
        for wait in self._waits:
            wait.cancel()

    def cancel(self) -> None:
        self._scheduler.leave(self)
        self._scheduler.waiting -= len(self._waiting.clear())
        for task in self._tasks:
            task.cancel()

    # Calls of the scheduler

    @property
    def wants_turn(self) -> bool:
        return bool(self._waiting) and not self._held and not self._stuck

    def serve(self) -> int | None:
        if not self._waiting:
            return 0
        ledger_id, (request, since) = self._waiting.pop()
        frame = self._requests.now(request, since)
        if frame is not None:
            self._scheduler.waiting -= 1
            self._answer(frame)
            self._on_done(None)
            return len(frame)
        self._stuck = self._running >= _RUNNING_MAX
        if self._stuck or not self._scheduler.has_task:
            self._waiting.push_back(ledger_id, (request, since))
            return 0 if self._stuck else None
        self._scheduler.waiting -= 1
        self._running += 1
        self._run(request, self._ran_in_turn, since)
        return 0

    def refuse_waiting(self) -> None:
        for request, _ in self._waiting.clear():
            self._scheduler.waiting -= 1
            self._answer(self._requests.refusal(request, "reads_waited"))
        self._on_done(None)

    # Tasks

    def _answer_to(self, request: _Request, since: float | None) -> Coroutine[Any, Any, bytes]:
        if isinstance(request, v3.Read) and request.waits:
            return self._v3_calls.tail(request)
        if isinstance(request, ReadRequest | v3.Read):
            return self._requests.read(request, since)
        if isinstance(request, v3.Call):
            return self._v3_calls.call(request)
        if isinstance(request, BatchReadRequest):
            return self._requests.batch_read(request, since)
        return self._requests.extension(request)

    async def _answer_with(self, request: _Request, since: float | None = None) -> None:
        self._answer(await self._answer_to(request, since))

    def _run(
        self,
        request: _Request,
        ran: Callable[[asyncio.Task[None]], None],
        since: float | None = None,
    ) -> None:
        self._scheduler.tasks += 1
        self._spawn(self._answer_with(request, since)).add_done_callback(ran)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        return task

    def _ran_in_turn(self, task: asyncio.Task[None]) -> None:
        self._running -= 1
        self._stuck = False
        self._ran(task)
        if self.wants_turn:
            self._scheduler.join(self)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._scheduler.task_ended()
        self._done(task)

    def _waited(self, task: asyncio.Task[None]) -> None:
        self._waits.discard(task)
        self._requests.polls -= 1
        self._done(task)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._on_done(None if task.cancelled() else task.exception())
