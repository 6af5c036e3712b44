"""Python's garbage collections stay short, and cyclic garbage is collected in the end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from octavo.process.garbage import FEW, ShortCollections

AT_START = 4 * FEW


class Heap:
    """A collector that records its calls, with object counts set by a test."""

    def __init__(self) -> None:
        self.callbacks: list[Callable[[str, dict[str, Any]], object]] = []
        self.told: list[str] = []
        self.left = 0
        ShortCollections(self).begin()
        assert self.taken() == ["collect", "freeze"]

    def collect(self) -> int:
        self.told.append("collect")
        return 0

    def freeze(self) -> None:
        self.told.append("freeze")

    def unfreeze(self) -> None:
        self.told.append("unfreeze")

    def get_freeze_count(self) -> int:
        return self.left or AT_START

    def get_objects(self) -> list[Any]:
        return [None] * self.left

    def collects(self, left: int, generation: int = 2) -> list[str]:
        """Let Python collect and keep this many objects; return the calls that follow."""
        self.left = left
        (told,) = self.callbacks
        told("start", {"generation": generation})
        told("stop", {"generation": generation})
        return self.taken()

    def taken(self) -> list[str]:
        told, self.told = self.told, []
        return told


def test_what_survives_a_long_collection_is_left_out_of_later_ones() -> None:
    heap = Heap()
    assert heap.collects(FEW - 1) == []
    assert heap.collects(FEW) == ["freeze"]
    assert heap.collects(9 * FEW, generation=1) == [], "those of young objects are short"


def test_everything_is_collected_when_the_heap_may_have_doubled() -> None:
    heap = Heap()
    for _ in range(3):
        assert heap.collects(FEW) == ["freeze"]
    assert heap.collects(FEW) == ["unfreeze"], "as many as there were at the start"
    assert heap.collects(7 * FEW) == ["freeze"], "the whole one"
    for _ in range(6):
        assert heap.collects(FEW) == ["freeze"]
    assert heap.collects(FEW) == ["unfreeze"], "as many as the whole one left"


GROWS = """
import gc, json, sys
from octavo.process import garbage

garbage.FEW = 20_000
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
    """Return how many objects each full collection visited while a heap of 600,000 grew."""
    found = subprocess.run(
        [sys.executable, "-c", GROWS, how], capture_output=True, text=True, check=True
    )
    counts: list[int] = json.loads(found.stdout)
    return counts


def test_python_visits_each_object_of_a_growing_heap_few_times() -> None:
    """Counted in objects, so the machine's speed does not matter."""
    before, now = visited("plain"), visited("short")
    large = before[0] / 2
    assert before[0] > 300_000, "or this shows nothing"
    assert sum(1 for count in before if count > large) >= 3
    assert sum(1 for count in now if count > large) == 1, "the next comes when it has doubled"
    assert sum(now) < sum(before) * 0.7
