"""Log an event of a subject, as of a host, at most once a minute, with its count. Pure.

The first event is logged at once.
"""

from __future__ import annotations

TOLD_EVERY_S = 60.0
_SUBJECTS_MAX = 1000
"""Beyond it, the subject logged longest ago is forgotten."""


class LogLimiter:
    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}
        """When each subject was last logged, and its events since; oldest first."""

    def count(self, now_s: float, subject: str = "") -> int:
        """Count an event at `now_s` of a monotonic clock.

        Return how many events to log now, this one included; 0: too early.
        """
        told = self._told.get(subject)
        if told is not None and now_s - told[0] < TOLD_EVERY_S:
            self._told[subject] = (told[0], told[1] + 1)
            return 0
        self._told.pop(subject, None)
        if len(self._told) >= _SUBJECTS_MAX:
            del self._told[next(iter(self._told))]
        self._told[subject] = (now_s, 0)
        return 1 if told is None else told[1] + 1


def host_of(peer: str) -> str:
    """Leave out the port, which differs for every connection."""
    return peer.rpartition(":")[0] or peer
