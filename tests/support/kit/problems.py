"""The report of a checker: a broken promise, the operations that show it, and a sentence."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.kit.history import Operation


class Kind(enum.StrEnum):
    # Logs: topics' partitions, and ledgers where it applies.
    LOST = "lost"
    """Acked, and readers passed its place without meeting it."""
    UNSEEN = "unseen"
    """Acked or read by another reader, and absent after a read to the end."""
    PHANTOM = "phantom"
    """Read, but never sent, or its send certainly failed, or the send began later."""
    DUPLICATE = "duplicate"
    REORDERED = "reordered"
    """A producer's messages are stored in another order than they were sent."""
    REAL_TIME = "real-time"
    """Acked before another message was sent, but stored after it."""
    INCONSISTENT = "inconsistent"
    MOVED = "moved"
    HOLE = "hole"

    # Readers
    NONMONOTONIC = "nonmonotonic"
    SKIPPED = "skipped"
    """An ordered reader skipped messages that other readers got."""

    # Subscriptions
    CURSOR_REGRESS = "cursor-regress"
    """The committed offset went back, or ignores durable acks."""
    MARK_OVER_UNACKED = "mark-over-unacked"
    """The committed offset passed a message without an ack."""
    REDELIVERED = "redelivered"

    # Ledgers
    LAC_BACK = "lac-back"
    LAC_STALE = "lac-stale"
    """Below an earlier answer to the same process, or after a drain below an acked entry."""
    LAC_AHEAD = "lac-ahead"
    """Above every entry that was ever added, or above the end."""
    UNCONFIRMED = "unconfirmed"
    DIVERGED = "diverged"
    TWO_ENDS = "two-ends"
    ACK_BEYOND_END = "ack-beyond-end"
    READ_BEYOND_END = "read-beyond-end"
    ACK_AFTER_FENCE = "ack-after-fence"
    ACK_DISORDER = "ack-disorder"

    NOT_LINEARIZABLE = "not-linearizable"


@dataclass(frozen=True, slots=True)
class Problem:
    kind: Kind
    sentence: str
    operations: tuple[Operation, ...] = ()

    def __str__(self) -> str:
        return "\n    ".join([f"{self.kind}: {self.sentence}", *map(str, self.operations)])


def kinds(problems: Iterable[Problem]) -> set[Kind]:
    return {one.kind for one in problems}


def report(problems: Sequence[Problem], shown_max: int = 10) -> str:
    """Return the count of each kind, and the first problem of each kind in full."""
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
