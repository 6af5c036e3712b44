"""The referees of bulk loads and of the offload report each broken promise, and no kept one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.bulkload.rules import mark_of
from octavo.broker.types import PartitionName
from octavo.ledger.offload.format import About, ObjectWriter
from octavo.metadata.bulk_loads import BulkLoadPart, BulkLoadRecord, PrivateLedger
from octavo.metadata.offloads import COPYING, DROPPED, OFFLOADED
from octavo.metadata.topic_records import (
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    encode_record,
)
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record, build_batch
from tests.sim.bulk_load_audit import Attempt, BulkLoadAudit
from tests.sim.events import Events
from tests.sim.loop import SimLoop
from tests.sim.metadata_tree import Change
from tests.sim.object_store import SimObjects
from tests.sim.offload_audit import OffloadAudit
from tests.sim.topic_audit import TopicAudit
from tests.sim.trace import Trace

ZERO, ONE = (PartitionName("public", "t", number) for number in range(2))
OLD = PartitionLedger(1, 0, 3)


@pytest.fixture
def failures() -> list[str]:
    return []


def _ledgers(**others: Any) -> Any:
    kinds = {"is_closed": True, "deleted": False, **others}
    return SimpleNamespace(ledgers={number: SimpleNamespace(**kinds) for number in range(30)})


class Story:
    """A query whose first batch has ledgers 10 and 11 for one partition, 12 for another."""

    def __init__(self, failures: list[str], **ledgers: Any) -> None:
        trace, events = Trace(), Events(lambda: 0.0, verbose=False)
        self.topics = TopicAudit(events, trace, failures.append)
        for name in (ZERO, ONE):
            self.topics.add(name, [], repeats=False)
        self.audit = BulkLoadAudit(self.topics, _ledgers(**ledgers), events, trace, failures.append)
        self.first = self.attempt(1, 10)
        self.again = self.attempt(2, 20)

    def attempt(self, number: int, ledger: int) -> Attempt:
        made = Attempt("q", 0, number)
        made.parts = {
            ZERO: {ledger: [f"a{number}"], ledger + 1: [f"b{number}", f"c{number}"]},
            ONE: {ledger + 2: [f"d{number}"]},
        }
        self.audit.wrote(made)
        self.audit.offers(made)
        return made

    def commits(
        self, attempt: Attempt, batch: int = 0, lacking: PartitionName | None = None
    ) -> None:
        parts = tuple(
            BulkLoadPart(
                *name, 5, tuple(PrivateLedger(one, len(v), 9, 0, 0) for one, v in part.items())
            )
            for name, part in attempt.parts.items()
            if name != lacking
        )
        self.record(BulkLoadRecord(batch, parts, complete=False, since_ms=7))

    def record(self, record: BulkLoadRecord) -> None:
        path = "/octavo/transactions/q"
        self.audit.changed(Change(0.0, 1, path, encode_record(record), 1, "k", 1))

    def completes(self) -> None:
        self.record(replace(self.audit.records["q"], complete=True))

    def takes_in(self, name: PartitionName, *ids: int, marked: bool = True, base: int = 3) -> None:
        links = []
        for one in ids:
            count = len(self.audit.private[one].parts[name][one])
            links.append(PartitionLedger(one, base, count, bulk_loaded=True))
            base += count
        of = self.audit.records.get("q", BulkLoadRecord())
        marks = {mark_of("q", of): 0} if marked else {}
        self.audit.taken_in(name, links, PartitionRecord((OLD,), bulk_loads=marks), "a change")

    def joins(self) -> None:
        self.takes_in(ZERO, 10, 11)
        self.takes_in(ONE, 12)


def test_a_good_bulk_load_is_left_alone(failures: list[str]) -> None:
    all_of = Story(failures)
    all_of.commits(all_of.first)
    all_of.joins()
    all_of.completes()
    all_of.audit.told(all_of.first, won=True)
    for _ in range(2):
        all_of.audit.told(all_of.again, won=False)
    all_of.audit.ledger_deleted(20)
    all_of.audit.check_whole([])
    assert not failures
    assert [m.value for _, m in sorted(all_of.topics.logs[ZERO].at.items())] == ["a1", "b1", "c1"]


BAD: dict[str, Callable[[Story], object]] = {
    "X1 a committed batch was changed": lambda s: (s.commits(s.first), s.commits(s.again)),
    "X1 a batch over one that is newer, or unfinished": lambda s: (
        s.commits(s.first),
        s.commits(s.again, 1),
    ),
    "X1 ledgers that no attempt wrote": lambda s: (s.audit.private.clear(), s.commits(s.first)),
    "X1 not one whole attempt": lambda s: s.commits(s.first, lacking=ONE),
    "X1 q batch 0 attempt 2 was answered won": lambda s: (
        s.commits(s.first),
        s.joins(),
        s.audit.told(s.again, won=True),
    ),
    "X2 [10] are not a whole part": lambda s: (s.commits(s.first), s.takes_in(ZERO, 10)),
    "X2 [11, 10] are not a whole part": lambda s: (s.commits(s.first), s.takes_in(ZERO, 11, 10)),
    "X2 q batch 0 attempt 2 was not committed": lambda s: (
        s.commits(s.first),
        s.takes_in(ZERO, 20, 21),
    ),
    "X2 q batch 0 attempt 1 is not the batch that is open": lambda s: (
        s.commits(s.first),
        s.joins(),
        s.completes(),
        s.takes_in(ZERO, 10, 11, base=9),
    ),
    "X2 no mark of q batch 0 attempt 1": lambda s: (
        s.commits(s.first),
        s.takes_in(ZERO, 10, 11, marked=False),
    ),
    "X2 ledger 10 was taken in before": lambda s: (
        s.commits(s.first),
        s.takes_in(ZERO, 10, 11),
        s.takes_in(ZERO, 10, 11, base=6),
    ),
    "X2 ledger 12 has 1 messages": lambda s: (
        s.commits(s.first),
        s.audit.taken_in(ONE, [PartitionLedger(12, 0, 2)], PartitionRecord(), "a change"),
    ),
    "X3 complete, and [12] are nowhere": lambda s: (
        s.commits(s.first),
        s.takes_in(ZERO, 10, 11),
        s.completes(),
    ),
    "X3 q batch 0 attempt 1 was answered": lambda s: (
        s.commits(s.first),
        s.audit.told(s.first, won=True),
    ),
    "X4 ledger 12 of q batch 0 attempt 1 was deleted": lambda s: (
        s.commits(s.first),
        s.takes_in(ZERO, 10, 11),
        s.audit.ledger_deleted(12),
    ),
    "X5 q batch 0 attempt 2 is not committed": lambda s: (
        s.topics.logs[ZERO].stands(["a2"], 0, "a reader"),
        s.audit.check_whole([]),
    ),
    "S8 private ledger 20 is left": lambda s: s.audit.check_whole([20]),
    "S8 q batch 0 attempt 1 is committed": lambda s: (
        s.commits(s.first),
        s.takes_in(ZERO, 10, 11),
        s.audit.check_whole([]),
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_broken_bulk_load_is_told(failures: list[str], what: str) -> None:
    BAD[what](Story(failures))
    assert any(what in failure for failure in failures), failures


@pytest.mark.parametrize("of", [{"is_closed": False}, {"deleted": True}])
def test_open_or_deleted_ledgers_may_not_be_committed(failures: list[str], of: Any) -> None:
    story = Story(failures, **of)
    story.commits(story.first)
    assert any("is open, or was given up" in failure for failure in failures)


# Offloads

URL = "sim://objects/one"


def _payloads() -> list[bytes]:
    return [build_batch([Record(None, b"%d" % number)]) for number in range(3)]


class Offloads:
    """A partition with ledger 1, closed, and its object."""

    def __init__(self, failures: list[str]) -> None:
        self.objects = SimObjects(SimLoop(1, trace=Trace()), 0.0)
        sent = _payloads()
        record = SimpleNamespace(last_entry=len(sent) - 1)
        ledgers = SimpleNamespace(ledgers={1: SimpleNamespace(sent=sent, record=record)})
        self.audit = OffloadAudit(self.objects, ledgers, Trace(), failures.append)  # type: ignore[arg-type]
        data = bytearray()
        writer = ObjectWriter(
            SimpleNamespace(write=data.extend), About(1, "u", "public/t", 0, 0, len(sent))
        )
        writer.add(Entry(1, number, number - 1, 9, one) for number, one in enumerate(sent))
        whole = writer.close()
        self.objects.objects["objects/one"] = data
        self.whole = OffloadRecord(
            "u", OFFLOADED, URL, 0, whole.entries, whole.bytes, whole.crc, whole.footer_crc
        )
        self.copying = OffloadRecord("u", COPYING, "sim://objects", 0)
        self.dropped = replace(self.whole, state=DROPPED)

    def goes(self, *states: OffloadRecord | None, count: int | None = 3) -> None:
        for old, new in pairwise(states):
            before, after = ([PartitionLedger(1, 0, count, offload=one)] for one in (old, new))
            self.audit.links_changed(ZERO, before, after, "a change")


def test_a_good_offload_is_left_alone(failures: list[str]) -> None:
    one = Offloads(failures)
    one.goes(None, one.copying, None, one.copying, one.whole, one.dropped)
    assert one.audit.may_be_deleted(PartitionLedger(1, 0, 3, offload=one.dropped))
    assert not one.audit.may_be_deleted(PartitionLedger(1, 0, 3, offload=one.whole))
    path = "/octavo/offloads/u"
    one.audit.intent_changed(Change(0.0, 1, path, b"x", 1, "o", 1))
    one.audit.check_whole(["u"])
    one.audit.partition_gone([PartitionLedger(1, 0, 3, offload=one.dropped)])
    one.objects.delete_file("objects/one")
    one.audit.intent_changed(Change(0.0, 2, path, None, 2, "o", 1))
    one.audit.check_whole([])
    assert not failures


BAD_OFFLOADS: dict[str, Callable[[Offloads], object]] = {
    "X6 None → offloaded": lambda o: o.goes(None, o.whole),
    "X6 offloaded → None": lambda o: o.goes(o.whole, None),
    "X6 dropped → offloaded": lambda o: o.goes(o.dropped, o.whole),
    "X6 copying → dropped": lambda o: o.goes(o.copying, o.dropped),
    "X6 an open ledger": lambda o: o.goes(None, o.copying, count=None),
    "X6 another copy": lambda o: o.goes(replace(o.copying, uuid="v"), o.whole),
    "X7 the object has None bytes": lambda o: (
        o.objects.delete_file("objects/one"),
        o.goes(o.copying, o.whole),
    ),
    "X7 3 entries, not the 2": lambda o: (
        setattr(o.audit._ledgers.ledgers[1].record, "last_entry", 1),
        o.goes(o.copying, o.whole),
    ),
    "X7 objects/one was removed": lambda o: (
        o.goes(o.copying, o.whole),
        o.objects.delete_file("objects/one"),
    ),
    "S8 objects that no record names: ['objects/one']": lambda o: o.audit.check_whole([]),
    "S8 intents without a copy": lambda o: (o.goes(o.copying, o.whole), o.audit.check_whole(["u"])),
}


@pytest.mark.parametrize("what", BAD_OFFLOADS)
def test_a_broken_offload_is_told(failures: list[str], what: str) -> None:
    BAD_OFFLOADS[what](Offloads(failures))
    assert any(what in failure for failure in failures), failures
