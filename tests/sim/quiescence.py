"""The quiescence referee (Q1): after a seed has settled, all counted resources are given back.

Each count of a `describe()` has to be 0 once, within some virtual seconds, beside background work.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from tests.sim.cluster import Cluster
from tests.support.kit.quiescence import Unrest

_LOOK_EVERY_S = 0.02
_WITHIN_S = 30.0
"""Longer than any lease, timeout or pause that options draw."""


class Quiescence:
    def __init__(
        self,
        cluster: Cluster,
        roots: Callable[[], Iterable[object]],
        is_hopeless: Callable[[], bool] = lambda: False,
    ) -> None:
        self._cluster = cluster
        self._roots = roots
        self._is_hopeless = is_hopeless
        self.over = False

    def begin(self) -> None:
        """Look from now on until all have been at rest."""
        self._cluster.loop.world.spawn(self._look(), "quiescence")

    async def _look(self) -> None:
        loop = self._cluster.loop
        unrest = Unrest(self._roots)
        until_s = loop.time() + _WITHIN_S
        while unrest.look() and loop.time() < until_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_EVERY_S)
        left = unrest.left()
        self._cluster.trace.probe("quiescence.looked")
        if left and not self._is_hopeless():
            self._cluster.audit.fail(f"Q1 after {_WITHIN_S:g} s not given back: {left[:6]}")
        self.over = True
