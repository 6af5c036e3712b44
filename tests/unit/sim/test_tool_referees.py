"""Referees of bulk loads, offloads, compaction and published batches report each broken promise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.bulkload.rules import mark_of
from octavo.broker.log.orphan_ledgers import custom_of
from octavo.broker.types import PartitionName, Published
from octavo.ledger.offload.format import About, ObjectWriter
from octavo.metadata.bulk_loads import BULK_LOADS_ROOT, BulkLoadPart, BulkLoadRecord, PrivateLedger
from octavo.metadata.offloads import COPYING, DROPPED, OFFLOADED
from octavo.metadata.topic_records import (
    CompactedLedger,
    CompactionRecord,
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    encode_record,
)
from octavo.protocol.entry import Entry
from octavo.protocol.records import Record, build_batch
from tests.sim.bulk_load_audit import Attempt, BulkLoadAudit
from tests.sim.chain_audit import ChainAudit, Owned
from tests.sim.compaction_audit import CompactedHistory, Kept, Seen
from tests.sim.compaction_load import OwnCompaction
from tests.sim.events import Events
from tests.sim.ledger_settle import Judge
from tests.sim.leftover_audit import left_over
from tests.sim.loop import SimLoop
from tests.sim.metadata_tree import Change
from tests.sim.object_store import SimObjects
from tests.sim.offload_audit import OffloadAudit
from tests.sim.published_audit import PublishedAudit, PublishedBatch
from tests.sim.topic_audit import LogHistory, TopicAudit
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


# The referee of compacted reads reports each lie about a page, and no true page.
NAME = PartitionName("public", "t", 0)
VIEW = CompactionRecord(8, (CompactedLedger(21, 1, 4, 2, 99), CompactedLedger(22, 6, 6, 1, 99)))
"""Offsets 1 and 4, then 6; a message's value is its key and its offset."""
KEYS = "xaxxbxcxac"


def page(history: CompactedHistory, at: int, *batches: Seen, start: int = -1, to: int = -1) -> None:
    to = batches[-1].following if to < 0 else to
    history.page(at, at if start < 0 else start, to, batches)


def of_view(ledger_id: int, *offsets: int) -> Seen:
    rows = [(offset, f"{KEYS[offset]}{offset}") for offset in offsets]
    return Seen(ledger_id, offsets[0], offsets[-1] + 1, rows)


def of_log(first: int, following: int) -> Seen:
    return Seen(1, first, following, [(o, f"{KEYS[o]}{o}") for o in range(first, following)])


@pytest.fixture
def history(failures: list[str]) -> CompactedHistory:
    log = LogHistory(NAME, [], Trace(), failures.append)
    for offset, key in enumerate(KEYS):
        value = f"{key}{offset}"
        log.sends([value], "p", -1, offset)
        log.acked([value], offset, duplicate=False)
    made = CompactedHistory(log, lambda value: value[:1].encode(), Trace(), failures.append)
    made.wrote(21, [1, 4])
    made.wrote(22, [6])
    made.published(VIEW)
    return made


def test_good_pages_are_left_alone(history: CompactedHistory, failures: list[str]) -> None:
    page(history, 0, of_view(21, 1, 4), of_view(22, 6), of_log(6, 9), to=9)
    page(history, 0, of_view(21, 1, 4))
    page(history, 3, of_view(21, 1, 4), of_view(22, 6), to=8)
    page(history, 7, of_log(6, 9), start=8)
    page(history, 9, of_log(9, 10))
    page(history, 10, to=10)
    history.passed(history.newest, {1, 4, 6, 7, 8, 9}, 10)
    assert not failures


BAD_VIEWS: dict[str, Callable[[CompactedHistory], None]] = {
    "[1, 4] of the view": lambda one: page(one, 0, of_view(21, 1, 4), to=8),
    "[6] of the view": lambda one: page(one, 0, of_view(22, 6), to=8),
    "it goes on behind the horizon": lambda one: page(one, 5, of_view(22, 6), to=9),
    "it goes on before what it gave": lambda one: page(one, 0, of_view(21, 1, 4), to=3),
    "no view is like that": lambda one: page(one, 5, of_log(8, 9), start=8),
    "8 was to come": lambda one: page(one, 8, of_log(9, 10)),
    "9 was to come": lambda one: page(one, 8, of_log(8, 9), of_log(8, 9)),
    "what it gave ends at 9": lambda one: page(one, 8, of_log(8, 9), to=10),
    "the log comes before the view": lambda one: page(one, 0, of_log(8, 9), of_view(22, 6)),
    "offset 4, the newest of its key": lambda one: one.passed(one.newest, {1, 6, 7, 8, 9}, 10),
}


