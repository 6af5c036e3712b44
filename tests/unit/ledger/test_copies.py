"""Which entries a bookie is to hold, against the definition; which bookie adopts a fragment."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from octavo.ledger.quorum import Quorum
from octavo.ledger.rereplication.copies import adopters, missing, moved, stretches, tail_of
from octavo.metadata.bookies import BookieInfo
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState

OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    fragments=(Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "d", "c"))),
)


def closed_at(last: int) -> LedgerMetadata:
    return replace(OPEN, state=LedgerState.CLOSED, last_entry=last)


def infos(*names: str, **properties: str) -> dict[str, BookieInfo]:
    return {name: BookieInfo(name, name, 1, properties=properties) for name in names}


def test_of_an_open_ledger_all_but_the_last_fragment_can_be_copied() -> None:
    assert [(s.first, s.last) for s in stretches(OPEN)] == [(0, 9)]
    assert tail_of(OPEN) == ("a", "d", "c")


@pytest.mark.parametrize(
    ("last", "found"),
    [
        (12, [(0, 9), (10, 12)]),
        (9, [(0, 9), (10, 9)]),
        (4, [(0, 4), (10, 9)]),
        (-1, [(0, -1), (10, 9)]),
    ],
)
def test_of_a_closed_ledger_all_that_it_has(last: int, found: list[tuple[int, int]]) -> None:
    assert [(s.first, s.last) for s in stretches(closed_at(last))] == found
    assert tail_of(closed_at(last)) == ()


def test_missing_is_what_the_write_sets_say_less_what_is_held() -> None:
    rng = random.Random(4)
    for _ in range(2_000):
        size = rng.randint(1, 6)
        quorum = Quorum(size, rng.randint(1, size), 1)
        first = rng.randint(0, 20)
        last = first + rng.randint(0, 30)
        held = {entry_id for entry_id in range(60) if rng.random() < rng.choice((0.1, 0.9))}
        position = rng.randrange(size)
        found = missing(quorum, position, first, last, joined(held))
        listed = [entry_id for a, b in found for entry_id in range(a, b + 1)]
        assert listed == [
            entry_id
            for entry_id in range(first, last + 1)
            if position in quorum.write_set(entry_id) and entry_id not in held
        ]
        assert all(before[1] < after[0] for before, after in itertools.pairwise(found))


def joined(entries: set[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for entry_id in sorted(entries):
        if runs and runs[-1][1] == entry_id - 1:
            runs[-1] = (runs[-1][0], entry_id)
        else:
            runs.append((entry_id, entry_id))
    return runs


def test_everybody_finds_the_same_adopter_and_it_is_nobody_who_holds_a_copy() -> None:
    there = infos("a", "c", "d", "e", "f")
    fragment = OPEN.fragments[0]
    found = adopters(closed_at(20), fragment.bookies, 0, {"b"}, there)
    shuffled = dict(reversed(there.items()))
    assert adopters(closed_at(20), fragment.bookies, 0, {"b"}, shuffled) == found
    assert set(found) == {1}
    assert found[1] in {"d", "e", "f"}


def test_the_copies_of_one_bookie_spread_over_all_others() -> None:
    there = infos("a", "c", "d", "e", "f")
    chosen = {
        adopters(replace(OPEN, ledger_id=n), ("a", "b", "c"), 0, {"b"}, there)[1] for n in range(50)
    }
    assert chosen == {"d", "e", "f"}


def test_two_lost_bookies_of_one_ensemble_get_two_adopters() -> None:
    found = adopters(closed_at(20), ("a", "b", "c"), 0, {"a", "b"}, infos("c", "d", "e"))
    assert set(found) == {0, 1}
    assert set(found.values()) == {"d", "e"}


def test_with_nobody_left_nobody_adopts() -> None:
    assert adopters(closed_at(20), ("a", "b", "c"), 0, {"b"}, infos("a", "c")) == {}
    read_only = {"d": BookieInfo("d", "d", 1, read_only=True)}
    assert adopters(closed_at(20), ("a", "b", "c"), 0, {"b"}, read_only) == {}


def test_a_rack_that_the_others_do_not_share_is_preferred() -> None:
    there = infos("a", "c", "d", rack="/r1") | infos("e", rack="/r2")
    for ledger_id in range(20):
        ledger = replace(OPEN, ledger_id=ledger_id)
        assert adopters(ledger, ("a", "b", "c"), 0, {"b"}, there) == {1: "e"}


def test_the_record_changes_in_one_place() -> None:
    ledger = closed_at(20)
    found = moved(ledger, ledger.fragments[0], 1, "e")
    assert found is not None
    assert found.fragments == (Fragment(0, ("a", "e", "c")), ledger.fragments[1])
    assert replace(found, fragments=ledger.fragments) == ledger


def test_a_fragment_that_is_not_as_it_was_is_left_alone() -> None:
    ledger = closed_at(20)
    assert moved(ledger, Fragment(0, ("x", "b", "c")), 1, "e") is None
    assert moved(ledger, ledger.fragments[0], 1, "a") is None, "it has a copy already"
