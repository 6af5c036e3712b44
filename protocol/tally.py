"""What comes again and again, counted, and told in the log once a minute with how often it came.

By subject, where it has any: each host, say, has a line of its own. It came the first time: told at
once. So a log stays readable whatever others do, and nothing is left unsaid for long. Pure.
"""

from __future__ import annotations

TOLD_EVERY_S = 60.0
_SUBJECTS_MAX = 1000
"""Subjects that are remembered; of more than these the one told of first is forgotten."""


class Tally:
    """Of one kind of thing."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}
        """When each subject was told of, and how often it came since; the oldest first."""

    def count(self, now_s: float, subject: str = "") -> int:
        """It came once more, at `now_s` (seconds of a clock that never goes back).

        If it is to be told of now: how often it came since it was last told, this time included.
        Else 0.
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
    """Of `host:port`: the port changes with every connection, so the host is the subject."""
    return peer.rpartition(":")[0] or peer