@pytest.mark.parametrize("what", BAD_VIEWS)
def test_a_lie_is_told(history: CompactedHistory, failures: list[str], what: str) -> None:
    BAD_VIEWS[what](history)
    assert any(what in failure for failure in failures), failures


def test_a_page_is_of_one_view(history: CompactedHistory, failures: list[str]) -> None:
    history.wrote(23, [6, 8])
    history.published(CompactionRecord(9, (CompactedLedger(23, 6, 8, 2, 99),)))
    page(history, 0, of_view(21, 1, 4), of_view(23, 6, 8), to=9)
    assert any("messages of 2 views" in failure for failure in failures)


def test_trimmed_messages_are_wanted_only_of_a_view(
    history: CompactedHistory, failures: list[str]
) -> None:
    history._log.trim(9)
    history.passed(Kept(0, ()), {9}, 10)
    assert not failures
    history.passed(history.newest, {9}, 10)
    assert failures


def ledgers_of_the_view() -> Any:
    found = {one.ledger_id: SimpleNamespace(sent={}, deleted=False) for one in VIEW.ledgers}
    return SimpleNamespace(ledgers=found)


@pytest.mark.parametrize("trimmed", [8, 9])
def test_a_log_is_trimmed_up_to_its_view(
    history: CompactedHistory, failures: list[str], trimmed: int
) -> None:
    trace = Trace()
    topics = TopicAudit(None, trace, failures.append)  # type: ignore[arg-type]
    audit = ChainAudit(topics, ledgers_of_the_view(), trace, failures.append)
    audit.views = {NAME: history}
    path = "/octavo/topics/public/t/partitions/0"
    for version, offset in enumerate((0, trimmed)):
        if offset:  # the view's content is judged elsewhere
            history.own = OwnCompaction(settings={}, config={}, tombstones=False)
        record = PartitionRecord(epoch=1, compaction=VIEW, trimmed_offset=offset)
        audit.changed(Change(0.0, version, path, encode_record(record), version, "k", 1))
    assert bool(failures) == (trimmed > VIEW.horizon), failures
    assert all("is trimmed to" in failure for failure in failures)


@pytest.mark.parametrize("taken_back", [None, CompactionRecord(7, ())])
def test_a_view_that_is_taken_back_is_told(
    history: CompactedHistory, failures: list[str], taken_back: CompactionRecord | None
) -> None:
    trace = Trace()
    topics = TopicAudit(None, trace, failures.append)  # type: ignore[arg-type]
    audit = ChainAudit(topics, ledgers_of_the_view(), trace, failures.append)  # type: ignore[arg-type]
    audit.views = {NAME: history}
    path = "/octavo/topics/public/t/partitions/0"
    for version, view in enumerate((VIEW, taken_back)):
        value = encode_record(PartitionRecord(epoch=1, compaction=view))
        audit.changed(Change(0.0, version, path, value, version, "k", 1))
        assert bool(failures) == bool(version)
    assert "X9 a compacted view is taken back" in failures[0]


def test_a_deleted_ledger_of_a_view_is_told(failures: list[str], history: CompactedHistory) -> None:
    trace = Trace()
    topics = TopicAudit(None, trace, failures.append)  # type: ignore[arg-type]
    ledgers = ledgers_of_the_view()
    ledgers.ledgers[22].deleted = True
    audit = ChainAudit(topics, ledgers, trace, failures.append)  # type: ignore[arg-type]
    audit.views = {NAME: history}
    path, value = (
        "/octavo/topics/public/t/partitions/0",
        encode_record(PartitionRecord(compaction=VIEW)),
    )
    audit.changed(Change(0.0, 0, path, value, 0, "k", 1))
    audit.changed(Change(0.0, 1, "/ledgers/00/0000/L0022", None, 0, "k", 1))
    assert failures == ["P46 ledger 22 of public/t/0, of its view, was deleted"]


