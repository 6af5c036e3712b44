"""A subscription as a WebSocket: messages one way, acks the other.

    broker → client   {"messages": [{…, "ack_id": "0-41-8-3"}, …]}, as `receive` answers; or, where
                      batches are asked for, binary: four bytes that say how long the head is, the
                      head as JSON (the headers of protocol/leased.py), the batches as stored
    client → broker   {"ack_ids": […], "nack": […], "extend": […], "request": 7}, as `ack` takes it
    broker → client   {"acked": 2, "request": 7}: durable; or {"problem": {…}, "request": 7}

When either side closes, unacked messages are given back at once. Several acks may be under way
together; while too many are, the socket is not read. An invalid frame ends the connection, with the
reason.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import UNSET, UnsetType

from octavo.broker.http.api.acks import AckBody, Share, apply_all, by_partition
from octavo.broker.http.api.feed import Feed, Handout
from octavo.broker.http.call import Call, decode_json
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.http.stream import (
    FIRST_PAUSE_S,
    LAST_WORD_S,
    LIVES_S,
    LONGEST_PAUSE_S,
    count,
    write_head,
)
from octavo.broker.types import AckRange
from octavo.protocol.ack_ids import in_ranges
from octavo.protocol.backoff import Backoff

FRAME_BYTES_MAX = 1024 * 1024
"""Limit of a frame that a client sends."""
MESSAGES_BYTES = 256 * 1024
"""Approximate limit of a frame of messages, unless a single message is longer."""
ACKS_AT_ONCE = 16
ACKS_END_S = 2.0
"""How long pending acks may take when the client leaves."""
ACK_TRIES_S = 20.0
"""How long an ack is retried while partitions move."""
REASON_BYTES = 123
"""Limit of the reason in a close frame (RFC 6455)."""
REFUSED_FOR_GOOD = 4000
"""The close code after the last word, which is a problem."""


class Command(AckBody):
    """A command that a client sends in a frame."""

    request: Any = UNSET


class Said(msgspec.Struct, omit_defaults=True):
    """The answer to a command, or the last word."""

    acked: int | UnsetType = UNSET
    problem: dict[str, Any] | UnsetType = UNSET
    request: Any = UNSET


class _Ends(Exception):
    """Raised to close the connection."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def wants_socket(call: Call) -> bool:
    """Whether the caller asks for a WebSocket."""
    return call.request.headers.get("Upgrade", "").strip().lower() == "websocket"


