"""Wall clocks: each machine has one, and it may be set while the machine runs.

No promise may depend on one alone: what retention trims by time is judged (time_audit.py). What may
lean on one: creation times, and the age at which a ledger is rolled over.
"""

from __future__ import annotations

from random import Random

from tests.sim.process import Process

_HOUR_MS = 3_600_000


class Clocks:
    """The clocks of all machines."""

    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        """By machine: the youngest process on it."""
        self.least_ms = self.most_ms = 0
        """How far any of them was ever set back, or ahead."""

    def join(self, process: Process) -> None:
        """A process starts; it finds the clock of its machine as it was left."""
        before = self._processes.get(process.name)
        if before is not None:
            process.skew_ms, process.drift = before.skew_ms, before.drift
        self._processes[process.name] = process

    def was_set(self, by_ms: int) -> None:
        """Some machine's clock was set so far ahead."""
        self.least_ms, self.most_ms = min(self.least_ms, by_ms), max(self.most_ms, by_ms)

    def jump(self, rng: Random) -> str:
        """Set some machine's clock."""
        process = self._processes[rng.choice(list(self._processes))]
        process.skew_ms = rng.choice((-_HOUR_MS, -900, 0, 900, _HOUR_MS))
        process.drift = rng.choice((0.0, 0.01, -0.01))
        self.was_set(process.skew_ms)
        return f"{process.name} is {process.skew_ms} ms off"
