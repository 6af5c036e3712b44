"""Charge quotas for calls, and refuse or delay calls that exceed them (security/limits.py).

    a call            429 `quota-exceeded` with `Retry-After`, before its body is read
    a stream          waits before it sends more; it is not ended
    a connection      its first call gets that 429, and it is closed
    too many topics   422 `quota-exceeded`, since waiting would not help; the same for
                      subscriptions and groups
    processor time    429 as well: the work of a call is measured step by step, and charged to its
                      principal and its namespace at each broker that works
    a topic's rates   429 as well: they are policies (policies/rates.py), counted by the owner

The broker that a client speaks to charges the principal: first with what the call announces, the
rest (an answer's size, the messages) when it is known. So a call may leave a debt, and the next
call waits for it. The partition's owner charges the namespace with what is stored and read there.
Calls between brokers are not charged to a principal. If no quota is set, none of this is computed.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from aiohttp import web
from msgspec import Raw

from octavo.broker.errors import TopicNotFound
from octavo.broker.http.charges import Charge, charge_of
from octavo.broker.http.held_bytes import share_of
from octavo.broker.http.problems import Problem
from octavo.broker.http.processor_time import Measured
from octavo.broker.internal_topics import AUDIT_TOPIC
from octavo.broker.policies.rates import INTO, OUT_OF, Rates, has_rates
from octavo.broker.types import TopicName, TopicSettings
from octavo.security.limits import GO_ON, Limits, Quotas, Wait
from octavo.security.quotas import FollowedQuotas

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.http.call import Call
    from octavo.broker.http.config import HttpConfig
    from octavo.broker.http.groups import Groups
    from octavo.broker.metrics import Metrics
    from octavo.broker.types import StoredBatch
    from octavo.metadata.store import MetadataStore
    from octavo.metadata.topics import Policies
    from octavo.security.principal import Identity

Value = TypeVar("Value")
MESSAGES_HEADER = "octavo-messages"
"""Header between brokers: how many messages an answer has, or were stored."""
QUOTA_EXCEEDED = "quota-exceeded"
_STREAMED = "application/x-ndjson"
"""A content type whose bodies have no length limit: charged as they arrive."""
_BRINGS = (Charge.PUBLISHES, Charge.UPLOADS)
_SILENT = TopicSettings()


class SlowedBy(NamedTuple):
    """The exceeded rates of a topic, in words."""

    into: tuple[str, ...]
    out_of: tuple[str, ...]


class Counted(Protocol):
    """A connection that tells when it ends."""

    counted_as: str
    """The principal that its place is counted for; empty before its first call."""

    def when_lost(self, call: Callable[[], None]) -> None:
        """Call this when the connection ends."""


class HttpQuotas:
    """Enforce the quotas of principals and namespaces at this broker."""

    def __init__(
        self, store: MetadataStore, broker: Broker, config: HttpConfig, metrics: Metrics
    ) -> None:
        self._limits = Limits()
        self._rates = Rates()
        self._followed = FollowedQuotas(store, self._use)
        self._broker = broker
        self._config = config
        self._metrics = metrics
        self.now_s: Callable[[], float] = asyncio.get_running_loop().time
        self.processor_s: Callable[[], float] = time.thread_time
        """Processor time of this thread, in seconds."""
        self.on = False
        """Whether any quota is set."""

    async def start(self) -> None:
        """Read the quotas, and follow them. Raises `MetadataUnavailable`."""
        await self._followed.start()

    async def close(self) -> None:
        """Stop following the quotas. May be called twice."""
        await self._followed.close()

    def _use(self, quotas: Quotas) -> None:
        self._limits.use(quotas)
        self.on = bool(quotas)

    # ---- the principal's, where the call comes in

    def admit(self, call: Call, connection: Counted) -> None:
        """Charge a call with what is known before its body is read. Raises a 429."""
        if not self.on:
            return
        charge = charge_of(call.route.name)
        if charge is Charge.FREE:
            return
        principal = call.identity.name
        if call.forwarded:  # the first broker counts all other charges
            self.admit_passed_on(call.identity)
            return
        self._count_connection(connection, principal)
        now_s = self.now_s()
        if charge in _BRINGS:
            length = call.request.content_length
            uploads = charge is Charge.UPLOADS
            call.unpaid = length is None or uploads or call.content_type == _STREAMED
            size = 0 if call.unpaid or length is None else min(length, self._config.body_bytes_max)
            found = self._limits.take(
                principal, bytes_in=size, messages_in=1, processor_ms=0, now_s=now_s
            )
        elif charge is Charge.TAKES:
            found = self._limits.take(
                principal, bytes_out=0, messages_out=0, processor_ms=0, now_s=now_s
            )
        else:
            found = self._limits.take(principal, processor_ms=0, now_s=now_s)
        self._refuse(found)

    def measured(self, call: Call) -> Awaitable[web.StreamResponse]:
        """Run a call's handler; charge its processor time to the principal and the namespace."""
        work: Awaitable[web.StreamResponse] = call.route.handler(call)
        if not self.on or charge_of(call.route.name) is Charge.FREE:
            return work
        return self.measured_for(call.identity, call.variables.get("namespace", ""), work)

    def admit_passed_on(self, identity: Identity) -> None:
        """Check the processor time of a caller of another broker. Raises a 429."""
        if self.on and not identity.is_node:
            self._refuse(self._limits.take(
                identity.name, requests=None, processor_ms=0, now_s=self.now_s()
            ))  # fmt: skip

    async def measured_for(
        self, identity: Identity, namespace: str, work: Awaitable[Value]
    ) -> Value:
        """Run `work`, and charge its processor time to the caller and the namespace."""
        if not self.on:
            return await work
        principal = "" if identity.is_node else identity.name
        if namespace == AUDIT_TOPIC.namespace:
            namespace = ""

        def spent(seconds: float) -> None:
            self._limits.charge(
                principal, namespace, processor_ms=1000 * seconds, now_s=self.now_s()
            )

        return await Measured(work, self.processor_s, spent)

    def at_hand(
        self, connection: Counted, principal: str, topic: TopicName, size: int, *, owned: bool
    ) -> Wait | None:
        """Charge a message on the short way; return the wait, or None if the long way must decide.

        Charges what `admit` and `owned` charge. Without a principal, the message was forwarded; if
        not `owned`, it will be.
        """
        now_s = self.now_s()
        if self.on and any(
            self._limits.bounds(one, "processor_ms", now_s)
            for one in (principal, f"namespace:{topic.namespace}")
        ):
            return None  # the long way measures it
        if owned and (found := self._rate(topic, INTO)).wait_s:
            return found
        if not self.on:
            return GO_ON
        if principal and connection.counted_as != principal:
            return None
        namespace = topic.namespace if owned else ""
        found = self._limits.take("", namespace, bytes_in=0, messages_in=0, now_s=now_s)
        if not found.wait_s:
            found = self._limits.take(principal, bytes_in=size, messages_in=1, now_s=now_s)
        return found

    def answered(self, call: Call, response: web.StreamResponse) -> None:
        """Charge what the answer shows: its size, and how many messages there were."""
        if not self.on or call.is_streaming:
            return
        if call.forwarded:  # the first broker charges it
            if call.messages and not response.prepared:
                response.headers[MESSAGES_HEADER] = str(call.messages)
            return
        charge, now_s = charge_of(call.route.name), self.now_s()
        if charge in _BRINGS:
            more = max(0, call.messages - 1)  # one was charged by `admit`
            self._limits.charge(call.identity.name, messages_in=more, now_s=now_s)
        elif charge is Charge.TAKES:
            size = _size_of(response)
            self._limits.charge(
                call.identity.name, bytes_out=size, messages_out=call.messages, now_s=now_s
            )

    def paid(self, call: Call, size: int) -> None:
        """Charge the length of a body that was read, less what was announced."""
        if self.on and not call.forwarded:
            more = size - (0 if call.unpaid else call.request.content_length or 0)
            self._limits.charge(call.identity.name, bytes_in=max(0, more), now_s=self.now_s())

    async def came(self, call: Call, size: int) -> None:
        """Charge a piece of a body without announced length; wait until the debt is paid."""
        if self.on and call.unpaid and not call.forwarded:
            self.paid(call, size)
            await self._until_paid(call.identity.name, bytes_in=0, messages_in=0)

    async def sent(self, call: Call, size: int, messages: int) -> None:
        """Charge a piece of a stream; wait until the debt is paid."""
        if self.on:
            principal, now_s = call.identity.name, self.now_s()
            self._limits.charge(principal, bytes_out=size, messages_out=messages, now_s=now_s)
            await self._until_paid(principal, bytes_out=0, messages_out=0, processor_ms=0)

    @contextmanager
    def stream(self, call: Call) -> Iterator[None]:
        """Count an open stream for as long as the block lasts. Raises a 429."""
        principal = call.identity.name
        self._refuse(self._limits.hold(principal, "streams"))
        try:
            yield
        finally:
            self._limits.let_go(principal, "streams")

    def _count_connection(self, connection: Counted, principal: str) -> None:
        """Count a connection for its present principal; behind a proxy the principal may change."""
        before = connection.counted_as
        if before == principal:
            return
        found = self._limits.hold(principal, "connections")
        if found.wait_s:
            self._refuse(found, {"Connection": "close"})
        if before:
            self._limits.let_go(before, "connections")
        else:
            connection.when_lost(partial(self._lost, connection))
        connection.counted_as = principal

    def _lost(self, connection: Counted) -> None:
        self._limits.let_go(connection.counted_as, "connections")

    # ---- the namespace's, where the data is

    def owned(self, call: Call, namespace: str) -> None:
        """Charge a call to the namespace of a partition that is open here. Raises a 429."""
        if not call.is_streaming:
            self.owned_here(namespace)

    def owned_here(self, namespace: str) -> None:
        """Charge an operation to the namespace of a partition that is open here. Raises a 429."""
        if self.on and namespace != AUDIT_TOPIC.namespace:
            self._refuse(self._limits.take("", namespace, processor_ms=0, now_s=self.now_s()))

    def may_publish(self, topic: TopicName) -> None:
        """Check that messages may be stored in a partition that is open here. Raises a 429."""
        self._refuse(self._rate(topic, INTO))
        if self.on:
            self._refuse(self._limits.take(
                "", topic.namespace, requests=None, bytes_in=0, messages_in=0, now_s=self.now_s()
            ))  # fmt: skip

    def may_read(self, topic: TopicName) -> None:
        """Check that messages may be read from a partition that is open here. Raises a 429."""
        self._refuse(self._rate(topic, OUT_OF))
        if self.on and topic != AUDIT_TOPIC:
            self._refuse(self._limits.take(
                "", topic.namespace, requests=None, bytes_out=0, messages_out=0, now_s=self.now_s()
            ))  # fmt: skip

    def stored(self, topic: TopicName, size: int, messages: int) -> None:
        """Charge what was stored in a partition that is open here."""
        self._charge(topic, INTO, size, messages)
        if self.on:
            self._limits.charge(
                "", topic.namespace, bytes_in=size, messages_in=messages, now_s=self.now_s()
            )

    def given(
        self, topic: TopicName, what: Iterable[StoredBatch] | Iterable[Raw], messages: int
    ) -> None:
        """Charge what was read from a partition that is open here."""
        if self.counts(topic):
            size = sum(len(one) if isinstance(one, Raw) else len(one.data) for one in what)
            self.gave(topic, size, messages)

    def counts(self, topic: TopicName) -> bool:
        """Whether reads of the topic are charged to a quota or a rate."""
        return self.on or self._policies(topic) is not None

    def gave(self, topic: TopicName, size: int, messages: int) -> None:
        """Charge bytes and messages that were read from a partition that is open here."""
        if self.counts(topic):
            self._charge(topic, OUT_OF, size, messages)
            self._limits.charge(
                "", topic.namespace, bytes_out=size, messages_out=messages, now_s=self.now_s()
            )

    def _policies(self, topic: TopicName) -> Policies | None:
        """Return the topic's policies if they limit its rates; else None."""
        policies = self._broker.topics.settings_of(topic, _SILENT).policies
        return policies if has_rates(policies) else None

    def rates_of(self, topic: TopicName) -> SlowedBy:
        """Return which of the topic's own rates are exceeded here now, in words."""
        return SlowedBy(*(self._said_of(self._rate(topic, names)) for names in (INTO, OUT_OF)))

    @staticmethod
    def _said_of(wait: Wait) -> tuple[str, ...]:
        if not wait.wait_s:
            return ()
        return (
            f"the topic's rate {wait.limit} is {wait.most} a second, and exceeded: calls are "
            f"refused for another {wait.wait_s:.1f} s",
        )

    def _rate(self, topic: TopicName, names: tuple[str, ...]) -> Wait:
        policies = self._policies(topic)
        if policies is None:
            return GO_ON
        return self._rates.wait(str(topic), policies, names, self.now_s())

    def _charge(self, topic: TopicName, names: tuple[str, ...], size: int, messages: int) -> None:
        if (policies := self._policies(topic)) is not None:
            self._rates.charge(str(topic), policies, names, size, messages, self.now_s())

    async def check_topics(self, *added: TopicName) -> None:
        """Check that these topics may be added. Raises a 422.

        Several brokers that make topics at the same moment may exceed the quota.
        """
        if not self.on:
            return
        for namespace in dict.fromkeys(name.namespace for name in added):
            await self._check_topics(
                namespace, {one.topic for one in added if one.namespace == namespace}
            )

    async def _check_topics(self, namespace: str, new: set[str]) -> None:
        most = self._limits.quotas.of(f"namespace:{namespace}").bound("topics")
        if most is None:
            return
        names = await self._broker.topics.names_in(namespace)
        if len(names) + len(new.difference(names)) > most and not new.issubset(names):
            raise _problem(
                422,
                Wait(1.0, f"namespace:{namespace}", "topics", most),
                f"namespace {namespace} has {len(names)} topics, and its quota is {most}: "
                "delete some, or have the quota raised (octavo quota set)",
            )

    async def check_subscriptions(self, topic: TopicName, name: str) -> None:
        """Check that this subscription may be added; those for dead letters count. Raises a 422."""
        subject = f"namespace:{topic.namespace}"
        most = self._limits.quotas.of(subject).bound("subscriptions") if self.on else None
        if most is None:
            return
        topics = self._broker.topics
        if any(one.name == name for one in await topics.list_subscriptions(topic)):
            return
        held = 0
        for one in await topics.names_in(topic.namespace):
            with suppress(TopicNotFound):  # it was deleted meanwhile
                held += len(await topics.list_subscriptions(TopicName(topic.namespace, one)))
            self._check_count(subject, "subscriptions", held)
        self._check_count(subject, "subscriptions", held)

    def check_groups(self, call: Call, namespace: str, groups: Groups) -> None:
        """Check that the caller may make another group here. Raises a 422."""
        if self.on:
            founded = groups.founded_by(share_of(call.identity))
            self._check_count(call.identity.name, "groups", founded)
            self._check_count(f"namespace:{namespace}", "groups", groups.of_namespace(namespace))

    def memory_of(self, principal: str) -> int | None:
        """Return how many bytes of bodies a principal may hold here; None: no quota."""
        return self._limits.quotas.of(principal).bound("memory") if self.on else None

    def _check_count(self, subject: str, what: str, held: int) -> None:
        most = self._limits.quotas.of(subject).bound(what)
        if most is not None and held >= most:
            raise _problem(
                422,
                Wait(1.0, subject, what, most),
                f"{subject} has {held} {what}, and its quota is {most}: delete some, or have the "
                "quota raised (octavo quota set)",
            )

    # ---- what comes in whole ledgers

    def may_load(self, principal: str, namespaces: Iterable[str]) -> None:
        """Check that ledgers may be added to topics of these namespaces. Raises a 429."""
        if self.on:
            now_s = self.now_s()
            for one in ("", *namespaces):
                self._refuse(self._limits.take(
                    "" if one else principal, one, requests=None, bytes_in=0, messages_in=0,
                    now_s=now_s,
                ))  # fmt: skip

    def loaded(self, principal: str, namespace: str, size: int, messages: int) -> None:
        """Charge ledgers that were added."""
        if self.on:
            self._limits.charge(
                principal, namespace, bytes_in=size, messages_in=messages, now_s=self.now_s()
            )

    # ---- beyond them

    def problem(self, found: Wait, headers: dict[str, str] | None = None) -> Problem:
        """Return the problem for a call that exceeds a quota; count it."""
        self._metrics.quota_exceeded(found.limit)
        if found.limit in ("connections", "streams"):
            said = f"{found.subject} has {found.most} {found.limit} open here, its quota"
        else:
            what = found.limit.replace("_", " ")
            bound = "rate" if found.subject.startswith("topic:") else "quota"
            said = f"{found.subject} is over its {bound} of {found.most} {what} a second here"
        return _problem(429, found, f"{said}; come back in {found.wait_s:.3g} s", headers)

    def _refuse(self, found: Wait, headers: dict[str, str] | None = None) -> None:
        if found.wait_s:
            raise self.problem(found, headers)

    async def _until_paid(
        self,
        principal: str,
        *,
        bytes_in: int | None = None,
        messages_in: int | None = None,
        bytes_out: int | None = None,
        messages_out: int | None = None,
        processor_ms: float | None = None,
    ) -> None:
        """Wait until the debts of all given kinds are paid."""
        while True:
            found = self._limits.take(
                principal,
                requests=None,
                bytes_in=bytes_in,
                messages_in=messages_in,
                bytes_out=bytes_out,
                messages_out=messages_out,
                processor_ms=processor_ms,
                now_s=self.now_s(),
            )
            if not found.wait_s:
                return
            await asyncio.sleep(found.wait_s)


def _problem(
    status: int, found: Wait, detail: str, headers: dict[str, str] | None = None
) -> Problem:
    passes = status == 429
    retry = {"Retry-After": str(max(1, math.ceil(found.wait_s)))} if passes else {}
    return Problem(
        status,
        QUOTA_EXCEEDED,
        detail,
        retryable=passes,
        headers={**retry, **(headers or {})},
        extra={
            "subject": found.subject,
            "quota": found.limit,
            "limit": found.most,
            **({"wait_s": round(found.wait_s, 3)} if passes else {}),
        },
    )


def wait_of(error: BaseException) -> float:
    """Return how many seconds a quota makes a refused call wait; 0 for other errors."""
    if isinstance(error, Problem) and error.code == QUOTA_EXCEEDED and error.can_retry:
        return float(error.extra.get("wait_s", 1.0))
    return 0.0


def _size_of(response: web.StreamResponse) -> int:
    """Return the size of an answer's body."""
    if isinstance(response, web.Response):
        return len(response.body) if isinstance(response.body, bytes) else 0
    return response.body_length
