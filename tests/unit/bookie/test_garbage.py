"""The plan for each log, in words; and the quarantine, against a model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.gc.rules import (
    Action,
    Decision,
    LogFacts,
    Quarantine,
    Rules,
    Verdict,
    longest,
    plan,
)

RULES = Rules(0.2, 0.8, minor_due=True, major_due=True, room_bytes=10_000)


def reason(log: LogFacts, rules: Rules = RULES) -> tuple[Action, str]:
    (decision,) = plan([log], rules)
    return decision.action, decision.reason


@pytest.mark.parametrize(
    ("log", "rules", "action", "words"),
    [
        (LogFacts(1, 100, 0, current=True), RULES, Action.KEEP, "current log"),
        (LogFacts(1, 100, 0, why_not="is damaged"), RULES, Action.KEEP, "is damaged"),
        (LogFacts(1, 100, 0), RULES, Action.UNLINK, "nothing in it is live"),
        (LogFacts(1, 100, 90), RULES, Action.KEEP, "90% live, above 80%"),
        (LogFacts(1, 100, 80), RULES, Action.REWRITE, "80% live"),
        (
            LogFacts(1, 100, 80),
            RULES._replace(major_due=False),
            Action.KEEP,
            "80% live, waits for the next major compaction",
        ),
        (LogFacts(1, 100, 20), RULES._replace(major_due=False), Action.REWRITE, "20% live"),
        (
            LogFacts(1, 100, 20),
            RULES._replace(major_due=False, minor_due=False),
            Action.KEEP,
            "20% live, waits for the next minor compaction",
        ),
        (
            LogFacts(1, 100, 50),
            RULES._replace(room_bytes=49),
            Action.KEEP,
            "50% live, no room to rewrite: 50 bytes are wanted, 49 allowed",
        ),
        (
            LogFacts(1, 100, 90, quarantined=(7, 12_000)),
            RULES,
            Action.KEEP,
            "90% live, above 80%; ledger 7 is in quarantine for 12 s more",
        ),
    ],
)
def test_every_log_has_a_decision_and_a_reason(
    log: LogFacts, rules: Rules, action: Action, words: str
) -> None:
    assert reason(log, rules) == (action, words)


def test_what_costs_nothing_comes_first_then_the_emptiest() -> None:
    logs = [
        LogFacts(1, 100, 60),
        LogFacts(2, 100, 10),
        LogFacts(3, 100, 0),
        LogFacts(4, 100, 30),
        LogFacts(5, 100, 95),
        LogFacts(6, 100, 0, current=True),
    ]
    assert [one.log_id for one in plan(logs, RULES)] == [3, 2, 4, 1, 5, 6]


def test_each_log_that_goes_makes_room_for_the_next() -> None:
    logs = [LogFacts(1, 100, 0), LogFacts(2, 100, 40), LogFacts(3, 100, 70)]
    decisions = plan(logs, RULES._replace(room_bytes=0))
    assert [one.action for one in decisions] == [Action.UNLINK, Action.REWRITE, Action.REWRITE]
    decisions = plan(logs[1:], RULES._replace(room_bytes=0))
    assert {one.action for one in decisions} == {Action.KEEP}


def test_a_full_disk_frees_what_is_dead_without_any_room() -> None:
    assert plan([LogFacts(1, 100, 0)], RULES._replace(room_bytes=-5)) == [
        Decision(1, Action.UNLINK, "nothing in it is live")
    ]


def test_a_ledger_is_confirmed_a_quarantine_after_it_was_first_seen_gone() -> None:
    quarantine = Quarantine(100)
    assert quarantine.round(1000, [7], [8]) == Verdict([7], [], [])
    assert quarantine.round(1099, [7], [8]) == Verdict([], [], [])
    assert quarantine.left_ms(1099) == {7: 1}
    assert quarantine.round(1100, [7], [8]) == Verdict([], [], [7])
    quarantine.forget(7)
    assert len(quarantine) == 0


def test_a_ledger_that_reappears_begins_anew() -> None:
    quarantine = Quarantine(100)
    quarantine.round(0, [7], [])
    assert quarantine.round(50, [], [7]) == Verdict([], [7], [])
    assert quarantine.round(200, [7], []) == Verdict([7], [], [])


def test_silence_neither_confirms_nor_releases() -> None:
    quarantine = Quarantine(100)
    quarantine.round(0, [7], [])
    assert quarantine.round(500, [], []) == Verdict([], [], [])
    assert quarantine.round(501, [7], []) == Verdict([], [], [7])


def test_the_quarantine_is_bounded() -> None:
    quarantine = Quarantine(0, ledgers_max=2)
    assert quarantine.round(0, [1, 2, 3], []).entered == [1, 2]
    assert quarantine.round(1, [1, 2, 3], []).confirmed == [1, 2]
    quarantine.forget(1)
    quarantine.forget(2)
    assert quarantine.round(2, [3], []).entered == [3]


def test_the_one_that_waits_longest_is_named() -> None:
    assert longest([1, 2, 3], {1: 5, 3: 9}) == (3, 9)
    assert longest([1], {}) is None


sightings = st.lists(
    st.tuples(st.integers(0, 60), st.dictionaries(st.integers(0, 3), st.booleans())), max_size=25
)


@given(st.integers(0, 100), sightings)
def test_nothing_is_confirmed_that_was_seen_in_between(
    quarantine_ms: int, rounds: list[tuple[int, dict[int, bool]]]
) -> None:
    """The whole history proves it: missing at two rounds far enough apart, never present in
    between."""
    quarantine = Quarantine(quarantine_ms)
    history: list[tuple[int, dict[int, bool]]] = []
    now_ms = 0
    for step_ms, seen in rounds:
        now_ms += step_ms
        gone = [ledger_id for ledger_id, is_gone in seen.items() if is_gone]
        present = [ledger_id for ledger_id, is_gone in seen.items() if not is_gone]
        verdict = quarantine.round(now_ms, gone, present)
        wanted = []
        for ledger_id in gone:
            since_ms = now_ms
            for then_ms, then in reversed(history):
                if then.get(ledger_id) is False:
                    break
                if then.get(ledger_id):
                    since_ms = then_ms
            known = any(then.get(ledger_id) for _, then in history)
            if known and now_ms - since_ms >= quarantine_ms and since_ms != now_ms:
                wanted.append(ledger_id)
        confirmed = [found for found in verdict.confirmed if quarantine_ms > 0]
        if quarantine_ms > 0:
            assert confirmed == wanted
        history.append((now_ms, seen))


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.integers(1, 100)).map(lambda p: (max(p), min(p))),
        min_size=3,
        max_size=8,
    ),
    st.integers(1, 60),
)
def test_what_is_planned_fits_at_each_step(sizes: list[tuple[int, int]], room: int) -> None:
    logs = [LogFacts(number, size, live) for number, (size, live) in enumerate(sizes)]
    of = {log.log_id: log for log in logs}
    for decision in plan(logs, RULES._replace(major_ratio=1.0, room_bytes=room)):
        log = of[decision.log_id]
        if decision.action is Action.REWRITE:
            assert log.live_bytes <= room, f"log {log.log_id} is copied before the old one goes"
        if decision.action is not Action.KEEP:
            room += log.bytes - log.live_bytes
