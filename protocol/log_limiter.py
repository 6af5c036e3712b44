"""Limit repeated log lines: log an event at most once a minute, with how often it happened. Pure.

Subjects are counted separately: each host, for example, gets its own line. The first event is
logged at once. So a log stays readable whatever clients do, and no event stays unreported for long.
"""

from __future__ import annotations

TOLD_EVERY_S = 60.0
_SUBJECTS_MAX = 1000
"""Subjects remembered; beyond it, the subject logged longest ago is forgotten."""


class LogLimiter:
    """Counts events of a kind, by subject."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}
        """When each subject was last logged, and its events since; oldest first."""

    def count(self, now_s: float, subject: str = "") -> int:
        """Count an event at `now_s` (seconds of a monotonic clock).

        Return how many events to log now, this event included; 0 when it is too early to log.
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
    """Return the host of `host:port` as a subject: the port differs for every connection."""
    return peer.rpartition(":")[0] or peer
