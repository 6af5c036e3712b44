"""The production client in the load: its producer, its retries, its delivery loops.

All of `octavo/client` but its sockets runs here, in client processes that die. Messages must come
back byte for byte (X11). At the end two slow loops share messages under short leases: each is
processed once (X12).
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from octavo.broker.http.api.deliveries import AckBody
from octavo.broker.types import PartitionName, SubscriptionSettings
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, ClientError, ProducerFailed
from octavo.client.producer import Producer
from octavo.client.types import Position, decode_deliveries
from octavo.client.wire import Reply
from octavo.protocol.ack_ids import each
from octavo.protocol.leased import LEASED_HEADER
from octavo.protocol.records import Record
from tests.sim.brokers import CALL_TIMEOUT_S
from tests.sim.http_face import EPOCHS, SimWire
from tests.sim.topic_audit import Asked
from tests.sim.topic_client import RETRY_S, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

LOOP = "loop"
_SHARE = 0.3
_LAST = 24
"""The number of messages for the last loops, sent when the faults are over."""
_WORK_SHARE = 0.2
"""The share of a lease that each of the last messages takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    producers: int = 0
    loops: int = 0
    batch_bytes: int = 0
    window: int = 1
    linger_ms: float = 0.0
    lease_ms: int = 0
    batch: int = 1

    @property
    def subscriptions(self) -> dict[str, SubscriptionSettings]:
        if not self.loops:
            return {}
        return {LOOP: SubscriptionSettings(type="shared", ack_timeout_ms=self.lease_ms)}


def draw(rng: random.Random) -> ClientOptions:
    if rng.random() >= _SHARE:
        return ClientOptions()
    return ClientOptions(
        producers=rng.choice((1, 2)),
        loops=rng.choice((1, 2)),
        batch_bytes=rng.choice((1, 200, 5_000)),
        window=rng.choice((1, 2, 4)),
        linger_ms=rng.choice((0.0, 5.0, 40.0)),
        lease_ms=rng.choice((300, 900)),
        batch=rng.choice((1, 5, 50)),
    )


@dataclass(slots=True)
class _Exchange:
    what: str
    sub: str
    began_s: float
    asked: dict[PartitionName, Asked] = field(default_factory=dict)
    offsets: dict[int, list[tuple[str, int]]] = field(default_factory=dict)
    """Partition → ack ids and their offsets."""
    moves: dict[int, int] = field(default_factory=dict)


class ClientReferee:
    """Sees every call of the client to a subscription, and tells the referee of the topics."""

    def __init__(self, load: TopicLoad) -> None:
        self._load = load
        self.slowest_s = 0.0
        """The longest time of an ack: leases may end meanwhile."""

    def begins(self, path: str, body: bytes | None, now_s: float) -> _Exchange:
        parts = path.split("/")
        found = _Exchange(parts[-1], parts[-2], now_s)
        logs = self._load.audit.logs
        if found.what == "receive":
            for name in self._load.partitions:
                found.asked[name] = logs[name].cursors[found.sub].asks()
        elif found.what == "ack":
            offsets = defaultdict(list)
            for ack_id in each(msgspec.json.decode(body or b"", type=AckBody).ack_ids):
                partition, offset = map(int, ack_id.split("-")[:2])
                offsets[partition].append((ack_id, offset))
            found.offsets = dict(offsets)
            for name in self._load.partitions:
                mine = [offset for _, offset in offsets.get(name.partition, ())]
                found.moves[name.partition] = logs[name].ack_begins(found.sub, mine)
        return found

    def unanswered(self, exchange: _Exchange, now_s: float) -> None:
        if exchange.what == "ack":
            self.slowest_s = max(self.slowest_s, now_s - exchange.began_s)

    def ends(self, exchange: _Exchange, reply: Reply, now_s: float) -> None:
        if exchange.what == "ack":
            self.slowest_s = max(self.slowest_s, now_s - exchange.began_s)
        if reply.status >= 300:
            return
        logs = self._load.audit.logs
        if exchange.what == "receive":
            found, _ = decode_deliveries(reply.headers, reply.body)
            if LEASED_HEADER in reply.headers:
                self._load.cluster.trace.probe("client.received_batches")
            for name in self._load.partitions:
                log, rows = logs[name], []
                log.cursors[exchange.sub].answered += 1
                for one in found:
                    if one.partition == name.partition:
                        epoch, lease = map(int, one.ack_id.split("-")[2:])
                        record = Record(one.key, one.value, one.headers)
                        shown = log.odd.name_of(record, "a loop")
                        rows.append((one.offset, shown, epoch, epoch, lease, one.delivery_count))
                log.delivered(exchange.sub, rows, exchange.asked[name])
        elif exchange.what == "ack":
            epochs = msgspec.json.decode(reply.headers[EPOCHS], type=dict[str, int])
            for name in self._load.partitions:
                if (mine := exchange.offsets.get(name.partition)) is not None:
                    logs[name].ack_ends(
                        exchange.sub,
                        [offset for _, offset in mine],
                        epochs[str(name.partition)],
                        exchange.moves[name.partition],
                    )


