"""Faults of brokers and topic clients during the safety phase."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.sim.brokers import SimBroker
from tests.sim.cluster import SESSION_TIMEOUT_MS, Cluster
from tests.sim.metadata import Cut
from tests.sim.topic_client import TopicClient
from tests.sim.topic_load import TopicLoad
from tests.sim.topic_options import TopicOptions

_SESSION_S = SESSION_TIMEOUT_MS / 1000


class TopicNemesis:
    def __init__(
        self,
        cluster: Cluster,
        brokers: dict[str, SimBroker],
        load: TopicLoad,
        options: TopicOptions,
    ) -> None:
        self.cluster = cluster
        self.brokers = brokers
        self.load = load
        self.options = options
        self.over = False
        self.rng: Random = cluster.loop.stream("topic nemesis")
        self._kinds: dict[str, Callable[[], str]] = {
            "broker_killed": self._kill,
            "broker_paused": self._pause,
            "broker_loses_metadata": self._lose_metadata,
            "broker_expires": self._expire,
            "broker_hands_over": self._hand_over,
            "broker_loses_bookies": self._lose_bookies,
            "broker_cut_off": self._cut_off,
            "topic_client_dies": self._kill_client,
        }

    def start(self) -> None:
        for name, value in self.options.calls.items():
            setattr(self.cluster.network.options, name, value)
        for kind, mean_s in self.options.faults.items():
            self._next(kind, mean_s)

    def heal(self) -> None:
        """Restart the processes. The network and the metadata store are healed elsewhere."""
        self.over = True
        calls = self.cluster.network.options
        calls.call_lost_p = calls.reply_lost_p = calls.duplicate_p = calls.late_p = 0.0
        for broker in self.brokers.values():
            if broker.process is not None:
                broker.process.resume()
            broker.start()

    def _next(self, kind: str, mean_s: float) -> None:
        self._later(self.rng.expovariate(1 / mean_s), self._strike, kind, mean_s)

    def _strike(self, kind: str, mean_s: float) -> None:
        if self.over:
            return
        what = self._kinds[kind]()
        if what:
            self.cluster.trace.fault(kind)
            self.cluster.events.add("FAULT", kind, what)
        self._next(kind, mean_s)

    def _later(self, s: float, call: Callable[..., object], *args: object) -> None:
        self.cluster.loop.world_later(s, call, *args)

    def _broker(self) -> SimBroker:
        found = list(self.brokers.values())
        busy = [b for b in found if b.broker is not None and b.broker.ownership.open_partitions()]
        return self.rng.choice(busy if busy and self.rng.random() < 0.7 else found)

    def _some_s(self) -> float:
        return self.rng.choice((0.05, 0.4, 1.2, 1.6)) * _SESSION_S * self.rng.uniform(0.7, 1.3)

    def _kill(self) -> str:
        broker = self._broker()
        broker.kill(power=self.rng.random() < 0.5)
        broker.start_later(self.rng.choice((0.0, 0.1, 1.0, 2.0)) * self.rng.uniform(0.5, 1.5))
        return broker.name

    def _pause(self) -> str:
        broker, s = self._broker(), self._some_s()
        if broker.process is None or not broker.process.alive:
            return ""
        broker.process.pause(s)
        return f"{broker.name} for {s:.3f} s"

    def _lose_metadata(self) -> str:
        broker, s = self._broker(), self._some_s()
        cut = self.rng.choice((Cut.BOTH, Cut.REQUESTS, Cut.REPLIES))
        self.cluster.metadata.partition(broker.name, cut)
        self._later(s, self.cluster.metadata.heal, broker.name)
        return f"{broker.name} {cut.name} for {s:.3f} s"

    def _expire(self) -> str:
        broker = self._broker()
        self.cluster.metadata.expire(broker.name)
        return broker.name

    def _hand_over(self) -> str:
        broker = self._broker()
        if not broker.serves:
            return ""
        broker.stop()
        return broker.name

    def _lose_bookies(self) -> str:
        broker, s = self._broker(), self._some_s()
        names = [name for name in self.cluster.bookies if self.rng.random() < 0.6]
        for name in names:
            self.cluster.network.cut(broker.name, name, one_way=self.rng.random() < 0.3)
            self._later(s, self.cluster.network.heal, broker.name, name)
        return f"{broker.name} {names} for {s:.3f} s"

    def _cut_off(self) -> str:
        broker, s = self._broker(), self._some_s()
        others = [*self.brokers, *(client.name for client in self.load.clients)]
        for name in others:
            if name != broker.name and self.rng.random() < 0.7:
                self.cluster.network.cut(broker.name, name, one_way=self.rng.random() < 0.3)
                self._later(s, self.cluster.network.heal, broker.name, name)
        return f"{broker.name} for {s:.3f} s"

    def _kill_client(self) -> str:
        if not self.load.clients:
            return ""
        clients = self.load.clients
        numbered = [client for client in clients if client.name.startswith("i")]
        client = self.rng.choice(numbered if numbered and self.rng.random() < 0.5 else clients)
        if self.rng.random() < 0.5:
            self._crash_client(client)
            return client.name
        # Its last message is delayed, and arrives when its successor is there.
        s = self.rng.choice((0.1, 0.4, 1.0)) * self.rng.uniform(0.5, 1.5)
        for name in self.brokers:
            self.cluster.network.clog(client.name, name, s)
        self._later(self.rng.uniform(0.0, 0.05), self._crash_client, client)
        return f"{client.name}, its last calls held up for {s:.3f} s"

    def _crash_client(self, client: TopicClient) -> None:
        if not self.over and client.is_alive:
            client.crash()
            self._later(self.rng.uniform(0.0, 0.4), self._start_client, client)

    def _start_client(self, client: object) -> None:
        if not self.over and not client.is_alive:  # type: ignore[attr-defined]
            client.start()  # type: ignore[attr-defined]
