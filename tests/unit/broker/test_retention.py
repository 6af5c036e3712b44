"""How long messages have been stored: never more than the truth, whatever is forgotten."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.clock.deletion_clock import ClockLimits, DeletionClock, DeletionTime, Reading
from octavo.broker.log.orphan_ledgers import Label, Suspects, custom_of, label_of, may_go
from octavo.broker.policies import MARKS_MAX, Ages
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import State, ages_op, encode, snapshot
from octavo.broker.types import PartitionName
from octavo.metadata.topics import (
    CompactedLedger,
    CompactionRecord,
    PartitionLedger,
    PartitionRecord,
    TopicRecord,
    TopicSettings,
)

steps = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 1000), st.booleans(), st.integers(0, 3)),
    max_size=300,
)


@given(steps=steps, ttl_ms=st.integers(0, 500))
def test_nothing_counts_as_older_than_it_is(
    steps: list[tuple[int, int, bool, int]], ttl_ms: int
) -> None:
    """Messages come, time passes, a mark is made, a new owner replays, in any order."""
    stored_at: list[int] = []
    ages, now_ms, first = Ages(), 10_000, 0
    for messages, passes_ms, marks, event in steps:
        stored_at += [now_ms] * messages
        now_ms += passes_ms
        if marks:
            ages.note(len(stored_at), now_ms)
        if event == 1:
            ages = Ages(ages.marks)
        elif event == 2 and ages.marks:
            first = max(first, ages.marks[0].offset)
            ages.forget_before(first)
        old = ages.stored_before(now_ms - ttl_ms)
        assert all(now_ms - at >= ttl_ms for at in stored_at[:old])
        for offset in range(first, len(stored_at)):
            assert ages.age_of(offset, now_ms) <= now_ms - stored_at[offset]
        assert len(ages.marks) <= MARKS_MAX
        assert list(ages.marks) == sorted(ages.marks)


def test_what_is_between_two_marks_ages_from_the_later() -> None:
    ages = Ages([(10, 100), (20, 200)])
    assert [ages.stored_before(at) for at in (99, 100, 199, 200, 10**6)] == [0, 10, 10, 20, 20]
    assert [ages.age_of(offset, 250) for offset in (0, 9, 10, 19, 20)] == [150, 150, 50, 50, 0]
    assert not ages.note(20, 300), "nothing came since"
    assert not ages.is_due(20, 10**6, 1)
    assert not ages.is_due(21, 209, 10)
    assert ages.is_due(21, 210, 10)
    assert Ages().is_due(1, 0, 10)
    assert not Ages().is_due(0, 0, 10)


def test_marks_are_thinned_out_and_the_newest_stays() -> None:
    ages = Ages()
    for number in range(1, 10_000):
        ages.note(number, number)
        assert ages.marks[-1] == (number, number)
        assert len(ages.marks) <= MARKS_MAX
    assert ages.stored_before(10_000) == 9_999
    for at in range(1_000, 10_000, 1_000):
        assert at - 1_000 < ages.stored_before(at) <= at


def test_a_time_that_was_set_back() -> None:
    ages = Ages([(10, 1_000)])
    ages.note(20, 500)
    assert ages.marks == ((20, 500),)
    assert ages.stored_before(499) == 0


def test_the_state_ledger_has_them() -> None:
    ages = Ages([(10, 100), (20, 200)])
    state = State()
    for entry in snapshot([("s", 1, Cursor(5))], [], 20, ages.marks):
        state.apply(entry)
    assert state.ages.marks == ages.marks
    state.apply(encode([ages_op(ages.marks[0])]))
    assert state.ages.marks == ages.marks, "a snapshot may be ahead of what comes after it"
    state.apply(encode([[50, 30, 300]]))
    assert state.ages.marks[-1] == (30, 300)


LIMITS = ClockLimits(tolerance_ms=300_000, quarantine_ms=600_000)
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000
START = 1_700_000_000_000


@dataclass
class Machine:
    """A machine whose clocks are off as the test says."""

    clock: DeletionClock = field(default_factory=lambda: DeletionClock(LIMITS))
    has_store: bool = True
    passed_ms: int = 0
    wall_off: int = 0
    store_off: int = 0

    @property
    def true_ms(self) -> int:
        return START + self.passed_ms

    def after(self, ms: int, *, every: int = MINUTE) -> DeletionTime:
        """Return the time found after that long, with looks in between."""
        end = self.passed_ms + ms
        while True:
            store = self.true_ms + self.store_off if self.has_store else None
            found = self.clock.observe(Reading(self.passed_ms, self.true_ms + self.wall_off, store))
            if self.passed_ms >= end:
                return found
            self.passed_ms = min(end, self.passed_ms + every)


@pytest.mark.parametrize("has_store", [True, False])
def test_clocks_that_agree_are_gone_by(has_store: bool) -> None:
    machine = Machine(has_store=has_store)
    assert machine.after(3 * DAY) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


@pytest.mark.parametrize("has_store", [True, False])
@pytest.mark.parametrize("wrong_ms", [8 * DAY, -8 * DAY, 10 * 365 * DAY])
@pytest.mark.parametrize("for_ms", [2_000, 5 * MINUTE])
def test_a_clock_that_is_wrong_for_a_while(has_store: bool, wrong_ms: int, for_ms: int) -> None:
    machine = Machine(has_store=has_store)
    machine.after(HOUR)
    machine.wall_off = wrong_ms
    found = machine.after(for_ms, every=1_000)
    assert found.now_ms <= machine.true_ms
    assert found.doubt
    machine.wall_off = 0
    found = machine.after(20 * MINUTE)
    assert found == DeletionTime(machine.true_ms, "", 0, machine.true_ms), "it goes on by itself"


def test_one_clock_ahead_for_ever_deletes_by_the_other() -> None:
    machine = Machine(wall_off=8 * DAY)
    found = machine.after(DAY)
    assert found.now_ms == machine.true_ms
    assert "8 d ahead of the metadata store's" in found.doubt
    machine = Machine(store_off=8 * DAY)
    found = machine.after(DAY)
    assert found.now_ms == machine.true_ms
    assert "8 d behind the metadata store's" in found.doubt


def test_one_machine_that_was_off_waits_for_a_person() -> None:
    machine = Machine(DeletionClock(LIMITS, START - 7 * DAY), has_store=False)
    found = machine.after(30 * DAY)
    assert found.now_ms == machine.true_ms - 7 * DAY, "late by as much, and going on"
    assert found.late_ms == 7 * DAY
    assert "POST /v1/cluster/clock" in found.doubt
    machine.clock.confirm(machine.true_ms)
    assert machine.after(HOUR) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


def test_a_cluster_that_was_off_goes_on_when_two_clocks_agree() -> None:
    machine = Machine(DeletionClock(LIMITS, START - 7 * DAY))
    assert machine.after(5 * MINUTE).late_ms == 7 * DAY
    assert machine.after(6 * MINUTE) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


def test_both_clocks_set_at_once_are_not_believed_at_once() -> None:
    """One time server misleads all machines: its first two seconds do no harm."""
    machine = Machine()
    machine.after(HOUR)
    machine.wall_off = machine.store_off = 8 * DAY
    assert machine.after(9 * MINUTE).now_ms == machine.true_ms
    machine.wall_off = machine.store_off = 0
    assert machine.after(MINUTE) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


def test_a_clock_that_runs_too_fast_gains_little() -> None:
    machine = Machine(has_store=False)
    machine.after(0)
    for _ in range(24 * 60):
        machine.wall_off += MINUTE  # twice as fast as it should
        found = machine.after(MINUTE)
        assert found.now_ms - machine.true_ms <= LIMITS.tolerance_ms + machine.passed_ms / 100
    assert found.doubt


clock_steps = st.lists(
    st.tuples(
        st.sampled_from([1_000, MINUTE, 7 * MINUTE, 11 * MINUTE, HOUR]),
        st.sampled_from([0, 0, MINUTE, 8 * DAY, -8 * DAY, -MINUTE, 2 * HOUR]),
    ),
    max_size=25,
)


@given(clock_steps, st.booleans())
def test_never_ahead_while_one_of_two_clocks_is_not(
    story: list[tuple[int, int]], store_is_right: bool
) -> None:
    """Whatever the other clock does."""
    machine = Machine()
    for ms, off in story:
        if store_is_right:
            machine.wall_off = off
        else:
            machine.store_off = off
        assert machine.after(ms).now_ms <= machine.true_ms


@given(clock_steps)
def test_alone_it_is_never_ahead_by_more_than_it_may_wander(story: list[tuple[int, int]]) -> None:
    machine = Machine(has_store=False)
    machine.after(0)
    for ms, off in story:
        machine.wall_off = off
        slack = LIMITS.tolerance_ms + machine.passed_ms / 100 + ms
        assert machine.after(ms).now_ms - machine.true_ms <= slack


@given(clock_steps, st.booleans())
def test_no_date_is_behind_once_time_was_counted_right(
    story: list[tuple[int, int]], has_store: bool
) -> None:
    """Whatever one clock does, also for good: an object that it dated is not old once the time is
    right."""
    machine = Machine(has_store=has_store)
    machine.after(0)
    for ms, off in story:
        machine.wall_off = off
        found = machine.after(ms)
        assert found.date_ms >= machine.true_ms - machine.passed_ms / 100
        assert found.date_ms >= found.now_ms


def test_a_clock_that_is_behind_for_days_lowers_no_date() -> None:
    machine = Machine(has_store=False)
    machine.after(HOUR)
    machine.wall_off = -8 * DAY
    found = machine.after(2 * DAY)
    assert not found.doubt
    assert found.now_ms == machine.true_ms - 8 * DAY
    assert found.date_ms == machine.true_ms
    after = DeletionClock(LIMITS, found.now_ms, found.date_ms)  # another process continues
    assert after.observe(Reading(0, found.now_ms, None)).date_ms == machine.true_ms
    after.date_from(machine.true_ms + HOUR)  # another broker has counted further
    assert after.observe(Reading(0, found.now_ms, None)).date_ms == machine.true_ms + HOUR
    after.confirm(found.now_ms)  # a person knows better
    assert after.observe(Reading(0, found.now_ms, None)).date_ms == found.now_ms


def test_a_steady_clock_that_gains_does_not_add_up() -> None:
    clock = DeletionClock(LIMITS)
    for minute in range(100_000):
        found = clock.observe(Reading(minute * (MINUTE + 30), START + minute * MINUTE, None))
        assert found.date_ms - found.now_ms <= 30


@given(clock_steps, st.booleans())
def test_it_ends_by_itself_where_there_are_two(
    story: list[tuple[int, int]], store_is_right: bool
) -> None:
    machine = Machine()
    for ms, off in story:
        if store_is_right:
            machine.wall_off = off
        else:
            machine.store_off = off
        machine.after(ms)
    machine.wall_off = machine.store_off = 0
    assert machine.after(21 * MINUTE) == DeletionTime(machine.true_ms, "", 0, machine.true_ms)


NAME = PartitionName("public", "t", 0)


@dataclass
class Owner:
    """A broker that believes it owns the partition: its last record, and the ledgers being made."""

    record: PartitionRecord
    version: int
    rolling: int | None = None
    state: tuple[int, int] | None = None
    """A new state ledger, and its epoch."""
    reopening: tuple[PartitionRecord, int] | None = None
    """The epoch's record as read, and the ledger that was made."""


