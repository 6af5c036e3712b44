"""The topics of one seed: brokers, clients, faults, referee, judge; for `run.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace

from octavo.broker.types import TopicName
from tests.sim import (
    client_load,
    compaction_load,
    fleet,
    published_load,
    recreate_load,
    time_options,
    topic_options,
)
from tests.sim.atlas import Atlas
from tests.sim.brokers import SimBroker
from tests.sim.chain_audit import ChainAudit
from tests.sim.client_load import ClientLoad, ClientOptions
from tests.sim.cluster import Cluster, SimBookie
from tests.sim.compaction_load import CompactionLoad, CompactionOptions
from tests.sim.fleet import Fleet
from tests.sim.leftover_audit import left_over
from tests.sim.options import SimOptions
from tests.sim.published_audit import PublishedAudit
from tests.sim.published_load import PublishedLoad, PublishedOptions
from tests.sim.recreate_load import RecreateLoad
from tests.sim.time_audit import TimeAudit
from tests.sim.time_load import TimeLoad
from tests.sim.tool_judge import ToolJudge
from tests.sim.tool_options import ToolOptions
from tests.sim.tools import Tools
from tests.sim.topic_audit import TopicAudit
from tests.sim.topic_faults import TopicNemesis
from tests.sim.topic_load import TopicLoad
from tests.sim.topic_settle import TopicJudge

_TOPICS_SHARE = 0.2
_BOTH_SHARE = 0.05
_PATIENCE_S = 20.0
"""When nothing has come of it for so long, the judge may be waiting for what cannot be."""


def with_workload(options: SimOptions, profile: str | None, drawn: float) -> SimOptions:
    """Which workloads a seed has: ledgers, topics, or both."""
    if profile is None and not options.beyond and drawn < _TOPICS_SHARE + _BOTH_SHARE:
        profile = "topic" if drawn < _TOPICS_SHARE else "both"
    if profile not in ("topic", "both", "recreate"):
        return options
    # A topic goes on for ever, so it wants a whole ensemble also when bookies are lost for good.
    lost_max = min(options.damage_max, 1) if "damage" in options.faults else 0
    if all(quorum[0] > options.bookies - lost_max for quorum in options.quorums):
        lost_max = 0
    options = replace(options, profile=profile, damage_max=lost_max)
    if profile != "both":
        return replace(options, writers=0, recoverers=0, tailers=0, deletes=False)
    return options


def has_topics(options: SimOptions) -> bool:
    """Whether the seed has topics."""
    return options.profile in ("topic", "both", "recreate")


def with_tools(options: SimOptions, drawn: ToolOptions) -> SimOptions:
    """Spark's side takes its time: what is too short for a batch shows nothing of it."""
    if not (has_topics(options) and drawn.are_there) or options.profile == "recreate":
        return options
    return replace(options, safety_s=max(options.safety_s, drawn.safety_s))


