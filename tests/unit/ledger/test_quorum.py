"""Quorum arithmetic against a slow reference that enumerates ack sets, for all small shapes."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest

from octavo.ledger.quorum import Acks, Quorum, risk_of

SHAPES = [
    Quorum(e, qw, qa) for e in range(1, 7) for qw in range(1, e + 1) for qa in range(1, qw + 1)
]


def subsets(size: int) -> Iterator[set[int]]:
    for count in range(size + 1):
        yield from map(set, itertools.combinations(range(size), count))


def slow_write_set(quorum: Quorum, entry_id: int) -> set[int]:
    return {(entry_id + k) % quorum.ensemble_size for k in range(quorum.write_quorum)}


def slow_ack_sets(quorum: Quorum, entry_id: int) -> list[set[int]]:
    """Yield every set of bookies whose acks alone confirm the entry."""
    members = sorted(slow_write_set(quorum, entry_id))
    return [set(chosen) for chosen in itertools.combinations(members, quorum.ack_quorum)]


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_write_sets(quorum: Quorum) -> None:
    for entry_id in range(3 * quorum.ensemble_size):
        expected = slow_write_set(quorum, entry_id)
        assert set(quorum.write_set(entry_id)) == expected
        for position in range(quorum.ensemble_size):
            assert quorum.holds(position, entry_id) == (position in expected)
            following = next(
                e for e in itertools.count(entry_id + 1) if position in slow_write_set(quorum, e)
            )
            assert quorum.next_held(position, entry_id) == following


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_fence_coverage_is_when_no_ack_set_is_left_unfenced(quorum: Quorum) -> None:
    """P26: over every window, not by a count of answers (BookKeeper PR #2281)."""
    for answered in subsets(quorum.ensemble_size):
        unfenced_ack_set = any(
            not acks & answered
            for entry_id in range(quorum.ensemble_size)
            for acks in slow_ack_sets(quorum, entry_id)
        )
        assert quorum.covers(answered) == (not unfenced_ack_set)


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_writable_is_when_every_write_set_has_an_ack_set(quorum: Quorum) -> None:
    for live in subsets(quorum.ensemble_size):
        possible = all(
            any(acks <= live for acks in slow_ack_sets(quorum, entry_id))
            for entry_id in range(quorum.ensemble_size)
        )
        assert quorum.writable(live) == possible


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_denials_are_the_fewest_that_meet_every_ack_set(quorum: Quorum) -> None:
    """P27: this many denials prove that an entry was never acked, and one fewer does not."""
    members = sorted(slow_write_set(quorum, 0))

    def prove(count: int) -> bool:
        return all(
            set(denying) & acks
            for denying in itertools.combinations(members, count)
            for acks in slow_ack_sets(quorum, 0)
        )

    assert prove(quorum.denials)
    assert not prove(quorum.denials - 1)


def slow_confirmed(quorum: Quorum, stored: set[tuple[int, int]], last_pushed: int) -> int:
    """By definition: gapless per position, then in order."""

    def gapless(position: int, entry_id: int) -> bool:
        return all(
            (position, e) in stored
            for e in range(entry_id + 1)
            if position in slow_write_set(quorum, e)
        )

    confirmed = -1
    while confirmed < last_pushed:
        entry_id = confirmed + 1
        count = sum(gapless(p, entry_id) for p in slow_write_set(quorum, entry_id))
        if count < quorum.ack_quorum:
            break
        confirmed = entry_id
    return confirmed


@pytest.mark.parametrize("quorum", [q for q in SHAPES if q.ensemble_size <= 3], ids=str)
def test_acks_in_every_order(quorum: Quorum) -> None:
    last = 1 if quorum.write_quorum == 3 else 2
    singles = [(p, e) for e in range(last + 1) for p in slow_write_set(quorum, e)]
    for order in itertools.permutations(singles):
        acks, stored, confirmed = Acks(quorum, -1), set[tuple[int, int]](), -1
        for position, entry_id in order:
            acks.add(position, entry_id, entry_id)
            stored.add((position, entry_id))
            confirmed = acks.confirmed(confirmed, last)
            assert confirmed == slow_confirmed(quorum, stored, last), order
        assert confirmed == last


@pytest.mark.parametrize("quorum", SHAPES, ids=str)
def test_acks_of_random_ranges_with_repeats(quorum: Quorum) -> None:
    rng = random.Random(str(quorum))
    for _ in range(20):
        acks, stored, confirmed, last = Acks(quorum, -1), set[tuple[int, int]](), -1, 11
        for _ in range(60):
            position = rng.randrange(quorum.ensemble_size)
            first = rng.randrange(last + 1)
            end = min(last, first + rng.randrange(4))
            acks.add(position, first, end)
            stored |= {(position, e) for e in range(first, end + 1)}
            confirmed = acks.confirmed(confirmed, last)
            assert confirmed == slow_confirmed(quorum, stored, last)


def test_a_bookie_that_joins_has_acked_nothing() -> None:
    acks = Acks(Quorum(3, 3, 2), -1)
    acks.add(0, 0, 9)
    acks.add(1, 0, 9)
    acks.add(1, 12, 12)
    acks.join(1, 4)
    assert acks.confirmed(4, 9) == 4
    acks.add(1, 5, 11)
    assert acks.acked_to == [9, 11, -1], "what came early to the replaced bookie is forgotten"
    assert acks.confirmed(4, 9) == 9


@pytest.mark.parametrize(
    ("write_quorum", "ack_quorum", "risky"),
    [(3, 1, True), (2, 1, True), (1, 1, False), (3, 2, False), (2, 2, False), (3, 3, False)],
)
def test_an_ack_quorum_of_one_beside_more_copies_is_a_risk(
    write_quorum: int, ack_quorum: int, risky: bool
) -> None:
    """`Qa 1 of Qw 3` was accepted silently."""
    said = risk_of(write_quorum, ack_quorum)
    assert bool(said) == risky
    assert not risky or f"write_quorum {write_quorum}" in said
