"""Wall clocks: each machine has one, which may be set while the machine runs.

No promise may depend on a clock alone: time_audit.py judges what retention trims by time. Creation
times and the age of a roll-over may depend on a clock.
"""

from __future__ import annotations

from random import Random

from tests.sim.process import Process

_HOUR_MS = 3_600_000


class Clocks:
    def __init__(self) -> None:
        self._processes: dict[str, Process] = {}
        """Machine → the youngest process on it."""
        self.least_ms = self.most_ms = 0
        """How far any clock was ever set back, or ahead."""

    def join(self, process: Process) -> None:
        before = self._processes.get(process.name)
        if before is not None:
            process.skew_ms, process.drift = before.skew_ms, before.drift
        self._processes[process.name] = process

    def was_set(self, by_ms: int) -> None:
        self.least_ms, self.most_ms = min(self.least_ms, by_ms), max(self.most_ms, by_ms)

    def jump(self, rng: Random) -> str:
        process = self._processes[rng.choice(list(self._processes))]
        process.skew_ms = rng.choice((-_HOUR_MS, -900, 0, 900, _HOUR_MS))
        process.drift = rng.choice((0.0, 0.01, -0.01))
        self.was_set(process.skew_ms)
        return f"{process.name} is {process.skew_ms} ms off"
