"""The wake-up referee (Q2): nothing waits while there is room, or an answer, for it.

The next tick or timeout hides a lost wake-up: the system recovers, late, and no check of liveness
fails. So classes with waiters have a `waits_in_vain()` that names a wait without a reason; it is ""
in every quiet moment. The referee asks all of them every few virtual milliseconds, in each live
process without anything left to run. Two looks in a row have to agree.

It runs within the loop's own check and draws nothing: a seed tells the same story with and without
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from tests.sim.cluster import Cluster
from tests.sim.process import Process
from tests.support.kit.quiescence import describable

_LOOK_EVERY_S = 0.01
_WALK_AGAIN_S = 0.15
_WALK_FACTOR = 1.4
"""Searching a process for objects takes milliseconds, so it happens less and less often."""

Place = tuple[Process, Iterable[object]]


class Wakefulness:
    """The referee of all live processes. `places` yields each with its first objects."""

    def __init__(self, cluster: Cluster, places: Callable[[], Iterator[Place]]) -> None:
        self._cluster = cluster
        self._places = places
        self._next_s = self._walk_s = 0.0
        self._pause_s = _WALK_AGAIN_S
        self._found: list[tuple[Process, list[object]]] = []
        self._suspects: dict[int, str] = {}

    def look(self) -> None:
        now_s = self._cluster.loop.now
        if now_s < self._next_s:
            return
        self._next_s = now_s + _LOOK_EVERY_S
        if now_s >= self._walk_s:
            self._walk()
            self._walk_s = now_s + self._pause_s
            self._pause_s *= _WALK_FACTOR
        for process, found in self._found:
            if process.alive and not process.paused and not process.queue:
                self._look_at(process, found)

    def _walk(self) -> None:
        self._found = [
            (process, [one for one in describable(roots) if hasattr(one, "waits_in_vain")])
            for process, roots in self._places()
        ]
        self._cluster.trace.probe("wakefulness.walked")

    def _look_at(self, process: Process, found: list[object]) -> None:
        for one in found:
            why = one.waits_in_vain()  # type: ignore[attr-defined]
            if not why:
                self._suspects.pop(id(one), None)
            elif self._suspects.get(id(one)) != why:
                self._suspects[id(one)] = why
            elif self._is_there(process, one):
                name = f"{type(one).__module__.removeprefix('octavo.')}.{type(one).__name__}"
                self._cluster.audit.fail(f"Q2 {process.name} {name}: {why}")

    def _is_there(self, process: Process, one: object) -> bool:
        return any(
            known is one
            for of, roots in self._places()
            if of is process
            for known in describable(roots)
        )
