"""Consumer groups whose members join, leave and vanish: `python -m tests.sim.groups N`.

A separate world without bookies and metadata. Brokers run the production `Groups`, `Operations` and
`Serving`, and learn late which brokers live, so two of them may keep the group for a while. The
referee of X22. At the end, each partition is received by exactly one member that wants it, and
shares are even.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from octavo.broker.errors import StaleGeneration, SubscriptionBusy
from octavo.broker.groups.coordinator import Groups, now_ms
from octavo.broker.groups.group import Membership
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.problems import refusal_of
from octavo.broker.operations.asking import Operations
from octavo.broker.operations.bodies import Asker
from octavo.broker.operations.kinds import (
    AnyAnswer,
    GroupOperation,
    Heartbeat,
    LeaveGroup,
    decode_answer,
    decode_refusal,
    encode_request,
)
from octavo.broker.operations.remote import error_of
from octavo.broker.operations.serving import Serving
from octavo.broker.subscriptions.member_fence import MemberFence
from octavo.broker.types import (
    BrokerInfo,
    GroupName,
    Owner,
    PartitionName,
    TopicName,
    TopicSettings,
)
from octavo.protocol.codes import OctavoError
from octavo.protocol.topic_patterns import TopicPattern
from octavo.security.principal import Identity
from tests.sim import small_worlds
from tests.sim.loop import SimLoop, SimStuck
from tests.sim.mutants.planting import Edit
from tests.sim.process import Process
from tests.sim.small_worlds import Result
from tests.sim.trace import Trace

SAFETY_S = 30.0
SETTLE_S = 15.0
SESSION_S = 1.0
WAIT_S = 0.4
CALL_S = 0.9
HOLD_MS = 300
AGREED_S = 3 * SESSION_S
"""When all brokers have known the same keeper this long, every member has called it."""
TOPICS = {"a": 4, "b": 3}
"""Topic → its first number of partitions."""
PARTITIONS_MAX = 8
_GROUP = GroupName("public", "g")
_ANN = Identity("user:ann", source="token")


class Keeper:
    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.process: Process | None = None
        self.operations: Operations
        self.serving: Serving
        self.heard: tuple[BrokerInfo, ...] = ()
        """The live brokers, as far as it knows."""

    @property
    def info(self) -> BrokerInfo:
        return BrokerInfo(self.name, f"sim://{self.name}")

    @property
    def is_alive(self) -> bool:
        return self.process is not None and self.process.alive

    def start(self) -> None:
        self.process = Process(self.world.loop, self.name)
        groups, rules = Groups(HttpConfig()), _Rules()
        broker: Any = self._broker()
        remote: Any = SimpleNamespace(ask=self._ask)
        self.operations = Operations(broker, remote, rules, refusal_of, 1.0, "", groups)  # type: ignore[arg-type]
        self.serving = Serving(
            broker, rules, refusal_of, lambda: True, _nothing, _nothing, groups  # type: ignore[arg-type]
        )  # fmt: skip
        self.world.came_or_went(self)

    def kill(self) -> None:
        if self.process is not None:
            self.process.crash(power=False)
        self.world.came_or_went(None)

    async def at(self, work: Callable[[], Awaitable[Any]]) -> Any:
        await self.world.way()
        if self.process is None or not self.process.alive:
            raise TimeoutError
        task = self.process.spawn(_outcome(work), "call")
        done, _ = await asyncio.wait({task}, timeout=CALL_S)
        if not done:
            raise TimeoutError
        await self.world.way()
        found, error = task.result()
        if error is not None:
            raise error
        return found

    async def _ask(
        self, owner: Owner, identity: Identity, operation: GroupOperation, wait_s: float
    ) -> AnyAnswer:
        assert wait_s <= WAIT_S
        there = self.world.keepers[owner.broker_id]
        payload = encode_request(identity, owner.incarnation, operation)
        deadline_s = self.world.loop.time() + CALL_S
        asker = Asker(self.name, self.name)
        reply = await there.at(lambda: there.serving.answer(payload, deadline_s, asker))
        if reply.is_refused:
            raise error_of(decode_refusal(reply.payload))
        return decode_answer(operation, reply.payload)

    def _broker(self) -> Any:
        world = self.world

        async def get(name: TopicName) -> Any:
            settings = TopicSettings(partitions=world.topics[name.topic])
            return SimpleNamespace(settings=settings, has_letters=False)

        async def names_in(_: str) -> list[str]:
            return sorted(world.topics)

        async def take(_: int) -> None:
            """Take a turn: one member's work is short here."""

        return SimpleNamespace(
            broker_id=self.name,
            registry=SimpleNamespace(brokers=lambda: self.heard),
            topics=SimpleNamespace(get=get, names_in=names_in),
            open_batches=SimpleNamespace(turns=SimpleNamespace(take=take)),
        )


