"""Send a subscription's messages over a lasting connection: as events, lines, or a WebSocket.
Events and lines of NDJSON are acked by separate calls, at any broker. A WebSocket takes acks, too:

    broker → client   {"messages": [{…, "ack_id": "0-41-8-3"}, …]}, as `receive` answers; or, where
                      batches are asked for, binary: four bytes that say how long the head is, the
                      head as JSON (the headers of protocol/leased.py), the batches as stored
    client → broker   {"ack_ids": […], "nack": […], "extend": […], "request": 7}, as `ack` takes it
    broker → client   {"acked": 2, "request": 7}: durable; or {"problem": {…}, "request": 7}

Several acks may be under way; while too many are, the socket is not read.

The broker that the client called keeps the connection, whichever brokers own the partitions: `Feed`
receives from each partition's owner, as a consumer with leases. The client decides how many
messages of a partition may be unacked: `credits`. When either side closes, unacked messages are
given back at once.

Pages of other sites may not make this call, because it leases messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from octavo.broker.errors import SubscriptionBusy
from octavo.broker.http.api.deliveries import (
    CREDITS_MAX,
    DEFAULT_CONSUMER,
    GIVE_BACK_S,
    RECEIVE_PARTITIONS_MAX,
    AckBody,
    HeldLeases,
    Share,
    ack_ids_in,
    apply_all,
    by_partition,
    consumer_in,
    generation_in,
    give_back,
    priority_in,
)
from octavo.broker.http.api.read import answer_type
from octavo.broker.http.call import JSON, NDJSON, Call, bad_parameter, decode_json
from octavo.broker.http.csrf import check_lease
from octavo.broker.http.forwarding import topic_of
from octavo.broker.http.problems import Problem, problem_of
from octavo.broker.http.stream import (
    EVENTS,
    FIRST_PAUSE_S,
    LAST_WORD_S,
    LIVES_S,
    LONGEST_PAUSE_S,
    Holding,
    Stream,
    count,
    through_moves,
    write_head,
)
from octavo.broker.operations.kinds import Receive, ids_of
from octavo.broker.types import AckRange, Nack, SubscriptionInfo
from octavo.protocol.ack_ids import in_ranges
from octavo.protocol.backoff import Backoff
from octavo.protocol.leased import Leased
from octavo.protocol.limits import MESSAGE_BYTES_MAX

CREDITS = 1_000


async def stream(call: Call) -> web.StreamResponse:
    config = call.services.config
    check_lease(call.headers, config.allowed_origins)
    info = await topic_of(call)
    call.incarnation = info.incarnation
    subscription = await call.services.broker.topics.subscription(call.topic, call.subscription)
    form = call.choice("form", "json", "json", "batches")
    asked = Receive(
        call.topic.partition(0),  # the feed names the partition
        call.subscription,
        consumer_in(call, _unnamed(subscription)),
        AT_ONCE,
        as_stored=form == "batches",
        out_max=call.integer("credits", CREDITS, 1, CREDITS_MAX),
        generation=generation_in(call),
        priority=priority_in(call),
    )
    count = info.settings.partitions
    is_socket = wants_socket(call)
    kind = EVENTS if is_socket else answer_type(call, (EVENTS, NDJSON))
    feed = Feed(
        call,
        _partitions(call, count),
        asked,
        topic_partitions=count,
    )
    with call.services.streams.one(), call.services.quotas.stream(call):
        if is_socket:
            return await Socket(call, feed).run()
        if form == "batches":
            raise bad_parameter("form", form, "json, unless the stream is a WebSocket")
        return await _as_text(call, feed, EVENTS if kind == JSON else kind)


def _unnamed(info: SubscriptionInfo) -> str:
    """Streams of a shared subscription are separate consumers; an exclusive subscription has one
    consumer, so that a reconnecting stream is the same consumer.
    """
    is_exclusive = info.settings.type == "exclusive"
    return DEFAULT_CONSUMER if is_exclusive else f"stream-{secrets.token_hex(6)}"


def _partitions(call: Call, count: int) -> list[int]:
    if call.partition is not None:
        return [call.partition.partition]
    if count > RECEIVE_PARTITIONS_MAX:
        raise Problem(
            422,
            "partition-required",
            f"{call.topic} has {count} partitions, and one stream takes at most "
            f"{RECEIVE_PARTITIONS_MAX}: name one, …/partitions/0/subscriptions/…",
        )
    return [*range(count)]


async def _as_text(call: Call, feed: Feed, kind: str) -> web.StreamResponse:
    stream = Stream(call, kind)
    if stream.is_head_only:
        await stream.begin()
        return stream.response
    async with feed:
        await stream.begin()
        async with stream.lasting():
            async for found in feed.handouts(LIVES_S):
                if found is not None:
                    text = _written(found.messages, kind)
                    await stream.send(text, found.size, is_counted=True)
                elif kind == EVENTS:
                    await stream.send(b": nothing new\n\n")
    return stream.response


def _written(messages: Sequence[Raw], kind: str) -> bytes:
    if kind == NDJSON:
        return b"".join([bytes(message) + b"\n" for message in messages])
    return b"".join([b"data: " + bytes(message) + b"\n\n" for message in messages])


FRAME_BYTES_MAX = 1024 * 1024
MESSAGES_BYTES = 256 * 1024
ACKS_AT_ONCE = 16
ACKS_END_S = 2.0
ACK_TRIES_S = 20.0
"""How long an ack is retried while partitions move."""
REASON_BYTES = 123
REFUSED_FOR_GOOD = 4000


class Command(AckBody):
    """A command that a client sends in a frame."""

    request: Any = UNSET


class Said(msgspec.Struct, omit_defaults=True):
    """The answer to a command, or the last word."""

    acked: int | UnsetType = UNSET
    problem: dict[str, Any] | UnsetType = UNSET
    request: Any = UNSET


class _Ends(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def wants_socket(call: Call) -> bool:
    return call.request.headers.get("Upgrade", "").strip().lower() == "websocket"


class Socket:
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
        request, socket = self._call.request, self._socket
        if request.method != "GET" or not socket.can_prepare(request).ok:
            raise Problem(400, "invalid-upgrade", "this is no handshake of a WebSocket (RFC 6455)")
        try:
            async with self._feed:
                write_head(self._call, socket)
                await socket.prepare(request)
                await self._until_it_ends()
        finally:  # receive no more first, so that messages that are given back go to others
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
        async with self._sending:
            if not is_counted:  # by the feed
                await count(self._call, len(frame))
            async with asyncio.timeout(self._call.services.config.stall_timeout_ms / 1000):
                await self._socket.send_frame(frame, kind)
            await self._call.hold(0)

    async def _listen(self) -> None:
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
        """Ack at the owners; a repeat at a successor is harmless."""
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
    if problem.status in (401, 403):
        return _Ends(WSCloseCode.POLICY_VIOLATION, problem.detail)
    return else_


class _Out:
    def __init__(self, most: int) -> None:
        self._most = most
        self._of: dict[int, dict[int, str]] = {}
        """Partition → offset → end of its ack id, in the order sent."""

    def add(self, found: Handout) -> None:
        """Note sent messages; forget the oldest, whose leases have ended."""
        known = self._of.setdefault(found.partition, {})
        for ack_id in found.ack_ids:
            of = AckRange.parse(ack_id)
            for offset in range(of.start, of.end):
                known.pop(offset, None)
                known[offset] = f"{of.epoch}-{of.lease}"
        while len(known) > self._most:
            del known[next(iter(known))]

    def done(self, ack_ids: list[str]) -> None:
        for ack_id in ack_ids:
            of = AckRange.parse(ack_id)
            known, lease = self._of.get(of.partition, {}), f"{of.epoch}-{of.lease}"
            for offset in range(of.start, of.end):
                if known.get(offset) == lease:  # the message may have been leased again
                    del known[offset]

    def ack_ids(self) -> list[str]:
        return in_ranges(
            f"{partition}-{offset}-{lease}"
            for partition, known in self._of.items()
            for offset, lease in known.items()
        )


def _frames(found: Handout) -> Iterator[bytes]:
    """Yield frames one by one, to hold a single frame in memory."""
    parts: list[bytes] = []
    size = 0
    for message in found.messages:
        if parts and size + len(bytes(message)) > MESSAGES_BYTES:
            yield b'{"messages":[' + b",".join(parts) + b"]}"
            parts, size = [], 0
        parts.append(bytes(message))
        size += len(parts[-1])
    yield b'{"messages":[' + b",".join(parts) + b"]}"


AT_ONCE = 500
"""Messages in a call to a partition that has some, if they are small …"""
HANDOUT_BYTES = 64 * 1024
"""… else as many as fit this size by an estimate; a call counts as twice this, or as its last
answer …
"""
FIRST_OF_ALL = 16
"""… and the most in a call that waits, because all partitions are asked at once."""
ASKED_AT_ONCE = 2
"""Calls at once to partitions with messages: bounds what a slow consumer holds."""
FIRST_S = 2.0


class Handout(NamedTuple):
    partition: int
    messages: Sequence[Raw] = ()
    leased: Leased | None = None
    body: bytes = b""

    @property
    def size(self) -> int:
        if self.leased is None:
            return len(self.messages)
        return sum(run.end - run.start for run in self.leased.runs)

    @property
    def held_bytes(self) -> int:
        return 2 * (len(self.body) + sum(map(len, self.messages)))

    @property
    def ack_ids(self) -> list[str]:
        return ack_ids_in(self.messages) if self.leased is None else ids_of(self.leased)


class Feed:
    def __init__(
        self,
        call: Call,
        partitions: Sequence[int],
        asked: Receive,
        *,
        topic_partitions: int,
    ) -> None:
        assert asked.out_max is not None
        self.credits = asked.out_max
        self.topic_partitions = topic_partitions
        self._call = call
        self._topic = call.topic
        self._partitions = partitions
        self._asked = asked
        self._id = secrets.token_hex(6)
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._ready: asyncio.Queue[Handout] = asyncio.Queue(1)
        self._unsent: deque[Handout] = deque()
        self._held = Holding(call)
        self._pulls: list[asyncio.Task[None]] = []
        self._begun = {number: asyncio.Event() for number in partitions}

    async def __aenter__(self) -> Feed:
        self._pulls = [asyncio.ensure_future(self._pull(number)) for number in self._partitions]
        try:
            begun = asyncio.ensure_future(self._all_begun())
            either: set[asyncio.Future[None]] = {*self._pulls, begun}
            try:
                await asyncio.wait(either, timeout=FIRST_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                begun.cancel()
            self._raise_what_ended()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def handouts(self, quiet_s: float) -> AsyncIterator[Handout | None]:
        """Yield messages without end; None after each `quiet_s` without any."""
        while True:
            ready = asyncio.ensure_future(self._ready.get())
            either: set[asyncio.Future[Any]] = {ready, *self._pulls}
            try:
                await asyncio.wait(either, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if ready.done():
                    self._unsent.append(ready.result())
                else:
                    ready.cancel()
            if self._unsent:
                yield self._unsent[0]
                self._held.add(-self._unsent.popleft().held_bytes)
                continue
            self._raise_what_ended()
            yield None

    async def _all_begun(self) -> None:
        for event in tuple(self._begun.values()):
            await event.wait()

    def _raise_what_ended(self) -> None:
        for pull in self._pulls:
            if pull.done():
                pull.result()

    async def _end(self) -> None:
        for pull in self._pulls:
            pull.cancel()
        await asyncio.gather(*self._pulls, return_exceptions=True)
        while not self._ready.empty():
            self._unsent.append(self._ready.get_nowait())
        ack_ids = [one for handout in self._unsent for one in handout.ack_ids]
        self._unsent.clear()
        self._held.end()
        await self.give_back(ack_ids, were_sent=False)

    async def give_back(self, ack_ids: Sequence[str], *, were_sent: bool) -> None:
        if not ack_ids:
            return
        shares: dict[int, list[str]] = defaultdict(list)
        for ack_id in ack_ids:
            shares[AckRange.parse(ack_id).partition].append(ack_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await asyncio.gather(
                    *[
                        give_back(
                            self._call,
                            self._topic.partition(number),
                            self._asked.subscription,
                            nacks=[Nack(one, 0) for one in some] if were_sent else (),
                            release=() if were_sent else some,
                        )
                        for number, some in shares.items()
                    ],
                    return_exceptions=True,
                )

    async def _pull(self, number: int) -> None:
        wait_s = min(LIVES_S, self._call.services.config.wait_ms_max / 1000)
        most, expected = FIRST_OF_ALL, 2 * MESSAGE_BYTES_MAX
        name = self._topic.partition(number)
        waiting = replace(self._asked, name=name, most=FIRST_OF_ALL, wait_ms=round(wait_s * 1000))
        turns = itertools.count()
        has_more = True
        while True:
            if has_more:
                async with self._turns:
                    kept = await self._held.more(expected)
                    asked = replace(waiting, most=most, wait_ms=0)
                    found = await self._receive(asked, next(turns))
                    self._held.add(-kept)
                    self._begun[number].set()
                    if found is not None:
                        await self._ready_for(found)
                has_more = found is not None
            else:
                found = await self._receive(waiting, next(turns))
                if found is not None:
                    await self._ready_for(found)
                    has_more = found.size >= waiting.most
            if found is not None:
                held_bytes = found.held_bytes
                most = max(1, min(2 * HANDOUT_BYTES * found.size // held_bytes, AT_ONCE))
                expected = max(held_bytes, 2 * HANDOUT_BYTES)

    async def _ready_for(self, found: Handout) -> None:
        self._held.add(found.held_bytes)
        try:
            await self._ready.put(found)
        except asyncio.CancelledError:
            self._unsent.append(found)
            raise

    async def _receive(self, asked: Receive, turn: int) -> Handout | None:
        one = replace(asked, request=f"{self._id}-{turn}")
        return await through_moves(lambda: self._ask(one), SubscriptionBusy.name)

    async def _ask(self, asked: Receive) -> Handout | None:
        number = asked.name.partition
        async with HeldLeases(self._call, asked) as held:
            leases = await held.leases()
            if leases.leased is not None:
                return Handout(number, leased=leases.leased, body=b"".join(leases.batches))
            shown = await held.shown(leases)
        return Handout(number, shown.messages) if shown.messages else None
