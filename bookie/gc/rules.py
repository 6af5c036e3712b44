"""What becomes of sealed entry logs, and when a deleted ledger may go. Pure: no clock, no I/O.

`plan` gives every log a decision with a reason in words. Whether a log really holds nothing that
is live is not decided here: a plan rests on what the log's map says of it, and the map may be
wrong (BookKeeper #4607). It only says which logs are worth reading; collector.py reads a log to its
end before it goes.

`Quarantine` follows a ledger from the first proof that its record is gone to the second one, at
least the quarantine later. A ledger that is seen again in between is released.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Action(enum.Enum):
    """What to do with a log."""

    KEEP = "keep"
    UNLINK = "unlink"
    """Nothing in it seems live: read it to its end and remove it."""
    REWRITE = "rewrite"
    """Copy what is live to the current log, then as above."""


class LogFacts(NamedTuple):
    """What is known of one log without reading its records."""

    log_id: int
    bytes: int
    """Of the file."""
    live_bytes: int
    """Frames of ledgers that are not deleted, by the log's map."""
    current: bool = False
    """The journal mark stands in it, or before it: it may not be whole yet."""
    why_not: str = ""
    """What stands in the way of reading it, in words; empty when nothing does."""
    quarantined: tuple[int, int] | None = None
    """(ledger, ms left) of the ledger in quarantine here that waits longest; None for none."""

    frame_bytes: int = 0
    """Frames of all ledgers, by the map; 0 counts as `bytes`."""

    @property
    def ratio(self) -> float:
        """The share that is live, of what can be: headers and map are none of it."""
        whole = self.frame_bytes or self.bytes
        return min(1.0, self.live_bytes / whole) if whole else 0.0


class Rules(NamedTuple):
    """When a log is rewritten."""

    minor_ratio: float
    major_ratio: float
    minor_due: bool
    """The interval of minor compactions has passed."""
    major_due: bool
    room_bytes: int
    """What copies may take before the first log has gone."""


class Decision(NamedTuple):
    """What to do with a log, and why."""

    log_id: int
    action: Action
    reason: str


def plan(logs: Iterable[LogFacts], rules: Rules) -> list[Decision]:
    """A decision for each log, in the order in which to act: what costs nothing first, then the
    emptiest, since each one that goes makes room for the next. What is kept comes last."""
    acts: list[Decision] = []
    kept: list[Decision] = []
    room = rules.room_bytes
    for log in sorted(logs, key=lambda one: (one.live_bytes > 0, one.ratio, one.log_id)):
        decision = _decide(log, rules, room)
        if decision.action is Action.KEEP:
            kept.append(decision)
        else:
            acts.append(decision)
            room += log.bytes - log.live_bytes
    return acts + sorted(kept)


def _decide(log: LogFacts, rules: Rules, room: int) -> Decision:
    if log.current:
        return Decision(log.log_id, Action.KEEP, "current log")
    if log.why_not:
        return Decision(log.log_id, Action.KEEP, log.why_not)
    if not log.live_bytes:
        return Decision(log.log_id, Action.UNLINK, "nothing in it is live")
    share = f"{log.ratio:.0%} live"
    if log.ratio > rules.major_ratio:
        return Decision(
            log.log_id, Action.KEEP, f"{share}, above {rules.major_ratio:.0%}" + _waiting(log)
        )
    minor = rules.minor_due and log.ratio <= rules.minor_ratio
    if not minor and not rules.major_due:
        which = "minor" if log.ratio <= rules.minor_ratio else "major"
        reason = f"{share}, waits for the next {which} compaction"
        return Decision(log.log_id, Action.KEEP, reason + _waiting(log))
    if log.live_bytes > room:
        reason = f"{share}, no room to rewrite: {log.live_bytes} bytes are wanted, {room} allowed"
        return Decision(log.log_id, Action.KEEP, reason)
    return Decision(log.log_id, Action.REWRITE, share)


def _waiting(log: LogFacts) -> str:
    if log.quarantined is None:
        return ""
    ledger_id, left_ms = log.quarantined
    return f"; ledger {ledger_id} is in quarantine for {max(0, left_ms) / 1000:.0f} s more"


class Verdict(NamedTuple):
    """What a round of proofs changes."""

    entered: list[int]
    """Seen gone for the first time."""
    released: list[int]
    """Were in quarantine, and are not proven gone any more."""
    confirmed: list[int]
    """Seen gone twice, far enough apart: to be deleted."""


class Quarantine:
    """The ledgers that were seen gone once. Lost at a restart, which only means to wait again.

    A round whose proofs could not be had changes nothing: silence is no proof, and no denial.
    """

    def __init__(self, quarantine_ms: int, ledgers_max: int = 100_000) -> None:
        self._quarantine_ms = quarantine_ms
        self._ledgers_max = ledgers_max
        self._since_ms: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._since_ms)

    def round(self, now_ms: int, gone: Sequence[int], present: Sequence[int]) -> Verdict:
        """A round of proofs has ended: `gone` are proven to have no record, `present` to have one.

        `now_ms` is when the round's first read began. What is in neither list stays as it is.
        """
        released = [found for found in present if self._since_ms.pop(found, None) is not None]
        entered: list[int] = []
        confirmed: list[int] = []
        for ledger_id in gone:
            since_ms = self._since_ms.get(ledger_id)
            if since_ms is None:
                if len(self._since_ms) < self._ledgers_max:
                    self._since_ms[ledger_id] = now_ms
                    entered.append(ledger_id)
            elif now_ms - since_ms >= self._quarantine_ms:
                confirmed.append(ledger_id)
        return Verdict(entered, released, confirmed)

    def in_turn(self, held: Iterable[int], now_ms: int) -> list[int]:
        """`held` in the order in which to ask for them, for a round may ask for so many only.

        First those whose second proof is due, which frees room; then those that were never seen
        gone; last those that have to wait on: one that is back is noticed as soon as there is time.
        """
        due: list[int] = []
        new: list[int] = []
        waiting: list[int] = []
        for ledger_id in held:
            since_ms = self._since_ms.get(ledger_id)
            if since_ms is None:
                new.append(ledger_id)
            elif now_ms - since_ms >= self._quarantine_ms:
                due.append(ledger_id)
            else:
                waiting.append(ledger_id)
        return due + new + waiting

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted here."""
        self._since_ms.pop(ledger_id, None)

    def left_ms(self, now_ms: int) -> dict[int, int]:
        """For each ledger in quarantine how long it has to stay at least."""
        return {
            ledger_id: since_ms + self._quarantine_ms - now_ms
            for ledger_id, since_ms in self._since_ms.items()
        }


def longest(ledgers: Iterable[int], left_ms: Mapping[int, int]) -> tuple[int, int] | None:
    """Of `ledgers` the one that stays longest in quarantine; None when none is in it."""
    waiting = [(left_ms[found], found) for found in ledgers if found in left_ms]
    if not waiting:
        return None
    left, ledger_id = max(waiting)
    return ledger_id, left
