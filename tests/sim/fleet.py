"""Brokers that leave, return, join and are drained; partitions moved by hand; and the final
balance.

The referee of S10, S11 and S12 (docs/properties.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.broker import broker as broker_module
from octavo.broker.cluster.membership import preferred_brokers
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, TopicName
from octavo.ledger.client import LedgerClient
from octavo.protocol.codes import OctavoError
from tests.sim.brokers import SimBroker
from tests.sim.cluster import Cluster
from tests.sim.quiet import Injected

EVEN_WITHIN_S = 15.0
TIDY_WITHIN_S = 8.0
MAINTAINED_WITHIN_S = 2.0
_LOOK_EVERY_S = 0.05
_BROKERS_MAX = 5
_HELD_SHARE = 0.15
"""The share of seeds with an embedded store in which writes are sometimes held up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    config: dict[str, Any]
    partitions: int | None
    """The partition count, if it differs from the usual one."""
    moves_s: float | None
    ill: int | None
    """The partition whose maintenance sometimes fails with an unexpected error."""
    held_s: float | None
    by_hand_s: float | None = None


def draw(rng: random.Random) -> FleetOptions:
    return FleetOptions(
        config={
            "balance_after_ms": rng.choice((1, 100, 100, 600)),
            "balance_interval_ms": rng.choice((10, 50, 200)),
            "balance_pause_ms": rng.choice((1, 30)),
        },
        partitions=rng.choice((None, None, None, None, 3, 4, 7)),
        moves_s=rng.choice((None, None, 0.25, 0.6)),
        ill=rng.choice((None, None, 0)),
        held_s=rng.choice((0.3, 1.0)) if rng.random() < _HELD_SHARE else None,
        by_hand_s=rng.choice((None, 0.1, 0.3, 0.8)),
    )


