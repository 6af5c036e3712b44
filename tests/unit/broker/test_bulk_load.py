"""The rules of bulk loads against their promises: once, all or nothing, no used ledger given up.

A model plays commits, aborts, insertions and losses in any order over a few partitions, and
sometimes forgets the id. It keeps decisions as plain sets; the rules under test see only records.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from octavo.broker.bulkload import rules
from octavo.broker.bulkload.driver import KEPT_MS
from octavo.broker.bulkload.driver import BulkLoads as KeptBulkLoads
from octavo.broker.bulkload.rules import Standing
from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import BATCH_BEGUN, BULK_LOAD_ABORTED
from octavo.broker.log.ledger_list import Contents, LedgerList
from octavo.broker.partition.part_loader import PartLoader
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import BulkLoadPart, BulkLoadRecord, PrivateLedger
from octavo.metadata.one_record import ABSENT
from octavo.metadata.store import MetadataUnavailable, VersionConflict
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.metadata.topics import PartitionLedger, PartitionRecord
from tests.support.kit.examples import examples
from tests.support.kit.refusals import raises_code

PARTITIONS = 3


def private(ledger_id: int, count: int = 2) -> PrivateLedger:
    return PrivateLedger(ledger_id, count, 10 * count, 5, 9)


def part(number: int, *ledgers: PrivateLedger) -> BulkLoadPart:
    return BulkLoadPart("public", "t", number, 1, ledgers)


class BulkLoads(RuleBasedStateMachine):
    """One id; its batches are written to any partitions, committed and given up at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.record = BulkLoadRecord()
        self.lists = [LedgerList().appending(-1 - n) for n in range(PARTITIONS)]
        self.marks: list[Mapping[str, int]] = [{} for _ in range(PARTITIONS)]
        self.next_ledger = 1
        self.offers: list[tuple[int, tuple[BulkLoadPart, ...]]] = []
        self.decided: dict[int, tuple[BulkLoadPart, ...]] = {}
        self.forgotten: list[tuple[BulkLoadPart, ...]] = []
        """Commits from before the id was forgotten."""
        self.now_ms = 1
        self.deleted: set[int] = set()
        self.published: dict[int, str] = {}
        """Batches that may be partly visible without ledgers, and their content."""

    @property
    def mark(self) -> str:
        return rules.mark_of("id", self.record)

    def is_there(self, ledger_id: int) -> bool:
        return any(ledger_list.segment_of(ledger_id) for ledger_list in self.lists)

    @rule()
    def forget(self) -> None:
        if self.record.complete and not self.is_unfinished:
            self.forgotten += self.decided.values()
            self.decided = {}
            self.published = {}
            self.record = BulkLoadRecord()
            self.now_ms += 1

    @rule(batch=st.integers(0, 4), of=st.sets(st.integers(0, PARTITIONS - 1)))
    def write(self, batch: int, of: set[int]) -> None:
        parts = []
        for number in sorted(of):
            parts.append(part(number, private(self.next_ledger)))
            self.next_ledger += 1
        self.offers.append((batch, tuple(parts)))

    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        if not self.offers:
            return
        batch, parts = data.draw(st.sampled_from(self.offers))
        found = rules.standing(self.record, batch)
        assert (found is Standing.REPEATED) == (batch <= max(self.decided, default=-1))
        if found is not Standing.NEW:
            return
        if self.is_unfinished:
            with raises_code(BATCH_BEGUN):
                rules.committing(self.record, batch, parts, self.now_ms)
            return
        ids = set(rules.ledger_ids(parts))
        if any(map(self.is_there, ids)):
            return  # of a forgotten commit: the driver refuses it
        if self.deleted & ids:
            if not self.record.refused.keys() & ids:
                return  # given up before the id was forgotten: the driver finds no such ledger
            with raises_code(BULK_LOAD_ABORTED):
                rules.committing(self.record, batch, parts, self.now_ms)
            return
        self.record = rules.committing(self.record, batch, parts, self.now_ms)
        self.decided[batch] = parts

    @property
    def is_unfinished(self) -> bool:
        return bool(self.published.keys() - self.decided.keys())

    @rule(batch=st.integers(0, 4), content=st.sampled_from("xy"), dies=st.booleans())
    def publish(self, batch: int, content: str, dies: bool) -> None:
        """Begin, publish, commit; or die after publishing a part."""
        if rules.standing(self.record, batch) is not Standing.NEW:
            return
        if self.is_unfinished and self.published.get(batch) != content:
            with raises_code(BATCH_BEGUN):
                rules.beginning(self.record, batch, {"p": content}, self.now_ms)
            return
        begun = rules.beginning(self.record, batch, {"p": content}, self.now_ms)
        assert (begun is None) == self.is_unfinished
        self.record = begun or self.record
        self.published[batch] = content
        for other in range(5):
            if other > self.record.batch and other != batch:
                with raises_code(BATCH_BEGUN):
                    rules.committing(self.record, other, (), 1, published=True)
        if not dies:
            self.record = rules.committing(self.record, batch, (), self.now_ms, published=True)
            self.decided[batch] = ()
            assert self.record.complete

    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        if not self.offers:
            return
        batch, parts = data.draw(st.sampled_from(self.offers))
        ids = rules.ledger_ids(parts)
        wanted = rules.aborting(self.record, batch, ids, self.now_ms)
        self.record = wanted or self.record
        owed = () if self.record.complete else rules.ledger_ids(self.record.parts)
        for ledger_id in ids:
            if ledger_id not in owed and not self.is_there(ledger_id):
                self.deleted.add(ledger_id)

    @rule(number=st.integers(0, PARTITIONS - 1), data=st.data())
    def load_part(self, number: int, data: st.DataObject) -> None:
        """Load a decided part, also long after it was done: a late repeat."""
        if not self.decided:
            return
        self._load_part(number, data.draw(st.sampled_from(sorted(self.decided))))

    def _load_part(self, number: int, batch: int) -> None:
        found = rules.part_of(self.record, batch, "public", "t", number)
        if found is None or rules.is_loaded(self.marks[number], self.mark, batch):
            return
        ledger_list = self.lists[number].closing_last(
            self.lists[number].segments[-1].ledger_id, Contents(1, 10, 5, 9), 0
        )
        ledger_list = ledger_list.inserting(found.ledgers, 0)
        self.lists[number] = ledger_list.appending(-100 - self.next_ledger)
        self.next_ledger += 1
        self.marks[number] = rules.marking(self.marks[number], self.mark, batch, ())

    @rule()
    def complete(self) -> None:
        batch = self.record.batch
        owed = [
            one
            for one in self.record.parts
            if not rules.is_loaded(self.marks[one.partition], self.mark, batch)
        ]
        if not owed:
            self.record = rules.completed(self.record, batch) or self.record

    @rule()
    def finish(self) -> None:
        """Finish as the committer does when nothing comes between."""
        for number in range(PARTITIONS):
            self._load_part(number, self.record.batch)
        self.complete()

    @rule()
    def prune(self) -> None:
        for number in range(PARTITIONS):
            self.marks[number] = {
                mark: batch
                for mark, batch in self.marks[number].items()
                if not rules.is_finished(mark, batch, self.record)
            }

    @invariant()
    def nothing_twice_and_nothing_undecided(self) -> None:
        decided = [one for parts in self.every() for one in rules.ledger_ids(parts)]
        assert len(set(decided)) == len(decided)
        for ledger_list in self.lists:
            there = [link.ledger_id for link in ledger_list.segments if link.bulk_loaded]
            assert len(set(there)) == len(there)
            assert set(there) <= set(decided)

    def every(self) -> list[tuple[BulkLoadPart, ...]]:
        return [*self.forgotten, *self.decided.values()]

    @invariant()
    def what_is_forgotten_is_whole(self) -> None:
        for parts in self.forgotten:
            assert all(self.is_there(ledger_id) for ledger_id in rules.ledger_ids(parts))

    @invariant()
    def older_batches_are_whole(self) -> None:
        for batch, parts in self.decided.items():
            if batch < self.record.batch or self.record.complete:
                for one in parts:
                    for ledger in one.ledgers:
                        assert self.lists[one.partition].segment_of(ledger.ledger_id)

    @invariant()
    def what_is_complete_owes_nothing(self) -> None:
        """Its marks may be gone by now, so no part may be asked for."""
        for number in range(PARTITIONS if self.record.complete else 0):
            assert rules.part_of(self.record, self.record.batch, "public", "t", number) is None

    @invariant()
    def what_is_decided_is_never_deleted(self) -> None:
        decided = {one for parts in self.every() for one in rules.ledger_ids(parts)}
        assert not decided & self.deleted


