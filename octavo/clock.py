"""The wall clock, which processes, tools and the client pass to layers that take a `clock`."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000
