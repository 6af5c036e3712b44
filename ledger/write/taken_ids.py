"""React to new ledgers whose ids another process has taken at bookies. Pure.

The first key that a bookie sees with a ledger id owns that id for ever. So a hostile process that
reaches the bookies can take ids before the cluster gives them out. Then the whole cluster leaves
the current stretch of 2^32 ids (`LedgerStore.leave`) for a later stretch: at first one or two
ahead, and up to 1024 ahead if it happens again, which is too many for an attacker to take. For
ten minutes bookies are asked whether they know an id before a ledger is created with it.
"""

from __future__ import annotations

WARY_S = 600.0
_STEPS_MAX = 10


class TakenIds:
    """The taken ids that this process met."""

    def __init__(self) -> None:
        self.count = 0
        """How many so far; for metrics."""
        self._steps = 0
        self._wary_until_s = 0.0
        self._to_leave: int | None = None

    def met(self, ledger_id: int, now_s: float) -> None:
        """Note a taken id."""
        self.count += 1
        self._steps = min(self._steps + 1, _STEPS_MAX) if self.is_wary(now_s) else 1
        self._wary_until_s = now_s + WARY_S
        self._to_leave = max(ledger_id, self._to_leave or 0)

    def is_wary(self, now_s: float) -> bool:
        """Whether to ask bookies about an id before it is used."""
        return now_s < self._wary_until_s

    @property
    def stretches_max(self) -> int:
        """How many stretches to move ahead at most."""
        return 1 << self._steps

    def take_leave(self) -> int | None:
        """Return an id whose stretch must be left, once; else None."""
        found, self._to_leave = self._to_leave, None
        return found
