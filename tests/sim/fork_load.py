"""Forks of a seed's topic, and of forks: made, written, truncated, read and deleted at all brokers.

A fork's messages below its fork offset are checked by the referee of the source topic, its later
messages against what was published into the fork.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from octavo.broker.broker import Broker
from octavo.broker.cluster.forks import OwnersPoint
from octavo.broker.errors import TopicNotFound
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, TopicInfo, TopicName
from octavo.protocol.append_time import readable
from octavo.protocol.records import Record, build_batch, read_records
from tests.sim.topic_client import EXPECTED, TopicClient

if TYPE_CHECKING:
    from tests.sim.topic_load import TopicLoad

_SHARE = 0.4
_PAUSE_S = 0.08
_READ_WITHIN_S = 15.0
_FORKS_MAX = 5
_TOPIC = TopicName("public", "t")


class ForkOptions(NamedTuple):
    forks: bool = False
    deletes_p: float = 0.2


def draw(rng: random.Random) -> ForkOptions:
    return ForkOptions(rng.random() < _SHARE, rng.choice((0.1, 0.3)))


@dataclass(slots=True, eq=False)
class Fork:
    name: TopicName
    incarnation: str
    source: Fork | None
    """None: of the topic."""
    at: dict[int, int]
    own: dict[PartitionName, dict[int, str]] = field(default_factory=dict)
    """Offset → published value, as far as a caller was told."""
    sent: set[str] = field(default_factory=set)
    begins: dict[int, int] = field(default_factory=dict)
    going: bool = False


class ForkLoad:
    def __init__(self, load: TopicLoad, options: ForkOptions) -> None:
        self.load = load
        self.options = options
        self.forks: list[Fork] = []
        self.unsure: list[TopicName] = []
        """Forks whose creation got no answer: they may exist."""
        self.settled = False
        self._numbers = 0

    def clients(self) -> list[TopicClient]:
        lives = [("fm", self._make), ("fp", self._publish), ("fr", self._read)]
        return [TopicClient(self.load, name, life) for name, life in lives]

    def settle(self) -> None:
        TopicClient(self.load, "fs", self._finish).start()

    # Calls

    def _standing(self) -> list[Fork]:
        return [fork for fork in self.forks if not fork.going]

    # Lives

    async def _make(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            forks = self._standing()
            if forks and (len(forks) >= _FORKS_MAX or client.rng.random() < self.options.deletes_p):
                await self._delete(client, client.rng.choice(forks))
            else:
                await self._fork(client, client.rng.choice([None, *forks]))

    async def _fork(self, client: TopicClient, source: Fork | None) -> None:
        of = _TOPIC if source is None else source.name
        self._numbers += 1
        name = TopicName("public", f"f{self._numbers}")
        try:
            info: TopicInfo = await client.with_broker(lambda broker: broker.topics.get(of))
            if source is not None and info.incarnation != source.incarnation:
                return
            points: dict[int, OwnersPoint] = {}
            for number in range(info.settings.partitions):
                place = client.rng.random()
                points[number] = await client.ask(
                    of.partition(number), partial(_point, place=place)
                )
            self.unsure.append(name)

            async def make(broker: Broker) -> TopicInfo:
                return await broker.forks.make(info, name, points)

            made: TopicInfo = await client.with_broker(make)
        except EXPECTED as error:
            self.load.cluster.trace.probe(f"fork.refused.{type(error).__name__}")
            return
        self.unsure.remove(name)
        at = {number: one.point.offset for number, one in points.items()}
        self.forks.append(Fork(name, made.incarnation, source, at))
        self.load.cluster.trace.probe("fork.of_fork" if source else "fork.made")
        if any(one.point.cut for one in points.values()):
            self.load.cluster.trace.probe("fork.cut")

    async def _delete(self, client: TopicClient, fork: Fork) -> None:
        fork.going = True
        while True:
            try:
                await client.with_broker(
                    lambda broker: broker.topics.delete(fork.name, fork.incarnation)
                )
            except TopicNotFound:
                break
            except EXPECTED:
                await client.pause(_PAUSE_S)
            else:
                break
        self.load.cluster.trace.probe("fork.deleted")

    async def _publish(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            forks = self._standing()
            if not forks:
                continue
            fork = client.rng.choice(forks)
            name = fork.name.partition(client.rng.choice(sorted(fork.at)))
            self._numbers += 1
            value = f"{name}-{self._numbers}"
            fork.sent.add(value)
            batch = build_batch([Record(None, value.encode(), (), 0)])
            try:
                if client.rng.random() < 0.15:
                    await self._truncate(client, fork, name)
                published = await client.ask(
                    name, lambda partition, batch=batch: partition.publish(batch)
                )
            except EXPECTED:
                continue
            if published.first_offset < fork.at[name.partition]:
                self._fail(f"{value} was stored at {published.first_offset}, before the fork", name)
            self._own(fork, name, published.first_offset, value)

    async def _truncate(self, client: TopicClient, fork: Fork, name: PartitionName) -> None:
        place = client.rng.random()
        first = await client.ask(name, partial(_truncated, place=place))
        fork.begins[name.partition] = max(first, fork.begins.get(name.partition, 0))
        self.load.cluster.trace.probe("fork.truncated")

    async def _read(self, client: TopicClient) -> None:
        while not self.load.over:
            await client.pause(_PAUSE_S)
            if forks := self._standing():
                await self._read_all(client, client.rng.choice(forks))

    async def _read_all(self, client: TopicClient, fork: Fork) -> bool:
        for number, at in fork.at.items():
            name = fork.name.partition(number)
            known = dict(fork.own.get(name, {}))
            least = fork.begins.get(number, 0)
            try:
                earliest, end, found = await client.ask(name, _values, wait_s=1.0)
            except EXPECTED as error:
                self.load.cluster.trace.probe(f"fork.unread.{type(error).__name__}")
                return fork.going
            if fork.going:
                return True
            if end < at:
                self._fail(f"it ends at {end}, and was forked at {at}", name)
            if earliest < least:
                self._fail(f"it begins at {earliest}, and was truncated to {least}", name)
            if sorted(found) != [*range(earliest, end)]:
                self._fail(f"from {earliest} to {end} it shows {sorted(found)}", name)
            for offset, record in found.items():
                self._seen(fork, name, offset, record)
            lost = [offset for offset in known if offset >= earliest and offset not in found]
            if lost:
                self._fail(f"offsets {lost} were acked and are gone", name)
            self.load.cluster.trace.probe("fork.read")
        return True

    def _seen(self, fork: Fork, name: PartitionName, offset: int, record: Record) -> None:
        number = name.partition
        if offset >= fork.at[number]:
            value = (record.value or b"").decode(errors="replace")
            if value not in fork.sent:
                self._fail(f"{value!r} at {offset} was never sent there", name)
            self._own(fork, name, offset, value)
        elif fork.source is not None:
            self._seen(fork.source, fork.source.name.partition(number), offset, record)
        else:
            log = self.load.audit.logs[_TOPIC.partition(number)]
            log._see(offset, log.odd.name_of(record, "a fork shows"), "a fork shows")

    def _own(self, fork: Fork, name: PartitionName, offset: int, value: str) -> None:
        before = fork.own.setdefault(name, {}).setdefault(offset, value)
        if before != value:
            self._fail(f"at {offset} stands {value!r}, and stood {before!r}", name)

    def _fail(self, what: str, name: PartitionName) -> None:
        self.load.audit.fail(f"S9 fork {name}: {what}")

    async def _finish(self, client: TopicClient) -> None:
        loop = self.load.cluster.loop
        for fork in self._standing():
            until_s = loop.time() + _READ_WITHIN_S
            while not await self._read_all(client, fork):
                if loop.time() > until_s:
                    self._fail("it could not be read in the end", fork.name.partition(0))
                await client.pause(_PAUSE_S)
        for number, fork in enumerate(self._standing()):
            if number % 2:
                await self._delete(client, fork)
        self.settled = True


async def _point(partition: Partition, place: float) -> OwnersPoint:
    earliest, end = partition.earliest_offset, partition.next_offset
    epoch = partition.epoch
    offset = end if place > 0.8 else earliest + round((end - earliest) * place)
    return OwnersPoint(epoch, await partition.fork_point(offset))


async def _truncated(partition: Partition, place: float) -> int:
    earliest, end = partition.earliest_offset, partition.next_offset
    return await partition.truncate(earliest + int((end - earliest) * place))


async def _values(partition: Partition) -> tuple[int, int, dict[int, Record]]:
    offset = earliest = partition.earliest_offset
    end = partition.next_offset
    found: dict[int, Record] = {}
    while offset < end:
        for stored in await partition.read(offset, bytes_max=10_000, count_max=100):
            for record in read_records(readable(stored.header, stored.data)):
                at = stored.base_offset + record.offset_delta
                if earliest <= at < end:
                    found[at] = record
            offset = stored.next_offset
    return earliest, end, found
