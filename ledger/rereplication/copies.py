"""Compute which entries a bookie must hold, and which bookies replace a lost bookie. Pure.

A *stretch* is the part of a fragment whose holders no writer will change any more: all of a closed
ledger, and every fragment of an open ledger but the last. A *hole* is a position of a stretch whose
bookie is lost. Every process with the same view of the cluster computes the same adopter of a hole,
so no agreement is needed: with different views two bookies copy the same bytes, and the
compare-and-set of the record accepts one of them.
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
"""(first, last), both included."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Entries `first` … `last` of a fragment; `last` = `first` − 1 if there are none."""

    fragment: Fragment
    last: int

    @property
    def first(self) -> int:
        """The first entry of the fragment."""
        return self.fragment.first_entry


def stretches(metadata: LedgerMetadata) -> list[Stretch]:
    """Return the stretches of the ledger that can be copied, ascending."""
    ends = [fragment.first_entry - 1 for fragment in metadata.fragments[1:]]
    if metadata.state is LedgerState.CLOSED:
        ends = [min(end, metadata.last_entry) for end in (*ends, metadata.last_entry)]
    settled = zip(metadata.fragments, ends, strict=False)
    return [Stretch(found, max(end, found.first_entry - 1)) for found, end in settled]


def tail_of(metadata: LedgerMetadata) -> tuple[str, ...]:
    """Return the bookies that get the adds of an open ledger; empty for a closed ledger."""
    closed = metadata.state is LedgerState.CLOSED
    return () if closed else metadata.fragments[-1].bookies


def names(metadata: LedgerMetadata) -> set[str]:
    """Return every bookie that the record names."""
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


def missing(quorum: Quorum, position: int, first: int, last: int, held: list[Range]) -> list[Range]:
    """Return the ranges of `first` … `last` that `position` must hold and that `held` lacks.

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
    """Choose a bookie for each position whose bookie is lost, as far as there are bookies.

    Every process with the same `candidates` gets the same result. `first` tells the ledger's
    fragments apart, so that the copies of a lost bookie spread over all bookies.
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
    """Return the record with `to` at this position; None if the fragment has changed meanwhile."""
    if fragment not in metadata.fragments or to in fragment.bookies:
        return None
    bookies = list(fragment.bookies)
    bookies[position] = to
    changed = Fragment(fragment.first_entry, tuple(bookies))
    fragments = tuple(changed if found == fragment else found for found in metadata.fragments)
    return replace(metadata, fragments=fragments)
