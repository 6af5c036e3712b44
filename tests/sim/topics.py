"""The topics of a seed: brokers, clients, faults, referee, judge; for `run.py`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from octavo.broker.types import SubscriptionSettings, TopicName, TopicSettings
from tests.sim import (
    append_audit,
    client_load,
    compaction_load,
    delay_options,
    exclusive_load,
    fleet,
    fork_load,
    large_load,
    leave_load,
    letter_load,
    policy_audit,
    published_load,
    recreate_load,
    spread_audit,
    stream_load,
    subscription_types,
    time_options,
    topic_options,
)
from tests.sim.append_audit import AppendAudit, AppendOptions, change_policy
from tests.sim.atlas import Atlas
from tests.sim.brokers import SimBroker
from tests.sim.chain_audit import ChainAudit
from tests.sim.client_load import LOOP, ClientLoad, ClientOptions
from tests.sim.cluster import Cluster, SimBookie
from tests.sim.compaction_load import CompactionLoad, CompactionOptions, OwnCompaction
from tests.sim.delay_options import HEEDING, DelayOptions
from tests.sim.exclusive_load import ExclusiveLoad, ExclusiveOptions
from tests.sim.fleet import Fleet
from tests.sim.fork_load import ForkLoad
from tests.sim.large_load import LargeLoad
from tests.sim.lease_audit import LeaseAudit
from tests.sim.leave_load import LeaveLoad
from tests.sim.leftover_audit import left_over
from tests.sim.letter_load import LetterJudge, LetterOptions
from tests.sim.options import SimOptions
from tests.sim.policy_audit import PolicyAudit
from tests.sim.published_audit import PublishedAudit
from tests.sim.published_load import PublishedLoad, PublishedOptions
from tests.sim.recreate_load import RecreateLoad
from tests.sim.spread_audit import SpreadAudit
from tests.sim.still import still_fleet, still_topics
from tests.sim.stream_face import Face
from tests.sim.stream_load import StreamLoad
from tests.sim.time_audit import TimeAudit
from tests.sim.time_load import TimeLoad
from tests.sim.tool_judge import ToolJudge
from tests.sim.tool_options import ToolOptions
from tests.sim.tools import Tools
from tests.sim.topic_audit import TopicAudit
from tests.sim.topic_client import TopicClient
from tests.sim.topic_faults import TopicNemesis
from tests.sim.topic_load import TopicLoad
from tests.sim.topic_settle import TopicJudge
from tests.sim.type_audit import TypeAudit

_ALONE = ("recreate", "stream", "load", "large", "still", "leave")
"""Profiles whose own load takes the seed's time; they have only the simplest topic besides."""
_ANY_CALLS = ("stream", "large", "leave")
"""Those profiles whose referee allows lost, late and doubled calls."""
_TOPICS_SHARE = 0.2
_BOTH_SHARE = 0.05
_PATIENCE_S = 20.0
"""After this time without progress, the judge may be waiting for something impossible."""


def with_workload(options: SimOptions, profile: str | None, drawn: float) -> SimOptions:
    if profile is None and not options.beyond and drawn < _TOPICS_SHARE + _BOTH_SHARE:
        profile = "topic" if drawn < _TOPICS_SHARE else "both"
    if profile not in ("topic", "both", *_ALONE):
        return options
    # A topic never ends, so it needs a whole ensemble also when bookies are lost for good.
    lost_max = min(options.damage_max, 1) if "damage" in options.faults else 0
    if all(quorum[0] > options.bookies - lost_max for quorum in options.quorums):
        lost_max = 0
    options = replace(options, profile=profile, damage_max=lost_max)
    if profile not in ("both", "still"):
        return replace(options, writers=0, recoverers=0, tailers=0, deletes=False)
    return options


def has_topics(options: SimOptions) -> bool:
    return options.profile in ("topic", "both", *_ALONE)