class Fleet:
    """Makes brokers leave and join, and judges the result."""

    def __init__(
        self,
        cluster: Cluster,
        brokers: dict[str, SimBroker],
        config: dict[str, Any],
        options: FleetOptions,
        topic: TopicName,
        partitions: int,
    ) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.options = options
        self.topic = topic
        self.partitions = partitions
        self.over = False
        self.by_load = False
        """Load decides the owners: spread_audit.py judges them."""
        self.rng = cluster.loop.stream("fleet")
        self.hand = cluster.loop.stream("fleet by hand")
        self._config = config
        self._maintained: dict[tuple[str, PartitionName], float] = {}
        self._told_of = tuple(brokers)

    # ------------------------------------------------------------------ leaving and coming

    def start(self) -> None:
        if self.options.moves_s is not None:
            self._next(self.options.moves_s)
        embedded = not self.cluster.metadata.resends_reads
        if self.options.by_hand_s is not None:
            self._by_hand_next(self.options.by_hand_s)
        if self.options.held_s is not None and embedded and self.cluster.options.profile == "topic":
            self._hold_next(self.options.held_s)

    def _hold_next(self, mean_s: float) -> None:
        self.cluster.loop.world_later(self.rng.expovariate(1 / mean_s), self._hold, mean_s)

    def _hold(self, mean_s: float) -> None:
        if not self.over:
            s = self.rng.choice((0.05, 0.3, 1.0)) * self.rng.uniform(0.5, 1.5)
            self.cluster.events.add("FLEET", "metadata writes held", f"for {s:.3f} s")
            self.cluster.metadata.hold_writes(s)
            self._hold_next(mean_s)

    def _next(self, mean_s: float) -> None:
        self.cluster.loop.world_later(self.rng.expovariate(1 / mean_s), self._move, mean_s)

    def _move(self, mean_s: float) -> None:
        if self.over:
            return
        here = [broker for broker in self.brokers.values() if not broker.held_down]
        away = [broker for broker in self.brokers.values() if broker.held_down]
        how = self.rng.choice(("leaves", "leaves", "returns", "joins"))
        name = ""
        # One of the brokers stays that clients were given at the start.
        told = [broker for broker in here if broker.name in self._told_of]
        may_go = here if len(told) > 1 else [broker for broker in here if broker not in told]
        if how == "leaves" and len(here) > 1 and may_go:
            name = self._leave(self.rng.choice(may_go))
        elif how == "returns" and away:
            broker = self.rng.choice(away)
            broker.held_down, name = False, broker.name
            broker.start()
        elif how == "joins" and len(self.brokers) < _BROKERS_MAX:
            name = f"k{len(self.brokers) + 1}"
            self.brokers[name] = SimBroker(self.cluster, name, self._config, self.brokers)
            self.brokers[name].start()
        if name:
            self.cluster.events.add("FLEET", how, name)
            self.cluster.trace.probe(f"fleet.{how}")
        self._next(mean_s)

    def _leave(self, broker: SimBroker) -> str:
        """Let a broker leave for good, or until it is chosen to return."""
        broker.held_down = True
        if self.rng.random() < 0.5 and broker.serves:
            broker.stop()
        else:
            broker.kill(power=self.rng.random() < 0.5)
        return broker.name

    # ------------------------------------------------------------------ by hand

    def _by_hand_next(self, mean_s: float) -> None:
        later_s = self.hand.expovariate(1 / mean_s)
        self.cluster.loop.world_later(later_s, self._by_hand, mean_s)

    def _by_hand(self, mean_s: float) -> None:
        if self.over:
            return
        how = self.hand.choice(("drained", "undrained", "unloaded", "unloaded", "unloaded"))
        serving = [one for one in self.brokers.values() if one.broker and one.process]
        busy = [one for one in serving if one.broker and one.broker.ownership.open_partitions()]
        if found := busy if how == "unloaded" else serving:
            one = self.hand.choice(found)
            self._spawn(one, self._done_to(one, how), how)
        self._by_hand_next(mean_s)

    def _done_to(self, one: SimBroker, how: str) -> Callable[[], Awaitable[object]]:
        broker = one.broker
        assert broker is not None
        if how == "drained":
            return broker.drain
        if how == "undrained":
            return broker.undrain
        name = self.hand.choice(broker.ownership.open_partitions()).name
        to = self.hand.choice(("", *sorted(set(self.brokers) - {one.name})))
        return partial(broker.balance.unload, name, to)

    def _spawn(self, one: SimBroker, work: Callable[[], Awaitable[object]], how: str) -> None:
        async def asked() -> None:
            with contextlib.suppress(OctavoError):
                await work()
                self.cluster.trace.probe(f"fleet.{how}")

        assert one.process is not None
        self.cluster.events.add("FLEET", "is to be", how, one.name)
        one.process.spawn(asked(), how)

    def _let_be(self) -> None:
        for one in self.brokers.values():
            if one.broker is not None:
                for tenure in one.broker.ownership.tenures():
                    tenure.placed = False
                if one.broker.registry.is_draining:
                    self._spawn(one, one.broker.undrain, "undrained")

    # ------------------------------------------------------------------ maintenance that fails

    @contextmanager
    def installed(self) -> Iterator[None]:
        real, fleet = Partition.maintain, self

        async def maintain(partition: Partition) -> None:
            if partition.name.partition == fleet.options.ill and fleet.rng.random() < 0.7:
                fleet.cluster.trace.probe("fleet.upkeep_failed")
                raise Injected(f"maintenance of {partition.name}")
            await real(partition)
            place = partition._context.broker_id(), partition.name
            fleet._maintained[place] = fleet.cluster.loop.time()

        put = setattr
        put(Partition, "maintain", maintain)
        try:
            yield
        finally:
            put(Partition, "maintain", real)

    # ------------------------------------------------------------------ the referee

    async def check(self, hopeless: Callable[[], bool]) -> None:
        for number, what, within_s in (
            ("S10", self.uneven, EVEN_WITHIN_S),
            ("S11", self.left_over, TIDY_WITHIN_S),
            ("S12", self.neglected, MAINTAINED_WITHIN_S + self._longest_upkeep_s()),
        ):
            why = await self._until_none(what, within_s)
            if why and not hopeless():
                self.cluster.audit.fail(f"{number} after {within_s:g} s: {why}")
        self.cluster.trace.probe("fleet.even")

    async def _until_none(self, what: Callable[[], str], within_s: float) -> str:
        loop = self.cluster.loop
        until_s = loop.time() + within_s
        while (why := what()) and loop.time() < until_s:
            if self.options.by_hand_s is not None:
                self._let_be()
            await asyncio.sleep(_LOOK_EVERY_S)
        return why

    def _serving(self) -> dict[str, list[Partition]]:
        return {
            name: one.broker.ownership.open_partitions()
            for name, one in sorted(self.brokers.items())
            if one.broker is not None
        }

    def uneven(self) -> str:
        serving = self._serving()
        ids = tuple(serving)
        owners = {
            p.name.partition: name
            for name, served in serving.items()
            for p in served
            if p.name.topic_name == self.topic  # forks and dead-letter topics stay where they are
        }
        if not ids or sorted(owners) != list(range(self.partitions)):
            return f"of {self.partitions} partitions {sorted(owners)} are served, by {ids}"
        if self.by_load:
            return ""
        shares = Counter(owners.values())
        if max(shares.values()) - min(shares[name] for name in ids) > 1:
            return f"{dict(shares)} of {ids}"
        wanted = preferred_brokers(self.topic, self.partitions, ids)
        wrong = {n: (owners[n], one) for n, one in enumerate(wanted) if owners[n] != one}
        return f"partition → (served by, should be): {wrong}" if wrong else ""

    def left_over(self) -> str:
        """Report writers without a partition, and needless listeners of bookies."""
        for name, served in self._serving().items():
            found = _left_over(self.brokers[name].ledgers, served)
            if found:
                return f"{name}: {found}"
        return ""

    def _longest_upkeep_s(self) -> float:
        return (2 + broker_module._QUIET_ROUNDS) * float(self._config["trim_interval_ms"]) / 1000

    def neglected(self) -> str:
        since_s = self.cluster.loop.time() - MAINTAINED_WITHIN_S - self._longest_upkeep_s()
        for name, served in self._serving().items():
            for partition in served:
                last_s = self._maintained.get((name, partition.name), 0.0)
                if partition.name.partition != self.options.ill and last_s < since_s:
                    return f"{partition.name} was maintained by {name} at {last_s:.3f} s last"
        return ""


def _left_over(client: LedgerClient | None, served: list[Partition]) -> str:
    if client is None:
        return ""
    needed = 0
    for partition in served:
        log = partition._state_log
        needed += 1 + (log is not None and log._writer is not None)
    if len(client._writers) > needed:
        return f"{len(client._writers)} writers for {len(served)} partitions, not {needed}"
    writers: list[Any] = list(client._writers)
    users = {id(writer._ensemble_writer) for writer in writers}
    for bookie in client.bookies._bookies.values():
        strangers = [one for one in bookie._listeners if id(one) not in users]
        if strangers and not client._recoveries:
            return f"{len(strangers)} listen to {bookie.bookie_id} for no ledger"
    return ""