class _Rules:
    async def begin(self, *_: Any) -> None: ...

    def admit(self, identity: Identity, operation: GroupOperation, peer: str) -> None:
        del operation, peer
        assert identity == _ANN

    async def measured(self, _identity: Identity, _namespace: str, work: Awaitable[Any]) -> Any:
        return await work

    def may_consume(self, *_: Any) -> bool:
        return True

    def may_found_group(self, *_: Any) -> None: ...


def _nothing() -> None: ...


async def _outcome(work: Callable[[], Awaitable[Any]]) -> tuple[Any, Exception | None]:
    try:
        return await work(), None
    except (OctavoError, TimeoutError) as error:
        return None, error


class Member:
    def __init__(self, world: World, name: str, topics: list[str]) -> None:
        self.world = world
        self.name = name
        self.topics = topics
        self.process = Process(world.loop, name)
        self.rng = self.process.rng
        self.generation = 0
        self.holds: frozenset[PartitionName] = frozenset()
        """Partitions that it has been given and has not released."""
        self.working: frozenset[PartitionName] = frozenset()
        self.shown_s = world.loop.time()
        """When a call of it was last answered."""
        self.leaving = False
        self.received: dict[PartitionName, float] = {}
        """Partition → when it last received from it."""

    @property
    def wants(self) -> list[PartitionName]:
        names = sorted(self.world.topics) if "*" in self.topics else self.topics
        return [
            TopicName("public", name).partition(number)
            for name in names
            for number in range(self.world.topics[name])
        ]

    def start(self) -> None:
        self.process.spawn(self._beat(), self.name)
        self.process.spawn(self._receive(), self.name)

    async def _ask(self, operation: GroupOperation) -> AnyAnswer | None:
        keeper = self.rng.choice(list(self.world.keepers.values()))
        try:
            answer: AnyAnswer = await keeper.at(
                lambda: keeper.operations.run(_ANN, operation, self.name)
            )
            return answer
        except (OctavoError, TimeoutError):
            self.world.trace.probe("groups.unanswered")
            return None

    async def _beat(self) -> None:
        while not self.leaving:
            asked_s = self.world.loop.time()
            patterns = [TopicPattern("public", topic) for topic in self.topics]
            shown = await self._ask(
                Heartbeat(
                    _GROUP, self.name, patterns, sorted(self.holds), self.generation,
                    round(SESSION_S * 1000), round(WAIT_S * 1000),
                )
            )  # fmt: skip
            if shown is None:
                if self.world.loop.time() - self.shown_s > SESSION_S:
                    self.holds = self.working = frozenset()  # it begins alone, as a client does
                continue
            assert isinstance(shown, Membership)
            given = frozenset(shown.partitions)
            self.world.given(self, given - self.holds, asked_s)
            self.generation, self.shown_s = max(self.generation, shown.generation), asked_s
            self.working = given
            kept = self.holds - given
            self.holds |= given
            if kept:  # it finishes the messages that it has
                await asyncio.sleep(self.rng.choice((0.0, 0.1)))
                self.holds = given
        self.holds = self.working = frozenset()
        while await self._ask(LeaveGroup(_GROUP, self.name)) is None:
            pass
        self.world.members.pop(self.name, None)

    async def _receive(self) -> None:
        while True:
            for name in sorted(self.working):
                self.world.receives(self, name)
            await asyncio.sleep(self.rng.choice((0.02, 0.1)))


