"""One socket to one bookie: pipelined requests, answers matched, every request with a deadline.

    adds         answered by ranges of a ledger's entries (protocol/answers.py joins v2 answers)
    reads        matched by (ledger, entry), first in first out: v2 carries no request id
    batch reads  matched by request id, like the extension's operations

If the bookie sent nothing until a request's deadline, the connection is closed. Fencing and plain
reads need separate connections: v2 does not tell their answers apart, and the late answer to a
plain read would pass for a fence.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import structlog

from octavo.ledger.errors import BookieUnavailable
from octavo.protocol.answers import Added, AddRefused, BatchReadAnswer, ReadAnswer, parse_answers
from octavo.protocol.auth import OCTAVO
from octavo.protocol.codes import Code, OctavoError, ProtocolError, error_for
from octavo.protocol.entry import Buffer
from octavo.protocol.extension import Answer, Op, encode_request
from octavo.protocol.frames import FrameReceiver, auth_frame, batch_read_request, read_request
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.tls.words import why

log = structlog.get_logger()

ReadDone = Callable[[OctavoError | None, bytes], None]
"""(None, the entry) or (error, undefined)."""
BatchDone = Callable[[OctavoError | None, list[bytes]], None]
"""(None, consecutive entries) or (error, undefined)."""
RequestDone = Callable[[OctavoError | None, dict[str, Any]], None]


class AddSink(Protocol):
    def added(self, bookie_id: str, first: int, last: int) -> None: ...

    def add_refused(self, bookie_id: str, code: int, first: int, last: int) -> None: ...


class ConnectionOwner(Protocol):
    def connection_writable(self) -> None: ...

    def connection_lost(self, error: BookieUnavailable) -> None: ...


class _Waiting:
    """`done` is None once answered or failed; a late answer is matched and dropped."""

    __slots__ = ("answered", "done", "what")

    def __init__(self, what: str, done: Callable[[OctavoError | None, Any], None]) -> None:
        self.what = what
        self.done: Callable[[OctavoError | None, Any], None] | None = done
        self.answered = False


class BookieConnection(asyncio.BufferedProtocol):
    def __init__(
        self,
        bookie_id: str,
        owner: ConnectionOwner,
        scratch: bytearray,
        *,
        timeout_s: float,
        buffer_bytes_max: int,
    ) -> None:
        self.bookie_id = bookie_id
        self._owner = owner
        self._timeout_s = timeout_s
        self._buffer_bytes_max = buffer_bytes_max
        self._loop = asyncio.get_running_loop()
        self._receiver = FrameReceiver(FRAME_BYTES_MAX, scratch)
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._out_bytes = 0
        self._paused = False
        self._sinks: dict[int, AddSink] = {}
        self._reads: dict[tuple[int, int], deque[_Waiting]] = {}
        self._by_id: dict[int, _Waiting] = {}
        self._next_id = 1
        self._deadlines: deque[tuple[float, _Waiting]] = deque()
        self._sweeper: asyncio.TimerHandle | None = None
        self._received_at = self._loop.time()
        self._lost: BookieUnavailable | None = None
        self.refusal = ""
        """Why the bookie refused our authentication."""

    def describe(self) -> dict[str, int]:
        return {
            "reads": sum(map(len, self._reads.values())),
            "requests": len(self._by_id),
            "out_bytes": self._out_bytes,
            "deadlines": sum(not one.answered for _, one in self._deadlines),
        }

    # ------------------------------------------------------------------ calls of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._buffer_bytes_max)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self._received_at = self._loop.time()
        data = self._receiver.received(nbytes)
        if not data or self._lost is not None:
            return
        try:
            self._receiver.keep(data, self._take(data))
        except ProtocolError as error:
            log.warning("bookie_broke_protocol", bookie=self.bookie_id, reason=str(error))
            self.close(str(error))

    def pause_writing(self) -> None:
        """Hold adds back: the bookie does not take bytes."""
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._owner.connection_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(why(exc) or str(exc or "") or "the connection was closed")

    def close(self, reason: str) -> None:
        if self._transport is not None:
            self._transport.abort()
        self._fail(reason)

    def _fail(self, reason: str) -> None:
        if self._lost is not None:
            return
        self._lost = error = BookieUnavailable(self.bookie_id, reason)
        if self._sweeper is not None:
            self._sweeper.cancel()
        waiting = [w for line in self._reads.values() for w in line]
        waiting += self._by_id.values()
        self._reads.clear()
        self._by_id.clear()
        self._deadlines.clear()
        self._out.clear()
        for request in waiting:
            self._answer(request, error, None)
        self._owner.connection_lost(error)

    # ------------------------------------------------------------------ requests

    @property
    def writable(self) -> bool:
        return not self._paused and self._lost is None and self._out_bytes < self._buffer_bytes_max

    @property
    def received_at(self) -> float:
        return self._received_at

    def authenticate(self, token: bytes) -> None:
        """Send our proof and do not wait; `refusal` says later which requests it does not allow."""
        frame = auth_frame(OCTAVO, token)
        self._send((frame,), len(frame))

    def attach(self, ledger_id: int, sink: AddSink) -> None:
        self._sinks[ledger_id] = sink

    def detach(self, ledger_id: int, sink: AddSink) -> None:
        if self._sinks.get(ledger_id) is sink:
            del self._sinks[ledger_id]

    def send_adds(self, frames: Sequence[Buffer], size: int) -> None:
        """Send whole add frames; their buffers must not change later."""
        self._send(frames, size)

    def read(
        self, ledger_id: int, entry_id: int, done: ReadDone, *, flags: int = 0, key: bytes = b""
    ) -> None:
        """Read an entry; id −1 asks for the last entry."""
        waiting = _Waiting(f"read of ledger {ledger_id} entry {entry_id}", done)
        if not self._begin(waiting, self._timeout_s):
            return
        self._reads.setdefault((ledger_id, entry_id), deque()).append(waiting)
        frame = read_request(ledger_id, entry_id, flags, key)
        self._send((frame,), len(frame))

    def batch_read(
        self, ledger_id: int, first: int, count_max: int, bytes_max: int, done: BatchDone
    ) -> None:
        waiting = _Waiting(f"batch read of ledger {ledger_id} from entry {first}", done)
        if not self._begin(waiting, self._timeout_s):
            return
        request_id = self._number(waiting)
        frame = batch_read_request(ledger_id, first, request_id, count_max, bytes_max)
        self._send((frame,), len(frame))

    def request(
        self,
        op: Op,
        body: dict[str, Any],
        done: RequestDone,
        *,
        timeout_s: float | None = None,
    ) -> None:
        waiting = _Waiting(op.name, done)
        if not self._begin(waiting, self._timeout_s if timeout_s is None else timeout_s):
            return
        frame = encode_request(op, self._number(waiting), body)
        self._send((frame,), len(frame))

    def _begin(self, waiting: _Waiting, timeout_s: float) -> bool:
        if self._lost is not None:
            self._loop.call_soon(self._answer, waiting, self._lost, None)
            return False
        if timeout_s != self._timeout_s:
            self._loop.call_later(timeout_s, self._expire, waiting, timeout_s)
            return True
        self._deadlines.append((self._loop.time() + timeout_s, waiting))
        if self._sweeper is None:
            self._sweeper = self._loop.call_later(timeout_s, self._sweep)
        return True

    def _number(self, waiting: _Waiting) -> int:
        request_id = self._next_id
        self._next_id += 1
        self._by_id[request_id] = waiting
        return request_id

    def _send(self, frames: Sequence[Buffer], size: int) -> None:
        if self._lost is not None:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += frames
        self._out_bytes += size

    def _flush(self) -> None:
        if self._lost is not None or not self._out:
            return
        assert self._transport is not None
        out, self._out = self._out, []
        was_full = self._out_bytes >= self._buffer_bytes_max
        self._out_bytes = 0
        self._transport.writelines(out)
        if was_full and not self._paused:
            self._owner.connection_writable()

    # ------------------------------------------------------------------ deadlines

    def _sweep(self) -> None:
        """Requests expire in order, so one timer is enough."""
        self._sweeper = None
        now = self._loop.time()
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or deadlines[0][1].answered):
            self._expire(deadlines.popleft()[1], self._timeout_s)
        if deadlines and self._sweeper is None:
            self._sweeper = self._loop.call_at(deadlines[0][0], self._sweep)

    def _expire(self, waiting: _Waiting, timeout_s: float) -> None:
        if waiting.answered:
            return
        error = BookieUnavailable(self.bookie_id, f"{waiting.what}: no answer in {timeout_s:g} s")
        self._answer(waiting, error, None)
        if self._loop.time() - self._received_at >= timeout_s:
            self.close(f"silent for {timeout_s:g} s")

    def _answer(self, waiting: _Waiting, error: OctavoError | None, found: Any) -> None:
        done, waiting.done = waiting.done, None
        waiting.answered = True
        if done is not None:
            done(error, found)

    # ------------------------------------------------------------------ answers

    def _take(self, data: memoryview) -> int:
        """Return where the unfinished answer begins."""
        answers, end = parse_answers(data, FRAME_BYTES_MAX)
        refused: list[AddRefused] = []
        for answer in answers:
            if isinstance(answer, Added):
                sink = self._sinks.get(answer.ledger_id)
                if sink is not None:
                    sink.added(self.bookie_id, answer.first, answer.last)
            elif isinstance(answer, AddRefused):
                refused.append(answer)
            elif isinstance(answer, ReadAnswer):
                self._take_read(answer)
            elif isinstance(answer, BatchReadAnswer):
                waiting = self._numbered(answer.request_id)
                self._answer(waiting, self._error(answer.code, waiting), answer.entries)
            elif isinstance(answer, Answer):
                self._take_extension(answer)
            elif answer.plugin == OCTAVO and answer.payload:
                self.refusal = answer.payload.decode(errors="replace")
                log.warning("bookie_doubts_us", bookie=self.bookie_id, reason=self.refusal)
        if refused:
            self._refuse(refused)
        return end

    def _refuse(self, refused: list[AddRefused]) -> None:
        first = last = refused[0]
        for answer in (*refused[1:], None):
            if answer is not None and answer == (last.code, last.ledger_id, last.entry_id + 1):
                last = answer
                continue
            sink = self._sinks.get(first.ledger_id)
            if sink is not None:
                sink.add_refused(self.bookie_id, first.code, first.entry_id, last.entry_id)
            if answer is not None:
                first = last = answer

    def _take_read(self, answer: ReadAnswer) -> None:
        line = self._reads.get((answer.ledger_id, answer.entry_id))
        if not line:
            raise ProtocolError(
                f"answer to no read: ledger {answer.ledger_id} entry {answer.entry_id}"
            )
        waiting = line.popleft()
        if not line:
            del self._reads[answer.ledger_id, answer.entry_id]
        self._answer(waiting, self._error(answer.code, waiting), answer.entry)

    def _take_extension(self, answer: Answer) -> None:
        waiting = self._numbered(answer.request_id)
        error = self._error(answer.code, waiting, answer.body.get("reason"))
        self._answer(waiting, error, answer.body)

    def _numbered(self, request_id: int) -> _Waiting:
        waiting = self._by_id.pop(request_id, None)
        if waiting is None:
            raise ProtocolError(f"answer to no request: id {request_id}")
        return waiting

    def _error(self, code: int, waiting: _Waiting, reason: object = None) -> OctavoError | None:
        if code == Code.OK:
            return None
        if code == Code.UNAUTHORIZED and not reason:  # v2 carries no reason
            reason = self.refusal or "it does not allow this, or not with this password"
        said = f": {reason}" if reason else ""
        return error_for(code, f"bookie {self.bookie_id}: {waiting.what}{said}")
