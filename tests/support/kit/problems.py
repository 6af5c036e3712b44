"""What a checker says: one broken promise, the operations that show it, and a sentence."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.kit.history import Operation


class Kind(enum.StrEnum):
    """The promise that is broken."""

    # Of a log: topics' partitions, and ledgers where it makes sense.
    LOST = "lost"
    """Acked, and readers went past its place without meeting it."""
    UNSEEN = "unseen"
    """Acked or read by others, and not there when somebody has read to the end."""
    PHANTOM = "phantom"
    """Read, but nobody sent it, or its send surely failed, or it was not sent yet."""
    DUPLICATE = "duplicate"
    """One message at two places."""
    REORDERED = "reordered"
    """One producer's messages stand in another order than they were sent in."""
    REAL_TIME = "real-time"
    """Acked before another was sent, and stands behind it."""
    INCONSISTENT = "inconsistent"
    """Two contents at one place."""
    MOVED = "moved"
    """Acked at one place, read at another."""
    HOLE = "hole"
    """An offset that holds nothing, with others behind it."""

    # Of readers.
    NONMONOTONIC = "nonmonotonic"
    """An ordered reader was taken back."""
    SKIPPED = "skipped"
    """An ordered reader was led past what others have read."""

    # Of subscriptions.
    CURSOR_REGRESS = "cursor-regress"
    """The committed offset went back, or does not know of durable acks."""
    MARK_OVER_UNACKED = "mark-over-unacked"
    """The committed offset passed a message that nobody acknowledged."""
    REDELIVERED = "redelivered"
    """Delivered although its ack was durable."""

    # Of ledgers.
    LAC_BACK = "lac-back"
    LAC_STALE = "lac-stale"
    """Below what the same process has been told already, or after a drain below what is acked."""
    LAC_AHEAD = "lac-ahead"
    """Above everything that was ever added, or above the end."""
    UNCONFIRMED = "unconfirmed"
    """Read above the LAC that the reader knew."""
    DIVERGED = "diverged"
    """Two contents of one entry."""
    TWO_ENDS = "two-ends"
    ACK_BEYOND_END = "ack-beyond-end"
    READ_BEYOND_END = "read-beyond-end"
    ACK_AFTER_FENCE = "ack-after-fence"
    ACK_DISORDER = "ack-disorder"
    """An ack came before the ack of an earlier entry."""

    NOT_LINEARIZABLE = "not-linearizable"


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken promise."""

    kind: Kind
    sentence: str
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.kind}: {self.sentence}", *map(str, self.operations)])


def kinds(problems: Iterable[Problem]) -> set[Kind]:
    return {one.kind for one in problems}


def report(problems: Sequence[Problem], shown_max: int = 10) -> str:
    """The count of each kind, and the first of each kind in full."""
    counts = Counter(one.kind for one in problems)
    head = ", ".join(f"{count} × {kind}" for kind, count in counts.most_common())
    rank: Counter[Kind] = Counter()
    ranked: list[tuple[int, Problem]] = []
    for one in problems:
        ranked.append((rank[one.kind], one))
        rank[one.kind] += 1
    ranked.sort(key=lambda pair: pair[0])
    return "\n  ".join(
        [f"{len(problems)} problems: {head}", *(str(p) for _, p in ranked[:shown_max])]
    )
