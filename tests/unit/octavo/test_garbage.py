"""Collections of Python's garbage collector stay short, and what is in cycles goes in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from octavo.process.garbage import SHORT_S, WHOLE_S_MIN, ShortCollections


class Heap:
    """A collector that records its calls, and whose collections take as long as a test says."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[str, dict[str, Any]], object]] = []
        self.told: list[str] = []
        self.now_s = 0.0
        ShortCollections(self, lambda: self.now_s).begin()
        assert self.taken() == ["collect", "freeze"]

    def collect(self) -> int:
        self.told.append("collect")
        return 0

    def freeze(self) -> None:
        self.told.append("freeze")

    def unfreeze(self) -> None:
        self.told.append("unfreeze")

    def collects(self, took_s: float, generation: int = 2) -> list[str]:
        """Python collects by itself; what the collector is told then."""
        (told,) = self.callbacks
        told("start", {"generation": generation})
        self.now_s += took_s
        told("stop", {"generation": generation})
        return self.taken()

    def taken(self) -> list[str]:
        told, self.told = self.told, []
        return told


def test_what_survives_a_long_collection_is_left_out_of_later_ones() -> None:
    heap = Heap()
    assert heap.collects(SHORT_S * 0.99) == []
    assert heap.collects(SHORT_S) == ["freeze"]
    assert heap.collects(1.0, generation=1) == [], "those of young objects are short by themselves"


def test_everything_is_collected_when_as_long_has_been_collected_again() -> None:
    heap = Heap()
    rounds = int(WHOLE_S_MIN / 0.125)
    for _ in range(rounds - 1):
        assert heap.collects(0.125) == ["freeze"]
    assert heap.collects(0.125) == ["unfreeze"]
    assert heap.collects(SHORT_S / 2) == [], "not all was visited: that takes longer"
    assert heap.collects(2.0) == ["freeze"]
    for _ in range(15):  # the whole one took 2 s, so the next one comes 2 s later
        assert heap.collects(0.125) == ["freeze"]
    assert heap.collects(0.125) == ["unfreeze"]


GROWS = """
import gc, json, sys
from octavo.process import garbage

garbage.SHORT_S, garbage.WHOLE_S_MIN = 0.0, 1e9  # as of a slow machine, and for so long
if sys.argv[1] == "short":
    garbage.ShortCollections().begin()
visited, objects = [], []
gc.callbacks.append(
    lambda phase, info: phase == "start" and info["generation"] == 2
    and visited.append(len(gc.get_objects()))
)
for number in range(300_000):
    objects.append({"number": number, "list": [number]})
print(json.dumps(sorted(visited, reverse=True)))
"""


def visited(how: str) -> list[int]:
    """How many objects each full collection had to visit while a heap of 600,000 grew."""
    found = subprocess.run(
        [sys.executable, "-c", GROWS, how], capture_output=True, text=True, check=True
    )
    counts: list[int] = json.loads(found.stdout)
    return counts


def test_python_visits_each_object_of_a_growing_heap_few_times() -> None:
    """Counted in objects: how fast the machine is does not matter."""
    before, now = visited("plain"), visited("short")
    assert before[0] > 300_000, "or this shows nothing"
    assert now[0] < before[0] / 2
    assert sum(now) < sum(before) / 2