TestBulkLoads = BulkLoads.TestCase
TestBulkLoads.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


@given(st.lists(st.integers(1, 9), max_size=5), st.lists(st.integers(1, 9), max_size=5))
def test_inserted_ledgers_follow_one_another(before: list[int], inserted: list[int]) -> None:
    ledger_list = LedgerList()
    for number, count in enumerate(before):
        ledger_list = ledger_list.appending(number).closing_last(
            number, Contents(count, count, 1, 2), 3
        )
    longer = ledger_list.inserting((private(100 + n, count) for n, count in enumerate(inserted)), 4)
    assert longer.end_offset == sum(before) + sum(inserted)
    model = [n for n, count in enumerate(before) for _ in range(count)]
    model += [100 + n for n, count in enumerate(inserted) for _ in range(count)]
    assert [longer.find(offset).ledger_id for offset in range(len(model))] == model
    news = [False] * len(before) + [True] * len(inserted)
    assert [one.bulk_loaded for one in longer.segments] == news
    assert longer.appending(999).find(len(model)).ledger_id == 999


def test_an_insertion_after_an_empty_open_ledger_replaces_it() -> None:
    ledger_list = LedgerList((), trimmed_to=40).appending(3).closing_last(3, Contents(), 7)
    ledger_list = ledger_list.inserting([private(8, 5)], 7).appending(9)
    assert [(link.ledger_id, link.base_offset) for link in ledger_list.segments] == [
        (8, 40),
        (9, 45),
    ]


