"""Users with limited rights and quotas, under faults: `python -m tests.sim.callers N`.

The world of `rights.py`, whose brokers have every check of the production entrance. The referee: a
done call was allowed, and its user enabled, at each deciding broker that had reached the store for
`EFFECTIVE_S`; no user brought more than a quota allows; at the end every broker does what is
allowed within `PATIENCE_S`, when callers wait as long as brokers ask.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

from aiohttp import web
from multidict import CIMultiDict

from octavo.broker.errors import QuotaExceeded
from octavo.broker.http.config import HttpConfig
from octavo.broker.http.connections import Connection
from octavo.broker.http.gate import Gate
from octavo.broker.http.problems import problem_of
from octavo.broker.http.quotas import HttpQuotas
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from octavo.broker.operations.kinds import (
    Publish,
    Read,
    decode_request,
    encode_request,
)
from octavo.broker.operations.rules import BrokerRules
from octavo.broker.types import TopicName, TopicSettings
from octavo.metadata.store import MetadataError
from octavo.metadata.topic_records import decode_record
from octavo.protocol.codes import OctavoError
from octavo.security.identity import tokens
from octavo.security.identity.authenticator import Authenticator, Files, Keys
from octavo.security.identity.users import UserRecord, Users, UserStore, path_of
from octavo.security.limits import UNLIMITED
from octavo.security.policy import (
    POLICY_PATH,
    PolicyRecord,
    make_rule,
    policy_of,
    with_rule,
    without_rule,
)
from octavo.security.principal import Forbidden, Identity, Unauthenticated
from octavo.security.quotas import quota_store, with_quota
from octavo.security.rules import Operation, Rule
from octavo.security.settings import SecurityConfig
from tests.sim import rights, small_worlds
from tests.sim.metadata import Cut
from tests.sim.metadata_tree import Change
from tests.sim.mutants.planting import Edit
from tests.sim.process import Process
from tests.sim.rights import EFFECTIVE_S, TOPIC, USERS, Make, SimRights

PATIENCE_S = 150.0
"""No user owes more than a minute's worth (`DEBT_S_MAX`)."""
CALL_S = 3.0
SIZES = (100, 1_000, 5_000)
TOKEN_KEY = b"t" * 32
PARTS = {"namespace": "public", "topic": "t"}
NAME = TopicName("public", "t").partition(0)
ROUTE_OF: dict[Operation, Route] = {
    Operation.PRODUCE: next(one for one in ROUTES if one.name == "publish"),
    Operation.CONSUME: next(one for one in ROUTES if one.name == "read"),
}
OPERATION_OF: dict[Operation, Publish | Read] = {
    Operation.PRODUCE: Publish(NAME, []),
    Operation.CONSUME: Read(NAME, 0, 1, 1),
}
DONE, DENIED, WAIT, AWAY = "done", "denied", "wait", "away"


class _Connection(Connection):
    def __init__(self) -> None:
        self.counted_as = ""
        self._certificate = None
        self._lost: Callable[[], None] | None = None

    @property
    def certificate(self) -> bytes | None:
        return None

    def when_lost(self, call: Callable[[], None]) -> None:
        self._lost = call

    def lose(self) -> None:
        if self._lost is not None:
            self._lost()


@dataclass(frozen=True)
class Attempt:
    user: Identity
    operation: Operation
    size: int
    token: str
    stream_s: float = 0.0


@dataclass
class _Tally:
    since_s: float
    requests: int = 0
    size: int = 0
    largest: int = 0


@dataclass
class Door:
    gate: Gate
    quotas: HttpQuotas
    rules: BrokerRules
    tallies: dict[str, _Tally] = field(default_factory=dict)
    of: Any = None
    """The quotas to which the tallies belong."""


