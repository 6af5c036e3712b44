"""Why a subscription's unacked messages wait, in words: counts, consumers, until when."""

from __future__ import annotations

from octavo.broker.subscriptions.waits import CONSUMERS_TOLD_MAX, Leased, Waits, told_of

AHEAD_MS = 1_700_000_000_000


def test_nothing_that_waits_is_told_as_nothing() -> None:
    assert told_of(Waits(), 0, 5_000, AHEAD_MS) == []


def test_each_reason_has_its_count_and_its_time() -> None:
    waits = Waits(
        (Leased("quiet", 5, 3, 9, 8_000, 1_000), Leased("b", 1, 12, 12, 6_000, 5_000)),
        2,
        (7_500, 20),
        3,
        AHEAD_MS + 65_000,
        4,
    )
    quiet, b, back, later, moving, refused = told_of(waits, 1, 5_000, AHEAD_MS)
    assert "5 messages are leased to consumer 'quiet' (offsets 3 to 9)" in quiet
    assert "last call was 4.0 s ago: the first of its leases ends in 3.0 s, at 2023-" in quiet
    assert "1 message is leased to consumer 'b' (offset 12)" in b
    assert "its lease ends in 1.0 s" in b
    assert "2 messages are to be delivered again after a delay: offset 20 first, in 2.5 s" in back
    assert "3 messages are not due yet: the first is due in 60.0 s" in later
    assert "4 messages are on the way to the dead-letter or the retry topic" in moving
    assert "the filter does not pass 1 message:" in refused


def test_what_is_due_and_what_no_calendar_has() -> None:
    (due,) = told_of(Waits(not_due=1, not_due_first_ms=AHEAD_MS), 0, 5_000, AHEAD_MS)
    assert "the first is due and waits for a consumer" in due
    (far,) = told_of(Waits(not_due=1, not_due_first_ms=1 << 60), 0, 5_000, AHEAD_MS)
    assert ", at " not in far


def test_consumers_are_bounded() -> None:
    many = tuple(Leased(f"c{n:03}", n + 1, 0, n, 9_000, 0) for n in range(100))
    told = told_of(Waits(many), 0, 5_000, 0)
    assert len(told) == CONSUMERS_TOLD_MAX + 1
    assert "'c099'" in told[0]
    assert told[-1] == "3,240 messages are leased to 80 more consumers"
