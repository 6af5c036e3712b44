"""Which bookies must hold an entry, and how many answers are enough. Pure; only `Acks` has state.

A fragment's ensemble is a ring of E positions. Entry e's *write set* is the Qw positions (e + k)
mod E, k = 0 … Qw−1; the entry is durable when Qa of these bookies stored it. Everything else
follows:

    an entry was perhaps acked      unless Qw − Qa + 1 of its write set deny having it
    a fence holds everywhere        when each window of Qw positions has Qw − Qa + 1 answers
    a ledger can still be written   while each window of Qw positions has Qa live bookies

Count windows, never answers: with E > Qw, Qw − Qa + 1 answers may leave a write set uncovered
(BookKeeper PR #2281, #2303). tests/unit/ledger/test_placement.py compares each function with a slow
reference.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.metadata.ledgers import LedgerMetadata


@dataclass(frozen=True, slots=True)
class Quorum:
    ensemble_size: int
    write_quorum: int
    ack_quorum: int

    def __post_init__(self) -> None:
        assert self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1

    @property
    def denials(self) -> int:
        """Return how many denials of a write set prove that an entry was never acked."""
        return self.write_quorum - self.ack_quorum + 1

    @property
    def everywhere(self) -> bool:
        """Whether every bookie of the ensemble holds every entry (E = Qw)."""
        return self.ensemble_size == self.write_quorum

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return the positions that hold `entry_id`, in the order readers prefer."""
        size = self.ensemble_size
        return tuple((entry_id + k) % size for k in range(self.write_quorum))

    def holds(self, position: int, entry_id: int) -> bool:
        return (position - entry_id) % self.ensemble_size < self.write_quorum

    def next_held(self, position: int, after: int) -> int:
        """Return the first entry above `after` whose write set has `position`."""
        offset = (position - after - 1) % self.ensemble_size
        # Each next entry lowers the offset by one: no entry is held while it is in Qw … E−1.
        return after + 1 + max(0, offset - self.write_quorum + 1)

    def covers(self, answered: Collection[int]) -> bool:
        """Whether `answered` leaves no write set in which Qa bookies could still be unfenced."""
        return self._every_window_has(answered, self.denials)

    def writable(self, live: Collection[int]) -> bool:
        return self._every_window_has(live, self.ack_quorum)

    def _every_window_has(self, positions: Collection[int], count: int) -> bool:
        return all(
            sum(position in positions for position in self.write_set(start)) >= count
            for start in range(self.ensemble_size)
        )


def risk_of(write_quorum: int, ack_quorum: int) -> str:
    """Say what is risky in an ack quorum of 1 with several copies; else empty."""
    if ack_quorum > 1 or write_quorum == 1:
        return ""
    return (
        f"ack_quorum is 1 of write_quorum {write_quorum}: a message counts as stored when a single "
        "bookie has it. If that bookie is lost before the others have it, the message is lost too; "
        f"and after a crash of the writer its ledger can be recovered only once all {write_quorum} "
        "bookies answer. 2 is the usual choice"
    )


def quorum_of(metadata: LedgerMetadata) -> Quorum:
    return Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)


class Acks:
    """How far each position has acked without gaps: a range of any length costs O(1).

    `acked_to[p] = a`: position p has stored every entry in (base, a] that it must hold; base is
    where p joined. Early ranges wait in `_early`. This confirms an entry later than BookKeeper
    would, never earlier.
    """

    __slots__ = ("_early", "acked_to", "quorum")

    def __init__(self, quorum: Quorum, base: int) -> None:
        self.quorum = quorum
        self.acked_to = [base] * quorum.ensemble_size
        self._early: dict[int, list[tuple[int, int]]] = {}

    def join(self, position: int, base: int) -> None:
        """Count a new bookie's acks from `base`: it has acked nothing above."""
        self.acked_to[position] = base
        self._early.pop(position, None)

    def add(self, position: int, first: int, last: int) -> None:
        """Count an ack of all of `first` … `last` that the position must hold."""
        reached = self.acked_to[position]
        if first > reached + 1 and first > self.quorum.next_held(position, reached):
            heappush(self._early.setdefault(position, []), (first, last))
            return
        if last > reached:
            self.acked_to[position] = last
        if position in self._early:
            self._absorb(position)

    def _absorb(self, position: int) -> None:
        early = self._early[position]
        reached = self.acked_to[position]
        while early and early[0][0] <= self.quorum.next_held(position, reached):
            reached = max(reached, heappop(early)[1])
        self.acked_to[position] = reached
        if not early:
            del self._early[position]

    def confirmed(self, last_confirmed: int, last_pushed: int) -> int:
        """Return the last entry up to which Qa bookies of each write set store every entry."""
        quorum = self.quorum
        if quorum.everywhere:
            reached = sorted(self.acked_to)[quorum.ensemble_size - quorum.ack_quorum]
            return max(last_confirmed, min(reached, last_pushed))
        while last_confirmed < last_pushed and self._enough(last_confirmed + 1):
            last_confirmed += 1
        return last_confirmed

    def _enough(self, entry_id: int) -> bool:
        acked_to = self.acked_to
        stored = sum(acked_to[p] >= entry_id for p in self.quorum.write_set(entry_id))
        return stored >= self.quorum.ack_quorum
