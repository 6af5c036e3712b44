"""Serve one client of a bookie: split its chunks into frames, pass them on, write the answers.

The hot path is `buffer_updated`: one walk over the frames of a chunk, and one call to the storage
for all its adds. Answers are written once in a turn of the loop: one frame for each range
(`Flag.RANGE_ACK`), or BookKeeper's 28 bytes for each entry, filled in column by column.

The connection stops reading when it has too many requests under way, when its client takes no
answers, or when the disk is behind (back_pressure.py).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, cast

import structlog

from octavo.bookie.adds import AddBatch, Adds, Refused, split_adds
from octavo.bookie.back_pressure import MODEST_BYTES, Flow, Pause, Pressure
from octavo.bookie.wire.in_flight import InFlight
from octavo.bookie.wire.requests import v2_code
from octavo.bookie.wire.v3_adds import Gathering, V3Batch
from octavo.protocol import extension, v3
from octavo.protocol.auth import AUTH_DISABLED, AuthMessage
from octavo.protocol.codes import Code, OctavoError, ProtocolError
from octavo.protocol.extension import encode_added
from octavo.protocol.frames import (
    ADD_HEADER,
    ADD_IDS,
    ANSWER,
    ANSWER_BYTES,
    AUTH_HEADER,
    BATCH_READ_HEADER,
    LENGTH,
    PREFIX,
    READ,
    READ_HEADER,
    VERSION,
    Flag,
    FrameReceiver,
    Op,
    add_answer,
    auth_frame,
    header,
    parse_auth,
    parse_batch_read,
    parse_read,
)
from octavo.protocol.log_limiter import host_of

if TYPE_CHECKING:
    from octavo.bookie.wire.rights import Asked, Rights
    from octavo.bookie.wire.server import BookieServer
    from octavo.bookie.write.duplicate_adds import Done

log = structlog.get_logger()

_ADD = ADD_HEADER >> 16
_READ = READ_HEADER >> 16
_BATCH_READ = BATCH_READ_HEADER >> 16
_AUTH = AUTH_HEADER >> 16
_V3_FIRST_BYTE = 0x0A
"""Each v3 request begins with it: field 1, length-delimited."""
_RANGE_ACK = int(Flag.RANGE_ACK)
_DEFERRED_SYNC = int(Flag.DEFERRED_SYNC)
_RECOVERY_ADD = int(Flag.RECOVERY_ADD)
_HIGH_PRIORITY = int(Flag.HIGH_PRIORITY)
_ENTRY_ID_AT = ANSWER_BYTES - 8
_LOGGED_REFUSALS_MAX = 3
_FAREWELL_S = 0.5
"""How long a peer that lost a right may still get answers."""
_GATHERED_BYTES_MAX = 256 * 1024
"""Above this size answers are written before the turn ends."""


def add_answers(code: Code, ledger_id: int, first_entry: int, count: int) -> bytes:
    if count == 1:
        return add_answer(code, ledger_id, first_entry)
    answers = bytearray(add_answer(code, ledger_id, 0) * count)
    ids = struct.pack(f">{count}q", *range(first_entry, first_entry + count))
    for column in range(8):
        answers[_ENTRY_ID_AT + column :: ANSWER_BYTES] = ids[column::8]
    return bytes(answers)


class Answers:
    """A connection's answers, which are written at the end of this turn of the loop."""

    __slots__ = ("_first", "_frames", "_last", "_ledger_id")

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._ledger_id = -1
        self._first = 0
        self._last = -1

    def append(self, frame: bytes) -> None:
        self._frames.append(frame)

    def acked_range(self, ledger_id: int, first: int, last: int) -> None:
        """Count a stored range; if it continues the previous range, extend that."""
        if ledger_id == self._ledger_id and first == self._last + 1:
            self._last = last
            return
        self._close_range()
        self._ledger_id, self._first, self._last = ledger_id, first, last

    def take(self) -> list[bytes]:
        self._close_range()
        frames, self._frames = self._frames, []
        return frames

    def _close_range(self) -> None:
        if self._ledger_id >= 0:
            self._frames.append(encode_added(self._ledger_id, self._first, self._last))
            self._ledger_id = -1
            self._last = -1


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._config = server.config
        self._metrics = server.metrics
        self._storage = server.storage
        self._loop = asyncio.get_running_loop()
        self._receiver = FrameReceiver(server.config.frame_bytes_max, server.scratch)
        self._transport: asyncio.Transport | None = None
        self.flow = Flow(
            server.config,
            server.metrics,
            self._receiver,
            server.storage.pressure,
            server.answers,
            server.frames,
            server.turns,
            self._hold,
        )
        self._lane = server.next_lane()
        self._answers = Answers()
        self._gathered_bytes = 0
        self._write_scheduled = False
        self._add_bytes = 0
        self._has_added = False
        self._in_flight = InFlight(
            server.requests, server.v3_calls, server.reads, self._answer, self._answered
        )
        self._speaks_v3 = True
        """Until the first frame that is not a v3 request; then the connection speaks v2, as in
        Apache's bookies.
        """
        self._v3_batches: dict[AddBatch, V3Batch] = {}
        self._closing = False
        self._rights: Rights | None = None
        self._early: bytearray | None = None
        """Arrives while the peer's certificate is checked; None: no check runs."""
        self._caller = None if server.guard is None else server.caller(self._may_now)

    def describe(self) -> dict[str, int]:
        return {
            "add_bytes": self._add_bytes,
            "v3_batches": len(self._v3_batches),
            "answer_bytes": self._gathered_bytes,
        }

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Leave at once when the server is full or stopping."""
        transport = cast(asyncio.Transport, transport)  # uvloop's class does not inherit from it
        self._transport = transport
        peername = transport.get_extra_info("peername") or ("?",)
        self.flow.attach(transport, ":".join(map(str, peername[:2])))
        if not self._server.admit(self, transport):
            self._closing = True
            transport.abort()
        elif self._caller is not None:
            self._caller.connected(
                transport, self.flow.peer, hold=self._hold_unknown, let_go=self._let_go
            )

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Stop all work except adds: they may be durable already."""
        self._closing = True
        self._transport = None
        self.flow.release()
        self._in_flight.cancel()
        if self._caller is not None:
            self._caller.close()
        self._server.forget(self)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self.flow.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._closing:
            return
        if self._early is not None:
            self._early += self._receiver.received(nbytes)
            return
        turns = self._server.turns
        before = turns.taken
        data = self._receiver.received(nbytes)
        if not data:
            return
        try:
            end = self._take(data)
            if not self._closing:
                self._receiver.keep(data, end)
                self.flow.kept(end)
                level = self._storage.pressure.level
                if level and self.is_too_much(level):
                    self.flow.pause(Pause.STORAGE)
                self.flow.took(nbytes, turns.taken - before)
        except ProtocolError as error:
            self._give_up(error)

    def eof_received(self) -> bool:
        """End after the answers under way: the peer still gets them."""
        self._closing = True
        self._in_flight.end_waits()
        self.flow.pauses |= Pause.STOPPING
        # The last answer closes the transport. TLS has no half-closed connections.
        is_tls = self._transport and self._transport.get_extra_info("sslcontext") is not None
        return self.busy and not is_tls

    def pause_writing(self) -> None:
        self.flow.sending()

    def resume_writing(self) -> None:
        self.flow.sent()

    # Flow control

    @property
    def busy(self) -> bool:
        return bool(self._add_bytes) or self._write_scheduled or not self._in_flight.is_empty

    def is_too_much(self, level: Pressure) -> bool:
        """Whether this client's adds should stop at this level."""
        if level is Pressure.GREEDY:
            return self._add_bytes > MODEST_BYTES
        return self._has_added or self._receiver.is_large

    def _hold(self, hold: bool) -> None:
        if hold:
            self._in_flight.hold()
        else:
            self._in_flight.go_on()

    def finish(self) -> None:
        """End the connection once every request that was read is answered."""
        self.flow.pause(Pause.STOPPING)
        self._closing = True
        self._close_if_finished()

    def close(self) -> None:
        """Close once the answers written so far are out."""
        self._closing = True
        self._write()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self, error: OctavoError) -> None:
        self._metrics.protocol_errors.inc()
        peer = self.flow.peer
        if times := self._server.refusals.count(self._loop.time(), host_of(peer)):
            log.warning(
                "connection_refused", peer=peer, error=error.name, reason=str(error), times=times
            )
        self.close()

    # The peer's identity

    def judge(self) -> None:
        if self._caller is not None:
            self._caller.judge()

    def doubt(self) -> None:
        if self._caller is not None:
            self._caller.doubt()

    def _may_now(self, rights: Rights | None) -> None:
        self._rights = rights

    def _hold_unknown(self, hold: bool) -> None:
        if hold:
            self._early = bytearray()
            self.flow.pause(Pause.IDENTITY)
            return
        early, self._early = self._early or b"", None
        while early and not self._closing:
            room = self.get_buffer(-1)
            count = min(len(room), len(early))
            room[:count] = early[:count]
            self.buffer_updated(count)
            early = early[count:]
        self.flow.resume(Pause.IDENTITY)

    def _let_go(self) -> None:
        """Close after the answers to the peer's requests."""
        self._in_flight.end_waits()
        self.finish()
        self._loop.call_later(_FAREWELL_S, self.abort)

    def _authenticate(self, message: AuthMessage) -> tuple[Code, AuthMessage]:
        if self._caller is None:
            return Code.OK, AuthMessage(AUTH_DISABLED, b"")
        answer = self._caller.show(message)
        if self._caller.is_tiresome:
            self._loop.call_soon(self.finish)
        return answer

    def _narrowed(self, request: Asked) -> Asked | None:
        """If nothing is left, refuse the request and return None."""
        if self._rights is None:
            return request
        assert self._caller is not None
        if (narrowed := self._rights.narrowed(request)) is None:
            self._answer(self._server.requests.unauthorized(request, self._caller.refused()))
        return narrowed

    def _refuse_adds(self, adds: Adds) -> None:
        self._tell_writer()
        for _, batch in adds.batches:
            self._refuse_add(batch.ledger_id, batch.first_entry, batch.count)
        for add in adds.refused:
            self._refuse_add(add.ledger_id, add.entry_id, 1)

    def _refuse_add(self, ledger_id: int, first: int, count: int) -> None:
        self._metrics.adds_refused.labels(Code.UNAUTHORIZED.name).inc(count)
        self._answer(add_answers(Code.UNAUTHORIZED, ledger_id, first, count))

    def _refuse_v3_adds(self, adds: Gathering) -> None:
        batches = adds.batches()
        if not batches and not adds.refused:
            return
        self._tell_writer()
        refused = self._metrics.adds_refused.labels(Code.UNAUTHORIZED.name)
        for one in batches:
            self._answer(one.answers(Code.UNAUTHORIZED))
            refused.inc(one.batch.count)
        for add, _, _ in adds.refused:
            self._answer(v3.add_answer(add.head, Code.UNAUTHORIZED, add.ledger_id, add.entry_id))
            refused.inc()

    def _tell_writer(self) -> None:
        assert self._caller is not None
        self._caller.refused()

    # Requests

    def _take(self, data: memoryview) -> int:
        """Return where the unfinished frame begins."""
        position = 0
        if self._speaks_v3:
            position = self._take_v3(data)
            if self._speaks_v3:
                return position
        end = len(data)
        frame_bytes_max = self._config.frame_bytes_max
        while end - position >= PREFIX.size and not self._closing:
            length, head = PREFIX.unpack_from(data, position)
            if head >> 24 == _V3_FIRST_BYTE:
                raise ProtocolError(
                    "a v3 (protobuf) request on a connection that speaks v2: "
                    "a connection speaks v2 from its first frame on that is not a v3 request"
                )
            following = position + LENGTH.size + self._receiver.checked_length(length)
            if head >> 16 == _ADD:
                adds = split_adds(data, position, frame_bytes_max)
                if self._rights is not None and not self._rights.may_write:
                    self._refuse_adds(adds)
                else:
                    if adds.refused:
                        self._refuse(adds.refused)
                    if adds.batches:
                        self._add(adds.batches)
                if adds.end > position:
                    position = adds.end
                    continue
                if following <= end:
                    raise ProtocolError(f"add of {length} bytes: too short to name its entry")
            if following > end:
                break
            self._dispatch(head, data[position:following])
            position = following
        return position

    def _take_v3(self, data: memoryview) -> int:
        """Return where the first frame that is not v3 begins."""
        position, end = 0, len(data)
        adds = Gathering()
        try:
            while end - position >= PREFIX.size and not self._closing:
                length = LENGTH.unpack_from(data, position)[0]
                following = position + LENGTH.size + self._receiver.checked_length(length)
                if following > end:
                    break
                taken = adds.take(data, position, following)
                if taken > position:
                    position = taken
                    continue
                request = v3.parse_request(data[position:following])
                if request is None:
                    self._speaks_v3 = False
                    break
                position = following
                if isinstance(request, v3.Add):
                    adds.add(request)
                else:
                    self._dispatch_v3(request)
        finally:
            self._add_v3(adds)
        return position

    def _dispatch_v3(self, request: v3.Read | v3.Call) -> None:
        narrowed = self._narrowed(request)
        if isinstance(narrowed, v3.Read):
            self._in_flight.read(narrowed)
        elif narrowed is None:
            pass
        elif self._caller is not None and v3.is_auth(narrowed):
            self._authenticate_v3(narrowed)
        else:
            self._in_flight.call(narrowed)
        self._server.turns.took(1)
        if self._in_flight.count > self._config.connection_reads_max:
            self.flow.pause(Pause.READS)

    def _authenticate_v3(self, call: v3.Call) -> None:
        code, answer = self._authenticate(v3.auth_message(call))
        self._answer(v3.auth_answer(call.head, code, answer))

    def _dispatch(self, head: int, frame: memoryview) -> None:
        kind = head >> 16
        if kind == _READ:
            if read := self._narrowed(parse_read(frame)):
                self._in_flight.read(read)
        elif kind == _BATCH_READ:
            if reads := self._narrowed(parse_batch_read(frame)):
                self._in_flight.read(reads)
        elif head >> 24 == extension.VERSION:
            if request := self._narrowed(extension.decode_request(frame)):
                self._in_flight.extension(request)
        elif kind == _AUTH:
            _, answer = self._authenticate(parse_auth(frame))
            self._answer(auth_frame(*answer))
        else:
            self._refuse_unknown(head, frame)
        self._server.turns.took(1)
        if self._in_flight.count > self._config.connection_reads_max:
            self.flow.pause(Pause.READS)

    def _refuse_unknown(self, head: int, frame: memoryview) -> None:
        """Answer BAD_VERSION to another version of a known operation; else raise
        `ProtocolError`.
        """
        version, op = head >> 24, head >> 16 & 0xFF
        if version != VERSION and op == Op.ADD and len(frame) >= ADD_IDS.size:
            ledger_id, entry_id = ADD_IDS.unpack_from(frame)[3:]
        elif version != VERSION and op == Op.READ and len(frame) >= READ.size:
            ledger_id, entry_id = READ.unpack_from(frame)[2:]
        else:
            raise ProtocolError(
                f"operation {op} of protocol version {version} is unknown; this bookie knows the "
                f"operations {[int(known) for known in Op]} of version {VERSION}"
            )
        # The answer repeats the version of the request, as Apache's bookies do.
        again = header(op, 0, version)
        length = ANSWER_BYTES - LENGTH.size
        self._answer(ANSWER.pack(length, again, Code.BAD_VERSION, ledger_id, entry_id))

    # Adds

    def _add(self, batches: list[tuple[int, AddBatch]], done: Done | None = None) -> None:
        """Answer by `done`, or in the way that each batch's flags ask for."""
        self._server.turns.took(len(batches))
        self._add_bytes += sum([len(batch.frames) for _, batch in batches])
        storage = self._storage
        if self._server.read_only:
            batches = list(self._without_read_only(batches, done or self._added))
        self._has_added = True
        if storage.pressure.level is Pressure.FULL:
            batches = list(self._without_excess(batches, done or self._added))
        for (ranges, deferred), group in groupby(batches, key=_wishes):
            answer = done or (self._added_ranges if ranges else self._added)
            some = [batch for _, batch in group]
            storage.add(some, answer, self._lane, deferred=deferred)
        if self._add_bytes > self._config.connection_add_bytes_max:
            self.flow.pause(Pause.ADDS)

    def _add_v3(self, adds: Gathering) -> None:
        if self._rights is not None and not self._rights.may_write:
            self._refuse_v3_adds(adds)
            return
        if refused := adds.refused:
            for add, code, _ in refused:
                self._answer(v3.add_answer(add.head, code, add.ledger_id, add.entry_id))
                self._metrics.adds_refused.labels(code.name).inc()
            self._tell_refused(
                [Refused(add.ledger_id, add.entry_id, reason) for add, _, reason in refused]
            )
        if batches := adds.batches():
            self._v3_batches.update((one.batch, one) for one in batches)
            self._add([(one.flags, one.batch) for one in batches], self._added_v3)

    def _without_excess(
        self, batches: list[tuple[int, AddBatch]], refuse: Done
    ) -> Iterator[tuple[int, AddBatch]]:
        """Yield batches that memory has room for, and refuse the others; recoveries have more."""
        for flags, batch in batches:
            if flags & _HIGH_PRIORITY and self._storage.pressure.has_room_for_recovery:
                yield flags, batch
            else:
                self._metrics.throttled.labels("adds").inc(batch.count)
                refuse([(batch, Code.TOO_MANY_REQUESTS)])

    def _without_read_only(
        self, batches: list[tuple[int, AddBatch]], refuse: Done
    ) -> Iterator[tuple[int, AddBatch]]:
        """Adds of recoveries pass (P36)."""
        for flags, batch in batches:
            if flags & _HIGH_PRIORITY and self._server.takes_recovery_adds:
                yield flags, batch
            else:
                refuse([(batch, Code.READ_ONLY)])

    def _added_ranges(self, results: Sequence[tuple[AddBatch, Code]]) -> None:
        refused: list[tuple[AddBatch, Code]] = []
        acked = size = 0
        for batch, code in results:
            if code is Code.OK:
                size += len(batch.frames)
                acked += batch.count
                self._answers.acked_range(batch.ledger_id, batch.first_entry, batch.last_entry)
            else:
                refused.append((batch, code))
        self._acked(acked, size)
        if refused:
            self._added(refused, extended=True)

    def _added(self, results: Sequence[tuple[AddBatch, Code]], *, extended: bool = False) -> None:
        """Send one v2 answer for each entry.

        `extended`: the client knows UNKNOWN_STATE.
        """
        acked = size = 0
        for batch, answer in results:
            code = answer if extended else v2_code(answer)
            size += len(batch.frames)
            self._answers.append(add_answers(code, batch.ledger_id, batch.first_entry, batch.count))
            if code is Code.OK:
                acked += batch.count
            else:
                self._metrics.adds_refused.labels(code.name).inc(batch.count)
        self._acked(acked, size)

    def _added_v3(self, results: Sequence[tuple[AddBatch, Code]]) -> None:
        acked = size = 0
        for batch, code in results:
            size += len(batch.frames)
            self._answers.append(self._v3_batches.pop(batch).answers(code))
            if code is Code.OK:
                acked += batch.count
            else:
                self._metrics.adds_refused.labels(code.name).inc(batch.count)
        self._acked(acked, size)

    def _acked(self, entries: int, size: int) -> None:
        self._add_bytes -= size
        if entries:
            self._metrics.adds.inc(entries)
            self._metrics.add_bytes.inc(size)
            self._metrics.add_run_entries.observe(entries)
        self._schedule_write()
        if Pause.ADDS in self.flow.pauses and (
            self._add_bytes <= self._config.connection_add_bytes_max // 2
        ):
            self.flow.resume(Pause.ADDS)

    def _refuse(self, refused: list[Refused]) -> None:
        """Count, log and refuse adds that are damaged or name no entry."""
        self._metrics.adds_refused.labels(Code.BAD_REQUEST.name).inc(len(refused))
        for add in refused:
            self._answer(add_answers(Code.BAD_REQUEST, add.ledger_id, add.entry_id, 1))
        self._tell_refused(refused)

    def _tell_refused(self, refused: list[Refused]) -> None:
        self._server.turns.took(len(refused))
        self._metrics.damaged.inc(len(refused))
        for add in refused[:_LOGGED_REFUSALS_MAX]:
            log.warning(
                "add_refused",
                peer=self.flow.peer,
                ledger=add.ledger_id,
                entry=add.entry_id,
                reason=add.reason,
                refused=len(refused),
            )

    # Answers

    def _answered(self, error: BaseException | None) -> None:
        """Note that a read or an extension request has ended, perhaps by an error."""
        if error is not None:
            log.error("connection_failed", peer=self.flow.peer, error=repr(error), exc_info=error)
            self.abort()
        if self._in_flight.count <= self._config.connection_reads_max // 2:
            self.flow.resume(Pause.READS)
        self._close_if_finished()

    def _answer(self, frame: bytes) -> None:
        self._answers.append(frame)
        self._gathered_bytes += len(frame)
        self.flow.made(len(frame))
        if self._gathered_bytes < _GATHERED_BYTES_MAX:
            self._schedule_write()
        else:  # write now, so that the transport can call `pause_writing`
            self._send()

    def _schedule_write(self) -> None:
        if not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write)

    def _write(self) -> None:
        self._write_scheduled = False
        self._send()
        self._close_if_finished()

    def _send(self) -> None:
        self._gathered_bytes = 0
        frames = self._answers.take()
        if frames and self._transport is not None:
            self._transport.writelines(frames)
            self.flow.written(sum(map(len, frames)))

    def _close_if_finished(self) -> None:
        """Close even if the peer has closed its side before."""
        if self._closing and not self.busy and self._transport is not None:
            self._transport.close()


def _wishes(item: tuple[int, AddBatch]) -> tuple[bool, bool]:
    """Whether the sender wants ranges acked, and acks before the sync.

    Recovery's adds are always synced, because their entries then count as confirmed.
    """
    flags = item[0]
    return bool(flags & _RANGE_ACK), flags & (_DEFERRED_SYNC | _RECOVERY_ADD) == _DEFERRED_SYNC
