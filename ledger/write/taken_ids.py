"""React to new ledgers whose ids another process has taken at bookies. Pure.

The first key that a bookie sees with an id owns it for ever, so a hostile process could take ids
early. Then the whole cluster leaves the current 2^32 ids (`LedgerStore.leave`) for a stretch ahead:
at first one or two, later up to 1024, too many to take. For ten minutes bookies are asked before an
id is used.
"""

from __future__ import annotations

WARY_S = 600.0
_STEPS_MAX = 10


class TakenIds:
    def __init__(self) -> None:
        self.count = 0
        self._steps = 0
        self._wary_until_s = 0.0
        self._to_leave: int | None = None

    def met(self, ledger_id: int, now_s: float) -> None:
        self.count += 1
        self._steps = min(self._steps + 1, _STEPS_MAX) if self.is_wary(now_s) else 1
        self._wary_until_s = now_s + WARY_S
        self._to_leave = max(ledger_id, self._to_leave or 0)

    def is_wary(self, now_s: float) -> bool:
        """Whether bookies are asked about an id before it is used."""
        return now_s < self._wary_until_s

    @property
    def stretches_max(self) -> int:
        """Return by how many stretches to move ahead at most."""
        return 1 << self._steps

    def take_leave(self) -> int | None:
        found, self._to_leave = self._to_leave, None
        return found
