"""Refuse repeats of numbered calls from other brokers. Pure.

A broker numbers its calls to others in ascending order, under an id that is unique to its run. The
calls arrive in any order, each once. A window of `WINDOW` bits below the highest number that has
arrived remembers which numbers have arrived; lower numbers count as seen. No clock is used.

Remembers the `RUNS_KEPT` runs that called last. A receiver that has restarted knows no run, and
accepts each call that it has not seen since its start.
"""

from __future__ import annotations

WINDOW = 65_536
"""Size of the window in numbers. A call may be overtaken while it waits for a connection, for
seconds, and a broker makes about ten thousand calls in that time."""
RUNS_KEPT = 64
"""Only brokers of the cluster get here: these are the live brokers, and perhaps former ones."""
_ALL = (1 << WINDOW) - 1


class Replays:
    """The calls that a receiver has seen."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[int, int]] = {}
        """Run → its highest number, and a bit for each number seen; bit 0 is the highest."""

    def is_new(self, run: str, number: int) -> bool:
        """Whether this call of the run comes for the first time; marks it as seen."""
        highest, came = self._windows.pop(run, (-1, 0))
        back = highest - number
        is_new = back < 0 or (back < WINDOW and not came >> back & 1)
        if back < 0:
            came = (came << -back | 1) & _ALL if -back < WINDOW else 1
            highest = number
        elif is_new:
            came |= 1 << back
        self._windows[run] = highest, came
        if len(self._windows) > RUNS_KEPT:
            del self._windows[next(iter(self._windows))]
        return is_new
