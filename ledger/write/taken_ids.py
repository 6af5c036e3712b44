"""What one process does about new ledgers whose ids turn out to be somebody else's. Pure.

The first key that a bookie sees under an id is that ledger's for ever, so whoever reaches the
bookies can take ids before they are given out. Then the whole cluster leaves the stretch of 2^32
ids that is being given out (`LedgerStore.leave`), for one further ahead: at first the next but few,
then up to 1024 stretches on, so that nobody can have taken what lies ahead. For ten minutes bookies
are asked whether they know an id before a ledger is made with it.
"""

from __future__ import annotations

WARY_S = 600.0
_STEPS_MAX = 10


class TakenIds:
    """The taken ids that one process met."""

    def __init__(self) -> None:
        self.count = 0
        """So far; for metrics."""
        self._steps = 0
        self._wary_until_s = 0.0
        self._to_leave: int | None = None

    def met(self, ledger_id: int, now_s: float) -> None:
        """One more."""
        self.count += 1
        self._steps = min(self._steps + 1, _STEPS_MAX) if self.is_wary(now_s) else 1
        self._wary_until_s = now_s + WARY_S
        self._to_leave = max(ledger_id, self._to_leave or 0)

    def is_wary(self, now_s: float) -> bool:
        """Whether to ask bookies about an id first."""
        return now_s < self._wary_until_s

    @property
    def stretches_max(self) -> int:
        """How far to go."""
        return 1 << self._steps

    def take_leave(self) -> int | None:
        """An id whose stretch is to be left; each is told once."""
        found, self._to_leave = self._to_leave, None
        return found
