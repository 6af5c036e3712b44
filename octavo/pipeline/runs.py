"""Sets of entry ids as runs: sorted, disjoint `(first, last)` pairs. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

Run = tuple[int, int]
_END = 2**63


def runs_in(numbers: Iterable[int]) -> list[Run]:
    found: list[Run] = []
    for number in numbers:
        if found and found[-1][1] == number - 1:
            found[-1] = (found[-1][0], number)
        else:
            found.append((number, number))
    return found


def without(wanted: list[Run], held: list[Run]) -> list[Run]:
    missing: list[Run] = []
    for first, last in wanted:
        at = max(0, bisect_right(held, (first, _END)) - 1)
        start = first
        while at < len(held) and held[at][0] <= last and start <= last:
            if held[at][1] >= start:
                if held[at][0] > start:
                    missing.append((start, held[at][0] - 1))
                start = held[at][1] + 1
            at += 1
        if start <= last:
            missing.append((start, last))
    return missing


def has(runs: list[Run], number: int) -> bool:
    at = bisect_right(runs, (number, _END)) - 1
    return at >= 0 and runs[at][1] >= number


def count_of(runs: list[Run]) -> int:
    return sum(last - first + 1 for first, last in runs)


def numbers_in(runs: list[Run]) -> Iterator[int]:
    for first, last in runs:
        yield from range(first, last + 1)


def words(runs: list[Run], shown_max: int = 3) -> str:
    """Return text such as `entries 3 to 7, 9 and 2 more runs`."""
    texts = [str(first) if first == last else f"{first} to {last}" for first, last in runs]
    more = len(texts) - shown_max
    tail = f" and {more} more runs" if more > 0 else ""
    return "entries " + ", ".join(texts[:shown_max]) + tail
