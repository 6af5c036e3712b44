"""The clients of the topics: they publish with and without sequences, read, consume and seek.

They ask any broker. A lost call is repeated as by a careful client; a plain publish never, because
a repeat is a second message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from octavo.broker.errors import (
    DueAfterExpiry,
    ExclusiveProducer,
    NotOwner,
    OffsetBeyondEnd,
    OffsetMismatch,
    OffsetTrimmed,
    Overloaded,
    PartitionMoving,
    PartitionUnavailable,
    SequenceGap,
    StaleProducerEpoch,
    SubscriptionBusy,
    TooManyDelayed,
)
from octavo.broker.operations.kinds import AnyAnswer, Leases, PartitionOperation, Receive, Settle
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Delivery, Nack, PartitionName, Published
from octavo.protocol.ack_ids import each
from octavo.protocol.records import Record, build_batch
from tests.sim.brokers import SimBroker
from tests.sim.client_load import LOOP
from tests.sim.cluster import Cluster
from tests.sim.delay_options import HEEDING, DelayOptions, check_due
from tests.sim.letter_load import limits
from tests.sim.odd_values import name_header
from tests.sim.time_options import TimeOptions
from tests.sim.topic_audit import Asked, LogHistory, TopicAudit
from tests.sim.topic_client import EXPECTED, RETRY_S, TopicClient
from tests.sim.topic_options import TopicOptions
from tests.sim.type_audit import TypeAudit

_NOT_STORED = (
    ConnectionRefusedError,
    ExclusiveProducer,
    NotOwner,
    OffsetMismatch,
    Overloaded,
    PartitionMoving,
    PartitionUnavailable,
)
"""After these errors a publish has certainly not taken effect, unless requests come twice."""
_GAP_TRIES_MAX = 200
_SPOILED = 0.5
"""In a subscription that gives messages up, the share that a consumer cannot process."""


class TopicLoad:
    def __init__(
        self,
        cluster: Cluster,
        brokers: dict[str, SimBroker],
        partitions: list[PartitionName],
        options: TopicOptions,
        audit: TopicAudit,
        key_of: Callable[[str], bytes | None],
        times: TimeOptions,
        types: TypeAudit,
    ) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.partitions = partitions
        self.options = options
        self.audit = audit
        self.key_of = key_of
        self.times = times
        self.delays = DelayOptions()
        self.is_tombstone: Callable[[str], bool] = lambda _: False
        self.types = types
        self.over = False
        self.clients: list[TopicClient] = []
        self.others: list[Callable[[], list[TopicClient]]] = []
        """Clients of other kinds, which begin after these."""
        self.producers: dict[tuple[str, int], list[tuple[list[str], int, int]]] = {}
        """(producer, partition) → its last acked batches: values, epoch, sequence."""
        self._numbers = self._requests = 0
        cluster.on_operation.append(self._watch)

    def start(self) -> None:
        options = self.options
        lives = [
            *[(f"i{n}", self._publish_numbered) for n in range(1, options.producers + 1)],
            *[(f"p{n}", self._publish_plain) for n in range(1, options.publishers + 1)],
            *[(f"v{n}", self._read) for n in range(1, options.readers + 1)],
            *[
                (f"c{n}{sub}", partial(self._consume, sub))
                for sub in options.subscriptions
                if sub != LOOP
                for n in range(1, options.consumers + 1)
            ],
        ]
        for name, life in lives:
            self.clients.append(TopicClient(self, name, life))  # type: ignore[arg-type]
        for others in self.others:
            self.clients += others()
        for client in self.clients:
            if client.process is None:
                client.start()

    @property
    def is_done(self) -> bool:
        return all(client.is_done or not client.is_alive for client in self.clients)

    @property
    def is_full(self) -> bool:
        return self.over or self._numbers >= self.options.messages_max

    def take_numbers(self, count: int) -> int:
        self._numbers += count
        return self._numbers - count

    # ------------------------------------------------------------------ publishing

    def values(self, client: TopicClient) -> list[str]:
        count = client.rng.randint(1, self.options.batch_max)
        first = self.take_numbers(count)
        return [f"{client.name}.{client.run}-{first + n}" for n in range(count)]

    def batch(
        self, client: TopicClient, values: list[str], *sequence: int, delayed: bool = True
    ) -> bytes:
        assert client.process is not None
        loop, now_ms = self.cluster.loop, client.process.clock_ms()
        stamps = self.times.stamps_of(loop.stream("stamps"), now_ms, len(values))
        for log in self.audit.logs.values():
            if values[0] in log.sent:  # a sink's messages are noted later
                log.stamped(values, stamps, loop.wall_ms())
        records = [
            self._record(value, stamp_ms, loop.wall_ms(), delayed=delayed)
            for value, stamp_ms in zip(values, stamps, strict=True)
        ]
        if not sequence:
            return build_batch(records)
        producer_id, epoch, first = sequence
        return build_batch(
            records, producer_id=producer_id, producer_epoch=epoch, base_sequence=first
        )

    def _record(self, value: str, stamp_ms: int, now_ms: int, *, delayed: bool) -> Record:
        headers = self.delays.headers_of(value, now_ms) if delayed else []
        if not self.is_tombstone(value):
            return Record(self.key_of(value), value.encode(), headers, stamp_ms)
        return Record(self.key_of(value), None, [*headers, name_header(value)], stamp_ms)

    async def _publish_numbered(self, client: TopicClient) -> None:
        """Publish as an idempotent producer: each start has a new epoch, with sequences from 0."""
        name = client.rng.choice(self.partitions)
        log = self.audit.logs[name]
        epoch, sequence = client.run - 1, 0
        producer_id = int(client.name[1:])
        under_way: list[asyncio.Task[None]] = []
        before: list[str] = []
        while not self.is_full:
            values = self.values(client)
            log.sends(values, client.name, epoch, sequence)
            batch = self.batch(client, values, producer_id, epoch, sequence)
            work = self._until_stored(client, name, values, batch, (epoch, sequence), before)
            before = values
            assert client.process is not None
            under_way.append(client.process.spawn(work, f"publish {client.name}"))
            sequence += len(values)
            while len(under_way) >= self.options.pipeline:
                await under_way.pop(0)
            await client.pause(self.options.pause_s)
        for one in under_way:
            await one

    async def _until_stored(
        self,
        client: TopicClient,
        name: PartitionName,
        values: list[str],
        batch: bytes,
        place: tuple[int, int],
        before: list[str],
    ) -> None:
        """Repeat a batch under its sequence until there is an answer. `before`: the values of the
        batch before it."""
        gaps = 0
        sent = self.audit.logs[name].sent
        while True:
            is_next = all(sent[value].acked for value in before)
            try:
                published = await client.publish(name, batch)
                break
            except SequenceGap as error:
                gaps += 1  # the batch before it is not stored yet
                if is_next or gaps > _GAP_TRIES_MAX:
                    self.audit.fail(f"S9 {client.name} cannot go on at {values}: {error}")
            except StaleProducerEpoch as error:
                self.audit.fail(f"S9 {client.name} is the newest, and is told: {error}")
            except DueAfterExpiry:  # by an owner's clock, which may be off for good
                batch = self.batch(client, values, int(client.name[1:]), *place, delayed=False)
            except EXPECTED as error:
                if not isinstance(error, _NOT_STORED):
                    self.cluster.trace.probe("topic.publish_unknown")
            await client.pause(RETRY_S)
        log = self.audit.logs[name]
        log.acked(values, published.first_offset, duplicate=published.duplicate)
        self._check_count(name, values, published)
        kept = self.producers.setdefault((client.name, name.partition), [])
        kept.append((values, *place))
        del kept[:-3]

    def _check_count(self, name: PartitionName, values: list[str], published: Published) -> None:
        first, last = published.first_offset, published.last_offset
        if first >= 0 and last - first + 1 != len(values):
            self.audit.fail(f"S9 {name}: {len(values)} messages were stored as {published}")

    async def _publish_plain(self, client: TopicClient) -> None:
        """Publish without sequences, sometimes only when at the end."""
        while not self.is_full:
            name = client.rng.choice(self.partitions)
            log = self.audit.logs[name]
            values = self.values(client)
            log.sends(values, client.name, -1, self._numbers)
            batch = self.batch(client, values)
            expected = log.seen_end if client.rng.random() < 0.2 else None
            try:
                published = await client.publish(name, batch, expected=expected)
                log.acked(values, published.first_offset, duplicate=published.duplicate)
                self._check_count(name, values, published)
                if expected is not None and published.first_offset != expected:
                    self.audit.fail(f"S9 {name}: expected at {expected}, stored {published}")
            except _NOT_STORED as error:
                if isinstance(error, OffsetMismatch) and error.next_offset < (expected or 0):
                    self.audit.fail(f"S9 {name} has offsets up to {expected}, and is told: {error}")
                if self.options.definite:
                    log.refused(values)
            except EXPECTED:
                self.cluster.trace.probe("topic.publish_unknown")
            await client.pause(self.options.pause_s)

    # ------------------------------------------------------------------ reading

    async def _read(self, client: TopicClient) -> None:
        name, offset = client.rng.choice(self.partitions), 0
        while not self.over:
            log = self.audit.logs[name]
            if client.rng.random() < 0.1:
                name = client.rng.choice(self.partitions)
                log = self.audit.logs[name]
                offset = client.rng.randint(log.trimmed, max(log.trimmed, log.seen_end))
            try:
                offset = await self.read_once(client, name, offset, wait_s=0.2)
            except OffsetTrimmed as error:
                if error.earliest > log.trimmed:
                    self.audit.fail(f"S9 {name} {error}, the record says {log.trimmed}")
                offset = error.earliest
            except OffsetBeyondEnd as error:
                self.audit.fail(f"S9 {client.name} has seen offsets up to {offset}: {error}")
            except EXPECTED:
                pass
            await client.pause(self.options.pause_s)

    async def read_once(
        self, client: TopicClient, name: PartitionName, offset: int, *, wait_s: float = 0.0
    ) -> int:
        """Read and check some batches from `offset` on; return the offset after them."""
        bytes_max, count_max = client.rng.choice((1, 200, 10_000)), client.rng.choice((1, 5, 1_000))
        log = self.audit.logs[name]
        poll = log.polls(f"{client.name}.{client.run}", offset)
        batches = await client.read(name, offset, bytes_max, count_max, wait_s)
        at, found = offset, []
        for batch in batches:
            first_fits = at == offset and batch.base_offset <= at < batch.next_offset
            if not first_fits and batch.base_offset != at:
                self.audit.fail(f"S9 {name} read from {offset}: {batch.base_offset}, not {at}")
            found += log.batch(batch, f"reader {client.name}")
            at = batch.next_offset
        log.polled(poll, found)
        return at

    # ------------------------------------------------------------------ consuming

    async def _consume(self, sub: str, client: TopicClient) -> None:
        while not self.over:
            await self.consume_once(client, client.rng.choice(self.partitions), sub)
            await client.pause(self.options.pause_s)

    async def consume_once(self, client: TopicClient, name: PartitionName, sub: str) -> None:
        """Receive some messages, and treat them as consumers do."""
        given = await self.receive(client, name, sub, wait_s=0.1)
        if self.options.seeks and client.rng.random() < 0.15:
            await self._seek(client, name, sub)
            return
        if not given:
            return
        if limits(self.options.subscriptions[sub]) and client.rng.random() < _SPOILED:
            delay_ms = client.rng.choice((0, None, None))
            nacks = [Nack(d.ack_id, delay_ms) for d in given]
            await self.acknowledge(client, name, sub, nacks=nacks)
            return
        how = client.rng.random()
        exclusive = self.options.subscriptions[sub].type in ("exclusive", "failover")
        if how < 0.1:
            return  # it forgets them: their leases end
        if how < 0.25:
            delay_ms = client.rng.choice((0, 50))
            some = given
            if self.options.subscriptions[sub].type == "key_shared":
                some = [d for d in given if client.rng.random() < 0.5]
            await self.acknowledge(
                client, name, sub, nacks=[Nack(d.ack_id, delay_ms) for d in some]
            )
        elif how < 0.3:
            await self.acknowledge(client, name, sub, extend=[d.ack_id for d in given])
        elif how < 0.5 and exclusive:
            await self.acknowledge(client, name, sub, up_to=client.rng.choice(given).offset)
        else:
            some = [d for d in given if client.rng.random() < 0.8]
            for _ in range(client.rng.choice((1, 1, 2))):
                await self.acknowledge(client, name, sub, acks=some)

    async def receive(
        self,
        client: TopicClient,
        name: PartitionName,
        sub: str,
        *,
        wait_s: float = 0.0,
        messages_max: int = 0,
        consumer: str = "",
    ) -> list[Delivery]:
        log = self.audit.logs[name]
        messages_max = messages_max or client.rng.choice((1, 3, 50))
        self._requests += 1
        request = f"r{self._requests}" if client.rng.random() < 0.7 else ""

        operation = Receive(
            name,
            sub,
            consumer or f"{client.name}.{client.run}",
            messages_max,
            round(wait_s * 1000),
            request,
        )
        for _ in range(3 if request else 1):
            cursor = log.cursors[sub]
            asked = cursor.asks()
            try:
                leases = await client.receive(operation)
            except SubscriptionBusy:
                cursor.answered += 1
                return []
            except EXPECTED:
                await client.pause(RETRY_S)
                continue
            cursor.answered += 1
            given = leases.deliveries
            self._delivered(log, sub, given, asked, leases.epoch)
            if log.appends is not None and log.appends.how == "append":
                for one in given:  # a delivery does not name the source of its time
                    log.appends.shown(log, one.offset, one.record.timestamp_ms, "consumer")
            return given
        return []

    def _watch(
        self, partition: Partition, operation: PartitionOperation, answer: AnyAnswer
    ) -> None:
        if not isinstance(operation, Receive | Settle) or partition.name not in self.audit.logs:
            return
        sub = operation.subscription
        subscription = partition._subscriptions._open.get(sub)
        if subscription is None or sub not in self.types.settings:
            return
        self.types.look(self.audit.logs[partition.name], sub, subscription)
        if not isinstance(answer, Leases) or not self.delays.share:
            return
        if self.options.subscriptions[sub].type in HEEDING:
            what = f"{partition.name} subscription {sub}"
            if check_due(answer.deliveries, partition.wall_ms(), what, self.audit.fail):
                self.cluster.trace.probe("topic.delayed_given")

    def _delivered(
        self, log: LogHistory, sub: str, given: list[Delivery], asked: Asked, epoch: int
    ) -> None:
        """Check deliveries. `epoch`: of the owner when it was asked; an ack id may name an earlier
        epoch."""
        rows = []
        for one in given:
            partition, offset, lease_epoch, lease = map(int, one.ack_id.split("-"))
            era = lease_epoch & 0xFFFF_FFFF
            if era > epoch:
                self.audit.fail(f"S9 {log.name}: ack id {one.ack_id} at epoch {epoch}")
            if (partition, offset) != (log.name.partition, one.offset):
                self.audit.fail(f"S9 {log.name} offset {one.offset}: ack id {one.ack_id}")
            value = log.odd.name_of(one.record, f"subscription {sub}")
            self.types.given(log, sub, one.offset, value)
            rows.append((one.offset, value, epoch, era, lease, one.delivery_count))
        log.delivered(sub, rows, asked)

    async def acknowledge(
        self,
        client: TopicClient,
        name: PartitionName,
        sub: str,
        *,
        acks: list[Delivery] | None = None,
        up_to: int | None = None,
        nacks: list[Nack] | None = None,
        extend: list[str] | None = None,
    ) -> None:
        """Ack, give back or keep; mostly repeat an ack with an unknown outcome."""
        acks = acks or []
        log = self.audit.logs[name]
        offsets = [d.offset for d in acks]
        if up_to is not None:
            offsets += range(log.trimmed, up_to + 1)
        moves = log.ack_begins(sub, offsets)
        if up_to is not None:
            log.cursors[sub].attempted.update(range(up_to + 1))

        ack_ids = [one.ack_id for one in acks]
        operation = Settle(name, sub, ack_ids, nacks or [], extend or [], up_to=up_to)
        for _ in range(3):
            try:
                settled = await client.settle(operation)
                if settled.too_many_delayed:
                    raise TooManyDelayed(settled.too_many_delayed)
            except EXPECTED:
                if client.rng.random() < 0.3:
                    return
                await client.pause(RETRY_S)
                continue
            stale = {*each(settled.stale)}
            if settled.stale:
                self.cluster.trace.probe("topic.stale_lease")
            refused = {d.offset for d in acks if d.ack_id in stale}
            kept = [offset for offset in offsets if offset not in refused]
            log.ack_ends(sub, kept, settled.epoch, moves)
            return

    async def _seek(self, client: TopicClient, name: PartitionName, sub: str) -> None:
        log = self.audit.logs[name]
        offset = client.rng.randint(log.trimmed, max(log.trimmed, log.seen_end))
        self.cluster.trace.probe("topic.seek")
        log.seek_begins(sub, offset)

        async def work(partition: Partition) -> int:
            return await (await partition.subscription(sub)).seek(offset)

        try:
            stands = await client.ask(name, work)
            log.seek_ends(sub, stands, known=self.options.definite)
        except EXPECTED:
            log.seek_ends(sub, offset, known=False)
