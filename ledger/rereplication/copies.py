"""Compute which entries a bookie must hold, and which bookies replace a lost bookie. Pure.

A *stretch* is a part whose holders no writer will change any more: all of a closed ledger, and
every fragment of an open ledger but the last. Processes with the same view choose the same
adopters, without agreement; with different views two bookies copy the same bytes, and the record's
compare-and-set accepts one.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from octavo.ledger.bookies.placement import choose_replacements
from octavo.ledger.quorum import Quorum
from octavo.metadata.bookies import BookieInfo
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stretch:
    """`last` = `first` − 1 if there are none."""

    fragment: Fragment
    last: int

    @property
    def first(self) -> int:
        return self.fragment.first_entry


def stretches(metadata: LedgerMetadata) -> list[Stretch]:
    """Return the ledger's fragments as ranges of entries, ascending."""
    ends = [fragment.first_entry - 1 for fragment in metadata.fragments[1:]]
    if metadata.state is LedgerState.CLOSED:
        ends = [min(end, metadata.last_entry) for end in (*ends, metadata.last_entry)]
    settled = zip(metadata.fragments, ends, strict=False)
    return [Stretch(found, max(end, found.first_entry - 1)) for found, end in settled]


def tail_of(metadata: LedgerMetadata) -> tuple[str, ...]:
    """Return the bookies that get the adds of an open ledger; empty for a closed one."""
    closed = metadata.state is LedgerState.CLOSED
    return () if closed else metadata.fragments[-1].bookies


def names(metadata: LedgerMetadata) -> set[str]:
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


def missing(quorum: Quorum, position: int, first: int, last: int, held: list[Range]) -> list[Range]:
    """Return what `position` must hold, and `held` lacks.

    `held` is ascending and joined; the result ascends.
    """
    return [
        run for gap in _gaps(first, last, held) for run in _write_sets_with(quorum, position, *gap)
    ]


def _gaps(first: int, last: int, held: Iterable[Range]) -> Iterator[Range]:
    for start, end in held:
        if end < first:
            continue
        if start > last:
            break
        if start > first:
            yield first, start - 1
        first = end + 1
    if first <= last:
        yield first, last


def _write_sets_with(quorum: Quorum, position: int, first: int, last: int) -> Iterator[Range]:
    if quorum.everywhere:
        yield first, last
        return
    while (start := quorum.next_held(position, first - 1)) <= last:
        end = start
        while end < last and quorum.holds(position, end + 1):
            end += 1
        yield start, end
        first = end + 1


def adopters(
    metadata: LedgerMetadata,
    bookies: tuple[str, ...],
    first: int,
    lost: Collection[str],
    candidates: Mapping[str, BookieInfo],
) -> dict[int, str]:
    """Choose a bookie for each lost position, as far as there are bookies.

    The same `candidates` give the same result. `first`, the fragment's, spreads the copies of a
    lost bookie.
    """
    holes = [position for position, bookie in enumerate(bookies) if bookie in lost]
    rng = random.Random(f"{metadata.ledger_id}/{first}")
    # Ignore free space: each bookie may have read it at another time.
    return choose_replacements(
        candidates, bookies, holes, metadata.write_quorum, rng=rng, weight_max=1
    )


def moved(
    metadata: LedgerMetadata, fragment: Fragment, position: int, to: str
) -> LedgerMetadata | None:
    """Put `to` at this position; None if the fragment has changed."""
    if fragment not in metadata.fragments or to in fragment.bookies:
        return None
    bookies = list(fragment.bookies)
    bookies[position] = to
    changed = Fragment(fragment.first_entry, tuple(bookies))
    fragments = tuple(changed if found == fragment else found for found in metadata.fragments)
    return replace(metadata, fragments=fragments)