@dataclass
class World:
    rng: random.Random
    topic: TopicRecord | None = None
    record: PartitionRecord | None = None
    version: int = 0
    incarnations: int = 0
    labels: dict[int, Label] = field(default_factory=dict)
    owners: list[Owner] = field(default_factory=list)
    openings: list[tuple[PartitionRecord, int, int, int | None]] = field(default_factory=list)
    late: list[tuple[PartitionRecord, int]] = field(default_factory=list)
    looks: list[tuple[list[int], TopicRecord | None]] = field(default_factory=list)
    """Listings, with the topic's record read after them; the partition's is read later."""
    given_away: set[int] = field(default_factory=set)
    said: list[str] = field(default_factory=list)

    # All names

    def made(self, kind: str, record: PartitionRecord) -> int:
        ledger_id = len(self.labels) + 1
        label = label_of(custom_of(NAME, kind, record))
        assert label is not None
        self.labels[ledger_id] = label
        return ledger_id

    def write(self, record: PartitionRecord, version: int) -> bool:
        """Compare-and-set; sometimes it arrives again, or later."""
        if self.rng.random() < 0.2:
            self.late.append((record, version))
        return self.rng.random() < 0.85 and self.put(record, version)

    def put(self, record: PartitionRecord, version: int) -> bool:
        if self.record is None or version != self.version:
            return False
        self.record, self.version = record, version + 1
        wrong = named(record) & self.given_away
        assert not wrong, f"{wrong} named after they were given away: {self.said}"
        return True

    # Steps

    def create_topic(self) -> None:
        if self.topic is None:
            self.incarnations += 1
            self.topic = TopicRecord(TopicSettings(), incarnation=f"i{self.incarnations}")

    def mark_deleting(self) -> None:
        if self.topic is not None and self.rng.random() < 0.2:
            self.topic = replace(self.topic, deleting=True)
            if self.record is not None:
                self.record, self.version = replace(self.record, deleted=True), self.version + 1

    def end_deletion(self) -> None:
        """When no claim is left: writes of its owners have come, or never will."""
        if self.topic is not None and self.topic.deleting and self.rng.random() < 0.5:
            self.owners, self.openings, self.late = [], [], []
            self.topic = self.record = None

    def begin_opening(self) -> None:
        if self.topic is None or self.topic.deleting:
            return
        if self.record is None:
            self.record, self.version = PartitionRecord(incarnation=self.topic.identity), 0
        if self.record.deleted:
            return
        state = None
        data = self.made("data", self.record)
        if self.record.state_ledger is not None:
            state = self.made("state", self.record)
        self.openings.append((self.record, self.version, data, state))

    def end_opening(self) -> None:
        if not self.openings:
            return
        record, version, data, state = self.openings.pop(self.rng.randrange(len(self.openings)))
        wanted = opened(record, data, record.state_ledger if state is None else state)
        if self.write(wanted, version):
            self.owners.append(Owner(wanted, version + 1))

    def owner_works(self) -> None:
        if not self.owners:
            return
        owner = self.rng.choice(self.owners)
        step = self.rng.choice((self._roll, self._state, self._reopen, self._trim))
        if not step(owner) and owner in self.owners:
            self.owners.remove(owner)

    def _roll(self, owner: Owner) -> bool:
        if owner.reopening is not None:
            return True
        if owner.rolling is None:
            owner.rolling = self.made("data", owner.record)
            return True
        new, owner.rolling = owner.rolling, None
        links = (*owner.record.ledgers, PartitionLedger(new, 0))
        return self._change(owner, replace(owner.record, ledgers=links))

    def _state(self, owner: Owner) -> bool:
        if owner.state is None:
            owner.state = self.made("state", owner.record), owner.record.epoch
            return True
        (new, epoch), owner.state = owner.state, None
        if epoch != owner.record.epoch:
            return True  # made once more
        return self._change(owner, replace(owner.record, state_ledger=new))

    def _reopen(self, owner: Owner) -> bool:
        if owner.reopening is None:
            owner.rolling = None  # that task is ended first
            owner.reopening = owner.record, self.made("data", owner.record)
            return True
        (read, new), owner.reopening = owner.reopening, None
        assert read.epoch == owner.record.epoch
        return self._change(owner, opened(owner.record, new, owner.record.state_ledger))

    def _trim(self, owner: Owner) -> bool:
        if len(owner.record.ledgers) < 2:
            return True
        return self._change(owner, replace(owner.record, ledgers=owner.record.ledgers[1:]))

    def _change(self, owner: Owner, wanted: PartitionRecord) -> bool:
        if not self.write(wanted, owner.version):
            return False
        owner.record, owner.version = wanted, owner.version + 1
        return True

    def late_write(self) -> None:
        if self.late:
            self.put(*self.late.pop(self.rng.randrange(len(self.late))))

    # The sweep

    def list(self) -> None:
        self.looks.append(([*self.labels], self.topic))

    def look(self) -> None:
        if not self.looks:
            return
        ids, topic = self.looks.pop(self.rng.randrange(len(self.looks)))
        for one in ids:
            if may_go(one, self.labels[one], topic, self.record):
                self.given_away.add(one)