class Topics:
    """All of it. `start` in the safety phase, then `heal`, `settle` until `settled`, `stop`."""

    def __init__(self, cluster: Cluster, tool_options: ToolOptions) -> None:
        loop = cluster.loop
        self.cluster = cluster
        left = cluster.options.bookies - cluster.options.damage_max
        quorums = tuple(q for q in cluster.options.quorums if q[0] <= left)
        self.options = topic_options.draw(loop.stream("topic options"), quorums)
        times = time_options.draw(loop.stream("time options"))
        recreates = cluster.options.profile == "recreate"
        if times.retention_ms is not None:
            settings = replace(
                self.options.settings, retention_ms=times.retention_ms, retention_bytes=None
            )
            self.options = replace(self.options, settings=settings)
        compaction = compaction_load.draw(loop.stream("compaction options"))
        client = client_load.draw(loop.stream("client options"))
        if compaction.jobs:  # its messages need keys, and values
            client = ClientOptions()
        if recreates:
            faults = recreate_load.spared(self.options.faults, loop.stream("topic faults spared"))
            self.options = replace(self.options, calls={}, messages_max=20, faults=faults)
            compaction, client = CompactionOptions(), ClientOptions()
            tool_options = ToolOptions()
        subscriptions = {**self.options.subscriptions, **client.subscriptions}
        self.options = replace(self.options, subscriptions=subscriptions)
        drawn = fleet.draw(loop.stream("fleet options"))
        if drawn.partitions is not None:
            more = replace(self.options.settings, partitions=drawn.partitions)
            self.options = replace(self.options, settings=more)
        cluster.events.add("topic options", self.options)
        cluster.events.add("fleet options", drawn)
        cluster.events.add("time options", times)
        self.audit = TopicAudit(cluster.events, cluster.trace, cluster.audit.fail)
        self.chains = ChainAudit(self.audit, cluster.audit, cluster.trace, cluster.audit.fail)
        cluster.metadata.observers.append(self.chains.changed)
        topic = TopicName("public", "t")
        partitions = [topic.partition(n) for n in range(self.options.settings.partitions)]
        for name in partitions:
            self.audit.add(name, self.options.subscriptions, repeats=not self.options.definite)
        self.brokers: dict[str, SimBroker] = {}
        config = {
            **self.options.config, **topic_options.draw_clocks(loop.stream("clock options")),
            **drawn.config, "leftover_grace_ms": 20,
        }  # fmt: skip
        if recreates:
            config.update(recreate_load.limits(loop.stream("recreate options")))
        for number in range(1, self.options.brokers + 1):
            broker_id = f"k{number}"
            self.brokers[broker_id] = SimBroker(cluster, broker_id, config, self.brokers)
        self.load = TopicLoad(
            cluster, self.brokers, partitions, self.options, self.audit, compaction.key_of, times
        )
        self.chains.times = TimeAudit(
            None if self.options.settings.retention_bytes is not None
            else self.options.settings.retention_ms,
            loop.wall_ms, cluster.trace, cluster.audit.fail,
            two_clocks=cluster.metadata.resends_reads,
        )  # fmt: skip
        self.times = TimeLoad(self.load, times, self.chains.times)
        self.load.others.append(self.times.clients)
        self.nemesis = TopicNemesis(cluster, self.brokers, self.load, self.options)
        self.judge = TopicJudge(
            cluster, self.brokers, self.load, self.options, self.audit, topic, self.times
        )
        self.fleet = Fleet(cluster, self.brokers, config, drawn, topic, len(partitions))
        self.judge.fleet_is_well = lambda: self.fleet.check(self._hopeless)
        self.judge.left_over = lambda: left_over(cluster.audit.ledgers, self.chains.owned)
        published = published_load.draw(loop.stream("published options"))
        if recreates:
            published = PublishedOptions()
        self.tools = self._tools(tool_options, published)
        self.again = RecreateLoad(self.load, self.options.settings) if recreates else None
        if compaction.jobs:
            cluster.events.add("compaction options", compaction)
            self._compact(CompactionLoad(self.load, compaction))
        if client.loops:
            cluster.events.add("client options", client)
            self.judge.client = ClientLoad(self.load, client)
            self.load.others.append(self.judge.client.clients)
        self._atlas = Atlas(cluster)
        self._ready = self._enough_bookies = False
        self._patience_s = float("inf")

    def _tools(self, options: ToolOptions, published: PublishedOptions) -> Tools | None:
        """Spark's side, in a share of the seeds."""
        if not options.are_there and not published.queries:
            return None
        self.cluster.events.add("tool options", options)
        tools = Tools(self.cluster, self.brokers, options)
        self.judge.tools = ToolJudge(tools, self.load, self.chains, self.judge.topic, self.times)
        if published.queries:
            self.cluster.events.add("published options", published)
            self._publish(tools, published)
        return tools

    def _publish(self, tools: Tools, published: PublishedOptions) -> None:
        cluster = self.cluster
        audit = PublishedAudit(self.audit, cluster.trace, cluster.audit.fail)
        cluster.metadata.observers.append(audit.changed)
        tools.stored = audit.stored
        self.judge.published = load = PublishedLoad(self.load, published, audit)
        self.load.others.append(load.clients)

    def _compact(self, compaction: CompactionLoad) -> None:
        self.load.others.append(compaction.clients)
        self.judge.compaction = compaction
        self.chains.views = compaction.views

    @contextmanager
    def installed(self) -> Iterator[None]:
        """While this is entered, Spark's side runs in this seed, and maintenance is watched."""
        with self.fleet.installed(), nullcontext() if not self.tools else self.tools.installed():
            yield

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        self.judge.prepare(self._begin)
        if self.again is not None:
            self.again.start()
        self.nemesis.start()
        self.fleet.start()

    def _begin(self) -> None:
        self._ready = True
        self.load.start()
        self.times.begin_jumps()

    def heal(self) -> None:
        self.fleet.over = True
        self.nemesis.heal()
        if self.again is not None:
            self.again.nemesis.over = True
        self.load.over = True
        if self.tools is not None:
            self.tools.objects.fails_p = 0.0
        for client in self.load.clients:
            if client.process is not None:
                client.process.resume()

    def settle(self) -> None:
        """Begin to settle, once every bookie that can serve does; the topic's maker comes first."""
        if self.cluster.all_serve and not self._enough_bookies:
            self._enough_bookies = True
            self._add_bookies()
        if self._ready and self._enough_bookies:
            self._patience_s = self.cluster.loop.time() + _PATIENCE_S
            self.judge.settle()
            if self.again is not None:
                self.again.settle()
        else:
            self.cluster.loop.world_later(0.05, self.settle)

    def _add_bookies(self) -> None:
        """Those that lost something stay away for good; a topic wants a whole ensemble."""
        up = sum(bookie.refused is None for bookie in self.cluster.bookies.values())
        for number in range(up, self.options.settings.ensemble_size):
            name = f"spare{number}"
            self.cluster.bookies[name] = SimBookie(self.cluster, name)
            self.cluster.bookies[name].start()
            self.cluster.trace.probe("topic.spare_bookie")

    @property
    def settled(self) -> bool:
        """Whether all has been looked at, or cannot be: more bookies refused than may."""
        if self.judge.settled and (self.again is None or self.again.settled):
            return True
        if self.cluster.loop.now < self._patience_s or not self._hopeless():
            return False
        self.cluster.trace.probe("topic.hopeless")
        return True

    def _hopeless(self) -> bool:
        """Whether a ledger that a take-over has to close cannot be closed."""
        for known in self.chains.owned.values():
            wanted = [link.ledger_id for link in known.record.ledgers[-1:]]
            if known.record.state_ledger is not None:
                wanted.append(known.record.state_ledger)
            for ledger_id in wanted:
                history = self.cluster.audit.ledgers[ledger_id]
                if not history.is_closed and not self._atlas.must_close(history):
                    return True
        return False

    def stop(self) -> None:
        """No brokers any more: their ledgers are left to whoever recovers them."""
        for broker in self.brokers.values():
            broker.held_down = True
            broker.kill()
