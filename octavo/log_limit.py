"""Keeps a log readable while something goes wrong again and again: the first lines, then a count.

What others cause is limited: warnings and errors, and whatever names a peer. Within a window of
`WINDOW_S` the first `SAME_MAX` lines of an event about the same subject pass (the same peer's host,
ledger, partition), and `EVENT_MAX` of the event about all of them. What was left out is told in one
line for each event when the window is over. Found needed by clients that spoke another protocol:
15,000 `connection_refused` in a minute.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from octavo.protocol.tally import host_of

WINDOW_S = 10.0
SAME_MAX = 5
EVENT_MAX = 100
PEERS = ("peer", "remote")
"""Fields that hold `host:port`. The port changes with every connection, so the host counts."""
SUBJECTS = ("ledger", "ledger_id", "partition", "topic", "bookie", "folder", "path", "task")
UNLIMITED = frozenset({"audit"})
"""Events that are bounded where they are made, and of which none may be left out."""
LIMITED_LEVELS = frozenset({"warning", "error", "critical"})


class LeftOut(NamedTuple):
    """What a window did not show."""

    event: str
    lines: int
    for_s: float
    """The window's length."""


class LogLimit:
    """Decides which lines pass. Any thread may ask; `clock` is in seconds and never goes back."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun_s = clock()
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._left_out: Counter[str] = Counter()

    def passes(self, fields: Mapping[str, Any]) -> tuple[bool, list[LeftOut]]:
        """Whether to show the line, and what to tell before it of a window that is over."""
        with self._lock:
            told = self._turn()
            return self._counted(fields), told

    def _turn(self) -> list[LeftOut]:
        for_s = self._clock() - self._begun_s
        if for_s < WINDOW_S:
            return []
        told = [LeftOut(name, count, for_s) for name, count in sorted(self._left_out.items())]
        self._begun_s += for_s
        self._seen.clear()
        self._left_out.clear()
        return told

    def _counted(self, fields: Mapping[str, Any]) -> bool:
        event, peer = str(fields.get("event", "")), _peer_of(fields)
        if event in UNLIMITED:
            return True
        if not peer and fields.get("level") not in LIMITED_LEVELS:
            return True
        if self._seen[(event,)] < EVENT_MAX:
            subject = (event, peer, *(str(fields.get(name, "")) for name in SUBJECTS))
            self._seen[subject] += 1
            if self._seen[subject] <= SAME_MAX:
                self._seen[(event,)] += 1
                return True
        self._left_out[event] += 1
        return False


def _peer_of(fields: Mapping[str, Any]) -> str:
    """The host on the other side, or nothing."""
    for name in PEERS:
        if peer := fields.get(name):
            return host_of(str(peer))
    return ""
