"""The referee of recreated topics, shown one lie of each kind, and the truth."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.recreate_audit import RecreateAudit

Story = Callable[[RecreateAudit], None]


def made(audit: RecreateAudit) -> RecreateAudit:
    """X is gone, Y exists; `a` was acked into X."""
    audit.made("X")
    audit.sends("a", None)
    audit.acked("a", "X", duplicate=False)
    audit.deletion_begins("X")
    audit.deleted("X")
    audit.made("Y")
    return audit


def acked_late(audit: RecreateAudit) -> None:
    made(audit).sends("b", None)
    audit.acked("b", "X", duplicate=False)


def stored_before(audit: RecreateAudit) -> None:
    made(audit).sends("b", "Y")
    audit.acked("b", "Y", duplicate=True)


def shown_late(audit: RecreateAudit) -> None:
    made(audit).shown("X", ["a"], audit.gone(), vouched=True)


def never_sent(audit: RecreateAudit) -> None:
    made(audit).shown("Y", ["z"], frozenset(), vouched=True)


def in_the_dead_one(audit: RecreateAudit) -> None:
    made(audit).sends("b", None)
    audit.shown("X", ["b"], frozenset(), vouched=True)


def in_both(audit: RecreateAudit) -> None:
    made(audit).shown("Y", ["a"], audit.gone(), vouched=True)


def lost(audit: RecreateAudit) -> None:
    made(audit).sends("b", None)
    audit.acked("b", "Y", duplicate=False)
    audit.whole("Y", [], ["b"])


def foreign_ack(audit: RecreateAudit) -> None:
    made(audit).ack_taken("X", "Y")


@pytest.mark.parametrize(
    ("story", "said"),
    [
        (acked_late, "b was sent after topic 1 was gone, and acked into it"),
        (stored_before, "b: topic 2 says stored before"),
        (shown_late, "topic 1 was gone, and is shown"),
        (never_sent, "z in topic 2 was never sent"),
        (in_the_dead_one, "b was sent after topic 1 was gone, and is in it"),
        (in_both, "a is in topics 1 and 2"),
        (lost, "topic 2: ['b'] were acked and are nowhere"),
        (foreign_ack, "topic 2 took an ack id of topic 1"),
    ],
)
def test_a_lie_is_said(story: Story, said: str) -> None:
    failures: list[str] = []
    story(RecreateAudit(failures.append))
    assert any(said in one for one in failures), failures


def test_the_truth_is_not() -> None:
    failures: list[str] = []
    audit = RecreateAudit(failures.append)
    audit.made("X")
    begun = audit.gone()
    for value in ("a", "b"):
        audit.sends(value, "X")
    audit.acked("a", "X", duplicate=False)
    audit.acked("b", "X", duplicate=True)
    audit.whole("X", ["a"], ["a"])
    audit.ack_taken("X", "X")
    audit.deletion_begins("X")
    audit.whole("X", [], ["a"])
    audit.deleted("X")
    audit.shown("X", ["a"], begun, vouched=True)
    audit.shown("X", ["a"], audit.gone(), vouched=False)
    assert failures == []