class World:
    def __init__(self, seed: int) -> None:
        self.trace = Trace()
        self.loop = SimLoop(seed, trace=self.trace)
        self.rng = self.loop.stream("groups")
        self.failure: str | None = None
        self.over = False
        self.topics = dict(TOPICS)
        self.lost_p = self.rng.choice((0.0, 0.02, 0.1))
        self.late_s = self.rng.choice((0.01, 0.3, 1.5))
        """How late brokers hear of each other."""
        self.keepers = {name: Keeper(self, name) for name in ("k1", "k2", "k3")}
        self.members: dict[str, Member] = {}
        self.holds: dict[PartitionName, MemberFence] = {}
        self.last: dict[PartitionName, tuple[int, str]] = {}
        """Partition → generation and name of the last receiver under its present owner."""
        self.heard_s = 0.0
        """When a broker last heard of a changed list of brokers."""
        self._numbers = 0

    def run(self) -> Result:
        try:
            for keeper in self.keepers.values():
                keeper.start()
            for _ in range(self.rng.randint(1, 4)):
                self._join()
            self._later(self._happen, self._pause_s())
            self._until(SAFETY_S)
            self.over, self.lost_p = True, 0.0
            for keeper in self.keepers.values():
                if not keeper.is_alive:
                    keeper.start()
            if all(member.leaving for member in self.members.values()):
                self._join()
            self._until(SETTLE_S)
            self._judge()
            self.loop.look_for_unseen_errors()
            if self.loop.errors and self.failure is None:
                self.failure = f"unhandled: {self.loop.errors[0]}"
        except SimStuck as stuck:
            self.failure = self.failure or f"stuck: {stuck}"
        finally:
            self.loop.close()
        return Result(self.failure, self._numbers, dict(self.trace.probes))

    def _until(self, s: float) -> None:
        passed: list[bool] = []
        self.loop.world_later(s, passed.append, True)
        self.loop.run_until(lambda: passed or self.failure, virtual_s_max=s + 1)

    def _later(self, call: Callable[..., Any], s: float, *args: Any) -> None:
        self.loop.world_later(s, call, *args)

    def _wrong(self, what: str) -> None:
        self.failure = self.failure or f"at {self.loop.time():.3f} s: X22 {what}"

    async def way(self) -> None:
        await asyncio.sleep(self.rng.choice((0.001, 0.01, 0.05)))
        if self.rng.random() < self.lost_p:
            self.trace.fault("groups.lost")
            raise TimeoutError

    # What happens

    def _pause_s(self) -> float:
        return self.rng.random() * self.rng.choice((0.5, 2.0, 6.0))

    def _join(self) -> None:
        self._numbers += 1
        topics = self.rng.choice((["*"], ["*"], ["a"], ["a", "b"]))
        member = Member(self, f"m{self._numbers}", topics)
        self.members[member.name] = member
        member.start()

    def _happen(self) -> None:
        if self.over:
            return
        rng: random.Random = self.rng
        kind = rng.choice(("join", "leave", "vanish", "pause", "kill", "take over", "grow"))
        self.trace.fault(f"groups.{kind}")
        member = rng.choice(list(self.members.values())) if self.members else None
        keeper = rng.choice(list(self.keepers.values()))
        if kind == "join" and len(self.members) < 6:
            self._join()
        elif kind == "leave" and member is not None:
            member.leaving = True
        elif kind == "vanish" and member is not None:
            member.process.crash(power=False)
            del self.members[member.name]
        elif kind == "pause" and member is not None:
            member.process.pause(rng.choice((0.3, 1.5, 4.0)))
        elif kind == "kill" and keeper.is_alive:
            keeper.kill()
            self._later(self._restart, rng.choice((0.2, 1.0, 3.0)), keeper)
        elif kind == "take over" and self.holds:
            name = rng.choice(sorted(self.holds))
            self.holds[name] = MemberFence()
            self.last.pop(name, None)
        elif kind == "grow":
            topic = rng.choice(sorted(self.topics))
            self.topics[topic] = min(self.topics[topic] + 1, PARTITIONS_MAX)
        self._later(self._happen, self._pause_s())

    def _restart(self, keeper: Keeper) -> None:
        if not keeper.is_alive:
            keeper.start()

    def came_or_went(self, came: Keeper | None) -> None:
        """Tell all brokers of a change, each after its own delay; a new broker knows at once."""
        live = tuple(one.info for one in self.keepers.values() if one.is_alive)
        self.heard_s = self.loop.time()
        for keeper in self.keepers.values():
            late_s = 0.0 if keeper is came else self.rng.random() * self.late_s
            self._later(partial(self._hears, keeper, live), late_s)

    def _hears(self, keeper: Keeper, live: tuple[BrokerInfo, ...]) -> None:
        newest = tuple(one.info for one in self.keepers.values() if one.is_alive)
        if live == newest or keeper.heard != newest:
            keeper.heard, self.heard_s = live, self.loop.time()

    # Referee

    def given(self, to: Member, new: frozenset[PartitionName], asked_s: float) -> None:
        self.trace.probe("groups.given")
        now_s = self.loop.time()
        # An answer that a paused member reads late may be outdated; its generation is then too low.
        if now_s - self.heard_s < AGREED_S + CALL_S or now_s - asked_s > CALL_S:
            return
        self.trace.probe("groups.given_by_the_only_keeper")
        for other in self.members.values():
            silent_s = now_s - other.shown_s
            if other is to or other.process.paused or silent_s > SESSION_S - CALL_S / 2:
                continue
            if twice := new & other.holds & other.working:
                self._wrong(f"{to.name} is given {sorted(twice)}, which {other.name} holds")

    def receives(self, member: Member, name: PartitionName) -> None:
        hold = self.holds.setdefault(name, MemberFence())
        try:
            hold.enter(member.name, member.generation, now_ms(), HOLD_MS)
        except StaleGeneration as error:
            member.generation = max(member.generation, error.generation)
            member.working -= {name}
            member.holds -= {name}
            self.trace.probe("groups.stale")
            return
        except SubscriptionBusy:
            self.trace.probe("groups.busy")
            return
        self.trace.probe("groups.received")
        member.received[name] = self.loop.time()
        generation, last = self.last.get(name, (0, member.name))
        if member.generation < generation:
            self._wrong(
                f"{member.name} receives from {name} with generation {member.generation}, and "
                f"{last} did with {generation}"
            )
        self.last[name] = member.generation, member.name

    def _judge(self) -> None:
        if self.failure is not None:
            return
        now_s = self.loop.time()
        wanted = {name for member in self.members.values() for name in member.wants}
        has: dict[PartitionName, list[str]] = {name: [] for name in sorted(wanted)}
        for member in self.members.values():
            for name in sorted(member.holds):
                has.setdefault(name, []).append(member.name)
                if now_s - member.received.get(name, 0.0) > 1.0:
                    self._wrong(f"{member.name} has {name} and cannot receive from it")
                if name not in member.wants:
                    self._wrong(f"{member.name} has {name}, and does not want it")
        if wrong := {str(name): who for name, who in has.items() if len(who) != 1}:
            self._wrong(f"in the end partitions are had by {wrong}")
        if all(member.wants == sorted(wanted) for member in self.members.values()):
            shares = Counter(who for names in has.values() for who in names)
            counts = [shares[member] for member in self.members]
            if max(counts) - min(counts) > 1:
                self._wrong(f"in the end members have {dict(shares)}")
        self.trace.probe("groups.judged")