def test_a_view_of_a_fork_is_nobodys_here(history: CompactedHistory, failures: list[str]) -> None:
    trace = Trace()
    topics = TopicAudit(None, trace, failures.append)  # type: ignore[arg-type]
    audit = ChainAudit(topics, ledgers_of_the_view(), trace, failures.append)
    audit.views = {NAME: history}
    record = encode_record(PartitionRecord(epoch=1, compaction=VIEW))
    path = "/octavo/topics/public/f1/partitions/0"
    audit.changed(Change(0.0, 0, path, record, 0, "k", 1))
    assert not failures


# The referee of published batches reports each lie about a batch, and no true story.
A, B = (PartitionName("public", "t", number) for number in (0, 1))


class BatchStory:
    """Events of a batch of a query for the referee, and its reports."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.logs = {name: LogHistory(name, [], Trace(), self.failures.append) for name in (A, B)}
        topics: Any = SimpleNamespace(logs=self.logs)
        self.audit = PublishedAudit(topics, Trace(), self.failures.append)
        self.batch = PublishedBatch("q", 0, {A: ["a1", "a2"], B: ["b1"]})
        self.audit.planned(self.batch)

    def record(self, **fields: Any) -> None:
        self._changed(encode_record(BulkLoadRecord(**fields)))

    def forgotten(self) -> None:
        self._changed(None)

    def _changed(self, value: bytes | None) -> None:
        change: Any = SimpleNamespace(path=f"{BULK_LOADS_ROOT}/q", value=value)
        self.audit.changed(change)

    def stored(self, name: PartitionName, *values: str, at: int, duplicate: bool = False) -> None:
        data = build_batch([Record(None, value.encode(), (), 1) for value in values])
        last = at + len(values) - 1
        self.audit.stored(name, data, Published(at, last, 0, 0, len(values), duplicate))

    def whole(self) -> None:
        self.record(begun=0)
        self.stored(A, "a2", "a1", at=7)
        self.stored(B, "b1", at=3)
        self.record(begun=0, batch=0)
        self.audit.told(self.batch)


@pytest.fixture
def story() -> BatchStory:
    return BatchStory()


def test_a_true_story(story: BatchStory) -> None:
    assert not story.audit.is_begun(story.batch)
    story.record(begun=0)
    assert story.audit.is_begun(story.batch)
    story.whole()
    story.stored(A, "a1", "a2", at=-1, duplicate=True)  # again, in another order
    story.audit.check_whole()
    assert story.failures == []
    assert all(message.acked for log in story.logs.values() for message in log.sent.values())


def test_forgotten_and_used_again(story: BatchStory) -> None:
    story.whole()
    story.forgotten()
    assert not story.audit.is_begun(story.batch)
    story.record(begun=-1, since_ms=7)
    story.audit.told(story.batch)  # by its own first commit, with a late answer
    assert story.failures == []
    story.record(begun=-1, since_ms=7, batch=0)
    assert "X10 q is committed at 0, begun was -1" in story.failures[0]


def test_forgotten_before_it_was_whole(story: BatchStory) -> None:
    story.record(begun=0)
    story.stored(A, "a1", "a2", at=0)
    story.stored(B, "b1", at=3)
    story.record(begun=0, batch=0, complete=False)
    story.forgotten()
    assert story.failures == ["X10 the record of q went before batch 0 was whole"]


def test_committed_without_a_share(story: BatchStory) -> None:
    story.record(begun=0)
    story.stored(A, "a1", "a2", at=0)
    story.record(begun=0, batch=0)
    assert "X10 q batch 0 is committed, and nobody has stored ['b1']" in story.failures[0]


@pytest.mark.parametrize("begun", [-1, 1])
def test_committed_without_having_begun(story: BatchStory, begun: int) -> None:
    story.record(begun=begun)
    story.stored(A, "a1", "a2", at=0)
    story.stored(B, "b1", at=0)
    story.record(begun=begun, batch=0)
    assert f"X10 q is committed at 0, begun was {begun}" in story.failures[0]


def test_told_too_early(story: BatchStory) -> None:
    story.record(begun=0)
    story.audit.told(story.batch)
    assert "X10 q batch 0 was answered, its record is at -1" in story.failures[0]


def test_a_share_in_pieces(story: BatchStory) -> None:
    story.whole()
    story.failures.clear()
    story.logs[A].sent["a1"].offset = 12
    story.audit.check_whole()
    assert "its 2 rows for public/t/0 stand at [7, 12]" in story.failures[0]


def test_other_rows_that_are_seen(story: BatchStory) -> None:
    story.audit.refused({A: ["x"]})
    story.stored(A, "x", at=0)
    assert "'x' was refused, and is here" in story.failures[0]


def test_a_row_twice(story: BatchStory) -> None:
    story.whole()
    story.stored(B, "b1", at=9)
    assert "S9 twice" in story.failures[0]


# The referee of orphan ledgers reports each lie, and no truth.
def ledger(incarnation: str = "i", epoch: int = 3, *, deleted: bool = False) -> Any:
    custom = custom_of(NAME, "data", PartitionRecord(incarnation=incarnation, epoch=epoch))
    return SimpleNamespace(deleted=deleted, record=SimpleNamespace(custom=custom))


def judged(history: Any, **record: Any) -> list[str]:
    owned = Owned()
    owned.record = PartitionRecord(**{"incarnation": "i", "epoch": 4, **record})
    return left_over({7: history}, {NAME: owned})


@pytest.mark.parametrize(
    ("history", "record", "said"),
    [
        (ledger(), {}, "made at 3 of 4"),
        (ledger(), {"ledgers": (PartitionLedger(8, 0),), "state_ledger": 9}, "made at 3 of 4"),
        (ledger("earlier", 9), {}, "of an earlier public/t/0"),
    ],
)
def test_a_lie_is_said(history: Any, record: dict[str, Any], said: str) -> None:
    assert [said in one for one in judged(history, **record)] == [True]


def test_what_a_topic_left_that_is_gone_is_said() -> None:
    assert left_over({7: ledger()}, {}) == ["ledger 7 of public/t/0, which is gone"]


@pytest.mark.parametrize(
    ("history", "record"),
    [
        (ledger(deleted=True), {}),
        (ledger(epoch=4), {}),
        (ledger(), {"ledgers": (PartitionLedger(7, 0),)}),
        (ledger(), {"state_ledger": 7}),
        (ledger(), {"compaction": CompactionRecord(ledgers=(CompactedLedger(7, 0, 0, 1, 1),))}),
        (ledger(), {"deleted": True}),
        (SimpleNamespace(deleted=False, record=SimpleNamespace(custom={})), {}),
    ],
)
def test_the_truth_is_not(history: Any, record: dict[str, Any]) -> None:
    assert judged(history, **record) == []


# The referee of deleted ledgers on disk waits for a slow collector, and fails a hanging one.
LEDGERS = 300
LIVE = 7


class Bookie:
    """Knows ledgers, all but one deleted, and drops `pace` every three seconds."""

    name = "b1"
    refused = None

    def __init__(self, pace: int, stops_at: int) -> None:
        self.now_s = 0.0
        self.pace = pace
        self.stops_at = stops_at
        self.said: list[str] = []
        self.node: Any = SimpleNamespace(storage=self)
        self.disk: Any = SimpleNamespace(names={})
        self._checkpointer: Any = SimpleNamespace(mark=None)
        audit = SimpleNamespace(
            ledgers=range(LEDGERS),
            damaged={},
            is_deleted=lambda ledger_id: ledger_id != LIVE,
            fail=self.said.append,
        )
        loop = SimpleNamespace(stream=lambda _: None, time=lambda: self.now_s)
        self.cluster: Any = SimpleNamespace(audit=audit, loop=loop, bookies={"b1": self})

    def ledgers(self) -> list[int]:
        gone = min(int(self.now_s / 3) * self.pace, self.stops_at)
        return [found for found in range(LEDGERS) if found == LIVE or found >= gone]


async def collection_judged(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    async def sleep(s: float) -> None:
        bookie.now_s += s

    monkeypatch.setattr(asyncio, "sleep", sleep)
    nothing: Any = None
    await Judge(bookie.cluster, nothing, nothing)._clean()
    return bookie.said


async def test_fifteen_ledgers_a_round_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seed 2500050 of `topic`: 250 deleted ledgers took 37 s, with nothing wrong."""
    bookie = Bookie(15, LEDGERS)
    assert await collection_judged(bookie, monkeypatch) == []
    assert bookie.now_s == pytest.approx(60, abs=1)


@pytest.mark.parametrize("stops_at", [0, 150])
async def test_who_hangs_is_told_of(stops_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = Bookie(15, stops_at)
    [said] = await collection_judged(bookie, monkeypatch)
    assert said.startswith("S8 for 24.0 s nothing went: b1 holds ledgers [")
    assert bookie.now_s == pytest.approx(stops_at / 5 + 24, abs=1)