class SimBroker(SimRights):
    world: World

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.door: Door | None = None

    def kill(self) -> None:
        self.door = None
        super().kill()

    async def _live(self, process: Process) -> None:
        await super()._live(process)
        if self.authority is None or self.store is None:
            return
        authenticator = Authenticator(
            SecurityConfig(),
            keys=Keys(TOKEN_KEY, b"s" * 32),
            users=Users(self.store),
            files=Files(),
            foreign=None,
            clock=process.clock_ms,
            rng=process.rng,
        )
        nothing = SimpleNamespace(quota_exceeded=lambda _: None)
        topics = SimpleNamespace(settings_of=lambda *_: TopicSettings())
        quotas = HttpQuotas(
            self.store, SimpleNamespace(topics=topics), HttpConfig(), nothing  # type: ignore[arg-type]
        )  # fmt: skip
        try:
            await authenticator.start()
            await quotas.start()
        except MetadataError:
            self.kill()
            return
        gate = Gate(self.authority, authenticator, process.clock_ms, lambda _: None)
        authenticator.on_change(gate.wakes.wake)
        rules = BrokerRules(
            SimpleNamespace(topics=topics), gate, quotas, nothing, nothing, 0, 0, nothing  # type: ignore[arg-type]
        )  # fmt: skip
        self.door = Door(gate, quotas, rules)

    async def serve(self, attempt: Attempt) -> None:
        door, route = self.door, ROUTE_OF[attempt.operation]
        assert door is not None
        headers = CIMultiDict({"Authorization": f"Bearer {attempt.token}"})
        connection = _Connection()
        request = _request(headers, connection)
        grant = await door.gate.admit(request, route, PARTS)
        call = _call(route, grant.identity, attempt)
        try:
            door.quotas.admit(call, connection)
            self.world.brought(self, door, grant.identity.name, attempt)
            if attempt.stream_s:
                call.is_streaming = True
                with door.quotas.stream(call):
                    await self._stream(door, route, request, grant, call, attempt)
                return
            owner = self.world.owner
            if owner is self:
                door.quotas.owned(call, "public")
                self.world.did(attempt, self, self)
            else:
                asked = encode_request(grant.identity, "", OPERATION_OF[attempt.operation])
                await asyncio.sleep(self.world.network_s())
                await owner.at(lambda: owner.take_over(self, asked, attempt))
            door.quotas.answered(call, web.Response(body=b"x" * attempt.size))
        finally:
            connection.lose()

    async def _stream(
        self, door: Door, route: Route, request: Any, grant: Any, call: Any, attempt: Attempt
    ) -> None:
        """Repeat the checks of a stream, as `Call.ask_again` does."""
        until_s = self.world.loop.time() + attempt.stream_s
        while self.world.loop.time() < until_s:
            await asyncio.sleep(0.3)
            if not door.gate.holds(grant):
                grant = await door.gate.admit(request, route, PARTS)
            self.world.did(attempt, self, self)
            await door.quotas.sent(call, attempt.size, 1)

    async def take_over(self, door_of: SimBroker, asked: bytes, attempt: Attempt) -> None:
        door, request = self.door, decode_request(asked)
        assert door is not None
        door.rules.admit(request.caller.identity, request.operation, door_of.name)
        door.rules.owned("public")
        self.world.did(attempt, door_of, self)

    async def at(self, work: Callable[[], Any], more_s: float = 0.0) -> None:
        """Run `work` in this broker's process. Raises its error, or `TimeoutError` when there is no
        answer."""
        if self.door is None or self.process is None or not self.process.alive:
            raise TimeoutError
        task = self.process.spawn(work(), "call")
        # The caller may have gone, and then no code would look at the error.
        task.add_done_callback(lambda one: one.cancelled() or one.exception())
        done, _ = await asyncio.wait({task}, timeout=CALL_S + more_s)
        if not done:
            raise TimeoutError
        task.result()


def _request(headers: CIMultiDict[str], connection: Connection) -> Any:
    return SimpleNamespace(remote="10.0.0.1", headers=headers, protocol=connection)


def _call(route: Route, identity: Identity, attempt: Attempt) -> Any:
    size = attempt.size if attempt.operation is Operation.PRODUCE else 0
    return SimpleNamespace(
        route=route,
        identity=identity,
        request=SimpleNamespace(content_length=size),
        content_type="application/octet-stream",
        unpaid=False,
        messages=1,
        is_streaming=False,
    )


