"""Audit events: which are logged singly, which are counted, and that the counts miss none."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from octavo.security.audit import DENIALS_TOLD, WINDOW_S, AuditBook, Decided, Deed, deed_of
from octavo.security.principal import Identity
from octavo.security.rules import Kind, Operation, Resource

ALICE = Identity("user:alice", source="token")
ORDERS = Resource(Kind.TOPIC, "payments/orders")


def deed(operation: Operation, allowed: bool = True, who: str = "alice", peer: str = "p") -> Deed:
    return deed_of(Decided(Identity(f"user:{who}"), operation, ORDERS, allowed, peer))


def test_what_administers_is_told_each_time() -> None:
    book = AuditBook()
    for operation in (Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.ADMIN):
        assert all(book.note(deed(operation), 0.0) for _ in range(50))
    assert book.due(1000.0) == []


def test_producing_is_told_once_and_then_counted_once_a_minute() -> None:
    book = AuditBook()
    assert [book.note(deed(Operation.PRODUCE), at / 10) for at in range(5)] == [True] + [False] * 4
    assert book.due(WINDOW_S - 1) == []
    assert [(told.deed.operation, told.count) for told in book.due(WINDOW_S)] == [("produce", 4)]
    assert not book.note(deed(Operation.PRODUCE), WINDOW_S + 1), "it goes on"
    assert [told.count for told in book.due(2 * WINDOW_S)] == [1]
    assert book.due(3 * WINDOW_S) == []
    assert book.note(deed(Operation.PRODUCE), 3 * WINDOW_S + 1), "it was over"


def test_denials_are_told_until_there_are_many() -> None:
    book = AuditBook()
    told = [book.note(deed(Operation.PRODUCE, False), 0.0) for _ in range(DENIALS_TOLD + 7)]
    assert sum(told) == DENIALS_TOLD
    assert book.note(deed(Operation.PRODUCE, False, peer="q"), 0.0), "from elsewhere"
    assert [(one.deed.allowed, one.count) for one in book.due(WINDOW_S)] == [(False, 7)]
    assert book.note(deed(Operation.PRODUCE, False), WINDOW_S + 1), "a new minute"


def test_what_nodes_may_and_what_is_only_looked_at_is_not_told() -> None:
    book = AuditBook()
    node = Identity("node:b1")
    assert not book.wants(node, Operation.PRODUCE, True)
    assert book.wants(node, Operation.PRODUCE, False)
    assert not book.wants(ALICE, Operation.DESCRIBE, True)
    assert book.wants(ALICE, Operation.DESCRIBE, False)
    assert book.wants(ALICE, Operation.CONSUME, True)


@given(
    steps=st.lists(
        st.tuples(
            st.floats(0, 40),
            st.sampled_from([Operation.PRODUCE, Operation.CONSUME]),
            st.booleans(),
            st.sampled_from("abcde"),
        ),
        max_size=150,
    ),
    kept=st.integers(1, 4),
)
def test_each_deed_is_told_or_counted_once(
    steps: list[tuple[float, Operation, bool, str]], kept: int
) -> None:
    """Also with room for few; and never more subjects than there is room for."""
    book = AuditBook(kept)
    now_s = 0.0
    done: Counter[tuple[str, bool]] = Counter()
    told: Counter[tuple[str, bool]] = Counter()
    for pause_s, operation, allowed, who in steps:
        now_s += pause_s
        one = deed(operation, allowed, who)
        done[one.principal, allowed] += 1
        if book.note(one, now_s):
            told[one.principal, allowed] += 1
        for found in book.due(now_s):
            told[found.deed.principal, found.deed.allowed] += found.count
        assert len(book._counted) <= kept
    for found in book.due(now_s, all_of_it=True):
        told[found.deed.principal, found.deed.allowed] += found.count
    assert told == done