def opened(record: PartitionRecord, data: int, state: int | None) -> PartitionRecord:
    links = (*record.ledgers, PartitionLedger(data, 0))
    return replace(record, epoch=record.epoch + 1, ledgers=links, state_ledger=state)


def named(record: PartitionRecord | None) -> set[int]:
    if record is None:
        return set()
    return {link.ledger_id for link in record.ledgers} | {record.state_ledger or 0}


STEPS = (
    "create_topic", "mark_deleting", "end_deletion", "begin_opening", "end_opening", "owner_works",
    "owner_works", "owner_works", "late_write", "list", "look",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(300))
def test_nothing_goes_that_is_named_later_and_in_the_end_all_the_rest(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    for _ in range(150):
        step = rng.choice(STEPS)
        world.said.append(step)
        getattr(world, step)()
    while world.topic is not None and world.topic.deleting:
        world.end_deletion()
    world.owners, world.openings, world.late = [], [], []
    world.create_topic()
    world.begin_opening()
    assert world.record is not None
    record, version, data, state = world.openings.pop()
    assert world.put(opened(record, data, state or record.state_ledger), version)
    world.looks = [([*world.labels], world.topic)]
    world.look()
    left = set(world.labels) - world.given_away - named(world.record)
    assert not left, [world.labels[one] for one in left]


# Examples

TOPIC = TopicRecord(TopicSettings(), incarnation="i")
LABEL = Label(NAME, "i", 3)
VIEW = CompactionRecord(ledgers=(CompactedLedger(7, 0, 0, 1, 1),))


def record(**fields: Any) -> PartitionRecord:
    return PartitionRecord(**{"incarnation": "i", "epoch": 4, **fields})


@pytest.mark.parametrize(
    ("topic", "stands", "goes"),
    [
        (TOPIC, record(), True),
        (TOPIC, record(epoch=3), False),
        (TOPIC, record(ledgers=(PartitionLedger(7, 0),)), False),
        (TOPIC, record(state_ledger=7), False),
        (TOPIC, record(compaction=VIEW), False),
        (TOPIC, record(deleted=True), False),
        (TOPIC, record(incarnation=""), False),
        (TOPIC, None, False),
        (replace(TOPIC, deleting=True), record(), False),
        (replace(TOPIC, incarnation="later"), record(incarnation="later", epoch=1), True),
        (replace(TOPIC, incarnation="later", deleting=True), None, True),
        (None, None, True),
        (None, record(ledgers=(PartitionLedger(7, 0),)), False),
    ],
)  # fmt: skip
def test_the_rule(topic: TopicRecord | None, stands: PartitionRecord | None, goes: bool) -> None:
    assert may_go(7, LABEL, topic, stands) is goes


def test_a_label_comes_back_as_it_was_written() -> None:
    assert label_of(custom_of(NAME, "state", record(epoch=3))) == LABEL


@pytest.mark.parametrize(
    "change",
    [
        {"octavo.kind": None}, {"octavo.kind": b"transaction"}, {"octavo.kind": b"compacted"},
        {"octavo.incarnation": None}, {"octavo.incarnation": b""}, {"octavo.incarnation": b"\xff"},
        {"octavo.epoch": None}, {"octavo.epoch": b"-1"}, {"octavo.epoch": b" 3"},
        {"octavo.epoch": b"three"}, {"octavo.partition": None}, {"octavo.partition": b"public/t"},
        {"octavo.partition": b"../t/0"}, {"octavo.partition": b"public/t/00"},
    ],
)  # fmt: skip
def test_what_has_not_our_label_is_not_ours(change: dict[str, bytes | None]) -> None:
    custom = {**custom_of(NAME, "data", record()), **change}
    assert label_of({key: value for key, value in custom.items() if value is not None}) is None


def test_two_proofs_a_grace_apart_and_none_against_between() -> None:
    suspects = Suspects(10.0)
    assert not suspects.judged(1, 100.0, goes=True)
    assert not suspects.judged(1, 109.9, goes=True)
    assert suspects.judged(1, 110.0, goes=True)
    assert suspects.known == [1]
    assert not suspects.judged(1, 111.0, goes=False)
    assert suspects.known == []
    assert not suspects.judged(1, 112.0, goes=True)
    assert not suspects.judged(1, 121.9, goes=True)