class World(rights.World):
    operations = (Operation.CONSUME, Operation.PRODUCE)
    brokers: list[SimBroker]  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.owner = self.brokers[0]
        self.done = 0
        self._not_since: dict[tuple[Identity, Operation], float | None] = {
            (user, operation): None for user in USERS for operation in self.operations
        }
        self._disabled_since: dict[Identity, float | None] = dict.fromkeys(USERS)
        self._users = Process(self.loop, "users")
        for user in USERS:
            self._users.spawn(self._use(user), user.name)
            self._users.spawn(self._follow(user), user.name)
        for n in range(2):
            self._later(self._cut_off, 6.0 + 17.0 * n)
        admin = Process(self.loop, "other admin")
        admin.spawn(self._administer(admin), "other admin")

    def _broker(self, name: str) -> SimRights:
        return SimBroker(self, name)

    def _pause_s(self) -> float:
        """Return longer pauses than in `rights.py`, so that a broker is in reach for a while."""
        return 3.0 * super()._pause_s()

    def _cut_off(self) -> None:
        """Cut a broker off the store: it serves for long by what it knew."""
        broker = self.rng.choice(self.brokers)
        self.metadata.partition(broker.name, Cut.BOTH)
        self._later(lambda: self.metadata.heal(broker.name), 15.0)

    def network_s(self) -> float:
        return self._users.rng.choice((0.001, 0.01, 0.1))

    # What happens

    def _token(self, user: Identity) -> str:
        now_s = self._users.clock_ms() / 1000
        return tokens.issue(TOKEN_KEY, user.name, ttl_s=86_400, now_s=now_s, rng=self._users.rng)

    async def _use(self, user: Identity) -> None:
        rng, token = self._users.rng, self._token(user)
        while not self.over:
            attempt = Attempt(user, rng.choice(self.operations), rng.choice(SIZES), token)
            found, wait_s = await self._ask(rng.choice(self.brokers), attempt)
            self.trace.probe(f"callers.{found}")
            await asyncio.sleep(wait_s + rng.choice((0.01, 0.05, 0.2)))
            if rng.random() < 0.2:
                self.owner = rng.choice(self.brokers)

    async def _follow(self, user: Identity) -> None:
        rng, token = self._users.rng, self._token(user)
        while not self.over:
            attempt = Attempt(user, Operation.CONSUME, SIZES[0], token, rng.choice((1.0, 20.0)))
            found, wait_s = await self._ask(rng.choice(self.brokers), attempt)
            self.trace.probe(f"callers.stream_{found}")
            await asyncio.sleep(wait_s + rng.choice((0.05, 0.5)))

    async def _ask(self, broker: SimBroker, attempt: Attempt) -> tuple[str, float]:
        """Make a call; return its outcome and how long the broker asks to wait."""
        await asyncio.sleep(self.network_s())
        try:
            await broker.at(lambda: broker.serve(attempt), attempt.stream_s)
        except (Forbidden, Unauthenticated):
            return DENIED, 0.0
        except QuotaExceeded as error:
            return WAIT, float(problem_of(error).headers["Retry-After"])
        except TimeoutError:
            return AWAY, 0.0
        return DONE, 0.0

    def _begun(self, record: PolicyRecord) -> PolicyRecord:
        made = super()._begun(record)
        if not record.secured:
            for user, operation in self._not_since:
                rule = make_rule(user.name, operation, "topic:public/*", allow=True)
                made = with_rule(made, rule)
        return made

    def _changes_of(self, rule: Rule) -> Sequence[Make]:
        """Allow most calls most of the time, so that quotas are used up."""
        if rule.allow:
            return (with_rule, with_rule, with_rule, with_rule, without_rule)
        return (with_rule, without_rule, without_rule, without_rule)

    async def _administer(self, process: Process) -> None:
        rng, store = process.rng, None
        names = [user.name.partition(":")[2] for user in USERS]
        while not self.over:
            try:
                if store is None:
                    opened = self._store(process)
                    await opened.start()
                    store = opened
                name = rng.choice(names)
                if rng.random() < 0.7:
                    users = UserStore(store)
                    if await users.read(name) is None:
                        await users.create(name)
                    await users.set_disabled(name, rng.random() < 0.5)
                else:
                    amounts = {
                        "requests": rng.choice((1, 10, UNLIMITED)),
                        "publish_bytes": rng.choice((1_000, 20_000, UNLIMITED)),
                        "read_bytes": rng.choice((2_000, 20_000, UNLIMITED)),
                        "connections": rng.choice((3, UNLIMITED)),
                        "streams": rng.choice((1, UNLIMITED)),
                    }
                    subject = rng.choice((f"user:{name}", "user:*", "anonymous"))

                    def changed(record: Any, subject: str = subject, said: Any = amounts) -> Any:
                        return with_quota(record, subject, said)

                    await quota_store(store).change(changed)
            except (MetadataError, OctavoError):
                self.trace.probe("callers.not_changed")
            await asyncio.sleep(rng.choice((0.3, 1.0, 5.0)))

    def _changed(self, change: Change) -> None:
        super()._changed(change)
        if change.value is None:
            return
        if change.path == POLICY_PATH:
            policy = policy_of(decode_record(PolicyRecord, POLICY_PATH, change.value))
            for (user, operation), since_s in self._not_since.items():
                allowed = policy.decide(user, operation, TOPIC).allowed
                self._not_since[user, operation] = (
                    None if allowed else change.time_s if since_s is None else since_s
                )
        for user, since_s in self._disabled_since.items():
            if change.path == path_of(user.name.partition(":")[2]):
                disabled = decode_record(UserRecord, change.path, change.value).disabled
                self._disabled_since[user] = (
                    None if not disabled else change.time_s if since_s is None else since_s
                )

    # Referee

    def did(self, attempt: Attempt, door: SimBroker, owner: SimBroker) -> None:
        self.done += 1
        for broker in (door, owner):
            self._check(attempt, broker, self._not_since[attempt.user, attempt.operation], "may")
        if door.door is not None and door.door.gate.secured:
            self._check(attempt, door, self._disabled_since[attempt.user], "is enabled to")

    def _check(self, attempt: Attempt, broker: SimBroker, since_s: float | None, what: str) -> None:
        now_s = self.loop.time()
        if since_s is None or not broker.in_reach:
            return
        if max(since_s, broker.out_of_reach_s) + EFFECTIVE_S > now_s:
            return
        self.failure = self.failure or (
            f"at {now_s:.2f} s: {broker.name} lets {attempt.user.name} {attempt.operation}, who "
            f"{what} not since {since_s:.2f} s"
        )

    def brought(self, broker: SimBroker, door: Door, principal: str, attempt: Attempt) -> None:
        """Note a call that the quotas let in, and check that they had room for it."""
        limits = door.quotas._limits
        if door.of is not limits.quotas:
            door.of, door.tallies = limits.quotas, {}
        now_s = self.loop.time()
        tally = door.tallies.setdefault(principal, _Tally(now_s))
        tally.requests += 1
        if attempt.operation is Operation.PRODUCE:
            tally.size += attempt.size
            tally.largest = max(tally.largest, attempt.size)
        quota, passed_s = limits.quotas.of(principal), now_s - tally.since_s
        for name, found, more in (
            ("requests", tally.requests, 1),
            ("publish_bytes", tally.size, tally.largest),
        ):
            most = quota.bound(name)
            if most is None:
                continue
            self.trace.probe("callers.within_quota")
            if found > most * (1 + passed_s) + more:
                self.failure = self.failure or (
                    f"at {now_s:.2f} s: {broker.name} has let in {found} {name} of {principal} in "
                    f"{passed_s:.2f} s, whose quota is {most} a second"
                )

    def _judge(self) -> None:
        super()._judge()
        if self.failure is not None:
            return
        judging = Process(self.loop, "judge")
        asked = [
            judging.spawn(self._end(broker, user, operation), "judge")
            for broker in self.brokers
            for user, operation in self._not_since
        ]
        self.loop.run_until(
            lambda: self.failure or all(one.done() for one in asked),
            virtual_s_max=2 * PATIENCE_S,
        )
        if self.failure is None and not all(one.done() for one in asked):
            self.failure = "the last calls are not answered"

    async def _end(self, broker: SimBroker, user: Identity, operation: Operation) -> None:
        denied = self._not_since[user, operation] is not None
        denied = denied or (
            self._disabled_since[user] is not None
            and broker.door is not None
            and broker.door.gate.secured
        )
        until_s, waits = self.loop.time() + PATIENCE_S, 0
        token = self._token(user)
        while True:
            found, wait_s = await self._ask(broker, Attempt(user, operation, SIZES[-1], token))
            self.trace.probe("callers.judged")
            if (found == DENIED) != denied and found in (DENIED, DONE):
                self.failure = self.failure or (
                    f"in the end {broker.name} answers {user.name}, who may "
                    f"{'not ' if denied else ''}{operation}: {found}"
                )
            if found in (DENIED, DONE):
                return
            waits += 1
            if self.loop.time() > until_s:
                self.failure = self.failure or (
                    f"{broker.name} refuses {user.name} {operation} for ever, who may: "
                    f"{waits} times in {PATIENCE_S:g} s"
                )
                return
            await asyncio.sleep(wait_s + 0.01)