class Socket:
    """A client's WebSocket."""

    def __init__(self, call: Call, feed: Feed) -> None:
        self._call = call
        self._feed = feed
        self._out = _Out(feed.credits)
        self._sending = asyncio.Lock()
        self._acks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(ACKS_AT_ONCE)
        self._socket = web.WebSocketResponse(
            heartbeat=LIVES_S, max_msg_size=FRAME_BYTES_MAX, compress=False, timeout=LAST_WORD_S
        )

    async def run(self) -> web.StreamResponse:
        """Run until either side closes. Raises a 400 for an invalid handshake."""
        request, socket = self._call.request, self._socket
        if request.method != "GET" or not socket.can_prepare(request).ok:
            raise Problem(400, "invalid-upgrade", "this is no handshake of a WebSocket (RFC 6455)")
        try:
            async with self._feed:
                write_head(self._call, socket)
                await socket.prepare(request)
                await self._until_it_ends()
        finally:  # no more is received, so messages that are given back go to others
            await self._feed.give_back(self._out.ack_ids(), were_sent=True)
        return socket

    async def _until_it_ends(self) -> None:
        ends = _Ends(WSCloseCode.GOING_AWAY, "this broker stops")
        try:
            ends = await self._exchange()
        finally:
            if (problem := self._call.ends_with) is not None:
                with contextlib.suppress(ConnectionError, TimeoutError):
                    await self._say(Said(problem=problem.body()))
                ends = _refused(problem, ends)
            await self._close(ends)

    async def _exchange(self) -> _Ends:
        """Send and listen, until either has ended."""
        tasks = [asyncio.ensure_future(self._push()), asyncio.ensure_future(self._listen())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            found = await asyncio.gather(*tasks, return_exceptions=True)
            await self._end_acks()
        told = [one for one in found if not isinstance(one, asyncio.CancelledError)]
        error = told[0] if told else None
        if error is None:
            return _Ends(WSCloseCode.OK, "")
        if isinstance(error, _Ends):
            return error
        if isinstance(error, TimeoutError):
            return _Ends(WSCloseCode.TRY_AGAIN_LATER, "the client takes nothing")
        if isinstance(error, ConnectionError):
            return _Ends(WSCloseCode.ABNORMAL_CLOSURE, "")
        problem = problem_of(error)
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self._say(Said(problem=problem.body()))
        return _refused(problem, _Ends(REFUSED_FOR_GOOD, problem.code))

    async def _end_acks(self) -> None:
        """Finish the acks that came before the client left."""
        if self._acks:
            await asyncio.wait(self._acks, timeout=ACKS_END_S)
        for task in self._acks:
            task.cancel()
        await asyncio.gather(*self._acks, return_exceptions=True)

    async def _close(self, ends: _Ends) -> None:
        try:
            async with asyncio.timeout(LAST_WORD_S):
                reason = ends.reason.encode()[:REASON_BYTES]
                await self._socket.close(code=ends.code, message=reason)
        except (TimeoutError, ConnectionError, RuntimeError):
            if (transport := self._call.request.transport) is not None:
                transport.abort()

    # ---- messages

    async def _push(self) -> None:
        async for found in self._feed.handouts(LIVES_S):
            if found is not None:  # pings show that the connection lives
                await self._push_one(found)

    async def _push_one(self, found: Handout) -> None:
        self._out.add(found)
        quotas = self._call.services.quotas
        if found.leased is None:
            for frame in _frames(found):
                await self._send(frame, WSMsgType.TEXT, is_counted=True)
            if quotas.on:
                await quotas.sent(self._call, sum(map(len, found.messages)), found.size)
            return
        head = msgspec.json.encode(found.leased.headers())
        frame = len(head).to_bytes(4, "big") + head + found.body
        await self._send(frame, WSMsgType.BINARY, is_counted=True)
        await quotas.sent(self._call, len(frame), found.size)

    async def _say(self, said: Said) -> None:
        await self._send(msgspec.json.encode(said), WSMsgType.TEXT)

    async def _send(self, frame: bytes, kind: WSMsgType, *, is_counted: bool = False) -> None:
        """Send a frame. Raises `TimeoutError` if the client takes none of it, `ConnectionError`."""
        async with self._sending:
            if not is_counted:  # by the feed
                await count(self._call, len(frame))
            async with asyncio.timeout(self._call.services.config.stall_timeout_ms / 1000):
                await self._socket.send_frame(frame, kind)
            await self._call.hold(0)

    # ---- acks

    async def _listen(self) -> None:
        """Take commands, several at once. Ends when the client closes; raises `_Ends`."""
        socket = self._socket
        async for frame in socket:
            if frame.type is WSMsgType.ERROR:
                break
            if frame.type is not WSMsgType.TEXT:
                raise _Ends(WSCloseCode.UNSUPPORTED_DATA, "commands are text: JSON")
            try:
                command = decode_json(frame.data.encode(), Command)
            except Problem as problem:
                raise _Ends(WSCloseCode.INVALID_TEXT, problem.detail) from problem
            await self._room.acquire()
            task = asyncio.ensure_future(self._answer(command))
            self._acks.add(task)
            task.add_done_callback(self._answered)
        if (error := socket.exception()) is not None:
            raise _Ends(socket.close_code or WSCloseCode.PROTOCOL_ERROR, str(error))

    def _answered(self, task: asyncio.Task[None]) -> None:
        self._acks.discard(task)
        self._room.release()
        if not task.cancelled():
            task.exception()  # if it could not be sent, `_push` fails, too

    async def _answer(self, command: Command) -> None:
        try:
            said = Said(acked=await self._acknowledge(command))
        except Exception as error:
            said = Said(problem=problem_of(error).body())
        said.request = command.request
        await self._say(said)

    async def _acknowledge(self, command: Command) -> int:
        if command.up_to is not None:
            raise Problem(
                422, "invalid-body", "up_to is for the call …/ack; a socket takes ack_ids, ranges"
            )
        turns = self._call.services.broker.open_batches.turns
        shares = await by_partition(command, self._feed.topic_partitions, turns)
        acked = await self._apply(shares)
        for share in shares.values():
            self._out.done([*share.ack_ids, *(one.ack_id for one in share.nacks)])
        return acked

    async def _apply(self, shares: dict[int, Share]) -> int:
        """Ack at the owners; if one dies, try its heir, since a repeated ack is harmless."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ACK_TRIES_S
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, None)
        call = self._call
        while True:
            try:
                return await apply_all(call, call.topic, call.subscription, shares)
            except Exception as error:
                late = loop.time() + pauses.pause_s > deadline
                if late or not problem_of(error).can_retry:
                    raise
            await asyncio.sleep(pauses.next_s())


def _refused(problem: Problem, else_: _Ends) -> _Ends:
    """Return how a socket ends whose client has lost the right to it."""
    if problem.status in (401, 403):
        return _Ends(WSCloseCode.POLICY_VIOLATION, problem.detail)
    return else_


class _Out:
    """The messages that were sent and not acked, to be given back when the client leaves."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[int, dict[int, str]] = {}
        """Partition → offset → end of its ack id, in the order in which they were sent."""

    def add(self, found: Handout) -> None:
        """Note sent messages; forget the oldest beyond the limit: their leases have ended."""
        known = self._of.setdefault(found.partition, {})
        for ack_id in found.ack_ids:
            of = AckRange.parse(ack_id)
            for offset in range(of.start, of.end):
                known.pop(offset, None)
                known[offset] = f"{of.epoch}-{of.lease}"
        while len(known) > self._most:
            del known[next(iter(known))]

    def done(self, ack_ids: list[str]) -> None:
        """Forget messages that are acked or given back."""
        for ack_id in ack_ids:
            of = AckRange.parse(ack_id)
            known, lease = self._of.get(of.partition, {}), f"{of.epoch}-{of.lease}"
            for offset in range(of.start, of.end):
                if known.get(offset) == lease:  # the message may have been leased again
                    del known[offset]

    def ack_ids(self) -> list[str]:
        """Return the ack ids of all unacked messages, as ranges where they follow each other."""
        return in_ranges(
            f"{partition}-{offset}-{lease}"
            for partition, known in self._of.items()
            for offset, lease in known.items()
        )


def _frames(found: Handout) -> Iterator[bytes]:
    """Yield frames one by one, so that only one is in memory."""
    parts: list[bytes] = []
    size = 0
    for message in found.messages:
        if parts and size + len(bytes(message)) > MESSAGES_BYTES:
            yield b'{"messages":[' + b",".join(parts) + b"]}"
            parts, size = [], 0
        parts.append(bytes(message))
        size += len(parts[-1])
    yield b'{"messages":[' + b",".join(parts) + b"]}"