def with_tools(options: SimOptions, drawn: ToolOptions) -> SimOptions:
    """Lengthen a seed with Spark's side: a batch takes its time."""
    if not (has_topics(options) and drawn.are_there) or options.profile in _ALONE:
        return options
    return replace(options, safety_s=max(options.safety_s, drawn.safety_s))


class Topics:
    """All parts. `start` in the safety phase, then `heal`, `settle` until `settled`, `stop`."""

    def __init__(self, cluster: Cluster, tool_options: ToolOptions) -> None:
        loop = cluster.loop
        self.cluster = cluster
        left = cluster.options.bookies - cluster.options.damage_max
        quorums = tuple(q for q in cluster.options.quorums if q[0] <= left)
        self.options = topic_options.draw(loop.stream("topic options"), quorums)
        times = time_options.draw(loop.stream("time options"))
        recreates = cluster.options.profile == "recreate"
        alone = cluster.options.profile in _ALONE
        if times.retention_ms is not None:
            settings = replace(
                self.options.settings, retention_ms=times.retention_ms, retention_bytes=None
            )
            self.options = replace(self.options, settings=settings)
        policies = policy_audit.draw(loop.stream("policy options"))
        if not alone:
            said = policies.over(self.options.settings)
            self.options = replace(self.options, settings=said)
        appends = append_audit.draw(loop.stream("append options"))
        if not recreates:
            self.options = replace(self.options, settings=appends.over(self.options.settings))
        compaction = compaction_load.draw(loop.stream("compaction options"))
        own = compaction_load.draw_own(loop.stream("own compaction options"))
        delays = delay_options.draw(loop.stream("delay options"))
        client = client_load.draw(loop.stream("client options"))
        if compaction.jobs:  # its messages need keys and values
            client = ClientOptions()
        if alone:
            faults = recreate_load.spared(self.options.faults, loop.stream("topic faults spared"))
            heeds = cluster.options.profile in _ANY_CALLS
            calls = self.options.calls if heeds else {}
            self.options = replace(self.options, calls=calls, messages_max=20, faults=faults)
            compaction, client = CompactionOptions(), ClientOptions()
            tool_options, delays = ToolOptions(), DelayOptions()
        types: dict[str, SubscriptionSettings] = {}
        if not alone:
            types = subscription_types.draw(
                loop.stream("subscription types"), self.options.subscriptions
            )
        if types:
            # The production client and Spark's sink choose their own keys.
            client, tool_options = ClientOptions(), ToolOptions()
            self.options = replace(self.options, consumers=2, subscriptions=types)
        if not compaction.jobs:
            own = None
        if own is not None:
            if tool_options.are_there:
                own = replace(own, tombstones=False)
            settings = replace(self.options.settings, **own.settings)
            self.options = replace(self.options, settings=settings)
            cluster.events.add("own compaction options", own)
        if client.loops:
            delays = DelayOptions()  # the client's loops have their own delays
        if delays.share:
            times = replace(times, jump_mean_s=None)
            cluster.events.add("delay options", delays)
        letters = letter_load.draw(loop.stream("letter options"))
        if alone:
            letters = LetterOptions()
        given = letters.given_to(TopicName("public", "t"), self.options.subscriptions)
        subscriptions = {**given, **client.subscriptions}
        self.options = replace(self.options, subscriptions=subscriptions)
        key_of: subscription_types.KeyOf = compaction.key_of
        if not compaction.jobs:
            keys = loop.stream("subscription keys").choice((2, 4, 12))
            key_of = subscription_types.key_of(subscriptions, keys)
        drawn = fleet.draw(loop.stream("fleet options"))
        if cluster.options.profile == "still":
            drawn = still_fleet(drawn)
            self.options = still_topics(self.options)
        spread = None
        if cluster.options.profile == "load":
            spread = spread_audit.draw(loop.stream("spread options"))
            cluster.events.add("spread options", spread)
            few = loop.stream("spread options").choice((3, 5, 7))
            drawn = replace(drawn, partitions=few, by_hand_s=None)
            self.options = replace(self.options, brokers=max(2, self.options.brokers))
        if cluster.options.profile == "leave":  # they ask each other
            self.options = replace(self.options, brokers=max(2, self.options.brokers))
        if drawn.partitions is not None:
            more = replace(self.options.settings, partitions=drawn.partitions)
            self.options = replace(self.options, settings=more)
        cluster.events.add("topic options", self.options)
        cluster.events.add("fleet options", drawn)
        cluster.events.add("time options", times)
        cluster.events.add("policy options", policies)
        cluster.events.add("letter options", letters)
        cluster.events.add("append options", appends)
        self.audit = TopicAudit(cluster.events, cluster.trace, cluster.audit.fail)
        self.chains = ChainAudit(self.audit, cluster.audit, cluster.trace, cluster.audit.fail)
        cluster.metadata.observers.append(self.chains.changed)
        topic = TopicName("public", "t")
        partitions = [topic.partition(n) for n in range(self.options.settings.partitions)]
        for name in partitions:
            self.audit.add(name, self.options.subscriptions, repeats=not self.options.definite)
            if client.loops:
                self.audit.logs[name].cursors[LOOP].releases = True
            for sub in given if letters.max_deliveries is not None else ():
                self.audit.logs[name].cursors[sub].gives_up = True
        if not recreates:
            self._watch_append_times(appends)
        type_audit = TypeAudit(subscriptions, key_of, cluster.trace, cluster.audit.fail)
        for log in self.audit.logs.values():
            log.passes = type_audit.passes
            log.order_of = type_audit.order_of
        self.brokers: dict[str, SimBroker] = {}
        config = {
            **self.options.config, **topic_options.draw_clocks(loop.stream("clock options")),
            **drawn.config, **letters.config, "leftover_grace_ms": 20,
            **({} if own is None else own.config), "pending_messages_max": delays.pending_max,
            **({} if spread is None else spread.config),
        }  # fmt: skip
        if alone:
            config.update(recreate_load.limits(loop.stream("recreate options")))
        for number in range(1, self.options.brokers + 1):
            broker_id = f"k{number}"
            self.brokers[broker_id] = SimBroker(cluster, broker_id, config, self.brokers)
        self.load = TopicLoad(
            cluster, self.brokers, partitions, self.options, self.audit, key_of, times, type_audit
        )
        self.load.delays = delays
        if delays.share:
            type_audit.waits = lambda value: bool(delays.headers_of(value, 0))
            for log in self.audit.logs.values():
                log.unordered = {
                    sub for sub, of in self.options.subscriptions.items() if of.type in HEEDING
                }
        more_trims = own is not None and self.options.settings.compaction_delete_raw
        self.chains.times = TimeAudit(
            None if self.options.settings.retention_bytes is not None or more_trims
            else self.options.settings.retention_ms,
            loop.wall_ms, cluster.trace, cluster.audit.fail,
            two_clocks=cluster.metadata.resends_reads,
        )  # fmt: skip
        self.times = TimeLoad(self.load, times, self.chains.times)
        self.leases = LeaseAudit(loop.time, cluster.trace, cluster.audit.fail)
        self.policies = PolicyAudit(
            cluster, self.audit, self.chains.times, clocks_jump=times.jump_mean_s is not None
        )
        self.load.others.append(self.times.clients)
        if appends.how == "changes" and not recreates:
            life = partial(change_policy, self.load)
            self.load.others.append(lambda: [TopicClient(self.load, "policy", life)])
        self.nemesis = TopicNemesis(cluster, self.brokers, self.load, self.options)
        self.judge = TopicJudge(
            cluster, self.brokers, self.load, self.options, self.audit, topic, self.times
        )
        self.judge.letters = LetterJudge(self.load, letters)
        self.fleet = Fleet(cluster, self.brokers, config, drawn, topic, len(partitions))
        self.spread: SpreadAudit | None = None
        if spread is not None:
            self.fleet.by_load = True
            self.spread = SpreadAudit(cluster, self.brokers, spread, topic, len(partitions))
        self.judge.fleet_is_well = self._is_well
        self.judge.left_over = lambda: left_over(cluster.audit.ledgers, self.chains.owned)
        published = published_load.draw(loop.stream("published options"))
        if alone:
            published = PublishedOptions()
        drawn_forks = fork_load.draw(loop.stream("fork options"))
        if drawn_forks.forks:  # a fork keeps ledgers of a deleted topic
            tool_options = replace(tool_options, deletes_topic=False)
        self.tools = self._tools(tool_options, published)
        self.again = RecreateLoad(self.load, self.options.settings) if recreates else None
        if compaction.jobs:
            cluster.events.add("compaction options", compaction)
            self._compact(CompactionLoad(self.load, compaction), own)
        if client.loops:
            cluster.events.add("client options", client)
            self.judge.client = ClientLoad(self.load, client)
            self.load.others.append(self.judge.client.clients)
        self._exclude(exclusive_load.draw(loop.stream("exclusive options")))
        self.forks: ForkLoad | None = None
        if drawn_forks.forks and not alone:
            cluster.events.add("fork options", drawn_forks)
            self.forks = ForkLoad(self.load, drawn_forks)
            self.load.others.append(self.forks.clients)
        self.streams = self._stream() if cluster.options.profile == "stream" else None
        self.large = self._large() if cluster.options.profile == "large" else None
        self.leavers = self._leavers() if cluster.options.profile == "leave" else None
        self._atlas = Atlas(cluster)
        self._ready = self._enough_bookies = False
        self._patience_s = float("inf")

    def _watch_append_times(self, appends: AppendOptions) -> None:
        cluster = self.cluster
        audit = AppendAudit(
            appends.how, cluster.clocks, cluster.loop.wall_ms, cluster.trace, cluster.audit.fail
        )
        for log in self.audit.logs.values():
            log.appends = audit

    def _tools(self, options: ToolOptions, published: PublishedOptions) -> Tools | None:
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

    def _exclude(self, options: ExclusiveOptions) -> None:
        gives_up = self.tools, self.judge.client, self.again
        if not options.producers or any(one is not None for one in gives_up):
            return  # Spark's side and the production client wait where they are refused for good
        self.cluster.events.add("exclusive options", options)
        load = self.judge.exclusive = ExclusiveLoad(self.load, options)
        load.over = lambda: self.judge.settled
        self.load.others.append(load.clients)

    def _stream(self) -> StreamLoad:
        options = stream_load.draw(self.cluster.loop.stream("stream options"))
        self.cluster.events.add("stream options", options)
        face = Face(options.read_bytes)
        return StreamLoad(self.load, options, face, self._kept_whole())

    def _large(self) -> LargeLoad:
        options = large_load.draw(self.cluster.loop.stream("large options"))
        self.cluster.events.add("large options", options)
        return LargeLoad(self.load, options, self._kept_whole())

    def _leavers(self) -> LeaveLoad:
        options = leave_load.draw(self.cluster.loop.stream("leave options"))
        self.cluster.events.add("leave options", options)
        return LeaveLoad(self.load, options, self._kept_whole())

    def _kept_whole(self) -> TopicSettings:
        return replace(self.options.settings, partitions=1, retention_ms=None, retention_bytes=None)

    def _compact(self, compaction: CompactionLoad, own: OwnCompaction | None) -> None:
        if own is not None:
            self.load.is_tombstone = own.is_tombstone
            assert self.chains.times is not None
            for view in compaction.views.values():
                view.own, view.age_ms = own, self.chains.times.age_ms
        self.load.others.append(compaction.clients)
        self.judge.compaction = compaction
        self.chains.views = compaction.views

    @contextmanager
    def installed(self) -> Iterator[None]:
        with (
            self.fleet.installed(),
            self.policies.installed(),
            self.leases.installed(),
            nullcontext() if not self.tools else self.tools.installed(),
            self.load.delays.installed(self.cluster.loop.wall_ms),
            self._cursors(),
            nullcontext() if not self.spread else self.spread.installed(),
            nullcontext() if not self.large else self.large.installed(),
            nullcontext() if not self.leavers else self.leavers.installed(),
        ):
            yield

    async def _is_well(self) -> None:
        await self.fleet.check(self._hopeless)
        if self.spread is not None:
            await self.spread.check(self._hopeless)

    def _cursors(self) -> AbstractContextManager[None]:
        if self.streams is None:
            return nullcontext()
        return self.streams.face.installed(self.cluster.loop.stream("cursors"))

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        self.judge.prepare(self._begin)
        if self.again is not None:
            self.again.start()
        if self.streams is not None:
            self.streams.start()
        if self.spread is not None:
            self.spread.start()
        if self.large is not None:
            self.large.start()
        if self.leavers is not None:
            self.leavers.start()
        self.nemesis.start()
        self.fleet.start()

    def _begin(self) -> None:
        self._ready = True
        self.load.start()
        self.times.begin_jumps()

    def heal(self) -> None:
        self.fleet.over = True
        if self.spread is not None:
            self.spread.heal()
        self.nemesis.heal()
        if self.again is not None:
            self.again.nemesis.over = True
        self.load.over = True
        if self.judge.exclusive is not None:
            self.judge.exclusive.free()
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
            if self.forks is not None:
                self.forks.settle()
            if self.streams is not None:
                self.streams.settle()
            if self.large is not None:
                self.large.settle()
            if self.leavers is not None:
                self.leavers.settle()
        else:
            self.cluster.loop.world_later(0.05, self.settle)

    def _add_bookies(self) -> None:
        """Replace bookies that lost something and stay away: a topic needs a whole ensemble."""
        up = sum(bookie.refused is None for bookie in self.cluster.bookies.values())
        for number in range(up, self.options.settings.ensemble_size):
            name = f"spare{number}"
            self.cluster.bookies[name] = SimBookie(self.cluster, name)
            self.cluster.bookies[name].start()
            self.cluster.trace.probe("topic.spare_bookie")

    @property
    def settled(self) -> bool:
        beside = [self.again, self.forks, self.streams, self.large, self.leavers]
        if self.judge.settled and all(one is None or one.settled for one in beside):
            return True
        if self.cluster.loop.now < self._patience_s or not self._hopeless():
            return False
        self.cluster.trace.probe("topic.hopeless")
        return True

    def roots(self) -> list[object]:
        """List the parts of the live brokers, and what their clients' calls take there."""
        return [
            one
            for broker in self.brokers.values()
            if broker.is_alive
            for one in (*broker.parts(), *self._fronts(broker))
        ]

    def _fronts(self, broker: SimBroker) -> list[object]:
        return [] if self.leavers is None else self.leavers.parts(broker)

    def is_hopeless(self) -> bool:
        """Whether more is lost than allowed, so that something waits for ever."""
        return self.cluster.options.beyond or self._hopeless()

    def _hopeless(self) -> bool:
        for known in self.chains.owned.values():
            wanted = [link.ledger_id for link in known.record.ledgers[-1:] if not link.shared]
            if known.record.state_ledger is not None:
                wanted.append(known.record.state_ledger)
            for ledger_id in wanted:
                history = self.cluster.audit.ledgers[ledger_id]
                if not history.is_closed and not self._atlas.must_close(history):
                    return True
        return False

    def stop(self) -> None:
        if self.judge.exclusive is not None:
            self.judge.exclusive.over = lambda: True
        for broker in self.brokers.values():
            broker.held_down = True
            broker.kill()
