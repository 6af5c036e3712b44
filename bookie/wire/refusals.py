"""Of whom a bookie's log has told lately that their bytes are no frames: a line a minute each.

A client that speaks another protocol comes again at once, each time with another port, so its host
is what counts. Used on the loop.
"""

from __future__ import annotations

TOLD_EVERY_S = 60.0
PEERS_MAX = 1000
"""Hosts that are remembered; of more than these the one told of first is forgotten."""


class RefusedPeers:
    """Those of one bookie."""

    def __init__(self) -> None:
        self._told: dict[str, tuple[float, int]] = {}
        """When each host was told of, and how often it was refused since; the oldest first."""

    def refused(self, peer: str, now_s: float) -> int:
        """`peer` (host and port) is refused: how often since it was last told of, this time
        included, if it is to be told of now; else 0."""
        host = peer.rpartition(":")[0] or peer
        told_s, times = self._told.get(host, (now_s - TOLD_EVERY_S, 0))
        times += 1
        if now_s - told_s < TOLD_EVERY_S:
            self._told[host] = (told_s, times)
            return 0
        self._told.pop(host, None)
        if len(self._told) >= PEERS_MAX:
            del self._told[next(iter(self._told))]
        self._told[host] = (now_s, 0)
        return times
