"""References to shared ledgers: production's forks, releases and sweeps, in every order.

The seed decides how long each metadata call takes, so that forks, trims, deletions and sweeps meet
between any two of their calls; some end in the middle, as in a crash. A ledger that a topic's
record names is never deleted. At the end, after sweeps, all unnamed ledgers are.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.broker.cluster.forks import Forks, OwnersPoint
from octavo.broker.errors import LEDGER_GOING, TOO_MANY_FORKS
from octavo.broker.log.ledger_list import Cut, ForkPoint
from octavo.broker.log.ledger_references import SharedLedgers, referrer_of
from octavo.broker.log.orphan_ledgers import is_gone, joined, left
from octavo.broker.types import PartitionName, TopicInfo, TopicName, TopicSettings
from octavo.ledger.errors import LedgerNotFound
from octavo.metadata.shares import ShareStore
from octavo.metadata.store import Record, RecordExists, RecordNotFound, VersionConflict
from octavo.metadata.topic_records import ForkRecord, Referrer, ShareRecord, decode_record
from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicRecord, TopicStore
from octavo.metadata.topics import TopicSettings as StoredSettings
from octavo.protocol.codes import OctavoError
from tests.support.kit.examples import examples
from tests.support.kit.refusals import raises_code

Turns = Callable[[], Coroutine[Any, Any, None]]


class SlowStore:
    """A metadata store of a process whose calls take a drawn number of turns."""

    def __init__(self, turns: Turns) -> None:
        self.records: dict[str, Record] = {}
        self._turns = turns

    async def sync(self) -> None:
        await self._turns()

    async def get(self, path: str) -> Record:
        await self._turns()
        if path not in self.records:
            raise RecordNotFound(path)
        found = self.records[path]
        await self._turns()
        return found

    async def create(self, path: str, value: bytes, *, beside: str | None = None) -> None:
        await self._turns()
        if path in self.records:
            raise RecordExists(path)
        self.records[path] = Record(value, 0)
        if beside is not None:
            self.records[beside] = Record(b"", 0)
        await self._turns()

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        await self._turns()
        if path not in self.records or (beside is not None and beside not in self.records):
            raise RecordNotFound(path)
        if self.records[path].version != version:
            raise VersionConflict(path)
        self.records[path] = Record(value, version + 1)
        await self._turns()
        return version + 1

    async def delete(self, path: str, version: int = -1, *, beside: str | None = None) -> None:
        await self._turns()
        if path not in self.records:
            raise RecordNotFound(path)
        if version not in (-1, self.records[path].version):
            raise VersionConflict(path)
        del self.records[path]
        if beside is not None:
            del self.records[beside]
        await self._turns()

    async def children(self, path: str) -> list[str]:
        await self._turns()
        below = {one[len(path) + 1 :].split("/")[0] for one in self.records if _is_in(path, one)}
        return sorted(below)


def _is_in(folder: str, path: str) -> bool:
    return path.startswith(folder + "/")


class World:
    """Topics with one partition each, over ledgers that are only numbers."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.store = SlowStore(self.turns)
        self.topics = TopicStore(cast(Any, self.store))
        self.ledgers = {1, 2, 3}
        self.shared = SharedLedgers(
            ShareStore(cast(Any, self.store)), self.topics, cast(Any, self), 5
        )
        self.background: list[asyncio.Task[None]] = []
        self.locks: dict[TopicName, asyncio.Lock] = {}
        made = iter(range(1, 100))
        own = SimpleNamespace(new_incarnation=lambda: f"i{next(made)}", forget=lambda name: None)
        self.forks = Forks(
            self.topics, cast(Any, own), cast(Any, self), self.shared, lambda: 1_000, self.spawn
        )
        self.calm = False

    async def turns(self) -> None:
        for _ in range(0 if self.calm else self.rng.randrange(4)):
            await asyncio.sleep(0)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.background.append(asyncio.ensure_future(work))
        return self.background[-1]

    # The ledger client and the deletions, for the code under test

    async def delete(self, ledger_id: int) -> None:
        await self.turns()
        named = [name for name in self.named() if ledger_id in self.named()[name]]
        assert not named, f"ledger {ledger_id} is deleted, and {named} have it"
        if ledger_id not in self.ledgers:
            raise LedgerNotFound(str(ledger_id))
        self.ledgers.discard(ledger_id)

    @asynccontextmanager
    async def alone(self, name: TopicName) -> AsyncIterator[Callable[[], None]]:
        async with self.locks.setdefault(name, asyncio.Lock()):
            yield lambda: None

    async def finish(self, name: TopicName, incarnation: str) -> None:
        async with self.alone(name):
            await self.remove(name, incarnation)

    def named(self) -> dict[str, set[int]]:
        """Return the ledgers of each existing topic."""
        found = {}
        for name in ("src", "f1", "f2", "f3"):
            topic = self._now(f"/octavo/topics/public/{name}", TopicRecord)
            record = self._now(f"/octavo/topics/public/{name}/partitions/0", PartitionRecord)
            if topic and record and topic.stands and not record.deleted:
                found[name] = {one.ledger_id for one in record.ledgers}
        return found

    def _now(self, path: str, kind: type[Any]) -> Any:

        found = self.store.records.get(path)
        return decode_record(kind, path, found.value) if found and found.value else None

    # Actions

    async def begin(self) -> None:
        record = TopicRecord(StoredSettings(), incarnation="i0", guarded=True)
        await self.topics.create_topic("public", "src", record)
        links = (
            *tuple(PartitionLedger(n, 10 * (n - 1), 10) for n in (1, 2)),
            PartitionLedger(3, 20),
        )
        await self.topics.create_partition(
            "public", "src", 0, PartitionRecord(links, incarnation="i0", epoch=1)
        )

    async def fork(self, source: str, name: str, at: int) -> None:
        topic, _ = await self.topics.read_topic("public", source)
        record, _ = await self.topics.read_partition("public", source, 0)
        if not topic.stands:
            return
        cut = next((n.ledger_id for n in record.ledgers if n.base_offset < at), 0)
        for link in record.ledgers:
            if link.base_offset < at:
                cut = link.ledger_id
        info = TopicInfo(TopicName("public", source), TopicSettings(), 0, topic.identity)
        point = OwnersPoint(record.epoch, ForkPoint(at, Cut(cut, 0, 1, -1)))
        await self.forks.make(info, TopicName("public", name), {0: point})

    async def trim(self, name: str) -> None:
        """Trim as maintenance.py does: the record first."""
        topic, _ = await self.topics.read_topic("public", name)
        record, version = await self.topics.read_partition("public", name, 0)
        if not topic.stands or record.deleted or len(record.ledgers) < 2:
            return
        first, second = record.ledgers[:2]
        after = replace(record, ledgers=record.ledgers[1:], trimmed_offset=second.base_offset)
        await self.topics.write_partition("public", name, 0, after, version, guard=topic.guard)
        mine = referrer_of(PartitionName("public", name, 0), record.incarnation)
        await self.shared.release_quietly(first.ledger_id, mine)

    async def delete_topic(self, name: str) -> None:
        topic, version = await self.topics.read_topic("public", name)
        async with self.alone(TopicName("public", name)):
            topic, version = await self.topics.read_topic("public", name)
            if not topic.deleting:
                await self.topics.write_topic(
                    "public", name, replace(topic, deleting=True), version
                )
            await self.remove(TopicName("public", name), topic.identity)

    async def remove(self, name: TopicName, incarnation: str) -> None:
        """Remove as deletion.py does."""
        topic, _ = await self.topics.read_topic(*name)
        if topic.identity != incarnation:
            return
        with contextlib.suppress(RecordNotFound):
            record, version = await self.topics.read_partition(*name, 0)
            if not record.deleted:
                record = replace(record, deleted=True)
                version = await self.topics.write_partition(*name, 0, record, version)
            mine = referrer_of(name.partition(0), record.incarnation)
            for link in record.ledgers:
                await self.shared.release(link.ledger_id, mine)
            await self.topics.delete_partition(*name, 0, version)
        await self.topics.delete_topic(*name, topic.guard)

    async def sweep(self) -> None:
        """Sweep as a broker does: half-made and half-deleted topics, then references."""
        for topic in await self.topics.list_topics("public"):
            await self.look_at(TopicName("public", topic))
        await self.sweep_shared()

    async def look_at(self, name: TopicName) -> None:
        async with self.alone(name):
            with contextlib.suppress(RecordNotFound, VersionConflict):
                record, version = await self.topics.read_topic(*name)
                if record.stands:
                    return
                if not record.deleting:
                    gone = replace(record, deleting=True)
                    await self.topics.write_topic(*name, gone, version)
                await self.remove(name, record.identity)

    def take_up(self, name: TopicName) -> None:
        self.spawn(self.look_at(name))

    async def sweep_shared(self) -> None:
        await self.shared.sweep(lambda name: True)


