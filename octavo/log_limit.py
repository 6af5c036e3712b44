"""Limit repeated log lines, which peers can cause: warnings, errors, and events that name a peer.

Within `WINDOW_S` an event is shown `SAME_MAX` times for a subject (host, ledger, partition), and
`EVENT_MAX` times in all; then one line says how many were left out.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from octavo.protocol.log_limiter import host_of

WINDOW_S = 10.0
SAME_MAX = 5
EVENT_MAX = 100
PEERS = ("peer", "remote")
"""Fields with `host:port`. Only the host counts: the port changes with every connection."""
SUBJECTS = ("ledger", "ledger_id", "partition", "topic", "bookie", "folder", "path", "task")
UNLIMITED = frozenset({"audit"})
"""Events that must all be shown; their own code bounds their number."""
LIMITED_LEVELS = frozenset({"warning", "error", "critical"})


class LeftOut(NamedTuple):
    event: str
    lines: int
    for_s: float


class LogLimit:
    """Limits events, from any thread; `clock` counts seconds, monotonically."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._begun_s = clock()
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._left_out: Counter[str] = Counter()

    def passes(self, fields: Mapping[str, Any]) -> tuple[bool, list[LeftOut]]:
        """Return whether to show the line, and what a window that just ended left out."""
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
    for name in PEERS:
        if peer := fields.get(name):
            return host_of(str(peer))
    return ""
