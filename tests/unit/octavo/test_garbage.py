"""Full collections look at what is new; at all only when twice as many are set aside."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from octavo.process.garbage import SetAside


class Knot:
    """It refers to itself: only a collection finds that nobody else does."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture
def aside() -> Iterator[SetAside]:
    before = list(gc.callbacks)
    found = SetAside()
    found.begin()
    yield found
    found.end()
    found.end()
    assert gc.callbacks == before
    assert gc.get_freeze_count() == 0


def test_new_garbage_goes_and_what_is_set_aside_is_not_looked_at(aside: SetAside) -> None:
    knots = [Knot() for _ in range(1_000)]
    gc.collect()
    told = [weakref.ref(knot) for knot in knots]
    knots.clear()
    new = weakref.ref(Knot())
    gc.collect()
    assert new() is None
    assert all(one() is not None for one in told), "they were set aside while they were in use"


def test_all_are_looked_at_when_twice_as_many_are_set_aside(aside: SetAside) -> None:
    knots = [Knot() for _ in range(1_000)]
    gc.collect()
    told = [weakref.ref(knot) for knot in knots]
    knots.clear()
    kept = [[None] for _ in range(gc.get_freeze_count() + 10_000)]
    gc.collect()
    gc.collect()
    assert not any(one() for one in told)
    assert gc.get_freeze_count() > len(kept)


def test_a_young_collection_sets_nothing_aside(aside: SetAside) -> None:
    before = gc.get_freeze_count()
    kept = [[None] for _ in range(2_000)]
    gc.collect(1)
    assert gc.get_freeze_count() < before + len(kept)
