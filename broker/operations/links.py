"""The two ends of a connection between brokers, as asyncio protocols over `channel.py`.

Both write only while their transport takes data, so that waiting frames stay ordered by priority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

import structlog

from octavo.broker.errors import Overloaded
from octavo.broker.operations.channel import (
    Answer,
    Answering,
    Asked,
    Asking,
    Priority,
    State,
    Stopped,
    Undelivered,
    Unwanted,
)
from octavo.broker.operations.frames import (
    BrokenChannel,
    Frame,
    Kind,
    Receiver,
    Seals,
    encode,
)
from octavo.broker.operations.kinds import Refusal, encode_answer

WRITE_BUFFER_BYTES = 128 * 1024
"""An urgent piece waits behind these bytes alone."""
HELLO_TIMEOUT_S = 5.0

log = structlog.get_logger()


class AnswerLost(Exception):
    """`sent`: whether all of the request was sent."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class AnswerRefused(Exception):
    def __init__(self, payload: bytes) -> None:
        super().__init__("refused")
        self.payload = payload


class Reply(NamedTuple):
    payload: bytes
    is_refused: bool = False
    undelivered: Undelivered | None = None


class _Link(asyncio.Protocol):
    def __init__(self, hello: bytes, sends: Seals, receives: Seals) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._hello = hello
        self._sends = sends
        self._receiver = Receiver(receives)
        self._is_paused = False
        self._greeted = False
        self._ended = False
        self._greeting: asyncio.TimerHandle | None = None
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.greeted: asyncio.Future[bytes] = self._loop.create_future()
        self.heard_s = self._loop.time()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        self._transport.set_write_buffer_limits(WRITE_BUFFER_BYTES)
        self._write(Frame(Kind.HELLO, 0, self._hello))
        self._greeting = self._loop.call_later(HELLO_TIMEOUT_S, self._not_greeted)

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        self.heard_s = self._loop.time()
        try:
            for frame in self._receiver.feed(data):
                if frame.kind is Kind.HELLO:
                    self._take_hello(frame)
                else:
                    self._take(frame)
        except BrokenChannel as error:
            log.warning("broker_connection_broken", reason=str(error))
            self.end(str(error))
            return
        self.pump()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lose(str(exc) if exc else "the connection was closed")

    def end(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._lose(reason)

    def waits_in_vain(self) -> str:
        takes = self._greeted and not (self._is_paused or self._ended)
        return "frames wait, and the connection takes them" if takes and self._may_send() else ""

    def pump(self) -> None:
        while not (self._is_paused or self._ended):
            frame = self._next_frame()
            if frame is None:
                return
            self._write(frame)

    def _write(self, frame: Frame) -> None:
        assert self._transport is not None
        self._transport.write(encode(frame, self._sends))

    def _take_hello(self, frame: Frame) -> None:
        if self._greeting is not None:
            self._greeting.cancel()
        self._greeted = True
        if not self.greeted.done():
            self.greeted.set_result(bytes(frame.data))

    def _not_greeted(self) -> None:
        self.end(f"the other broker did not prove itself within {HELLO_TIMEOUT_S:g} s")

    def _lose(self, reason: str) -> None:
        if self._ended:
            return
        self._ended = True
        if self._greeting is not None:
            self._greeting.cancel()
        if not self.greeted.done():
            self.greeted.set_exception(AnswerLost(reason, sent=False))
            self.greeted.exception()  # no caller may be waiting for it
        self._lost(reason)
        if not self.closed.done():
            self.closed.set_result(None)

    def _may_send(self) -> bool:
        raise NotImplementedError

    def _next_frame(self) -> Frame | None:
        raise NotImplementedError

    def _take(self, frame: Frame) -> None:
        raise NotImplementedError

    def _lost(self, reason: str) -> None:
        raise NotImplementedError


class AskingLink(_Link):
    def __init__(self, hello: bytes, sends: Seals, receives: Seals) -> None:
        super().__init__(hello, sends, receives)
        self._channel = Asking()
        self._waiters: dict[int, asyncio.Future[bytes]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = 0.0

    def describe(self) -> dict[str, int]:
        return {"waiters": len(self._waiters), **self._channel.describe()}

    @property
    def is_open(self) -> bool:
        return not self._ended

    async def ask(
        self,
        payload: bytes,
        *,
        priority: Priority,
        reserve: int,
        deadline_s: float,
        unwanted: Unwanted | None = None,
    ) -> bytes:
        if self._ended:
            raise AnswerLost("the connection has ended", sent=False)
        number = self._channel.ask(
            payload,
            priority=priority,
            reserve=reserve,
            deadline_s=deadline_s,
            unwanted=unwanted,
        )
        waiter = self._waiters[number] = self._loop.create_future()
        self._set_timer()
        self.pump()
        try:
            answer: bytes = await waiter
            return answer
        except asyncio.CancelledError:
            if _has_answer(waiter) and unwanted is not None:  # an answer came just now
                unwanted(waiter.result())
            raise
        finally:
            if self._waiters.get(number) is waiter:
                del self._waiters[number]
                self._channel.cancel(number)
                self.pump()

    def _may_send(self) -> bool:
        return self._channel.may_send()

    def _next_frame(self) -> Frame | None:
        return self._channel.next_frame(self._loop.time()) if self._greeted else None

    def _take(self, frame: Frame) -> None:
        answer = self._channel.take(frame)
        if answer is None:
            return
        waiter = self._waiters.pop(answer.number, None)
        if waiter is None or waiter.done():  # the operation was cancelled
            _tell_unwanted(answer)
        elif answer.refused:
            waiter.set_exception(AnswerRefused(answer.payload))
        else:
            waiter.set_result(answer.payload)

    def _lost(self, reason: str) -> None:
        lost = self._channel.lose()
        for numbers, sent in ((lost.not_done, False), (lost.maybe_done, True)):
            for number in numbers:
                self._fail(number, AnswerLost(reason, sent=sent))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _fail(self, number: int, error: AnswerLost) -> None:
        waiter = self._waiters.pop(number, None)
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)

    def _set_timer(self) -> None:
        next_s = self._channel.next_deadline_s
        if next_s is None or (self._timer is not None and self._timer_s <= next_s):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_s = next_s
        self._timer = self._loop.call_at(next_s, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        for number, state in self._channel.overdue(self._loop.time()):
            reason = "it did not answer in time"
            self._fail(number, AnswerLost(reason, sent=state is State.OUT))
        self.pump()
        self._set_timer()


class AnsweringLink(_Link):
    """Answers requests; `run` never raises."""

    def __init__(
        self,
        hello: bytes,
        sends: Seals,
        receives: Seals,
        run: Callable[[bytes, float], Awaitable[Reply]],
    ) -> None:
        super().__init__(hello, sends, receives)
        self._channel = Answering()
        self._run = run
        self._work: dict[int, asyncio.Task[None]] = {}

    def describe(self) -> dict[str, int]:
        return {"work": len(self._work), **self._channel.describe()}

    def _may_send(self) -> bool:
        return self._channel.may_send()

    def _next_frame(self) -> Frame | None:
        return self._channel.next_frame() if self._greeted else None

    def _take(self, frame: Frame) -> None:
        found = self._channel.take(frame, self._loop.time())
        if isinstance(found, Asked):
            task = self._loop.create_task(self._answer(found), name="operation of a broker")
            self._work[found.number] = task
            task.add_done_callback(lambda _: self._work.pop(found.number, None))
        elif isinstance(found, Stopped):
            self._stop(found.number)

    async def _answer(self, asked: Asked) -> None:
        try:
            async with asyncio.timeout_at(asked.deadline_s):
                reply = await self._run(asked.payload, asked.deadline_s)
        except TimeoutError:
            return  # the asking side's time is up too: it cancels
        self._send(asked.number, reply)
        self.pump()

    def _send(self, number: int, reply: Reply) -> None:
        payload, is_refused, undelivered = reply
        try:
            self._channel.answer(number, payload, refused=is_refused, undelivered=undelivered)
        except Overloaded as error:
            if undelivered is not None:
                undelivered()
            refusal = Refusal(429, error.name, str(error), retryable=True)
            self._channel.answer(number, encode_answer(refusal), refused=True)

    def _stop(self, number: int) -> None:
        if (task := self._work.get(number)) is not None:
            task.cancel()

    def _lost(self, reason: str) -> None:
        del reason
        self._channel.lose()
        for task in tuple(self._work.values()):
            task.cancel()


def _has_answer(waiter: asyncio.Future[bytes]) -> bool:
    return waiter.done() and not waiter.cancelled() and waiter.exception() is None


def _tell_unwanted(answer: Answer) -> None:
    if answer.unwanted is not None and not answer.refused:
        answer.unwanted(answer.payload)