class ClientLoad:
    def __init__(self, load: TopicLoad, options: ClientOptions) -> None:
        self.load = load
        self.options = options
        self.cluster = load.cluster
        self.loop = load.cluster.loop
        self.brokers = load.brokers
        self.partitions = load.partitions
        self.referee = ClientReferee(load)

    def clients(self) -> list[TopicClient]:
        options = self.options
        return [
            *[TopicClient(self.load, f"e{n}", self._produce) for n in range(options.producers)],
            *[TopicClient(self.load, f"l{n}", self._consume) for n in range(options.loops)],
        ]

    async def finish(self, client: TopicClient) -> None:
        async with self._api(client) as api:
            last = TopicClient(self.load, "last", self._produce)
            last.process, last.run = client.process, 1
            await self._send_some(last, api, _LAST)
        processed: Counter[tuple[int, int, str]] = Counter()
        self.referee.slowest_s = 0.0
        await asyncio.gather(*(self._last_loop(client, n, processed) for n in range(2)))
        if self.referee.slowest_s > self.options.lease_ms / 1000 / 4:
            self.cluster.trace.probe("client.too_slow_to_judge")
            return
        judge_loops(processed, self.load.audit.fail)
        self.cluster.trace.probe("client.judged_loops")

    # ------------------------------------------------------------------ producing

    def _api(self, client: TopicClient) -> AsyncClient:
        assert client.process is not None
        # At the end, leave out brokers that are gone for good: a call would spend its time on them.
        told = [one for one in self.brokers.values() if not (self.load.over and one.held_down)]
        return AsyncClient(
            [f"http://{one.name}" for one in told],
            attempt_s=CALL_TIMEOUT_S,
            retry_s=5.0,
            rng=random.Random(client.rng.random()),
            clock=client.process.clock_ms,
            wire=SimWire(self, client.process),
        )

    async def _produce(self, client: TopicClient) -> None:
        async with self._api(client) as api:
            while not self.load.is_full:
                try:
                    await self._send_some(client, api, 1_000)
                except ApiError as error:
                    self.load.audit.fail(f"S9 {client.name} is refused: {error}")
                except ClientError:
                    self.cluster.trace.probe("client.gives_up")
                    await client.pause(RETRY_S)

    async def _send_some(self, client: TopicClient, api: AsyncClient, count: int) -> None:
        options = self.options
        epoch = client.run * 100 + client.rng.randrange(100)
        producer = await api.producer(
            "t",
            producer_id=1_000 + hash_of(client.name),
            epoch=epoch,
            batch_bytes=options.batch_bytes,
            window=options.window,
            linger_ms=options.linger_ms,
            delivery_timeout_ms=120_000,
        )
        sequences: dict[PartitionName, int] = defaultdict(int)
        for _ in range(count):
            if client.name != "last" and self.load.is_full:
                break
            name = client.rng.choice(self.partitions)
            await self._send(client, producer, name, (epoch, sequences[name]))
            sequences[name] += 1
            if client.rng.random() < 0.5:
                await client.pause(self.load.options.pause_s)
        await producer.close()

    async def _send(
        self, client: TopicClient, producer: Producer, name: PartitionName, place: tuple[int, int]
    ) -> None:
        log = self.load.audit.logs[name]
        shown = f"{client.name}.{client.run}-{self.load.take_numbers(1)}"
        key, value, headers = log.odd.make(client.rng, shown, None)
        await producer.until_room()
        log.sends([shown], client.name, *place)
        receipt = producer.send_nowait(value, key=key, headers=headers, partition=name.partition)
        receipt.on_done(partial(self._told, client, name, shown))

    def _told(
        self, client: TopicClient, name: PartitionName, shown: str, found: Position | BaseException
    ) -> None:
        if isinstance(found, Position):
            self.load.audit.logs[name].acked([shown], found.offset, duplicate=found.duplicate)
        elif isinstance(found, ApiError | ProducerFailed):
            self.load.audit.fail(f"S9 {shown} was refused: {found}")

    # ------------------------------------------------------------------ consuming

    async def _consume(self, client: TopicClient) -> None:
        """Consume by a loop whose body is sometimes slower than a lease; leave it and begin
        again."""
        lease_s = self.options.lease_ms / 1000
        async with self._api(client) as api:
            while not self.load.over:
                mine = api.subscription("t", LOOP, consumer=f"{client.name}.{client.run}")
                slow = client.rng.choice((0.01, 0.1, 1.5)) * lease_s
                try:
                    async with aclosing(
                        mine.deliveries(batch=self.options.batch, idle_s=0.1)
                    ) as found:
                        async for _ in found:
                            await client.pause(slow)
                            if self.load.over or client.rng.random() < 0.03:
                                break
                except ClientError as error:
                    self.cluster.trace.probe(f"client.loop.{type(error).__name__}")
                await client.pause(RETRY_S)

    async def _last_loop(
        self, client: TopicClient, number: int, processed: Counter[tuple[int, int, str]]
    ) -> None:
        lease_s = self.options.lease_ms / 1000
        async with self._api(client) as api:
            mine = api.subscription("t", LOOP, consumer=f"last{number}")
            async with aclosing(
                mine.deliveries(batch=self.options.batch, idle_s=2 * lease_s)
            ) as found:
                async for one in found:
                    epoch = one.ack_id.split("-")[2]
                    processed[one.partition, one.offset, epoch] += 1
                    await asyncio.sleep(_WORK_SHARE * lease_s)


def judge_loops(processed: Counter[tuple[int, int, str]], fail: Callable[[str], None]) -> None:
    """Judge (partition, offset, epoch) → how often a loop's body got it while there was no
    fault."""
    for (partition, offset, epoch), times in processed.items():
        if times > 1:
            fail(
                f"X12 partition {partition} offset {offset} was processed {times} times by loops, "
                f"in epoch {epoch}"
            )


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "big") % 1_000_003
