"""Backlog quotas: how much is kept for a subscription, which has too much, and what would be
enough.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.policies import Backlog, Quota, Stored, bytes_from, room_from

ledgers = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5_000)), max_size=6)


def laid(parts: list[tuple[int, int]], start: int = 7) -> list[Stored]:
    found = []
    for count, size in parts:
        found.append(Stored(start, start + count, size))
        start += count
    return found


@given(parts=ledgers, bytes_max=st.integers(0, 20_000))
def test_what_is_evicted_to_fits_and_no_more_is_evicted_than_has_to(
    parts: list[tuple[int, int]], bytes_max: int
) -> None:
    stored = laid(parts)
    first = room_from(bytes_max, stored)
    assert bytes_from(first, stored) <= bytes_max
    if stored and first > stored[0].start:
        assert bytes_from(first - 1, stored) > bytes_max
    if stored:
        assert stored[0].start <= first <= stored[-1].end


@given(parts=ledgers)
def test_bytes_grow_towards_the_beginning(parts: list[tuple[int, int]]) -> None:
    stored = laid(parts)
    end = stored[-1].end if stored else 7
    sizes = [bytes_from(offset, stored) for offset in range(end + 2)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == sum(part.bytes for part in stored)
    assert sizes[end] == 0


def test_the_slowest_is_named_with_figures() -> None:
    quota = Quota(1_000, 60_000)
    fast = Backlog("fast", 90, 1_000, 60_000)
    large = Backlog("large", 5, 3_000, 1_000)
    old = Backlog("old", 40, 10, 90_000)
    assert quota.slowest([fast]) is None, "the bound itself is no excess"
    assert quota.slowest([fast, old, large]) == large
    assert quota.slowest([fast, old]) == old
    assert Quota(None, None).slowest([large, old]) is None
    assert Quota(None, 60_000).slowest([large, old]) == old
    assert "'large'" in quota.said_of(large)
    assert "offset 5" in quota.said_of(large)
    assert "3000 bytes are kept for it, and the quota is 1000" in quota.said_of(large)
    assert "90 s old, and the quota is 60 s" in quota.said_of(old)
    assert ";" not in quota.said_of(old)
