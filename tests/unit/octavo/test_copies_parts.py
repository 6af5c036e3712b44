"""How `audit` and `scrub` judge the bookies' answers, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from octavo.pipeline.audit import Held, copies_findings, metadata_findings, wanted_runs
from octavo.pipeline.outcome import SHOWN_MAX
from octavo.pipeline.runs import count_of, has, numbers_in, runs_in, without
from octavo.pipeline.scrub import ABSENT, DAMAGED, UNKNOWN, Copy, ScrubOptions, chosen, judge
from octavo.pipeline.spread import Findings, Part, dealt, parts_of
from octavo.pipeline.streams import Progress

runs_of_small = st.sets(st.integers(0, 30)).map(lambda numbers: runs_in(sorted(numbers)))


@given(runs_of_small, runs_of_small)
def test_runs_are_sets(wanted: list[tuple[int, int]], held: list[tuple[int, int]]) -> None:
    expected = set(numbers_in(wanted)) - set(numbers_in(held))
    assert without(wanted, held) == runs_in(sorted(expected))
    assert count_of(without(wanted, held)) == len(expected)
    assert {number for number in range(31) if has(held, number)} == set(numbers_in(held))


def metadata(**fields: Any) -> LedgerMetadata:
    fragments = (Fragment(0, ("a", "b", "c")), Fragment(6, ("a", "b", "d")))
    usual: dict[str, Any] = {
        "ledger_id": 7,
        "ensemble_size": 3,
        "write_quorum": 3,
        "ack_quorum": 2,
        "fragments": fragments,
        "state": LedgerState.CLOSED,
        "last_entry": 9,
    }
    return LedgerMetadata(**{**usual, **fields})


def held(**runs: list[tuple[int, int]] | None) -> Held:
    return Held(dict(runs), dict.fromkeys(runs, "no answer"))


def test_who_should_hold_what() -> None:
    everywhere = {"a": [(0, 5), (6, 9)], "b": [(0, 5), (6, 9)], "c": [(0, 5)], "d": [(6, 9)]}
    assert wanted_runs(metadata(), 9) == everywhere
    striped = wanted_runs(metadata(write_quorum=2), 9)
    assert striped["c"] == [(1, 2), (4, 5)]
    assert striped["d"] == [(7, 8)]
    copies = sum(count_of(runs) for runs in striped.values())
    assert copies == 2 * 10


def test_copies_missing_unknown_and_lost() -> None:
    findings = Findings()
    whole = held(a=[(0, 9)], b=[(0, 9)], c=[(0, 9)], d=[(6, 9)])
    assert copies_findings(metadata(), 9, whole, findings) == 30
    assert findings.counts == {}
    some = held(a=[(0, 4)], b=[(0, 3), (5, 9)], c=None, d=[(6, 7)])
    assert copies_findings(metadata(), 9, some, findings) == 5 + 9 + 2
    assert findings.counts == {"copy-missing": 5 + 1 + 2, "copies-unknown": 6}
    assert {what for _, _, what in findings.kept} == {
        "bookie a lacks entries 5, 6 to 9",
        "bookie b lacks entries 4",
        "bookie c could not say what it holds: no answer",
        "bookie d lacks entries 8 to 9",
    }
    lost = Findings()
    copies_findings(metadata(), 9, held(a=[(0, 8)], b=[(0, 8)], c=[(0, 5)], d=[(6, 8)]), lost)
    assert lost.counts == {"copy-missing": 3, "entry-lost": 1}
    assert lost.kept[-1].what == "no bookie of the write set has entries 9"


def test_a_striped_entry_is_lost_when_its_write_set_denies_it() -> None:
    findings = Findings()
    striped = metadata(write_quorum=2, fragments=(Fragment(0, ("a", "b", "c")),), last_entry=2)
    # Entry 0 is on a and b, 1 on b and c, 2 on c and a.
    copies_findings(striped, 2, held(a=[(2, 2)], b=[(1, 1)], c=[(1, 2)]), findings)
    assert findings.counts == {"copy-missing": 2, "entry-lost": 1}


def test_records_against_each_other() -> None:
    now_ms = 10**12
    orphan = metadata(ledger_id=8, custom={"octavo.partition": b"public/x/0"})
    young = metadata(
        ledger_id=9, custom={"octavo.partition": b"public/x/0"}, created_ms=now_ms - 1000
    )
    ledgers = {7: metadata(), 8: orphan, 9: young, 10: metadata(ledger_id=10)}
    found = metadata_findings(
        ledgers, {7: "public/a/0", 3: "public/a/1"}, {"a", "b", "c", "d"}, now_ms
    )
    assert [(one.kind, one.where) for one in found] == [
        ("ledger-missing", "public/a/1"),
        ("ledger-orphaned", "ledger 8"),
    ]
    gone = metadata_findings({7: metadata()}, {}, {"a", "b", "c"}, now_ms)
    assert [(one.kind, "bookie d" in one.what) for one in gone] == [("bookie-gone", True)]


def test_parts_are_dealt_evenly() -> None:
    opened = metadata(ledger_id=8, state=LedgerState.OPEN)
    empty = metadata(ledger_id=9, last_entry=-1)
    parts = parts_of([metadata(), opened, empty], entries_max=4)
    assert parts == [Part(7, 0, 3), Part(7, 4, 7), Part(7, 8, 9), Part(8, 0, 3), Part(8, 4, 5)]
    hands = dealt(parts, 3)
    assert [part for hand in hands for part in hand] == parts
    assert len(hands) == 3
    assert dealt([], 3) == []


@pytest.mark.parametrize(
    ("copies", "kinds"),
    [
        ({"a": b"1", "b": b"1"}, {}),
        ({"a": b"1", "b": b"2"}, {"copies-differ": 1}),
        ({"a": b"1", "b": ABSENT}, {ABSENT: 1}),
        ({"a": DAMAGED, "b": ABSENT}, {DAMAGED: 1, ABSENT: 1, "entry-lost": 1}),
        ({"a": DAMAGED, "b": UNKNOWN}, {DAMAGED: 1, UNKNOWN: 1}),
    ],
)
def test_what_copies_say_of_each_other(copies: dict[str, Copy], kinds: dict[str, int]) -> None:
    findings = Findings()
    judge(metadata(), {4: copies}, findings)
    assert findings.counts == kinds


def test_a_sample_is_the_same_each_time_and_about_so_large() -> None:
    tenth = ScrubOptions(sample=0.1, seed=3)
    first = [chosen(7, entry_id, tenth) for entry_id in range(5000)]
    assert first == [chosen(7, entry_id, tenth) for entry_id in range(5000)]
    assert 350 < sum(first) < 650
    other = ScrubOptions(sample=0.1, seed=4)
    assert first != [chosen(7, entry_id, other) for entry_id in range(5000)]
    assert chosen(7, 1, ScrubOptions())


def test_findings_of_several_tasks_are_counted_once() -> None:
    """Few are shown, all are counted."""
    together = Findings()
    for task in range(3):
        findings = Findings()
        for number in range(SHOWN_MAX):
            findings.add("lost", f"{task}", f"{number}", count=2)
        findings.add("odd", f"{task}", "once")
        together.take(findings)
    assert together.counts == {"lost": 6 * SHOWN_MAX, "odd": 3}
    assert [one.kind for one in together.kept].count("lost") == SHOWN_MAX
    assert [one.where for one in together.kept if one.kind == "odd"] == ["0", "1", "2"]


def test_each_batch_of_a_query_is_told_once() -> None:
    said: list[str] = []
    progress = Progress(said.append)
    batches = [{"batchId": 0, "numInputRows": 5}, {"batchId": 1, "numInputRows": 0}]
    for more in ([], [{"batchId": 1, "numInputRows": 2}], []):
        batches += more
        progress.look(SimpleNamespace(recentProgress=batches))
    assert progress.rows == 7
    assert said == ["batch 0: 5 rows", "batch 1: 7 rows"]
