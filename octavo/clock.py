"""The wall clock: what processes, tools and the client inject where a layer asks for a `clock`."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
