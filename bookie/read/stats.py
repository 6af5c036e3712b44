"""What reads leave behind for the metrics: plain numbers, looked at when they are asked for."""

from __future__ import annotations

from collections.abc import Callable


class ReadStats:
    """The reads of one storage."""

    def __init__(self) -> None:
        self.lookups = {"write_cache": 0, "read_cache": 0, "entry_log": 0, "joined": 0}
        """How many runs of entries were found where; `joined`: another reader was about to."""
        self.ahead_bytes = {"useful": 0, "wasted": 0}
        """What was read ahead and was asked for later, or was dropped before."""
        self.on_cold_wait: Callable[[float], None] = lambda _: None
        """Told how long each cold read waited for a thread, in seconds."""
