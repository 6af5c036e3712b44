"""After the faults: every partition is served again, read as a whole, drained, and compared.

The judge repeats the last batches of each numbered producer (nothing may be stored twice), and
compares the state ledger with the owner's memory. Then all brokers are killed, and everything must
be as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from octavo.broker.errors import SubscriptionBusy
from octavo.broker.partition.partition import Partition
from octavo.broker.state.format import State
from octavo.broker.types import PartitionName, Published, SubscriptionInfo, TopicName
from octavo.ledger.client import LedgerClient
from tests.sim.brokers import CALL_TIMEOUT_S, SimBroker
from tests.sim.client_load import ClientLoad
from tests.sim.cluster import Cluster
from tests.sim.compaction_load import CompactionLoad
from tests.sim.exclusive_load import ExclusiveLoad
from tests.sim.letter_load import LetterJudge
from tests.sim.published_load import PublishedLoad
from tests.sim.time_load import TimeLoad
from tests.sim.tool_judge import ToolJudge
from tests.sim.topic_audit import TopicAudit
from tests.sim.topic_client import EXPECTED, RETRY_S, TopicClient
from tests.sim.topic_load import TopicLoad
from tests.sim.topic_options import TopicOptions

_PAUSE_S = 0.05
_ROUNDS_MAX = 20
_SWEEPS_MAX = 1_000
_LATE, _LATE_MS = 8, 1_500
"""The number of messages published while it is drained, and their longest delay."""
_PATIENCE_S = 20.0
_AROUND_S = 15.0
"""The limit for all partitions and subscriptions together, so that many of them leave the seed some
time."""


class TopicJudge:
    """Makes the topics, and judges them at the end."""

    def __init__(
        self,
        cluster: Cluster,
        brokers: dict[str, SimBroker],
        load: TopicLoad,
        options: TopicOptions,
        audit: TopicAudit,
        topic: TopicName,
        times: TimeLoad,
    ) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.load = load
        self.options = options
        self.audit = audit
        self.topic = topic
        self.times = times
        self.tools: ToolJudge | None = None
        """Set when the seed has Spark's side."""
        self.client: ClientLoad | None = None
        self.compaction: CompactionLoad | None = None
        self.published: PublishedLoad | None = None
        self.exclusive: ExclusiveLoad | None = None
        self.fleet_is_well: Callable[[], Awaitable[None]]
        self.letters: LetterJudge
        self.left_over: Callable[[], list[str]]
        self.settled = False
        self._ready: Callable[[], None] = lambda: None

    def prepare(self, ready: Callable[[], None]) -> None:
        self._ready = ready
        TopicClient(self.load, "maker", self._make).start()

    def settle(self) -> None:
        """Begin; `settled` becomes true when everything has been looked at."""
        TopicClient(self.load, "judge", self._settle).start()

    # ------------------------------------------------------------------ making

    async def _make(self, client: TopicClient) -> None:
        await self._at_any(client, lambda b: b.topics.create(self.topic, self.options.settings))
        for sub, settings in self.options.subscriptions.items():
            info, _ = await self._at_any(
                client, lambda b, s=sub, w=settings: b.topics.create_subscription(self.topic, s, w)
            )
            for name in self.load.partitions:
                await self._subscribe(client, name, info)
        self._ready()

    async def _at_any(self, client: TopicClient, work: Callable[..., Any]) -> Any:
        assert client.process is not None
        while True:
            known = [broker for broker in self.brokers.values() if not broker.held_down]
            broker = client.rng.choice(known)
            try:
                return await self.cluster.network.call(
                    client.process, broker.name, lambda b=broker: b.with_broker(work), 1.0
                )
            except EXPECTED:
                await asyncio.sleep(_PAUSE_S)

    async def _subscribe(
        self, client: TopicClient, name: PartitionName, info: SubscriptionInfo
    ) -> None:
        async def work(partition: Partition) -> None:
            await partition.subscribe(info)

        await client.ask_retrying(name, work)

    # ------------------------------------------------------------------ settling

    async def _settle(self, client: TopicClient) -> None:
        while not self.load.is_done:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_S)
        if self.published is not None:
            await self.published.finish(client)
        if self.tools is not None:
            await self.tools.finish()
        if self.client is not None:
            await self.client.finish(client)
        ends: dict[PartitionName, int] = {}
        around_until_s = asyncio.get_running_loop().time() + _AROUND_S
        for name in self.load.partitions:
            ends[name] = end = await self._read_all(client, name)
            await self.times.ask_in_the_end(client, name)
            for sub, settings in self.options.subscriptions.items():
                is_in_time = asyncio.get_running_loop().time() < around_until_s
                if settings.type == "key_shared" and is_in_time:
                    await self._drain_around(client, name, sub)
                await self._drain(client, name, sub)
                if self.load.delays.share:
                    await self._publish_late(client, name)
                    await self._drain(client, name, sub)
                await self.letters.read(client, name, sub)
            self.audit.logs[name].check_cursors(end)
            await self._repeat(client, name)
            await self._compare(client, name)
        if self.compaction is not None:
            await self.compaction.finish(client)
        if self.published is not None:
            self.published.audit.check_whole()
        await self.fleet_is_well()
        for broker in self.brokers.values():
            broker.kill()
            broker.start()
        if self.tools is not None:
            await self.tools.offload_all(client)
        for name in self.load.partitions:
            end = await self._read_all(client, name)
            await self.times.ask_in_the_end(client, name)
            if end < ends[name]:  # a dead client's batch may still have come
                self.audit.fail(f"S9 {name} ended at {ends[name]}, after a restart at {end}")
            for sub in self.options.subscriptions:
                await self._drain(client, name, sub)
            self.audit.logs[name].second_opinion()
            if self.compaction is not None:
                await self.compaction.read_all(client, name)
        if self.tools is not None:
            await self.tools.check(client, self._at_any)
        if self.exclusive is not None:
            self.exclusive.check()
        await self._sweep(client)
        self.settled = True

    async def _sweep(self, client: TopicClient) -> None:
        for _ in range(_SWEEPS_MAX):
            # A half-made fork must go first: the ledgers that it names are no orphans before.
            await self._at_any(client, lambda broker: broker._deletions.sweep(lambda _: True))
            await self._at_any(client, lambda broker: broker._shared.sweep(lambda _: True))
            await self._at_any(client, lambda broker: broker._leftovers.sweep(lambda _: True))
            if not (left := self.left_over()):
                return
            await asyncio.sleep(_PAUSE_S)
        self.audit.fail(f"P62 never removed: {left[:5]}")

    async def _read_all(self, client: TopicClient, name: PartitionName) -> int:
        """Read everything from the first offset; return the end."""

        async def bounds(partition: Partition) -> tuple[int, int]:
            return partition.earliest_offset, partition.next_offset

        log, rounds = self.audit.logs[name], 0
        while True:
            rounds += 1
            first, end = await client.ask_retrying(name, bounds)
            offset = first
            try:
                while offset < end:
                    offset = await self.load.read_once(client, name, offset)
            except EXPECTED:
                await asyncio.sleep(_PAUSE_S)
                continue
            if log.seen_end > end and rounds < _ROUNDS_MAX:
                continue  # a dead client's batch came meanwhile
            log.check_whole(first, end)
            return int(end)

    async def _publish_late(self, client: TopicClient, name: PartitionName) -> None:
        """Publish some messages that are not due yet, while nothing keeps consumers from coming at
        once."""
        self.load.delays = replace(self.load.delays, delay_ms_max=_LATE_MS)
        log, first = self.audit.logs[name], self.load.take_numbers(_LATE)
        values = [f"{client.name}.late-{first + n}" for n in range(_LATE)]
        log.sends(values, f"{client.name} late", -1, first)
        batch = self.load.batch(client, values)
        with contextlib.suppress(*EXPECTED):
            published: Published = await client.ask(name, lambda p: p.publish(batch))
            log.acked(values, published.first_offset, duplicate=published.duplicate)

    async def _drain(self, client: TopicClient, name: PartitionName, sub: str) -> None:
        log = self.audit.logs[name]

        async def look(partition: Partition) -> tuple[int, int, int]:
            stats = (await partition.subscription(sub)).stats()
            return partition.epoch, stats.committed_offset, stats.backlog

        while True:
            try:
                epoch, mark, backlog = await client.ask_retrying(name, look)
                log.mark_seen(sub, epoch, mark)
                if not backlog:
                    return
                given = await self.load.receive(client, name, sub, wait_s=0.2, messages_max=1_000)
                if given:
                    await self.load.acknowledge(client, name, sub, acks=given)
                else:
                    await asyncio.sleep(_PAUSE_S)
            except SubscriptionBusy:
                await asyncio.sleep(_PAUSE_S)

    async def _drain_around(self, client: TopicClient, name: PartitionName, sub: str) -> None:
        """Check that a consumer which holds one message holds up no message of another key."""
        log = self.audit.logs[name]
        bounds = self.options.subscriptions[sub]
        keys = dict.fromkeys(self.load.key_of(message.value) for message in log.at.values())
        if len(keys) >= self.options.config["look_ahead_messages_max"]:
            return  # with this many keys, consumers may hold each other up
        held = await self.load.receive(
            client, name, sub, wait_s=1.5, messages_max=1, consumer="slow"
        )
        if len(held) != 1:
            return
        loop = asyncio.get_running_loop()
        patience_s = _PATIENCE_S + (bounds.ack_timeout_ms + bounds.consumer_timeout_ms) / 1000
        until_s = loop.time() + patience_s

        async def left(partition: Partition) -> tuple[int, dict[int, str], bool]:
            subscription = await partition.subscription(sub)
            lease = subscription._dispatcher._lease_of.get(held[0].offset)
            is_held = lease is not None and lease.consumer.name == "slow"
            is_acked, end = subscription._cursor.is_acked, partition.next_offset
            return (
                partition.epoch,
                {
                    offset: message.value
                    for offset, message in log.at.items()
                    if offset < end and not is_acked(offset) and offset != held[0].offset
                },
                is_held,
            )

        while True:
            _, waits, is_held = await client.ask_retrying(name, left)
            if not is_held:
                return  # its partition has moved
            mine = self.load.key_of(log.at[held[0].offset].value)
            if all(
                not self.load.types.passes(sub, value)
                or (mine is not None and self.load.key_of(value) == mine)
                for value in waits.values()
            ):
                self.cluster.trace.probe("topic.drained_around")
                return
            if loop.time() > until_s:
                self.load.types.held_up(log, sub, held[0].offset, waits)
                return
            await self.load.acknowledge(client, name, sub, extend=[held[0].ack_id])
            given = await self.load.receive(
                client, name, sub, wait_s=0.02, messages_max=5, consumer="quick"
            )
            if given:
                await self.load.acknowledge(client, name, sub, acks=given)

    async def _repeat(self, client: TopicClient, name: PartitionName) -> None:
        """Repeat a numbered producer's last batches: each is known to be stored."""
        for (producer, partition), batches in self.load.producers.items():
            if partition != name.partition:
                continue
            sent = self.audit.logs[name].sent.values()
            newest = max(message.place[0] for message in sent if message.producer == producer)
            for values, epoch, sequence in batches:
                if epoch < newest:
                    continue
                batch = self.load.batch(client, values, int(producer[1:]), epoch, sequence)
                published: Published = await client.ask_retrying(
                    name, lambda p, b=batch: p.publish(b)
                )
                log = self.audit.logs[name]
                log.acked(values, published.first_offset, duplicate=published.duplicate)
                if not published.duplicate:
                    self.audit.fail(f"S9 {name} {values} was stored twice: {published}")

    # ------------------------------------------------------------------ memory and ledger

    async def _compare(self, client: TopicClient, name: PartitionName) -> None:
        """Compare, with growing patience: reading hundreds of entries singly takes longer than a
        call."""
        wait_s = 0.0
        while True:
            try:
                await client.ask(name, self._compare_state, wait_s)
                return
            except EXPECTED as error:
                if isinstance(error, TimeoutError):
                    wait_s = 2 * wait_s + CALL_TIMEOUT_S
                await client.pause(RETRY_S)

    async def _compare_state(self, partition: Partition) -> None:
        """In the owner, check that the replayed state ledger equals the cursors in memory."""
        log = partition._state_log
        ledger_id = partition._record.value.state_ledger
        if log is None or ledger_id is None or log._writer is None or log._behind:
            return
        if log._writer.error is not None:
            return  # the next ack replaces it; until then its last entry is unconfirmed
        last = log._writer.last_add_confirmed
        state = await _replay(partition._context.ledgers, ledger_id, last)
        if (
            log._writing is not None
            or log._writer is None
            or log._writer.last_add_confirmed != last
        ):
            # A dead client's request came meanwhile: memory knows it before the ledger does.
            self.cluster.trace.probe("topic.state_moved_on")
            return
        self.cluster.trace.probe("topic.state_compared")
        for name, created_ms, cursor in partition._subscriptions.cursors():
            held = state.cursors.get(name)
            if held is None or held.created_ms != created_ms:
                self.audit.fail(f"S9 {partition.name} cursor {name} is not in its state ledger")
                continue
            if cursor.committed_offset >= partition.earliest_offset:
                held.cursor.ack(0, partition.earliest_offset)  # memory passes over trimmed messages
            in_memory, in_ledger = _image(cursor), _image(held.cursor)
            if in_memory != in_ledger:
                self.audit.fail(
                    f"S9 {partition.name} cursor {name} is {in_memory} in memory, {in_ledger} in "
                    f"state ledger {ledger_id}"
                )


async def _replay(ledgers: LedgerClient, ledger_id: int, last: int) -> State:
    state = State()
    reader = await ledgers.open(ledger_id)
    try:
        while reader.last_add_confirmed < last:
            await reader.wait_for(reader.last_add_confirmed, 0.2)
        for entry in await reader.read(0, last):
            state.apply(bytes(entry.payload))
    finally:
        await reader.close()
    return state


def _image(cursor: Any) -> tuple[int, list[tuple[int, int]]]:
    return cursor.committed_offset, list(cursor.ranges())