BUGS: dict[str, tuple[Edit, ...]] = {
    "what another one holds is given": (
        Edit(
            "octavo.broker.groups.group:Group.given",
            "[one for one in mine if one not in self._holders]",
            "mine",
        ),
        Edit(
            "octavo.broker.groups.group:Group._let_go",
            "del self._holders[one]",
            "self._holders.pop(one, None)",
        ),
    ),
    "who is silent stays a member": (
        Edit(
            "octavo.broker.groups.group:Group.tick",
            "if one.until_ms <= now_ms",
            "if one.until_ms <= 0",
        ),
    ),
    "who goes takes its partitions along": (
        Edit(
            "octavo.broker.groups.group:Group.leave",
            "self._remove(name)\n    self._happens(self._departure())",
            "self._remove(name)",
        ),
    ),
    "what a member has let go is still its own": (
        Edit(
            "octavo.broker.groups.group:Group.beat",
            "self._let_go(member, member.holds - held)",
            "self._hold(name, held)",
        ),
        Edit(
            "octavo.broker.groups.group:Group._let_go",
            "del self._holders[one]",
            "self._holders.pop(one, None)",
        ),
    ),
    "an older generation receives": (
        Edit(
            "octavo.broker.subscriptions.member_fence:MemberFence.enter",
            "if generation < self.generation:",
            "if generation < 0:",
        ),
    ),
    "more partitions than before are not looked at": (
        Edit(
            "octavo.broker.groups.group:Group.beat",
            "elif wanted != member.wants or generation > self.generation:",
            "elif generation > self.generation:",
        ),
    ),
}
"""Planted one at a time; each must be found."""


run_seed = partial(small_worlds.run_seed, World)


if __name__ == "__main__":
    sys.exit(small_worlds.main(World))
