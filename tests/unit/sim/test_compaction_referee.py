"""The referee of compacted reads reports each lie about a page, and no true page."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.types import PartitionName
from octavo.metadata.topic_records import (
    CompactedLedger,
    CompactionRecord,
    PartitionRecord,
    encode_record,
)
from tests.sim.chain_audit import ChainAudit
from tests.sim.compaction_audit import CompactedHistory, Kept, Seen
from tests.sim.compaction_load import OwnCompaction
from tests.sim.metadata_tree import Change
from tests.sim.topic_audit import LogHistory, TopicAudit
from tests.sim.trace import Trace

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
def failures() -> list[str]:
    return []


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


BAD: dict[str, Callable[[CompactedHistory], None]] = {
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


@pytest.mark.parametrize("what", BAD)
def test_a_lie_is_told(history: CompactedHistory, failures: list[str], what: str) -> None:
    BAD[what](history)
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
