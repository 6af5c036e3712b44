"""A topic that is deleted and made again, under publishers, readers and consumers at all brokers.

Profile `recreate`, together with the load of the other topics. Each call goes to any broker, which
may be far behind: watches come up to seconds late. Answers go to the referee (recreate_audit.py).
"""

from __future__ import annotations

import random
import re
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

from octavo.broker.broker import Broker
from octavo.broker.errors import (
    AckOutcomeUnknown,
    PublishOutcomeUnknown,
    StaleLease,
    TopicChanged,
    TopicNotFound,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.types import Published, SubscriptionSettings, TopicName, TopicSettings
from octavo.metadata.store import SessionState
from octavo.metadata.topic_records import TopicRecord, decode_record
from octavo.metadata.topics import topic_path
from octavo.protocol.records import Record, build_batch, read_records
from tests.sim.brokers import CALL_TIMEOUT_S, SimBroker
from tests.sim.metadata_tree import Change
from tests.sim.recreate_audit import RecreateAudit
from tests.sim.recreate_faults import RecreateNemesis
from tests.sim.topic_client import EXPECTED, TopicClient
from tests.sim.topic_load import TopicLoad

AGAIN = TopicName("public", "again")
_PARTITION = AGAIN.partition(0)
_RECORD = re.compile(r"/octavo/topics/public/again$")
_PAUSE_S = 0.03
_NO_TRACE_WITHIN_S = 15.0
_CALL_TIMEOUTS_S = (0.2, CALL_TIMEOUT_S)
_PRODUCER = 77
_SUBSCRIPTION = "s"
_LIMITS = {"deletion_wait_ms": (100, 800), "let_go_timeout_ms": (50, 300)}


def limits(rng: random.Random) -> dict[str, int]:
    found = {name: rng.choice(choices) for name, choices in _LIMITS.items()}
    return {**found, "sweep_interval_ms": rng.choice((100, 400))}


def spared(faults: Mapping[str, float], rng: random.Random) -> dict[str, float]:
    """Keep some of these faults: where everything goes wrong at once, hardly a topic is made and
    deleted."""
    share = rng.choice((0.2, 0.6, 1.0))
    return {kind: mean_s for kind, mean_s in faults.items() if rng.random() < share}


class RecreateLoad:
    def __init__(self, load: TopicLoad, settings: TopicSettings) -> None:
        self._load = load
        self._settings = TopicSettings(
            ensemble_size=settings.ensemble_size,
            write_quorum=settings.write_quorum,
            ack_quorum=settings.ack_quorum,
            rollover_entries=settings.rollover_entries,
        )
        self.audit = RecreateAudit(load.cluster.audit.fail)
        self.nemesis = RecreateNemesis(load.cluster, load.brokers, _PARTITION)
        self.settled = False
        # Publishers find out that a ledger is fenced. When few publish, readers come first.
        self._publish_pause_s = load.cluster.loop.stream("recreate pace").choice((_PAUSE_S, 0.2))
        self._numbers = 0
        self._owners: dict[str, str] = {}
        """Client → the broker that served its last call."""
        self._current: str | None = None
        """The topic that was made last, as far as its maker knows."""
        load.cluster.metadata.observers.append(self._changed)

    def start(self) -> None:
        """Begin the safety phase; the other topics need not exist yet."""
        lives = [
            ("gm", self._make), ("gp1", self._publish), ("gp2", self._publish),
            ("gp3", self._publish), ("gr", self._read), ("gr2", self._read),
            ("gc", self._consume),
        ]  # fmt: skip
        for name, life in lives:
            self._load.clients.append(TopicClient(self._load, name, life))  # type: ignore[arg-type]
            self._load.clients[-1].start()

    def settle(self) -> None:
        TopicClient(self._load, "gs", self._finish).start()  # type: ignore[arg-type]

    def _changed(self, change: Change) -> None:
        if _RECORD.match(change.path) and change.value:
            self.audit.made(decode_record(TopicRecord, change.path, change.value).identity)

    # Calls

    def _any(self, client: TopicClient) -> SimBroker:
        # In the end, leave out brokers that are gone for good: only one other may exist.
        known = self._load.brokers.values()
        return client.rng.choice([b for b in known if not (self._load.over and b.held_down)])

    async def _with_broker(
        self, client: TopicClient, work: Callable[[Broker], Awaitable[Any]]
    ) -> Any:
        at = self._any(client)
        assert client.process is not None
        ask = partial(at.with_broker, work)
        return await self._load.cluster.network.call(client.process, at.name, ask, CALL_TIMEOUT_S)

    async def _at_owner(
        self,
        client: TopicClient,
        work: Callable[[Partition], Awaitable[Any]],
        bound: str | None = None,
    ) -> tuple[str, bool, Any]:
        """Return the topic's incarnation, whether its owner had a session, and the result of
        `work`."""

        async def noted(partition: Partition) -> tuple[str, bool, Any]:
            found = await work(partition)
            self._owners[client.name] = at_owner = partition._context.broker_id()
            store = self._load.brokers[at_owner].store
            vouched = (
                store is not None
                and store.session_state is SessionState.CONNECTED
                and self._load.cluster.metadata.has_session(store.author)
            )
            return partition.incarnation, vouched, found

        at = self._asked(client)
        assert client.process is not None
        ask = partial(at.at_owner, _PARTITION, noted, incarnation=bound)
        found: tuple[str, bool, Any] = await self._load.cluster.network.call(
            client.process, at.name, ask, client.rng.choice(_CALL_TIMEOUTS_S)
        )
        return found

    def _asked(self, client: TopicClient) -> SimBroker:
        """Choose mostly the broker that answered last: a client that knows an owner asks no
        other."""
        known = self._owners.pop(client.name, None)
        stays = client.rng.random() < 0.7 and not self._load.over
        return self._load.brokers[known] if known and stays else self._any(client)

    # Lives

    async def _make(self, client: TopicClient) -> None:
        while not self._load.over:
            incarnation = await self._create(client)
            await client.pause(client.rng.choice((0.02, 0.2, 0.6)))
            await self._until_used(client, incarnation)
            await self._delete(client, incarnation)

    async def _until_used(self, client: TopicClient, incarnation: str) -> None:
        """Wait a limited time for a first ack, so that mostly a deletion has something to lose."""
        for _ in range(client.rng.choice((0, 10, 30))):
            if self.audit.known[incarnation].acked:
                return
            await client.pause(_PAUSE_S)

    async def _create(self, client: TopicClient) -> str:
        while True:
            try:
                info, _ = await self._with_broker(
                    client, lambda broker: broker.topics.create(AGAIN, self._settings)
                )
            except EXPECTED:
                await client.pause(_PAUSE_S)
            else:
                self._load.cluster.trace.probe("recreate.made")
                self._current = str(info.incarnation)
                return self._current

    async def _delete(self, client: TopicClient, incarnation: str) -> None:
        self.nemesis.deletion_begins()
        self.audit.deletion_begins(incarnation)
        while True:
            try:
                await self._with_broker(
                    client, lambda broker: broker.topics.delete(AGAIN, incarnation)
                )
            except (TopicNotFound, TopicChanged):
                break  # an earlier call of ours has done it
            except EXPECTED as error:
                self._load.cluster.trace.probe(f"recreate.delete.{type(error).__name__}")
                await client.pause(_PAUSE_S)
            else:
                break
        self._load.cluster.trace.probe("recreate.deleted")
        self.audit.deleted(incarnation)

    async def _publish(self, client: TopicClient) -> None:
        while not self._load.over:
            await client.pause(self._publish_pause_s)
            self._numbers += 1
            value = f"{client.name}-{self._numbers}"
            # Use sequence 0 of the same producer in every topic: each stores it once.
            bound = self._current if client.rng.random() < 0.3 else None
            sequence = (
                {"producer_id": _PRODUCER, "producer_epoch": 0, "base_sequence": 0} if bound else {}
            )
            batch = build_batch([Record(None, value.encode(), (), 0)], **sequence)
            self.audit.sends(value, bound)
            try:
                incarnation, _, published = await self._at_owner(
                    client, lambda partition, batch=batch: partition.publish(batch), bound
                )
            except EXPECTED as error:
                if isinstance(error, PublishOutcomeUnknown):
                    self._load.cluster.trace.probe("recreate.publish_unknown")
                continue
            assert isinstance(published, Published)
            self.audit.acked(value, incarnation, duplicate=published.duplicate)

    async def _read(self, client: TopicClient) -> None:
        while not self._load.over:
            await client.pause(_PAUSE_S)
            await self._read_all(client)

    async def _read_all(self, client: TopicClient) -> bool:
        gone = self.audit.gone()
        acked = {name: set(one.acked) for name, one in self.audit.known.items()}
        try:
            incarnation, vouched, values = await self._at_owner(client, _values)
        except EXPECTED:
            return False
        self.audit.shown(incarnation, values, gone, vouched=vouched)
        self.audit.whole(incarnation, values, acked.get(incarnation, ()))
        self._load.cluster.trace.probe("recreate.read")
        return True

    async def _consume(self, client: TopicClient) -> None:
        settings = SubscriptionSettings(type="shared", ack_timeout_ms=300)
        held: list[tuple[str, str]] = []
        while not self._load.over:
            await client.pause(_PAUSE_S)
            gone = self.audit.gone()

            async def receive(partition: Partition) -> list[Any]:
                subscription = await partition.subscription(_SUBSCRIPTION)
                return await subscription.receive(client.name, messages_max=3)

            try:
                await self._with_broker(
                    client,
                    lambda broker: broker.topics.create_subscription(
                        AGAIN, _SUBSCRIPTION, settings
                    ),
                )
                incarnation, vouched, given = await self._at_owner(client, receive)
            except EXPECTED:
                continue
            values = [(one.record.value or b"").decode() for one in given]
            self.audit.shown(incarnation, values, gone, vouched=vouched)
            held = [*held[-5:], *((incarnation, one.ack_id) for one in given)]
            for of, ack_id in client.rng.sample(held, min(2, len(held))):
                await self._acknowledge(client, of, ack_id)

    async def _acknowledge(self, client: TopicClient, given: str, ack_id: str) -> None:
        """Ack, also with ack ids of a topic that is gone."""

        async def acknowledge(partition: Partition) -> bool:
            subscription = await partition.subscription(_SUBSCRIPTION)
            try:
                await subscription.acknowledge([ack_id])
            except StaleLease:
                return False
            return True

        try:
            taken, _, done = await self._at_owner(client, acknowledge)
        except EXPECTED as error:
            if isinstance(error, AckOutcomeUnknown):
                self._load.cluster.trace.probe("recreate.ack_unknown")
            return
        if done:
            self.audit.ack_taken(given, taken)
            self._load.cluster.trace.probe("recreate.ack")

    async def _finish(self, client: TopicClient) -> None:
        incarnation = await self._create(client)
        while not await self._read_all(client):
            await client.pause(_PAUSE_S)
            incarnation = await self._create(client)  # its maker may have been about to delete it
        await self._delete(client, incarnation)
        await self._until_no_trace(client)
        self.settled = True

    async def _until_no_trace(self, client: TopicClient) -> None:
        """Wait until objects that came too late for a deletion are removed."""
        cluster = self._load.cluster
        records = cluster.metadata.tree.records
        path = topic_path(AGAIN.namespace, AGAIN.topic)
        until_s = cluster.loop.time() + _NO_TRACE_WITHIN_S
        while left := [found for found in records() if "/again" in found]:
            topic = (
                decode_record(TopicRecord, path, records()[path].value) if path in left else None
            )
            if topic is not None and not topic.deleting:
                # A maker's call was late: the topic that we deleted is gone, and here is another.
                await self._delete(client, topic.incarnation)
                until_s = cluster.loop.time() + _NO_TRACE_WITHIN_S
            elif cluster.loop.time() >= until_s:
                cluster.audit.fail(f"P63 after {_NO_TRACE_WITHIN_S:g} s: {left} of a deleted topic")
            await client.pause(_PAUSE_S)


async def _values(partition: Partition) -> list[str]:
    found: list[str] = []
    offset, end = 0, partition.next_offset
    while offset < end:
        for stored in await partition.read(offset, bytes_max=10_000, count_max=100):
            found += [(one.value or b"").decode() for one in read_records(stored.data)]
            offset = stored.next_offset
    return found
