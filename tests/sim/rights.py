"""Rights that are given and withdrawn, under faults: `python -m tests.sim.rights N`.

A small world without bookies and topics. The referee: whatever a broker allows, the policy allowed
within the last `EFFECTIVE_S`, unless the broker could not reach the store or stood still. At the
end all brokers decide by the present policy.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

from octavo.metadata.store import MetadataError, SessionState
from octavo.metadata.topic_records import decode_record
from octavo.security.authority import Authority
from octavo.security.policy import (
    POLICY_PATH,
    PolicyRecord,
    PolicyStore,
    make_rule,
    policy_of,
    secured,
    with_rule,
    without_rule,
)
from octavo.security.principal import Identity
from octavo.security.rules import Operation, Rule, parse_resource
from tests.sim import small_worlds
from tests.sim.loop import SimLoop, SimStuck
from tests.sim.metadata import Cut, SimMetadata
from tests.sim.metadata_store import SimMetadataStore
from tests.sim.metadata_tree import Change
from tests.sim.mutants.planting import Edit
from tests.sim.process import Process
from tests.sim.small_worlds import Result
from tests.sim.trace import Trace

EFFECTIVE_S = 5.0
"""The promise for a broker that reaches the store."""
SAFETY_S = 40.0
SETTLE_S = 10.0
LOOKED_EVERY_S = 0.05
CALL_TIMEOUT_MS = 600
SESSION_TIMEOUT_MS = 1_500
USERS = [Identity(f"user:{name}") for name in ("ann", "bob", "eve")]
TOPIC = parse_resource("topic:public/t")


Make = Callable[[PolicyRecord, Rule], PolicyRecord]


class SimRights:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process: Process | None = None
        self.authority: Authority | None = None
        self.store: SimMetadataStore | None = None
        self.out_of_reach_s = 0.0
        """When it was last out of reach."""

    def start(self) -> None:
        if self.process is None or not self.process.alive:
            self.process = Process(self.world.loop, self.name)
            self.process.spawn(self._live(self.process), self.name)

    def kill(self) -> None:
        if self.process is not None:
            self.process.crash(power=False)
        self.authority = self.store = None
        self.world.loop.world_later(self.world.rng.random(), self.start)

    async def _live(self, process: Process) -> None:
        self.store = store = self.world._store(process)
        authority = Authority(store)
        try:
            await store.start()
            await authority.start()
        except MetadataError:  # a broker that does not know the policy does not serve
            self.world.trace.probe("rights.not_started")
            self.kill()
            return
        self.authority = authority

    @property
    def in_reach(self) -> bool:
        metadata = self.world.metadata
        return (
            self.process is not None
            and self.process.alive
            and not self.process.paused
            and self.authority is not None
            and self.store is not None
            and self.store.session_state is SessionState.CONNECTED
            and metadata.hears(self.name)
            and metadata.is_heard(self.name)
            and not metadata.slow_s(self.name)
        )


class World:
    operations: ClassVar[tuple[Operation, ...]] = (Operation.CONSUME,)
    """Rights for these operations are given and withdrawn."""

    def __init__(self, seed: int) -> None:
        self.trace = Trace()
        self.loop = SimLoop(seed, trace=self.trace)
        self.rng = self.loop.stream("rights")
        self.metadata = SimMetadata(self.loop, self.trace)
        self.metadata.observers.append(self._changed)
        names = [f"b{n}" for n in range(1, self.rng.randint(2, 4))]
        self.brokers = [self._broker(name) for name in names]
        self.failure: str | None = None
        self.over = False
        self.changes = 0
        self._denied_since: dict[Identity, float | None] = dict.fromkeys(USERS)
        """Since when the present policy denies it, or None. Without a policy everything is
        allowed."""
        faults = self.metadata.faults
        faults.delay_ms = self.rng.choice((1.0, 10.0))
        faults.request_lost = self.rng.choice((0.0, 0.02))
        faults.reply_lost = self.rng.choice((0.0, 0.05))
        faults.watch_delay_ms = self.rng.choice((2.0, 200.0, 2_000.0))
        faults.lag_ms = self.rng.choice((0.0, 50.0, 8_000.0))

    def run(self) -> Result:
        try:
            admin = Process(self.loop, "admin")
            admin.spawn(self._change(admin), "admin")
            for broker in self.brokers:
                broker.start()
            self._later(self._look, LOOKED_EVERY_S)
            self._later(self._fault, self._pause_s())
            self._until(SAFETY_S)
            self.over = True
            self.metadata.heal()
            self._until(SETTLE_S)
            self._judge()
            self.loop.look_for_unseen_errors()
            if self.loop.errors and self.failure is None:
                self.failure = f"unhandled: {self.loop.errors[0]}"
        except SimStuck as stuck:
            self.failure = self.failure or f"stuck: {stuck}"
        finally:
            self.loop.close()
        return Result(self.failure, self.changes, dict(self.trace.probes))

    def _broker(self, name: str) -> SimRights:
        return SimRights(self, name)

    def _until(self, s: float) -> None:
        passed: list[bool] = []
        self.loop.world_later(s, passed.append, True)
        self.loop.run_until(lambda: passed or self.failure, virtual_s_max=s + 1)

    def _later(self, call: Callable[[], Any], s: float) -> None:
        self.loop.world_later(s, call)

    # What happens

    async def _change(self, process: Process) -> None:
        rules = [
            make_rule(user.name, operation, "topic:public/*", allow=allow)
            for operation in self.operations
            for user in USERS
            for allow in (True, False)
        ]
        policies: PolicyStore | None = None
        while not self.over:
            try:
                if policies is None:
                    store = self._store(process)
                    await store.start()
                    policies = PolicyStore(store)
                rule = process.rng.choice(rules)
                make = process.rng.choice(self._changes_of(rule))

                def changed(
                    record: PolicyRecord,
                    rule: Rule = rule,
                    make: Make = make,
                ) -> PolicyRecord:
                    return make(self._begun(record), rule)

                await policies.change(changed)
            except MetadataError:
                self.trace.probe("rights.not_changed")
            await asyncio.sleep(process.rng.choice((0.05, 0.5, 3.0, 6.0)))

    def _begun(self, record: PolicyRecord) -> PolicyRecord:
        return secured(record, "user:root")

    def _changes_of(self, rule: Rule) -> Sequence[Make]:
        return (with_rule, without_rule)

    def _store(self, process: Process) -> SimMetadataStore:
        return self.metadata.store(
            process, session_timeout_ms=SESSION_TIMEOUT_MS, call_timeout_ms=CALL_TIMEOUT_MS
        )

    def _changed(self, change: Change) -> None:
        if change.path != POLICY_PATH or change.value is None:
            return
        self.changes += 1
        policy = policy_of(decode_record(PolicyRecord, POLICY_PATH, change.value))
        for user in USERS:
            if policy.decide(user, Operation.CONSUME, TOPIC).allowed:
                self._denied_since[user] = None
            elif self._denied_since[user] is None:
                self._denied_since[user] = change.time_s

    def _pause_s(self) -> float:
        return self.rng.random() * 2.0

    def _fault(self) -> None:
        if self.over:
            return
        rng, metadata = self.rng, self.metadata
        broker = rng.choice(self.brokers)
        for_s = rng.choice((0.1, 0.7, 2.0, 6.0)) * rng.random()
        kind = rng.choice(("cut", "deaf", "reset", "expire", "slow", "away", "pause", "kill"))
        self.trace.fault(f"rights.{kind}")
        if kind == "cut":
            metadata.partition(broker.name, rng.choice((Cut.REQUESTS, Cut.REPLIES, Cut.BOTH)))
            self._later(lambda: metadata.heal(broker.name), for_s)
        elif kind == "deaf":
            metadata.deafen(broker.name, 4.0 * for_s)
        elif kind == "reset":
            metadata.reset(broker.name)
        elif kind == "expire":
            metadata.expire(broker.name)
        elif kind == "slow":
            metadata.slow_down(broker.name, rng.random(), for_s)
        elif kind == "away":
            metadata.go_away()
            self._later(metadata.come_back, for_s)
        elif kind == "pause" and broker.process is not None:
            broker.process.pause(for_s)
        elif kind == "kill":
            broker.kill()
        self._later(self._fault, self._pause_s())

    # Referee

    def _look(self) -> None:
        now_s = self.loop.time()
        for broker in self.brokers:
            if not broker.in_reach:
                broker.out_of_reach_s = now_s
                continue
            for user, since_s in self._denied_since.items():
                if since_s is None or max(since_s, broker.out_of_reach_s) + EFFECTIVE_S > now_s:
                    continue
                self.trace.probe("rights.effective_in_time")
                if self._allows(broker, user):
                    self.failure = (
                        f"at {now_s:.2f} s: {broker.name} lets {user.name} consume, who may not "
                        f"since {since_s:.2f} s; it reaches the store since "
                        f"{broker.out_of_reach_s:.2f} s"
                    )
        self._later(self._look, LOOKED_EVERY_S)

    def _allows(self, broker: SimRights, user: Identity) -> bool:
        assert broker.authority is not None
        return broker.authority.decide(user, Operation.CONSUME, TOPIC).allowed

    def _judge(self) -> None:
        """Judge the end, without faults: every right that was given is effective."""
        for broker in self.brokers:
            if self.failure is None and broker.authority is None:
                self.failure = f"{broker.name} does not serve though nothing goes wrong"
            for user, since_s in self._denied_since.items():
                if self.failure is None and self._allows(broker, user) != (since_s is None):
                    self.failure = f"{broker.name} decides otherwise than the policy of {user.name}"


BUGS: dict[str, tuple[Edit, ...]] = {
    "only the watch is waited for": (
        Edit(
            "octavo.security.record:FollowedRecord._follow",
            "async with asyncio.timeout(pause_s):",
            "async with asyncio.timeout(None):",
        ),
    ),
    "who cannot read once reads no more": (
        Edit(
            "octavo.security.record:FollowedRecord._follow",
            "pause_s = RETRY_S",
            "return",
        ),
    ),
    "what is read may be from long ago": (
        Edit("octavo.security.record:SharedRecord.read", "await self._store.sync()", "pass"),
    ),
    "a policy that was read does not count": (
        Edit(
            "octavo.security.authority:Authority._take",
            "self._policy, self._version = policy, version",
            "self._version = version",
        ),
    ),
}
"""Planted one at a time; each must be found."""


run_seed = partial(small_worlds.run_seed, World)


if __name__ == "__main__":
    sys.exit(small_worlds.main(World))
