"""Runs one seed: set up → faults and load → heal → settle → audit. The same seed, the same run.

In the audit, every entry of every closed ledger is read as a client reads, and from every copy;
half of the bookies lose their power once more and must come back as they were. docs/simulation.md
describes the phases.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field

from octavo.spark.process_cache import ProcessCache
from tests.sim import options as sim_options
from tests.sim import tool_options
from tests.sim.cluster import Cluster
from tests.sim.crowd_load import crowded
from tests.sim.events import Events
from tests.sim.guard import forbid_real_world
from tests.sim.leave_load import leaving
from tests.sim.ledger_load import LedgerLoad
from tests.sim.ledger_settle import COLLECT_LEDGER_S_MAX, Judge
from tests.sim.loop import SimLoop, SimStuck
from tests.sim.mutants import planted
from tests.sim.nemesis import Nemesis
from tests.sim.older import OLDER_S_MAX, OlderMetadata, aged
from tests.sim.quiescence import Quiescence
from tests.sim.quiet import bugs, quiet
from tests.sim.still import stilled
from tests.sim.thresholds import shrunk
from tests.sim.topics import Topics, has_topics, with_tools, with_workload
from tests.sim.trace import Trace
from tests.sim.wakefulness import Place, Wakefulness

START_S_MAX = 20.0
SETTLE_S_MAX = 60.0
AUDIT_S_MAX = 30.0
REST_S_MAX = 60.0


@dataclass
class SeedResult:
    seed: int
    trace_hash: str
    steps: int
    virtual_s: float
    failure: str | None
    faults: Counter[str]
    probes: Counter[str]
    wall_s: float
    profile: str = ""
    events: list[str] = field(default_factory=list)


def run_seed(
    seed: int, *, mutant: str | None = None, profile: str | None = None, verbose: bool = False
) -> SeedResult:
    started = time.perf_counter()
    ProcessCache.forget_all()
    with planted(mutant), quiet(), forbid_real_world():
        simulation = Simulation(seed, profile, verbose=verbose)
        result = simulation.run()
    result.wall_s = time.perf_counter() - started
    return result


class Simulation:
    def __init__(self, seed: int, profile: str | None, *, verbose: bool = False) -> None:
        self.trace = Trace()
        self.loop = SimLoop(seed, trace=self.trace)
        options = sim_options.draw(seed, profile, self.loop.stream("options"))
        if profile == "crowd":
            options = crowded(options, self.loop.stream("crowd options"))
        if profile == "still":
            options = stilled(options, self.loop.stream("still options"))
        if profile == "leave":
            options = leaving(options, self.loop.stream("leave faults"))
        if profile == "older":
            options = aged(options, self.loop.stream("older options"))
        options = with_workload(options, profile, self.loop.stream("workload").random())
        tools = tool_options.draw(self.loop.stream("tool options"))
        self.options = with_tools(options, tools)
        self.events = Events(self.loop.time, verbose=verbose)
        self.events.add("options", self.options)
        self.cluster = Cluster(self.loop, self.options, self.events)
        self.audit = self.cluster.audit
        self.load = LedgerLoad(self.cluster)
        self.nemesis = Nemesis(self.cluster, self.load)
        self.topics = Topics(self.cluster, tools) if has_topics(self.options) else None
        self.wakefulness = Wakefulness(self.cluster, self._places)
        self.judge = Judge(self.cluster, self.load, self.nemesis.atlas.must_close)
        self.older: OlderMetadata | None = None
        if profile == "older":
            self.older = OlderMetadata(self.cluster, self.load, self.judge)

    def run(self) -> SeedResult:
        stream = self.loop.stream
        try:
            try:
                with (
                    shrunk(stream("thresholds"), stream("read ahead")) as drawn,
                    self.topics.installed() if self.topics else nullcontext(),
                ):
                    self.events.add("thresholds", drawn)
                    self._phases()
            except SimStuck as stuck:
                self.audit.fail(f"S8 {stuck}")
            self.loop.look_for_unseen_errors()
            if self.loop.errors:
                self.audit.fail(f"unhandled: {self.loop.errors[0]}")
            return self._result()
        finally:
            self.loop.close()

    def _result(self) -> SeedResult:
        return SeedResult(
            seed=self.options.seed,
            trace_hash=self.trace.hash(),
            steps=self.loop.steps,
            virtual_s=self.loop.time(),
            failure=self.audit.failure,
            faults=self.trace.faults.copy(),
            probes=self.trace.probes.copy(),
            wall_s=0.0,
            profile=self.options.profile,
            events=self.events.lines() if self.audit.failure else [],
        )

    def _phases(self) -> None:
        cluster, judge = self.cluster, self.judge
        cluster.start()
        self._until(lambda: cluster.all_serve, START_S_MAX)
        self.events.add("phase", "safety")
        self.load.start()
        self.nemesis.start()
        if self.topics is not None:
            self.topics.start()
        if self.older is not None:
            self.older.start()
        over: list[bool] = []
        self.loop.world_later(self.options.safety_s, over.append, True)
        self._until(lambda: bool(over), self.options.safety_s + 1)
        self.events.add("phase", "heal")
        self.nemesis.heal()
        self.load.over = True
        if self.older is not None and self._ends_with(self.older):
            return
        if self.topics is not None:
            self._settle_topics(self.topics)
        judge.settle()
        collect_s = COLLECT_LEDGER_S_MAX * len(self.audit.ledgers)
        self._until(lambda: judge.settled, SETTLE_S_MAX + collect_s)
        self._come_to_rest(self._nodes, lambda: self.options.beyond)
        self.events.add("phase", "audit")
        judge.audit()
        self._until(lambda: judge.audited, AUDIT_S_MAX)

    def _ends_with(self, older: OlderMetadata) -> bool:
        """Turn the metadata back; return whether the seed ends with it."""
        older.begin()
        self._until(lambda: older.over, OLDER_S_MAX)
        return older.accepted

    def _settle_topics(self, topics: Topics) -> None:
        topics.heal()
        topics.settle()
        self._until(lambda: topics.settled, SETTLE_S_MAX)
        self._come_to_rest(topics.roots, topics.is_hopeless)
        topics.stop()

    def _places(self) -> Iterator[Place]:
        for bookie in self.cluster.bookies.values():
            if bookie.process is not None and bookie.node is not None:
                yield bookie.process, [bookie.node]
        for client in self.load.clients:
            if client.process is not None and client.is_ready:
                yield client.process, [client.ledgers]
        for broker in self.topics.brokers.values() if self.topics is not None else ():
            if broker.process is not None and broker.broker is not None:
                yield broker.process, broker.parts()

    def _nodes(self) -> list[object]:
        return [one.node for one in self.cluster.bookies.values() if one.node is not None]

    def _come_to_rest(
        self, roots: Callable[[], list[object]], is_hopeless: Callable[[], bool]
    ) -> None:
        """Check that every count is given back (Q1)."""
        if self.audit.failure is None and not self.loop.errors:
            quiescence = Quiescence(self.cluster, roots, is_hopeless)
            quiescence.begin()
            self._until(lambda: quiescence.over, REST_S_MAX)

    def _until(self, done: Callable[[], bool], virtual_s_max: float) -> None:
        """Run until the condition holds or something is wrong."""
        if not self._is_wrong():
            audit, errors, look = self.audit, self.loop.errors, self.wakefulness.look
            self.loop.run_until(  # asked at every sixteenth step
                lambda: look() or done() or audit.failure is not None or errors or bugs,
                virtual_s_max=virtual_s_max,
            )
            self._is_wrong()

    def _is_wrong(self) -> bool:
        if bugs:
            self.audit.fail(f"unforeseen: {bugs[0]}")
        return self.audit.failure is not None or bool(self.loop.errors)
