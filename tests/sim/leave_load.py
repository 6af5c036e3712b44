"""Clients that end their calls in the middle, until what leaks is full (profile `leave`).

Readers and writers of durable streams, and callers of brokers' operations, go away, break off and
stand still. Every bound is a few, so a place that is not given back is missing for the next client.
Q1 finds it as well, and Q2 a frame that waits for nothing. At the end each broker has to do each
kind of call, as many at a time as its bounds allow (Q3).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web_response

from octavo.broker.cluster.dead_letters import LargeLetter
from octavo.broker.errors import TooManyLedgers
from octavo.broker.http import durable
from octavo.broker.http.api import durable_streams
from octavo.broker.http.problems import problem_of
from octavo.broker.operations import bodies, kinds, links
from octavo.broker.operations.asking import Asked
from octavo.broker.operations.channel import Answering, Asking, Windows
from octavo.broker.operations.kinds import Heartbeat, LeaveGroup, Receive, Settle
from octavo.broker.types import GroupName, SubscriptionSettings, TopicName, TopicSettings
from octavo.protocol.codes import OctavoError
from octavo.protocol.large import Cutter
from octavo.protocol.records import Record, build_batch
from octavo.protocol.topic_patterns import TopicPattern
from tests.sim.brokers import CALL_TIMEOUT_S, SimBroker
from tests.sim.leave_face import CALLER, Front, Sent
from tests.sim.options import SimOptions
from tests.sim.process import Process
from tests.sim.topic_client import EXPECTED, RETRY_S, TopicClient
from tests.support.kit.quiescence import describable, in_use

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_TOPIC = TopicName("public", "leave")
_NAME = _TOPIC.partition(0)
_SUB = "left"
_GROUP = GroupName("public", "leavers")
_STREAMS = 3
_PAUSE_S = 0.004
_PATIENCE_S = (0.0005, 0.004, 0.02, 0.08, 0.4)
"""How long a client waits before it hangs up."""
_AT_ONCE = (1, 3, 8)
_PIECE_BYTES = 16
_FAULTS = ("cut", "cut_one_way", "clog", "reset", "silence", "busy")
_SERVED_WITHIN_S = 12.0
_LAST_S = 3.0
"""How long one of the last calls may take."""


def leaving(options: SimOptions, rng: random.Random) -> SimOptions:
    """Return the options of a seed with these crowds: bookies are well, and mostly at rest."""
    later = {"gc_interval_ms": 1_000, "scrub_interval_ms": 60_000, "flush_interval_ms": 3_000}
    faults = {kind: options.faults[kind] for kind in sorted(options.faults) if kind in _FAULTS}
    return replace(
        options,
        faults=faults,
        bookie={**options.bookie, **later, "entry_log_bytes_max": 50_000},
        safety_s=rng.choice((0.8, 1.5)),
        damage_max=0,
    )


class LeaveOptions(NamedTuple):
    streamers: int
    callers: int
    resets_s: float | None
    windows: Windows
    bodies_max: int
    idle_s: float
    """After this time without its next piece, a body is given up."""
    waiting_bytes: int
    """Reserved for the answer to a receive; a longer answer is offered first."""
    buffer_bytes: int
    """The write buffer of a connection between brokers."""


def draw(rng: random.Random) -> LeaveOptions:
    return LeaveOptions(
        streamers=rng.choice((1, 2, 4)),
        callers=rng.choice((1, 2, 4)),
        resets_s=rng.choice((None, None, 0.1, 0.5)),
        windows=Windows(
            requests=rng.choice((3, 6, 20)),
            asked_bytes=rng.choice((600, 3_000)),
            answer_bytes=rng.choice((10_000, 1 << 20)),
            waiting_bytes=rng.choice((1_500, 6_000)),
            taken_bytes=rng.choice((300, 3_000)),
            offered_bytes=rng.choice((600, 6_000)),
        ),
        bodies_max=rng.choice((1, 3)),
        idle_s=rng.choice((0.1, 0.5)),
        waiting_bytes=rng.choice((1, 100)),
        buffer_bytes=rng.choice((1, 300)),
    )


class LeaveLoad:
    def __init__(self, load: TopicLoad, options: LeaveOptions, settings: TopicSettings) -> None:
        self.load = load
        self.options = options
        self.settings = settings
        self.settled = False
        self._is_made = False
        self._numbers = 0
        self._fronts: dict[Process, Front] = {}
        self._calls: dict[str, Callable[[TopicClient, SimBroker, bool], Coroutine[Any, Any, Any]]]
        self._calls = {
            "poll": self._poll,
            "follow": self._follow,
            "append": self._append,
            "make": self._make_stream,
            "head": self._head,
            "publish": self._publish,
            "read": self._read,
            "receive": self._receive,
            "copy": self._copy,
            "beat": self._beat,
        }

    @contextmanager
    def installed(self) -> Iterator[None]:
        options, put = self.options, setattr
        values: list[tuple[Any, str, Any]] = [
            (links, "Asking", partial(Asking, options.windows)),
            (links, "Answering", partial(Answering, options.windows)),
            (links, "WRITE_BUFFER_BYTES", options.buffer_bytes),
            (kinds, "WAITING_BYTES", options.waiting_bytes),
            (bodies, "BODIES_MAX", options.bodies_max),
            (bodies, "IDLE_S", options.idle_s),
            (web_response, "rfc822_formatted_time", Sent.date),
            (durable_streams, "_RANDOM", self.load.cluster.loop.stream("cursors")),
        ]
        kept = [(module, name, vars(module)[name]) for module, name, _ in values]
        for module, name, value in values:
            put(module, name, value)
        try:
            yield
        finally:
            for module, name, value in kept:
                put(module, name, value)

    def start(self) -> None:
        """Begin at once, without waiting for the other topics."""
        lives: list[tuple[str, Callable[[TopicClient], Coroutine[Any, Any, None]]]] = [
            ("ym", self._make),
            *((f"ys{n}", partial(self._live, _OF_STREAMS)) for n in range(self.options.streamers)),
            *((f"yb{n}", partial(self._live, _OF_BROKERS)) for n in range(self.options.callers)),
        ]
        if self.options.resets_s is not None:
            lives.append(("yr", self._reset))
        clients = [TopicClient(self.load, name, life) for name, life in lives]
        self.load.clients += clients
        for client in clients:
            client.start()

    def settle(self) -> None:
        TopicClient(self.load, "yf", self._finish).start()

    def parts(self, broker: SimBroker) -> list[object]:
        front = None if broker.process is None else self._fronts.get(broker.process)
        return [] if front is None else front.parts()

    def _probe(self, what: str) -> None:
        self.load.cluster.trace.probe(f"leave.{what}")

    # Lives

    async def _make(self, client: TopicClient) -> None:
        settings = SubscriptionSettings(type="shared", ack_timeout_ms=300)
        few = replace(  # the number of a topic's ledgers is limited
            self.settings, rollover_entries=1_000, rollover_bytes=100_000, rollover_age_ms=100_000
        )
        works: list[Callable[[Any], Awaitable[Any]]] = [
            lambda broker: broker.topics.create(_TOPIC, few),
            lambda broker: broker.topics.create_subscription(_TOPIC, _SUB, settings),
        ]
        for work in works:
            while True:
                try:
                    await client.with_broker(work)
                    break
                except EXPECTED:
                    await client.pause(RETRY_S)
        self._is_made = True

    async def _live(self, kinds: tuple[str, ...], client: TopicClient) -> None:
        brokers = list(self.load.brokers.values())
        while not self.load.over:
            await client.pause(_PAUSE_S)
            at, count = client.rng.choice(brokers), client.rng.choice(_AT_ONCE)
            await asyncio.gather(
                *(
                    self._call(client, at, client.rng.choice(kinds), client.rng.choice(_PATIENCE_S))
                    for _ in range(count)
                )
            )

    async def _reset(self, client: TopicClient) -> None:
        mean_s = self.options.resets_s
        assert mean_s is not None
        while not self.load.over:
            await client.pause(mean_s)
            a, b = client.rng.choice([*self.load.brokers]), client.rng.choice([*self.load.brokers])
            if self.load.cluster.network.reset(a, b):
                self.load.cluster.trace.fault("broker link reset")

    async def _call(
        self,
        client: TopicClient,
        at: SimBroker,
        kind: str,
        patience_s: float,
        *,
        last: bool = False,
    ) -> bool:
        """Have a broker work on a call, and hang up after a while; return whether it was done."""
        process = at.process
        if process is None or not process.alive or at.broker is None:
            return False
        work = self._outcome(kind, partial(self._calls[kind], client, at, last))
        task = process.spawn(work, f"call from {client.name}")
        await asyncio.wait({task}, timeout=patience_s)
        if not task.done():
            task.cancel()
            self._probe(f"{kind}.left")
            return False
        return not task.cancelled() and task.result()

    async def _outcome(self, kind: str, work: Callable[[], Awaitable[Any]]) -> bool:
        try:
            found = await work()
        except EXPECTED as error:
            if not isinstance(error, OSError) and problem_of(error).status == 500:
                self.load.audit.fail(f"leave: {kind} is answered by {error!r}")
            self._probe(f"{kind}.{type(error).__name__}")
            return False
        is_done = not isinstance(found, int) or found < 400
        if found == 500:
            self.load.audit.fail(f"leave: {kind} is answered {found}")
        self._probe(f"{kind}.{found if isinstance(found, int) else 'done'}")
        return is_done

    # Streams

    def _front(self, at: SimBroker) -> Front:
        process = at.process
        assert process is not None
        if (found := self._fronts.get(process)) is None:
            found = self._fronts[process] = Front(at, process)
        return found

    def _path(self, client: TopicClient) -> str:
        return f"{durable.PATH}public/q{client.rng.randrange(_STREAMS)}"

    async def _poll(self, client: TopicClient, at: SimBroker, last: bool) -> int:
        path = f"{self._path(client)}?offset=now&live=long-poll"
        return await self._front(at).answer(Sent("GET", path, {}))

    async def _follow(self, client: TopicClient, at: SimBroker, last: bool) -> int:
        """Follow a stream as events; some readers take a few pieces, or none."""
        takes = 1 << 30 if last else client.rng.choice((0, 1, 3, 1 << 30))
        start = client.rng.choice(("-1", "now"))
        sent = Sent("GET", f"{self._path(client)}?offset={start}&live=sse", {}, takes=takes)
        return await self._front(at).answer(sent)

    async def _append(self, client: TopicClient, at: SimBroker, last: bool) -> int:
        """Append; some bodies come slowly, break off, or stand still."""
        rng, body = client.rng, b"x" * client.rng.choice((1, 40, 400))
        headers = {"Content-Type": "text/plain"}
        if rng.random() < 0.3 and not last:
            self._numbers += 1
            headers |= {"Producer-Id": f"p{self._numbers}", "Producer-Epoch": "0"}
            headers["Producer-Seq"] = rng.choice(("0", "0", "1"))
        sent = Sent("POST", self._path(client), headers, size=rng.choice((None, len(body))))
        ends = "whole" if last else rng.choice(("whole", "whole", "broken", "silent"))
        assert at.process is not None
        coming = at.process.spawn(_come(sent, body, rng, ends), f"call from {client.name}")
        try:
            return await self._front(at).answer(sent)
        finally:
            coming.cancel()

    async def _make_stream(self, client: TopicClient, at: SimBroker, last: bool) -> int:
        method = "PUT" if last or client.rng.random() < 0.8 else "DELETE"
        headers = {"Content-Type": "text/plain"} if method == "PUT" else {}
        return await self._front(at).answer(Sent(method, self._path(client), headers))

    async def _head(self, client: TopicClient, at: SimBroker, last: bool) -> int:
        return await self._front(at).answer(Sent("HEAD", self._path(client), {}))

    # Operations of brokers

    async def _publish(self, client: TopicClient, at: SimBroker, last: bool) -> None:
        records = [Record(None, b"y" * client.rng.choice((1, 300)), (), 0)]
        await at.publish(_NAME, build_batch(records * client.rng.choice((1, 3))))

    async def _read(self, client: TopicClient, at: SimBroker, last: bool) -> None:
        offset = client.rng.choice((0, 5, 1 << 40 if client.rng.random() < 0.1 else 20))
        await at.read(_NAME, 0 if last else offset, 10_000, 100, 0.0 if last else 0.2)

    async def _receive(self, client: TopicClient, at: SimBroker, last: bool) -> None:
        operation = Receive(_NAME, _SUB, client.name, 5, 0 if last else 200)
        leases = await at.receive(operation)
        if leases.count and (last or client.rng.random() < 0.6):
            await at.settle(Settle(_NAME, _SUB, leases.ack_ids))

    async def _copy(self, client: TopicClient, at: SimBroker, last: bool) -> None:
        """Copy a large message there; some bodies break off, or stand still."""
        self._numbers += 1
        rng, name = client.rng, f"{client.name}.{client.run}-{self._numbers}"
        value = b"z" * rng.randint(1, 8 * _PIECE_BYTES)
        cutter = Cutter(name, len(value), _PIECE_BYTES)
        pieces = [*cutter.feed(value)]
        pieces += [rest] if (rest := cutter.rest()) else []
        ends = "whole" if last else rng.choice(("whole", "whole", "broken", "silent"))
        copy = Record(None, b"", [cutter.body().header()], 0)
        with suppress(TooManyLedgers):  # an answer as well: copies have filled the topic
            await at.store_large(_NAME, LargeLetter(name, copy, _Body(pieces, rng, ends)))

    async def _beat(self, client: TopicClient, at: SimBroker, last: bool) -> None:
        """Join a group, and mostly stay away after that."""
        member = f"{client.name}.{client.rng.randrange(3)}"
        operations = self._front(at).operations
        if client.rng.random() < 0.3 and not last:
            await operations.at_coordinator(Asked(), CALLER, LeaveGroup(_GROUP, member))
            return
        topics, wait_ms = [TopicPattern("public", "leave")], 0 if last else 200
        beat = Heartbeat(_GROUP, member, topics, [_NAME], 0, 500, wait_ms)
        await operations.at_coordinator(Asked(), CALLER, beat)

    # In the end

    async def _finish(self, client: TopicClient) -> None:
        while not self.load.is_done:  # noqa: ASYNC110
            await asyncio.sleep(RETRY_S)
        if self._is_made:
            for number in range(_STREAMS):  # the crowd may have deleted them
                await self._until_made(client, f"q{number}")
            for at in self.load.brokers.values():
                for kind in self._calls if not at.held_down else ():
                    await self._until_done(client, at, kind)
            self._probe("served")
        self.settled = True

    async def _until_made(self, client: TopicClient, name: str) -> None:
        headers = {"Content-Type": "text/plain"}
        until_s = self.load.cluster.loop.time() + _SERVED_WITHIN_S
        while self.load.cluster.loop.time() < until_s:
            for at in self.load.brokers.values():
                if at.is_alive and at.broker is not None and at.process is not None:
                    sent = partial(Sent, "PUT", f"{durable.PATH}public/{name}", headers)
                    front = self._front(at)
                    work = self._outcome("make", partial(_answered, front, sent))
                    task = at.process.spawn(work, f"call from {client.name}")
                    await asyncio.wait({task}, timeout=_LAST_S)
                    if task.done() and not task.cancelled() and task.result():
                        return
                    task.cancel()
            await client.pause(RETRY_S)

    async def _until_done(self, client: TopicClient, at: SimBroker, kind: str) -> None:
        """Ask a broker again until it does this; fail after some time."""
        clock = self.load.cluster.loop.time
        until_s = clock() + _SERVED_WITHIN_S
        while not await self._call(client, at, kind, _LAST_S, last=True):
            if clock() > until_s:
                parts = [*at.parts(), *self.parts(at)]
                taken = [
                    (type(one).__name__, used)
                    for one in describable(parts)
                    if (used := in_use(one))
                ]
                self.load.audit.fail(
                    f"Q3 {at.name} does no {kind} any more, though all have gone: {taken}"
                )
                return
            await client.pause(RETRY_S)


_OF_STREAMS = ("poll", "poll", "follow", "follow", "append", "append", "make", "head")
_OF_BROKERS = ("publish", "publish", "read", "receive", "copy", "copy", "beat")


class _Broken(OctavoError):
    name = "broken-source"
    http_status = 503


class _Body:
    """A body that comes whole, breaks off, or stands still after some pieces."""

    def __init__(self, pieces: list[bytes], rng: random.Random, ends: str) -> None:
        self._pieces = pieces
        self._rng = rng
        self._ends = ends

    @property
    def size(self) -> int:
        return sum(map(len, self._pieces))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        most = len(self._pieces)
        if self._ends != "whole":
            most = self._rng.randrange(most + 1)
        for piece in self._pieces[:most]:
            yield piece
            await asyncio.sleep(self._rng.choice((0.0, 0.003, 0.03)))
        if self._ends == "broken":
            raise _Broken("its source cannot be read")
        if self._ends == "silent":
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise _Broken("its source stood still")


async def _come(sent: Sent, body: bytes, rng: random.Random, ends: str) -> None:
    at, most = 0, len(body) if ends == "whole" else rng.randrange(len(body) + 1)
    while at < most:
        size = rng.randint(1, 200)
        sent.content.feed_data(body[at : min(at + size, most)])
        at += size
        await asyncio.sleep(rng.choice((0.0, 0.002, 0.02)))
    if ends == "whole":
        sent.content.feed_eof()
    elif ends == "broken":
        sent.content.set_exception(ConnectionResetError("the client has gone"))


async def _answered(front: Front, sent: Callable[[], Sent]) -> int:
    return await front.answer(sent())
