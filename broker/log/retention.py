"""Retention: which of a partition's oldest ledgers go, and why the oldest one stays. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.log.ledger_list import LedgerList, end_offset, is_measured
from octavo.metadata.topics import PartitionLedger


class RetentionPolicy(NamedTuple):
    """Which messages may be trimmed; None: no limit.

    `covered_to`: the horizon of the view; ledgers beyond it stay. `covered_goes`: ledgers below it
    go.
    """

    age_ms: int | None
    payload_bytes: int | None
    covered_to: int | None = None
    covered_goes: bool = False

    def is_uncovered(self, segment: PartitionLedger) -> bool:
        return self.covered_to is not None and end_offset(segment) > self.covered_to

    def trimming(
        self, ledgers: LedgerList, now_ms: int, open_bytes: int = 0, limit: int | None = None
    ) -> LedgerList:
        """Remove the oldest closed ledgers that this policy does not keep.

        By time, when the newest message is known to be too old; by size, while the rest holds the
        bytes to keep. Offsets from `limit` on stay: a subscription has not acked them.
        """
        keep = self._kept_from(ledgers, now_ms, open_bytes, limit)
        if not keep:
            return ledgers
        first = end_offset(ledgers.segments[keep - 1])
        return LedgerList(ledgers.segments[keep:], max(first, ledgers.trimmed_to))

    def to_measure(
        self, ledgers: LedgerList, now_ms: int, open_bytes: int = 0, limit: int | None = None
    ) -> PartitionLedger | None:
        """Return the ledger that stays only because its newest message is unknown."""
        place, closed = self._kept_from(ledgers, now_ms, open_bytes, limit), ledgers.closed
        if place == len(closed) or self.age_ms is None:
            return None
        segment = closed[place]
        if is_measured(segment) or (limit is not None and end_offset(segment) > limit):
            return None
        if self.is_uncovered(segment):
            return None
        # The newest message is at least as new as the newest known timestamp.
        may_be_old = segment.first_ms >= 0 and now_ms - segment.last_ms > self.age_ms
        return segment if may_be_old else None

    def _kept_from(
        self, ledgers: LedgerList, now_ms: int, open_bytes: int, limit: int | None
    ) -> int:
        total, closed = ledgers.closed_bytes + open_bytes, ledgers.closed
        for number, segment in enumerate(closed):
            old = self.age_ms is not None and is_older(segment, self.age_ms, now_ms)
            large = self.payload_bytes is not None and total - segment.bytes >= self.payload_bytes
            unacked = limit is not None and end_offset(segment) > limit
            kept = unacked or self.is_uncovered(segment)
            covered = self.covered_goes and not segment.pieces  # a view has no bodies
            goes = not kept and (old or large or covered)
            if not goes and end_offset(segment) > ledgers.trimmed_to:  # else it was truncated
                return number
            total -= segment.bytes
        return len(closed)

    def why_kept(
        self,
        ledgers: LedgerList,
        now_ms: int,
        open_bytes: int = 0,
        unacked: Mapping[str, int] | None = None,
    ) -> str:
        oldest = ledgers.segments[0] if ledgers.segments else None
        if oldest is None or oldest.count is None:
            return "it is the ledger that is being written"
        if self.age_ms is None and self.payload_bytes is None and not self.covered_goes:
            return "no retention is set, so nothing goes"
        if self.is_uncovered(oldest):
            return "its messages are in no compacted view yet"
        slowest = min((unacked or {}).items(), key=lambda one: one[1], default=None)
        if slowest is not None and slowest[1] < end_offset(oldest):
            return f"subscription {slowest[0]!r} has not acked offset {slowest[1]}"
        if self._kept_from(ledgers, now_ms, open_bytes, None):
            return "nothing keeps it: the next round removes it"
        if oldest.pieces and self.covered_goes:
            return "it holds a large message, whose body no compacted view has"
        why = []
        if self.payload_bytes is not None:
            left = ledgers.closed_bytes + open_bytes - oldest.bytes
            why.append(f"{left} bytes would be left of {self.payload_bytes} to keep")
        if self.age_ms is not None:
            why.append(f"its newest message is not known to be older than {self.age_ms / 1000:g} s")
        return "; ".join(why)


def is_older(segment: PartitionLedger, age_ms: int, now_ms: int) -> bool:
    """Return whether all messages of a closed ledger are known to be older than `age_ms`.

    A timestamp in the future, or none (-1), says nothing: then the date counts at which the ledger
    was found closed. If the clock was behind at that date, a later timestamp that is not in the
    future counts, too.
    """
    if segment.aging_since_ms is not None:
        stamped_ms = segment.last_ms if segment.last_ms <= now_ms else -1
        if now_ms - max(segment.aging_since_ms, stamped_ms) > age_ms:
            return True
    return is_measured(segment) and segment.first_ms >= 0 and now_ms - segment.last_ms > age_ms
