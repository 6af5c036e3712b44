"""Take a client's figures, and read them from its output."""

from __future__ import annotations

import json
import re
import time
from typing import Any


class Failed(Exception):
    """The message says how a server or client ended."""


def last_json(said: str) -> dict[str, Any]:
    try:
        found = json.loads(said.strip().rpartition("\n")[2])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Failed(f"the client's last line must be a JSON object, not {said[-300:]!r}")
    return found


class Stopwatch:
    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._used = time.process_time()
        self._first_ms = 0

    def first(self) -> None:
        self._first_ms = round((time.perf_counter() - self._began) * 1000)

    def figures(self, acked: int) -> dict[str, Any]:
        took_s = time.perf_counter() - self._began
        used_s = time.process_time() - self._used
        return {
            "acked": acked,
            "per_s": round(acked / took_s),
            "client_us": round(used_s / acked * 1e6, 2),
            **({"first_ms": self._first_ms} if self._first_ms else {}),
        }


def latencies(took_s: list[float]) -> dict[str, float]:
    took = sorted(took_s)

    def at(share: float) -> float:
        return round(took[min(len(took) - 1, int(len(took) * share))] * 1000, 2)

    return {"p50_ms": at(0.5), "p99_ms": at(0.99), "p999_ms": at(0.999), "max_ms": at(1.0)}


def steady_rate(said: str) -> int:
    """Read the records a second in ProducerPerformance's last summary. Raises `Failed`."""
    found = re.findall(r"records sent, ([0-9.]+) records/sec", said)
    if not found:
        raise Failed(f"ProducerPerformance printed no rate: {said[-300:]!r}")
    return round(float(found[-1]))
