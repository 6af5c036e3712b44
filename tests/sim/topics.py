"""The topics of one seed: brokers, clients, faults, referee, judge; for `run.py`."""

from __future__ import annotations

from dataclasses import replace

from broker.types import TopicName
from tests.sim import topic_options
from tests.sim.brokers import SimBroker
from tests.sim.chain_audit import ChainAudit
from tests.sim.cluster import Cluster
from tests.sim.options import SimOptions
from tests.sim.topic_audit import TopicAudit
from tests.sim.topic_faults import TopicNemesis
from tests.sim.topic_load import TopicLoad
from tests.sim.topic_settle import TopicJudge

_TOPICS_SHARE = 0.2
_BOTH_SHARE = 0.05


def with_workload(options: SimOptions, profile: str | None, drawn: float) -> SimOptions:
    """Which workloads a seed has: ledgers, topics, or both."""
    if profile is None and not options.beyond and drawn < _TOPICS_SHARE + _BOTH_SHARE:
        profile = "topic" if drawn < _TOPICS_SHARE else "both"
    if profile not in ("topic", "both"):
        return options
    # A topic goes on for ever, so it wants a whole ensemble also when bookies are lost for good.
    lost_max = min(options.damage_max, 1) if "damage" in options.faults else 0
    if all(quorum[0] > options.bookies - lost_max for quorum in options.quorums):
        lost_max = 0
    options = replace(options, profile=profile, damage_max=lost_max)
    if profile == "topic":
        return replace(options, writers=0, recoverers=0, tailers=0, deletes=False)
    return options


def has_topics(options: SimOptions) -> bool:
    """Whether the seed has topics."""
    return options.profile in ("topic", "both")


class Topics:
    """All of it. `start` in the safety phase, then `heal`, `settle` until `settled`, `stop`."""

    def __init__(self, cluster: Cluster) -> None:
        loop = cluster.loop
        self.cluster = cluster
        left = cluster.options.bookies - cluster.options.damage_max
        quorums = tuple(q for q in cluster.options.quorums if q[0] <= left)
        self.options = topic_options.draw(loop.stream("topic options"), quorums)
        cluster.events.add("topic options", self.options)
        self.audit = TopicAudit(cluster.events, cluster.trace, cluster.audit.fail)
        self.chains = ChainAudit(self.audit, cluster.audit, cluster.trace, cluster.audit.fail)
        cluster.metadata.observers.append(self.chains.changed)
        topic = TopicName("public", "t")
        partitions = [topic.partition(n) for n in range(self.options.settings.partitions)]
        for name in partitions:
            self.audit.add(name, self.options.subscriptions, repeats=not self.options.definite)
        self.brokers: dict[str, SimBroker] = {}
        for number in range(1, self.options.brokers + 1):
            name = f"k{number}"
            self.brokers[name] = SimBroker(cluster, name, self.options.config, self.brokers)
        self.load = TopicLoad(cluster, self.brokers, partitions, self.options, self.audit)
        self.nemesis = TopicNemesis(cluster, self.brokers, self.load, self.options)
        self.judge = TopicJudge(cluster, self.brokers, self.load, self.options, self.audit, topic)
        self._ready = False

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        self.judge.prepare(self._begin)
        self.nemesis.start()

    def _begin(self) -> None:
        self._ready = True
        self.load.start()

    def heal(self) -> None:
        self.nemesis.heal()
        self.load.over = True
        for client in self.load.clients:
            if client.process is not None:
                client.process.resume()

    def settle(self) -> None:
        """Begin to settle; the makers of the topic come first."""
        if self._ready:
            self.judge.settle()
        else:
            self.cluster.loop.world_later(0.05, self.settle)

    @property
    def settled(self) -> bool:
        return self.judge.settled

    def stop(self) -> None:
        """No brokers any more: their ledgers are left to whoever recovers them."""
        for broker in self.brokers.values():
            broker.held_down = True
            broker.kill()
