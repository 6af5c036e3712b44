"""Large messages: uploaded in pieces to a separate topic while owners die, and X23 (profile
`large`).

A named upload is repeated until it is answered, an unnamed one is sent once, and some break off.
Connections between brokers are cut in the middle. Copies are made as for dead letters, given up and
made again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from octavo.broker.cluster.dead_letters import LargeLetter
from octavo.broker.errors import TooManyLedgers, TopicNotFound
from octavo.broker.http.problems import problem_of
from octavo.broker.operations import large as operations
from octavo.broker.operations.asking import Upload
from octavo.broker.operations.large import Pieces
from octavo.broker.operations.large_kinds import LargeStored
from octavo.broker.partition import large
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Published, TopicName, TopicSettings
from octavo.protocol.codes import OctavoError
from octavo.protocol.large import LARGE_HEADER, Cutter
from octavo.protocol.records import Record, build_batch, read_records
from tests.sim.brokers import CALL_TIMEOUT_S, SimBroker
from tests.sim.topic_client import EXPECTED, RETRY_S, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_TOPIC = TopicName("public", "large")
_NAME = TopicName("public", "large").partition(0)
_PIECE_BYTES = 16
_PAUSE_S = 0.05
_READ_WITHIN_S = 15.0
_SENT_ON_P = 0.5
"""How often a copy is first sent by any broker to the owner."""
_MESSAGES_MAX = 60
_FOR_GOOD = (TopicNotFound, TooManyLedgers)
"""Answers that a client need not retry: the topic does not exist yet; the topic is full."""
_HEADER = "octavo-sim"
"""The header with the message's name for the referee."""


class LargeOptions(NamedTuple):
    uploaders: int
    pieces_max: int
    breaks_off_p: float
    named_p: float
    pause_s: float
    """The longest pause between two parts of a body."""
    cut_p: float
    """How often the asked broker loses its connections to the others at a part of a body."""
    copiers: int
    copy_s: float
    """The longest time of an attempt to copy."""


def draw(rng: random.Random) -> LargeOptions:
    return LargeOptions(
        uploaders=rng.choice((1, 2, 3)),
        pieces_max=rng.choice((2, 6, 12)),
        breaks_off_p=rng.choice((0.0, 0.2)),
        named_p=rng.choice((0.3, 0.9)),
        pause_s=rng.choice((0.0, 0.02, 0.1)),
        cut_p=rng.choice((0.0, 0.02, 0.1)),
        copiers=rng.choice((0, 1, 2)),
        copy_s=rng.choice((0.02, 0.1, 0.5)),
    )


@dataclass(eq=False)
class Sent:
    name: str
    value: bytes
    named: bool
    plain: bool = False
    broken: bool = False
    """Its sender has not sent all of it."""
    at: int | None = None
    """The offset at which it was acked."""


class _Body:
    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces

    @property
    def size(self) -> int:
        return sum(map(len, self._pieces))

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        for piece in self._pieces:
            yield piece


class LargeHistory:
    def __init__(self, fail: object, *, repeats: bool) -> None:
        self._fail = fail
        self._repeats = repeats
        self.sent: dict[str, Sent] = {}
        self.seen: dict[int, str] = {}

    def acked(self, sent: Sent, offset: int) -> None:
        if sent.broken:
            self._wrong(f"{sent.name} was broken off, and is acked at {offset}")
        if sent.named and sent.at not in (None, offset):
            self._wrong(f"{sent.name} is at {offset}, and was acked at {sent.at}")
        sent.at = offset
        self._see(offset, sent.name)

    def shows(self, offset: int, name: str, value: bytes) -> None:
        sent = self.sent.get(name)
        if sent is None or sent.broken:
            self._wrong(f"{name!r} at {offset} was never sent as a whole")
        elif sent.value != value:
            self._wrong(f"{name} at {offset} has {value!r}, and was {sent.value!r}")
        self._see(offset, name)

    def check_whole(self, found: dict[int, str]) -> None:
        times = Counter(found.values())
        for sent in self.sent.values():
            if sent.at is not None and found.get(sent.at) != sent.name:
                self._wrong(f"{sent.name} was acked at {sent.at}, where {found.get(sent.at)} is")
            if times[sent.name] > 1 and (sent.named or not self._repeats):
                self._wrong(f"{sent.name} is stored {times[sent.name]} times")

    def _see(self, offset: int, name: str) -> None:
        before = self.seen.setdefault(offset, name)
        if before != name:
            self._wrong(f"at {offset} is {name}, and was {before}")

    def _wrong(self, what: str) -> None:
        assert callable(self._fail)
        self._fail(f"X23 {what}")