async def story(seed: int) -> World:
    world = World(seed)
    await world.begin()
    rng = world.rng
    acts: list[Coroutine[Any, Any, None]] = []
    for _ in range(rng.randrange(3, 9)):
        what = rng.randrange(8)
        if what < 4:
            source = rng.choice(("src", "f1", "f2"))
            acts.append(world.fork(source, rng.choice(("f1", "f2", "f3")), rng.randrange(31)))
        elif what < 6:
            acts.append(world.trim(rng.choice(("src", "f1", "f2", "f3"))))
        elif what == 6:
            acts.append(world.delete_topic(rng.choice(("src", "f1", "f2", "f3"))))
        else:
            acts.append(rng.choice((world.sweep, world.sweep_shared))())
    tasks = []
    for act in acts:
        tasks.append(asyncio.ensure_future(act))
        for _ in range(rng.choice((0, 3, 60))):
            await asyncio.sleep(0)
    for _ in range(rng.randrange(3)):  # this many crash
        for _ in range(rng.randrange(60)):
            await asyncio.sleep(0)
        rng.choice([task for task in tasks if not task.done()] or tasks).cancel()
    for found in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(found, OctavoError | asyncio.CancelledError | None):
            raise found
    await asyncio.gather(*world.background, return_exceptions=True)
    # Sweeps find what was left half done.
    world.calm = True
    for _ in range(4):
        await world.sweep()
    return world