@pytest.mark.parametrize("ledger", [private(1), private(5, 0)])
def test_a_ledger_that_is_there_or_is_empty_is_not_inserted(ledger: PrivateLedger) -> None:
    ledger_list = LedgerList().appending(1).closing_last(1, Contents(1, 1, 1, 1), 1)
    with pytest.raises(AssertionError):
        ledger_list.inserting([ledger], 2)


def test_nothing_is_inserted_behind_an_open_ledger() -> None:
    with pytest.raises(AssertionError):
        LedgerList().appending(1).inserting([private(2)], 2)


def test_an_empty_batch_is_complete_at_once() -> None:
    record = rules.committing(BulkLoadRecord(), 0, (), 7)
    assert (record.batch, record.complete) == (0, True)


def test_what_was_never_begun_is_not_committed_as_published() -> None:
    with raises_code(BATCH_BEGUN, match="none is"):
        rules.committing(BulkLoadRecord(), 0, (), 7, published=True)


def test_refusals_of_later_batches_outlive_a_commit() -> None:
    record = rules.aborting(BulkLoadRecord(), 2, [5], 1)
    assert record is not None
    record = rules.aborting(record, 1, [4], 1)
    assert record is not None
    record = rules.committing(record, 1, (part(0, private(6)),), 7)
    assert record.refused == {5: 2}
    record = rules.completed(record, 1)
    assert record is not None
    with raises_code(BULK_LOAD_ABORTED, match="write the batch again"):
        rules.committing(record, 2, (part(0, private(5)),), 7)


def test_marks_lose_only_what_is_finished() -> None:
    assert rules.marking({"a": 1, "b": 2}, "b", 3, {"a"}) == {"b": 3}
    assert rules.marking({"a": 1}, "b", 3, ()) == {"a": 1, "b": 3}
    record = rules.committing(BulkLoadRecord(), 3, (part(0, private(6)),), 7)
    assert rules.mark_of("a", record) == "a@7"
    assert not rules.is_finished("a@7", 3, record)
    assert rules.is_finished("a@7", 2, record)
    assert rules.is_finished("a@6", 3, record), "of an id that was forgotten meanwhile"
    assert rules.is_finished("a@7", 3, BulkLoadRecord())


def test_the_records_come_back_as_they_were() -> None:
    record = BulkLoadRecord(
        3, (part(1, private(7), private(8)),), False, 98, 99, {5: 4}, 3, {"public/t/1": "2-9-a"}
    )
    assert decode_record(BulkLoadRecord, "r", encode_record(record)) == record
    partition = PartitionRecord(
        (PartitionLedger(1, 0, 4, 10, 5, 9, 9, bulk_loaded=True),), bulk_loads={"a": 3}
    )
    assert decode_record(PartitionRecord, "p", encode_record(partition)) == partition


ID = "query"


