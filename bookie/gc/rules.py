"""Decide what happens to sealed entry logs, and when a deleted ledger may go. Pure.

Ledgers maps may be wrong (BookKeeper #4607), so `plan` only says which logs are worth reading. A
ledger that is seen between two proofs leaves quarantine.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class Action(enum.Enum):
    KEEP = "keep"
    UNLINK = "unlink"
    """Nothing seems live: read the log to its end and remove it."""
    REWRITE = "rewrite"
    """Copy the live entries, too."""


class LogFacts(NamedTuple):
    log_id: int
    bytes: int
    live_bytes: int
    """Frames of ledgers that are not deleted, by the map."""
    current: bool = False
    """The mark stands in or before it, so it may be incomplete."""
    why_not: str = ""
    """Empty when the log can be read."""
    quarantined: tuple[int, int] | None = None
    """(ledger, ms left) of the quarantine in this log that ends last."""

    frame_bytes: int = 0
    """Frames of all ledgers; 0: use `bytes`."""

    @property
    def ratio(self) -> float:
        whole = self.frame_bytes or self.bytes
        return min(1.0, self.live_bytes / whole) if whole else 0.0


class Rules(NamedTuple):
    minor_ratio: float
    major_ratio: float
    minor_due: bool
    major_due: bool
    room_bytes: int
    """The room for copies before the first log is removed."""


class Decision(NamedTuple):
    log_id: int
    action: Action
    reason: str


def plan(logs: Iterable[LogFacts], rules: Rules) -> list[Decision]:
    """Return decisions in the order in which to act.

    Logs with the smallest live share come first, because each removed log makes room; kept logs
    come last.
    """
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
    entered: list[int]
    released: list[int]
    confirmed: list[int]


class Quarantine:
    """Ledgers that wait for their second proof; a restart forgets them."""

    def __init__(self, quarantine_ms: int, ledgers_max: int = 100_000) -> None:
        self._quarantine_ms = quarantine_ms
        self._ledgers_max = ledgers_max
        self._since_ms: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._since_ms)

    def round(self, now_ms: int, gone: Sequence[int], present: Sequence[int]) -> Verdict:
        """Take a round's proofs; ledgers in neither list stay as they are.

        `now_ms` is when the round's first read began.
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
        """Order ledgers for the search of records, of which a round may do a part.

        First those whose second proof is due, because their deletion frees room; last those still
        in quarantine.
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
        self._since_ms.pop(ledger_id, None)

    def left_ms(self, now_ms: int) -> dict[int, int]:
        return {
            ledger_id: since_ms + self._quarantine_ms - now_ms
            for ledger_id, since_ms in self._since_ms.items()
        }


def longest(ledgers: Iterable[int], left_ms: Mapping[int, int]) -> tuple[int, int] | None:
    waiting = [(left_ms[found], found) for found in ledgers if found in left_ms]
    if not waiting:
        return None
    left, ledger_id = max(waiting)
    return ledger_id, left
