"""Read-ahead: each reader has its share, and readers that left have none."""

from __future__ import annotations

import pytest

from octavo.bookie.read import read_ahead
from octavo.bookie.read.read_ahead import ReadAhead

KIB = 1024
AHEAD, CACHE = 1024 * KIB, 64 * 1024 * KIB


def test_a_reader_that_goes_on_gets_more_each_time_up_to_the_bound() -> None:
    found = ReadAhead(AHEAD, CACHE)
    windows = []
    at = 0
    for _ in range(6):
        window, entries = found.window(1, at, 0.0)
        windows.append(window)
        assert entries == (10 if at else 1)
        found.ended(1, at, at + 9, window, 0.0)
        at += 10
    assert windows == [0, 128 * KIB, 256 * KIB, 512 * KIB, AHEAD, AHEAD]
    assert found.window(1, at + 1, 0.0) == (0, 1), "a jump begins anew"


def test_readers_share_half_of_the_cache() -> None:
    found = ReadAhead(AHEAD, 2 * AHEAD)
    for ledger in range(4):
        for at in range(6):
            found.ended(ledger, at, at, AHEAD, 0.0)
    assert {found.window(ledger, 6, 1.0)[0] for ledger in range(4)} == {2 * AHEAD // 8}


@pytest.mark.parametrize(("silent_s", "share"), [(4.999, 4), (5.0, 1), (5.001, 1)])
def test_those_that_are_silent_give_their_share_back(silent_s: float, share: int) -> None:
    found = ReadAhead(AHEAD, 2 * AHEAD)
    for ledger in range(3):
        found.ended(ledger, 0, 0, AHEAD, 10.0)
    for at in range(6):
        found.ended(9, at, at, AHEAD, 10.0 + silent_s)
    assert found.window(9, 6, 10.0 + silent_s)[0] == min(AHEAD, AHEAD // share)


def test_as_many_are_known_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with readers that jump, each of which leaves an unused place behind."""
    monkeypatch.setattr(read_ahead, "_READERS_MAX", 3)
    found = ReadAhead(AHEAD, CACHE)
    for ledger in range(4):
        found.ended(ledger, 0, 0, 0, float(ledger))
        assert len(found._readers) == min(3, ledger + 1)
    assert [found.window(ledger, 1, 3.0)[0] > 0 for ledger in range(4)] == [False, True, True, True]
