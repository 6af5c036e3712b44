"""Brokers that hear nothing of a deletion: the faults of profile `recreate`.

They strike as a deletion begins. Such a broker is out of reach for the others, and its watches are
late; clients and bookies reach it. Some have also lost their session, or reach the metadata store
slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from octavo.broker.types import PartitionName
from tests.sim.brokers import SimBroker
from tests.sim.cluster import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class RecreateFaults:
    """How likely each fault strikes when a deletion begins."""

    deaf_p: float
    forsaken_p: float
    """The same, and its session is over without its knowledge."""
    sluggish_p: float
    """The same, and its metadata calls are slow."""


def draw(rng: Random) -> RecreateFaults:
    return RecreateFaults(
        deaf_p=rng.choice((0.0, 0.2, 0.5)),
        forsaken_p=rng.choice((0.0, 0.2, 0.5)),
        sluggish_p=rng.choice((0.0, 0.2, 0.5)),
    )


class RecreateNemesis:
    """Strikes at the owner of the topic's partition, or at a broker that may become the owner."""

    def __init__(
        self, cluster: Cluster, brokers: dict[str, SimBroker], name: PartitionName
    ) -> None:
        self.over = False
        self.rng: Random = cluster.loop.stream("recreate faults")
        self.options = draw(self.rng)
        cluster.events.add("recreate faults", self.options)
        self._cluster = cluster
        self._brokers = brokers
        self._name = name
        self._kinds: tuple[tuple[str, float, Callable[[SimBroker, float], None]], ...] = (
            ("deaf", self.options.deaf_p, self._deafen),
            ("forsaken", self.options.forsaken_p, self._forsake),
            ("sluggish", self.options.sluggish_p, self._slow_down),
        )

    def deletion_begins(self) -> None:
        """Strike: a client is about to ask for a deletion."""
        for kind, likely, strike in self._kinds:
            if self.over or self.rng.random() >= likely:
                continue
            broker, s = (
                self._broker(),
                self.rng.choice((0.2, 0.6, 1.5)) * self.rng.uniform(0.5, 1.5),
            )
            self._cluster.trace.fault(f"broker_{kind}")
            self._cluster.events.add("FAULT", f"broker_{kind}", broker.name, f"for {s:.3f} s")
            strike(broker, s)

    def _broker(self) -> SimBroker:
        found = list(self._brokers.values())
        owners = [b for b in found if b.broker is not None and self._serves(b)]
        return self.rng.choice(owners if owners and self.rng.random() < 0.7 else found)

    def _serves(self, broker: SimBroker) -> bool:
        assert broker.broker is not None
        return any(one.name == self._name for one in broker.broker.ownership.open_partitions())

    def _deafen(self, broker: SimBroker, s: float) -> None:
        loop, network = self._cluster.loop, self._cluster.network
        self._cluster.metadata.deafen(broker.name, s)
        for name in self._brokers:
            if name != broker.name:
                network.cut(name, broker.name, one_way=True)
                loop.world_later(s, network.heal, name, broker.name)

    def _forsake(self, broker: SimBroker, s: float) -> None:
        loop, metadata = self._cluster.loop, self._cluster.metadata
        self._deafen(broker, s)
        metadata.partition(broker.name)
        loop.world_later(s, metadata.heal, broker.name)
        # End its session before others hear of the deletion: they would take over its partitions
        # and fence it.
        loop.world_later(self.rng.choice((0.0, 0.02, 0.1)), metadata.expire, broker.name)

    def _slow_down(self, broker: SimBroker, s: float) -> None:
        self._deafen(broker, s)
        self._cluster.metadata.slow_down(broker.name, self.rng.choice((0.02, 0.1, 0.3)), s)