class LargeLoad:
    def __init__(self, load: TopicLoad, options: LargeOptions, settings: TopicSettings) -> None:
        self.load = load
        self.options = options
        self.settings = settings
        self.history = LargeHistory(load.audit.fail, repeats=not load.options.definite)
        self.settled = False
        self._is_made = False

    def start(self) -> None:
        """Begin at once, without waiting for the other topic."""
        lives = [
            ("lm", self._make),
            ("lp", self._publish),
            ("lr", self._read),
            ("lb", self._read_bodies),
            *((f"lu{n}", self._upload) for n in range(self.options.uploaders)),
            *((f"lc{n}", self._copy) for n in range(self.options.copiers)),
        ]
        clients = [TopicClient(self.load, name, life) for name, life in lives]
        self.load.clients += clients
        for client in clients:
            client.start()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within the block, uploads without a name get one from the seed, and pieces are short."""
        put, kept, cut = setattr, vars(large)["secrets"], operations.CUT_BYTES
        chance = self.load.cluster.loop.stream("upload names")
        drawn = SimpleNamespace(token_hex=lambda n: f"{chance.getrandbits(8 * n):x}")
        put(large, "secrets", drawn)
        put(operations, "CUT_BYTES", _PIECE_BYTES)
        try:
            yield
        finally:
            put(large, "secrets", kept)
            put(operations, "CUT_BYTES", cut)

    def settle(self) -> None:
        TopicClient(self.load, "ls", self._finish).start()

    def _probe(self, what: str) -> None:
        self.load.cluster.trace.probe(f"large.{what}")

    def _new(self, client: TopicClient, value: bytes, *, named: bool, plain: bool) -> Sent:
        name = f"{client.name}.{client.run}-{len(self.history.sent)}"
        self.history.sent[name] = sent = Sent(name, value, named, plain)
        return sent

    @property
    def _is_full(self) -> bool:
        return self.load.over or len(self.history.sent) >= _MESSAGES_MAX

    # Lives

    async def _make(self, client: TopicClient) -> None:
        assert client.process is not None
        while not self._is_made:
            at = client.rng.choice([b for b in self.load.brokers.values() if not b.held_down])
            work = partial(at.with_broker, lambda b: b.topics.create(_TOPIC, self.settings))
            try:
                await self.load.cluster.network.call(client.process, at.name, work, CALL_TIMEOUT_S)
                self._is_made = True
            except EXPECTED:
                await client.pause(RETRY_S)

    async def _publish(self, client: TopicClient) -> None:
        while not self._is_full:
            await client.pause(2 * _PAUSE_S)
            sent = self._new(client, b"plain", named=False, plain=True)
            batch = build_batch([_record(sent, sent.value)])
            try:
                published = await client.ask(_NAME, lambda p, b=batch: p.publish(b))
            except EXPECTED:
                continue
            self.history.acked(sent, published.first_offset)

    async def _upload(self, client: TopicClient) -> None:
        rng, options = client.rng, self.options
        while not self._is_full:
            await client.pause(_PAUSE_S)
            size = rng.randint(1, options.pieces_max * _PIECE_BYTES)
            value = bytes(rng.randrange(256) for _ in range(size))
            sent = self._new(client, value, named=rng.random() < options.named_p, plain=False)
            sent.broken = rng.random() < options.breaks_off_p
            while True:
                stream = random.Random(rng.random())
                upload = Upload(_NAME, sent.name if sent.named else "", _record(sent, b""))
                try:
                    stored = await client.upload(
                        upload, partial(self._send, sent, stream), wait_s=1.0
                    )
                except EXPECTED as error:
                    self._probe(f"not_stored.{type(error).__name__}")
                    self._refused(sent, error)
                    if sent.broken or not sent.named or self._is_full:
                        break
                    await client.pause(RETRY_S)
                else:
                    published = stored.published
                    self._probe("repeated" if published.duplicate else "stored")
                    self._check_told(sent, stored)
                    self.history.acked(sent, published.first_offset)
                    break

    def _refused(self, sent: Sent, error: Exception) -> None:
        known = isinstance(error, OctavoError) and not isinstance(error, _FOR_GOOD)
        if known and not problem_of(error).can_retry:
            self.load.audit.fail(f"X23 {sent.name} is refused for good: {error!r}")

    async def _send(self, sent: Sent, rng: random.Random, broker: SimBroker) -> Pieces:
        """Yield the body as it arrives at a broker; cut the broker's connections now and then."""
        parts = [*_parts(sent.value, rng)]
        last = rng.randrange(len(parts) + 1) if sent.broken else len(parts)
        for part in parts[:last]:
            await asyncio.sleep(self.options.pause_s * rng.random())
            self._maybe_cut(broker, rng)
            yield part
        if sent.broken:
            raise ConnectionResetError("its sender is gone")

    def _maybe_cut(self, broker: SimBroker, rng: random.Random) -> None:
        if rng.random() < self.options.cut_p:
            self._probe("cut")
            for other in self.load.brokers:
                if other != broker.name:
                    self.load.cluster.network.reset(broker.name, other)

    def _check_told(self, sent: Sent, stored: LargeStored) -> None:
        if stored.size != len(sent.value):
            self.load.audit.fail(f"X23 {sent.name} is said to have {stored.size} bytes")

    async def _read_bodies(self, client: TopicClient) -> None:
        rng = client.rng
        while not self.load.over:
            await client.pause(_PAUSE_S)
            known = [one for one in self.history.sent.values() if one.at is not None]
            if not known:
                continue
            sent = rng.choice(known)
            assert sent.at is not None
            cutting = asyncio.ensure_future(self._cut_soon(rng))
            try:
                value = await client.body(_NAME, sent.at, wait_s=1.0)
            except EXPECTED as error:
                self._probe(f"body_unread.{type(error).__name__}")
            else:
                self.history.shows(sent.at, sent.name, value)
                self._probe("body_read")
            finally:
                cutting.cancel()

    async def _cut_soon(self, rng: random.Random) -> None:
        """Cut some connections between brokers while a body is read, now and then."""
        await asyncio.sleep(0.01 * rng.random())
        self._maybe_cut(rng.choice([*self.load.brokers.values()]), rng)

    async def _copy(self, client: TopicClient) -> None:
        rng = client.rng
        while not self._is_full:
            await client.pause(_PAUSE_S)
            known = self.history.sent.values()
            large = [(one.at, one) for one in known if one.at is not None and not one.plain]
            if not large:
                continue
            at, of = rng.choice(large)
            sent = self._new(client, of.value, named=True, plain=False)
            while not self._is_full:
                limit_s = self.options.copy_s * rng.random()
                try:
                    if rng.random() < _SENT_ON_P:
                        await self._send_copy(client, sent, limit_s)
                    published: Published = await client.ask(
                        _NAME, partial(self._store_copy, sent, at, limit_s), wait_s=limit_s
                    )
                except EXPECTED as error:
                    self._probe(f"not_copied.{type(error).__name__}")
                    self._refused(sent, error)
                    await client.pause(RETRY_S)
                else:
                    self._probe("copied_before" if published.duplicate else "copied")
                    self.history.acked(sent, published.first_offset)
                    break

    async def _send_copy(self, client: TopicClient, sent: Sent, limit_s: float) -> None:
        """Have any broker send the copy to the owner. A repeat then tells where it is."""
        cutter = Cutter(sent.name, len(sent.value), _PIECE_BYTES)
        pieces = [*cutter.feed(sent.value)]
        pieces += [rest] if (rest := cutter.rest()) else []
        copy = _record(sent, b"")
        copy = copy._replace(headers=[*copy.headers, cutter.body().header()])
        letter = LargeLetter(sent.name, copy, _Body(pieces))
        await client.store_large(_NAME, letter, limit_s)

    async def _store_copy(
        self, sent: Sent, of: int, limit_s: float, partition: Partition
    ) -> Published:
        reader = await partition.body(of)
        said = [header for header in reader.record.headers if header[0] == LARGE_HEADER]
        copy = _record(sent, b"")
        copy = copy._replace(headers=[*copy.headers, *said])
        async with asyncio.timeout(limit_s), aclosing(reader.pieces()) as parts:
            return await partition.copy_large(sent.name, copy, parts)

    async def _read(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            await self._read_all(client)

    async def _read_all(self, client: TopicClient) -> dict[int, str] | None:
        try:
            found: dict[int, tuple[str, bytes]] = await client.ask(_NAME, _whole, wait_s=1.0)
        except EXPECTED as error:
            self._probe(f"unread.{type(error).__name__}")
            return None
        for offset, (name, value) in found.items():
            self.history.shows(offset, name, value)
        self._probe("read")
        return {offset: name for offset, (name, _) in found.items()}

    async def _finish(self, client: TopicClient) -> None:
        while not self.load.is_done:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        loop = self.load.cluster.loop
        until_s = loop.time() + _READ_WITHIN_S
        while self._is_made and loop.time() < until_s:
            found = await self._read_all(client)
            if found is not None:
                self.history.check_whole(found)
                self._probe("checked")
                break
            await client.pause(RETRY_S)
        else:
            if self._is_made:
                self.load.audit.fail(f"X23 {_NAME} cannot be read in the end")
        self.settled = True


def _record(sent: Sent, value: bytes) -> Record:
    return Record(None, value, [(_HEADER, sent.name.encode())], 0)


def _parts(value: bytes, rng: random.Random) -> Iterator[bytes]:
    at = 0
    while at < len(value):
        size = rng.randint(1, 3 * _PIECE_BYTES)
        yield value[at : at + size]
        at += size


async def _whole(partition: Partition) -> dict[int, tuple[str, bytes]]:
    offset, end = partition.earliest_offset, partition.next_offset
    found: dict[int, tuple[str, bytes]] = {}
    while offset < end:
        for stored in await partition.read(offset, bytes_max=10_000, count_max=100):
            for record in read_records(stored.data):
                at = stored.base_offset + record.offset_delta
                name = dict(record.headers).get(_HEADER) or b""
                reader = await partition.body(at)
                body = b"".join([piece async for piece in reader.pieces()])
                found[at] = name.decode(), body
            offset = stored.next_offset
    return found