class Store:
    """The record of a bulk load, in memory."""

    def __init__(self) -> None:
        self.record = BulkLoadRecord()
        self.version = ABSENT
        self._written = 0

    async def read(self, _: str) -> tuple[BulkLoadRecord, int]:
        return self.record, self.version

    async def write(self, _: str, record: BulkLoadRecord, version: int) -> None:
        if version != self.version:
            raise VersionConflict("somebody was there before")
        self._written += 1
        self.record, self.version = record, self._written

    async def delete(self, _: str, version: int) -> None:
        assert version == self.version
        self.record, self.version = BulkLoadRecord(), ABSENT

    def watch(self, _: str, on_change: Callable[[], None]) -> Any:
        """Never fires: nothing changes behind the sweeps of this test."""
        return Mock()

    async def list(self) -> list[str]:
        return [ID] * (self.version != ABSENT)


async def load_part(_name: PartitionName, _bulk_load: str, _batch: int) -> int | None:
    raise AssertionError("no batch here has parts")


async def nobody(_: PartitionName) -> None:
    return None


@pytest.mark.parametrize("seed", range(40))
async def test_it_is_kept_from_its_last_use(seed: int) -> None:
    rng = random.Random(seed)
    store: Any = Store()
    unused: Any = None
    now_ms = used_ms = 1_700_000_000_000
    bulk_loads = KeptBulkLoads(
        store, unused, unused, lambda: now_ms, lambda: DeletionTime(now_ms, "", 0, now_ms)
    )
    batch, used = -1, False
    for _ in range(60):
        now_ms += rng.choice((0, 1, KEPT_MS // 7, KEPT_MS // 2, KEPT_MS))
        action = rng.choice(("commit", "publish", "sweep", "sweep"))
        if action == "sweep":
            await bulk_loads.sweep(ID, nobody)
            if used and now_ms - used_ms <= KEPT_MS:
                assert store.record.batch == batch, "it was used within seven days"
            else:
                assert store.version == ABSENT
                batch, used = -1, False
            continue
        batch += 1
        if action == "publish":
            assert await bulk_loads.begin(ID, batch, {}, load_part)
        done = await bulk_loads.commit(ID, batch, [], load_part, published=action == "publish")
        assert not done.repeated
        used_ms, used = now_ms, True


@pytest.mark.parametrize("call", ["list", "read"])
@pytest.mark.parametrize("how", [asyncio.CancelledError, MetadataUnavailable])
async def test_a_look_that_is_broken_off_is_made_again(call: str, how: type[BaseException]) -> None:
    """It has read nothing, and the state may have changed."""
    store: Any = Store()
    unused: Any = None
    now_ms = 1_700_000_000_000
    bulk_loads = KeptBulkLoads(
        store, unused, unused, lambda: now_ms, lambda: DeletionTime(now_ms, "", 0, now_ms)
    )
    store.watch_list = lambda _: Mock()
    await bulk_loads.commit(ID, 0, [], load_part)
    answer = getattr(store, call)

    async def broken_off(*_: object) -> None:
        raise how("broken off")

    setattr(store, call, broken_off)
    with pytest.raises(how):
        await (bulk_loads.due() if call == "list" else bulk_loads.sweep(ID, nobody))
    setattr(store, call, answer)
    assert await bulk_loads.due() == [ID]


@pytest.mark.parametrize("seed", range(40))
async def test_only_what_is_finished_goes(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    records: dict[str, BulkLoadRecord] = {}
    marks: dict[str, int] = {}
    needed: set[str] = set()
    for number in range(rng.randint(1, 12)):
        name, batch = f"t{number}", rng.randint(0, 5)
        record = BulkLoadRecord(batch=batch, complete=rng.random() < 0.5, since_ms=7)
        records[name] = record
        behind, again = rng.random() < 0.3, rng.random() < 0.2
        mark = f"{name}@{5 if again else 7}"
        marks[mark] = batch - behind
        if not (record.complete or behind or again):
            needed.add(mark)

    async def read(bulk_load: str) -> tuple[BulkLoadRecord, int]:
        return records[bulk_load], 1

    context: Any = SimpleNamespace(bulk_loads=SimpleNamespace(read=read))
    keeper: Any = SimpleNamespace(value=SimpleNamespace(bulk_loads=marks))
    loader = PartLoader(PartitionName("public", "t", 0), context, keeper)
    monkeypatch.setattr(rules, "MARKS_MAX", len(marks))
    assert await loader._finished() == marks.keys() - needed
    monkeypatch.setattr(rules, "MARKS_MAX", len(marks) + 1)
    assert await loader._finished() == set(), "few marks cost nothing"