@pytest.mark.parametrize("part", range(8))
def test_in_every_order_nothing_named_goes_and_nothing_unnamed_stays(part: int) -> None:
    for seed in range(part * 100, part * 100 + examples(100)):
        world = asyncio.run(story(seed))
        named = set().union(*world.named().values())
        assert named <= world.ledgers, seed
        # Ledgers that a crashed run trimmed before they were shared are left to orphan_ledgers.py.
        shared = asyncio.run(_shares(world))
        for ledger_id, record in shared.items():
            assert record.referrers, (seed, ledger_id)
            for one in record.referrers:
                assert ledger_id in world.named().get(one.topic, ()), (seed, ledger_id, one)
        for ledger_id in named:
            having = [name for name, ids in world.named().items() if ledger_id in ids]
            if len(having) > 1:
                found = sorted(one.topic for one in shared[ledger_id].referrers)
                assert found == sorted(having), (seed, ledger_id)


async def _shares(world: World) -> dict[int, ShareRecord]:
    store = ShareStore(cast(Any, world.store))
    return {one: found for one in await store.list() if (found := (await store.read(one))[0])}


A, B, C = (Referrer("public", name, 0, f"i{name}") for name in "abc")


def test_joining() -> None:
    first = joined(7, None, (A, B), 2)
    assert first.referrers == (A, B)
    assert joined(7, first, (B, A), 2) == first
    with raises_code(TOO_MANY_FORKS, match=r"part of 2 partitions; at most 2"):
        joined(7, first, (A, C), 2)
    with raises_code(LEDGER_GOING):
        joined(7, ShareRecord(), (A,), 2)


@given(st.lists(st.sampled_from((A, B, C)), max_size=4), st.sampled_from((A, B, C)))
@settings(max_examples=examples(50))
def test_leaving(before: list[Referrer], who: Referrer) -> None:
    after = left(ShareRecord(tuple(dict.fromkeys(before))), who)
    assert who not in after.referrers
    assert {*after.referrers} == {*before} - {who}


STANDS = TopicRecord(StoredSettings(), incarnation="ia", guarded=True)
NAMES = PartitionRecord((PartitionLedger(7, 0, 5),), incarnation="ia")
NAMES_NONE = PartitionRecord(incarnation="ia")
HALF = replace(STANDS, fork=ForkRecord("x", "ix", {0: 5}))


@pytest.mark.parametrize(
    ("topic", "record", "gone"),
    [
        (STANDS, NAMES, False),
        (STANDS, NAMES_NONE, True),
        (STANDS, None, False),
        (STANDS, replace(NAMES_NONE, incarnation="other"), False),
        (HALF, None, False),
        (HALF, NAMES_NONE, False),
        (replace(STANDS, deleting=True), NAMES_NONE, False),
        (STANDS, replace(NAMES_NONE, deleted=True), False),
        (None, None, True),
        (None, NAMES, False),
        (replace(STANDS, incarnation="later"), replace(NAMES, incarnation="later"), True),
    ],
)
def test_who_is_gone(topic: TopicRecord | None, record: PartitionRecord | None, gone: bool) -> None:
    assert is_gone(7, A, topic, record) is gone
