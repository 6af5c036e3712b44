"""Brokers that balance by load while their partitions' load changes, and X21 (profile `load`).

Loads are weights that change while the faults last and then stay; decisions and hand-over are
production's, with pauses of fractions of a second.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from octavo.broker.cluster import balance, load
from octavo.broker.cluster.balance import Balance
from octavo.broker.cluster.load import GAIN, Giving, LoadRules, choose
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, TopicName, Work
from tests.sim.brokers import SimBroker
from tests.sim.cluster import Cluster

_SMOOTHED_S, _MEASURED_S = 0.1, 0.02
_CALM_S, _CALM_WITHIN_S = 2.5, 25.0
_SURE_AFTER_S = 4.0
"""After a change, all brokers have heard of it by then, and partitions are spread evenly again."""
_FAR = 1.6
"""Far too much load is this many times the mean …"""
_WORTH = 3 * GAIN
"""… where a move would give away this share of it."""


class SpreadOptions(NamedTuple):
    weights: tuple[int, ...]
    """Possible loads of a partition, for each second."""
    changes_s: float
    config: dict[str, Any]


def draw(rng: random.Random) -> SpreadOptions:
    return SpreadOptions(
        weights=rng.choice(((0, 100), (10, 100, 1_000), (100, 100, 110), (50, 60, 400))),
        changes_s=rng.choice((0.2, 0.8, 100.0)),
        config={
            "balance_by_load": True,
            "balance_load_floor": rng.choice((1, 50, 300)),
            "balance_load_percent": rng.choice((110, 125)),
            "balance_load_pause_ms": rng.choice((100, 400)),
            "balance_load_rest_ms": rng.choice((300, 1_000)),
        },
    )


class SpreadAudit:
    def __init__(
        self,
        cluster: Cluster,
        brokers: dict[str, SimBroker],
        options: SpreadOptions,
        topic: TopicName,
        partitions: int,
    ) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.options = options
        self.rng = cluster.loop.stream("spread")
        self.over = False
        names = [topic.partition(number) for number in range(partitions)]
        self._weights = {name: self.rng.choice(options.weights) for name in names}
        self._done = dict.fromkeys(names, 0.0)
        """The work done until the last change of weights …"""
        self._since_s = 0.0
        """… and the time of that change."""
        config = options.config
        self.rules = LoadRules(
            config["balance_load_floor"],
            config["balance_load_percent"] / 100,
            config["balance_load_pause_ms"] / 1000,
            config["balance_load_rest_ms"] / 1000,
        )
        self._given: dict[PartitionName, float] = {}
        self._gave: dict[str, float] = {}
        self._been: dict[PartitionName, set[str]] = {}
        """Partition → its earlier brokers since loads are constant."""
        self._healed_s = math.inf
        self._moved_s = 0.0

    # ------------------------------------------------------------------ what there is to do

    def start(self) -> None:
        pause_s = self.rng.expovariate(1 / self.options.changes_s)
        self.cluster.loop.world_later(pause_s, self._change)

    def heal(self) -> None:
        self.over, self._healed_s = True, self.cluster.loop.time()

    def _change(self) -> None:
        if self.over:
            return
        self._done = {name: self._work(name) for name in self._weights}
        self._since_s = self.cluster.loop.time()
        name = self.rng.choice(list(self._weights))
        self._weights[name] = self.rng.choice(self.options.weights)
        self.start()

    def _work(self, name: PartitionName) -> float:
        passed_s = self.cluster.loop.time() - self._since_s
        return self._done[name] + self._weights[name] * passed_s

    def _work_of(self, partition: Partition) -> Work:
        known = partition.name in self._weights
        return Work(round(self._work(partition.name)) if known else 0, 0)

    @contextmanager
    def installed(self) -> Iterator[None]:
        put, give, measure = setattr, Balance._give, Balance.measure
        smoothed, measured = load.SMOOTHED_OVER_S, load.MEASURED_EVERY_S
        audit = self

        def measure_played(one: Balance) -> None:
            one.measure_of = audit._work_of
            measure(one)

        async def watched(one: Balance) -> None:
            giving, began_s, moved = one.to_give(), audit.cluster.loop.time(), one.moved
            await give(one)
            if giving is not None and one.moved > moved:
                audit.gave(one._registry.own.broker_id, giving, began_s)

        put(Balance, "_give", watched)
        put(Balance, "measure", measure_played)
        put(load, "SMOOTHED_OVER_S", _SMOOTHED_S)
        put(balance, "MEASURED_EVERY_S", _MEASURED_S)
        try:
            yield
        finally:
            put(Balance, "_give", give)
            put(Balance, "measure", measure)
            put(load, "SMOOTHED_OVER_S", smoothed)
            put(balance, "MEASURED_EVERY_S", measured)

    # ------------------------------------------------------------------ the referee

    def gave(self, own: str, giving: Giving, began_s: float) -> None:
        name, what = giving.partition, f"{own} gives {giving.partition} to {giving.to}"
        self.cluster.events.add("gives", own, giving)
        self.cluster.trace.probe("spread.given")
        for last_s, least_s, who in (
            (self._given.get(name), self.rules.rest_s, name),
            (self._gave.get(own), self.rules.pause_s, own),
        ):
            if last_s is not None and began_s - last_s < least_s:
                self._wrong(f"{what}, {who} was to rest for {least_s} s, since {last_s:.3f} s")
        self._given[name], self._gave[own] = began_s, began_s
        self._moved_s = self.cluster.loop.time()
        living = [one.broker for one in self.brokers.values() if one.broker is not None]
        changed_s = max((one.registry.changed_s for one in living), default=0.0)
        if began_s > max(self._healed_s, changed_s) + _SURE_AFTER_S:
            been = self._been.setdefault(name, set())
            been.add(own)
            if giving.to in been:
                self._wrong(f"{what}, where it was before, and nothing has changed since")

    async def check(self, hopeless: Callable[[], bool]) -> None:
        loop = self.cluster.loop
        until_s, began_s = loop.time() + _CALM_WITHIN_S, loop.time()
        while loop.time() - max(self._moved_s, began_s) < _CALM_S:
            if loop.time() > until_s:
                self._wrong(f"partitions are given away for {_CALM_WITHIN_S} s without an end")
                return
            await asyncio.sleep(0.05)
        why = self._uneven()
        if why and not hopeless():
            self._wrong(why)
        self.cluster.trace.probe("spread.calm")

    def _uneven(self) -> str:
        owned = {
            name: [p.name for p in one.broker.ownership.open_partitions()]
            for name, one in sorted(self.brokers.items())
            if one.broker is not None
        }
        loads = {
            broker: float(sum(self._weights.get(name, 0) for name in names))
            for broker, names in owned.items()
        }
        most = max(loads, key=loads.__getitem__)
        movable = {name: float(self._weights.get(name, 0)) for name in owned[most]}
        rules = LoadRules(_FAR * self.rules.floor, _FAR, 0.0, 0.0)
        found = choose(most, loads, movable, rules)
        if found is None:
            return ""
        above, below = found.own - found.mean, found.mean - found.successors
        gain = above + below - abs(above - found.load) - abs(below - found.load)
        return f"{loads}: {found} is not done" if gain > _WORTH * found.mean else ""

    def _wrong(self, what: str) -> None:
        self.cluster.audit.fail(f"X21 {what}")
