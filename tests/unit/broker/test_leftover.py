"""Which unnamed ledgers may be deleted: none that a change could still name.

A model of everything that names ledgers: openings, owners that roll over, replace their state
ledger and reopen, late and doubled writes, deletions and namesakes. The rule is asked at every
moment, with records read at different times. A ledger that it released must never be named again.
At the end it must release every unnamed ledger.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from octavo.broker.log.orphan_ledgers import Label, Suspects, custom_of, label_of, may_go
from octavo.broker.types import PartitionName
from octavo.metadata.topics import (
    CompactedLedger,
    CompactionRecord,
    PartitionLedger,
    PartitionRecord,
    TopicRecord,
    TopicSettings,
)

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
