"""Which numbered calls of another broker have been here already. Pure.

A broker numbers its calls to others, ascending, under an id that is its own for one run. They come
in any order, each once: a window below the highest number that came remembers which have. Below the
window nothing is known, so what comes there counts as seen. No clock takes part.

Bounded: a window of `WINDOW` bits for each of the `RUNS_KEPT` runs that called last. A receiver
that was started anew knows no run, and takes each call that it never saw once.
"""

from __future__ import annotations

WINDOW = 65_536
"""Numbers. A call is held up by no more than others overtake it: one waits seconds for a
connection, in which a broker makes some ten thousand calls."""
RUNS_KEPT = 64
"""Only brokers of the cluster get here, so these are those that live, and some that did."""
_ALL = (1 << WINDOW) - 1


class Replays:
    """Of one receiver."""

    def __init__(self) -> None:
        self._windows: dict[str, tuple[int, int]] = {}
        """Run → highest number, and which of it and those below came: bit 0 is the highest."""

    def is_new(self, run: str, number: int) -> bool:
        """Whether this call of the run `run` comes for the first time; from now on it has come."""
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