BUGS: dict[str, tuple[Edit, ...]] = {
    "a stream does not notice that the policy is another one": (
        Edit(
            "octavo.broker.http.gate:Gate.holds",
            "grant.generation != self.generation or self._is_over(grant.identity)",
            "self._is_over(grant.identity)",
        ),
    ),
    "who was known is known for a minute, disabled or not": (
        Edit(
            "octavo.security.identity.authenticator:Authenticator._forget_users",
            "del self._verified[key]",
            "pass",
        ),
    ),
    "the owner asks about the broker that sends an operation": (
        Edit(
            "octavo.broker.operations.rules:BrokerRules.admit",
            "self._authorizer.check_at_owner(identity, right,",
            'self._authorizer.check_at_owner(identity._replace(name="node:b1"), right,',
        ),
    ),
    "who is refused has paid": (
        Edit("octavo.security.limits:Limits.take", "if not found.wait_s:", "if True:"),
    ),
    "a connection that is gone is still counted": (
        Edit(
            "octavo.broker.http.quotas:HttpQuotas._lost",
            'self._limits.let_go(connection.counted_as, "connections")',
            "pass",
        ),
    ),
    "what is let in is not taken from the quota": (
        Edit("octavo.security.limits:Limits.take", "bucket.take(amount, now_s)", "pass"),
    ),
}
"""Planted one at a time; each must be found."""


run_seed = partial(small_worlds.run_seed, World)


if __name__ == "__main__":
    sys.exit(small_worlds.main(World))
