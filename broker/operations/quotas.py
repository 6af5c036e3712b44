"""Charge quotas and rates, whatever the client's protocol (security/limits.py).

The broker that a client calls charges the client: first the request, then the answer, which may
leave a debt. The owner charges the namespace, and the topic's own rates. Brokers' own operations
are free.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from msgspec import Raw

from octavo.broker.errors import QUOTA_FULL, QuotaExceeded, TopicNotFound
from octavo.broker.internal_topics import AUDIT_TOPIC
from octavo.broker.operations.kinds import Rate
from octavo.broker.operations.processor_time import Measured
from octavo.broker.topic_rates import INTO, OUT_OF, Rates, has_rates
from octavo.broker.types import SlowedBy, TopicName, TopicSettings
from octavo.security.limits import GO_ON, Limits, Quotas, Wait
from octavo.security.principal import ANONYMOUS, Identity
from octavo.security.quotas import FollowedQuotas

if TYPE_CHECKING:
    from octavo.broker.broker import Broker
    from octavo.broker.groups.coordinator import Groups
    from octavo.broker.metrics import Metrics
    from octavo.broker.types import StoredBatch
    from octavo.metadata.store import MetadataStore
    from octavo.metadata.topics import Policies

Value = TypeVar("Value")
_SILENT = TopicSettings()


def share_of(identity: Identity) -> str:
    return "" if identity.name == ANONYMOUS.name else identity.name


class OperationQuotas:
    def __init__(self, store: MetadataStore, broker: Broker, metrics: Metrics) -> None:
        self._limits = Limits()
        self._rates = Rates()
        self._followed = FollowedQuotas(store, self._use)
        self._broker = broker
        self._metrics = metrics
        self.now_s: Callable[[], float] = asyncio.get_running_loop().time
        self.processor_s: Callable[[], float] = time.thread_time
        self.on = False

    async def start(self) -> None:
        await self._followed.start()

    async def close(self) -> None:
        await self._followed.close()

    def _use(self, quotas: Quotas) -> None:
        self._limits.use(quotas)
        self.on = bool(quotas)

    # A client's quotas, at the broker that it calls

    def begin(self, identity: Identity, rate: Rate, size: int = 0, messages: int = 1) -> None:
        if not self.on:
            return
        name, now_s = identity.name, self.now_s()
        if rate is Rate.INTO or rate is Rate.INTO_IF_ANY:
            found = self._limits.take(
                name, bytes_in=size, messages_in=messages, processor_ms=0, now_s=now_s
            )
        elif rate is Rate.OUT_OF:
            found = self._limits.take(
                name, bytes_out=0, messages_out=0, processor_ms=0, now_s=now_s
            )
        else:
            found = self._limits.take(name, processor_ms=0, now_s=now_s)
        self._refuse(found)

    def brought(self, identity: Identity, messages: int) -> None:
        """Charge the messages of a body; `begin` has charged one."""
        if self.on and messages > 1:
            self._limits.charge(identity.name, messages_in=messages - 1, now_s=self.now_s())

    def took(self, identity: Identity, size: int, messages: int) -> None:
        if self.on:
            self._limits.charge(
                identity.name, bytes_out=size, messages_out=messages, now_s=self.now_s()
            )

    def admit_at_owner(self, identity: Identity) -> None:
        if self.on and not identity.is_node:
            self._refuse(self._limits.take(
                identity.name, requests=None, processor_ms=0, now_s=self.now_s()
            ))  # fmt: skip

    async def measured_for(
        self, identity: Identity, namespace: str, work: Awaitable[Value]
    ) -> Value:
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

    # A namespace's quotas, at the partition's owner

    def owned_here(self, namespace: str) -> None:
        if self.on and namespace != AUDIT_TOPIC.namespace:
            self._refuse(self._limits.take("", namespace, processor_ms=0, now_s=self.now_s()))

    def may_publish(self, topic: TopicName) -> None:
        self._refuse(self._rate(topic, INTO))
        if self.on:
            self._refuse(self._limits.take(
                "", topic.namespace, requests=None, bytes_in=0, messages_in=0, now_s=self.now_s()
            ))  # fmt: skip

    def may_read(self, topic: TopicName) -> None:
        self._refuse(self._rate(topic, OUT_OF))
        if self.on and topic != AUDIT_TOPIC:
            self._refuse(self._limits.take(
                "", topic.namespace, requests=None, bytes_out=0, messages_out=0, now_s=self.now_s()
            ))  # fmt: skip

    def stored(self, topic: TopicName, size: int, messages: int) -> None:
        self._charge(topic, INTO, size, messages)
        if self.on:
            self._limits.charge(
                "", topic.namespace, bytes_in=size, messages_in=messages, now_s=self.now_s()
            )

    def not_stored(self, topic: TopicName, size: int, messages: int) -> None:
        """Give back what `stored` charged for messages that were not stored."""
        now_s = self.now_s()
        if (policies := self._policies(topic)) is not None:
            self._rates.give_back(str(topic), policies, size, messages, now_s)
        if self.on:
            self._limits.give_back(
                topic.namespace, bytes_in=size, messages_in=messages, now_s=now_s
            )

    def given(
        self, topic: TopicName, what: Iterable[StoredBatch] | Iterable[Raw], messages: int
    ) -> None:
        if self.counts(topic):
            size = sum(len(one) if isinstance(one, Raw) else len(one.data) for one in what)
            self.gave(topic, size, messages)

    def counts(self, topic: TopicName) -> bool:
        return self.on or self._policies(topic) is not None

    def gave(self, topic: TopicName, size: int, messages: int) -> None:
        if self.counts(topic):
            self._charge(topic, OUT_OF, size, messages)
            self._limits.charge(
                "", topic.namespace, bytes_out=size, messages_out=messages, now_s=self.now_s()
            )

    def _policies(self, topic: TopicName) -> Policies | None:
        policies = self._broker.topics.settings_of(topic, _SILENT).policies
        return policies if has_rates(policies) else None

    def rates_of(self, topic: TopicName) -> SlowedBy:
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
        """Check that these topics may be added; simultaneous calls may exceed the quota."""
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
            raise QUOTA_FULL(
                f"namespace {namespace} has {len(names)} topics, and its quota is {most}: "
                "delete some, or raise the quota (octavo quota set)",
                subject=f"namespace:{namespace}",
                quota="topics",
                limit=most,
            )

    async def check_subscriptions(self, topic: TopicName, name: str) -> None:
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

    def check_groups(self, identity: Identity, namespace: str, groups: Groups) -> None:
        if self.on:
            founded = groups.founded_by(share_of(identity))
            self._check_count(identity.name, "groups", founded)
            self._check_count(f"namespace:{namespace}", "groups", groups.of_namespace(namespace))

    def memory_of(self, subject: str) -> int | None:
        return self._limits.quotas.of(subject).bound("memory") if self.on else None

    def sharers(self, identity: Identity, namespace: str) -> tuple[str, ...]:
        principal = share_of(identity)
        found = (principal,) if principal else ()
        if self.on and namespace and namespace != AUDIT_TOPIC.namespace:
            subject = f"namespace:{namespace}"
            if self.memory_of(subject) is not None:
                return (*found, subject)
        return found

    def _check_count(self, subject: str, what: str, held: int) -> None:
        most = self._limits.quotas.of(subject).bound(what)
        if most is not None and held >= most:
            raise QUOTA_FULL(
                f"{subject} has {held} {what}, and its quota is {most}: delete some, or raise the "
                "quota (octavo quota set)",
                subject=subject,
                quota=what,
                limit=most,
            )

    def may_load(self, principal: str, namespaces: Iterable[str]) -> None:
        if self.on:
            now_s = self.now_s()
            for one in ("", *namespaces):
                self._refuse(self._limits.take(
                    "" if one else principal, one, requests=None, bytes_in=0, messages_in=0,
                    now_s=now_s,
                ))  # fmt: skip

    def loaded(self, principal: str, namespace: str, size: int, messages: int) -> None:
        if self.on:
            self._limits.charge(
                principal, namespace, bytes_in=size, messages_in=messages, now_s=self.now_s()
            )

    def exceeded(self, found: Wait) -> QuotaExceeded:
        self._metrics.quota_exceeded(found.limit)
        if found.limit in ("connections", "streams"):
            said = f"{found.subject} has {found.most} {found.limit} open here, its quota"
        else:
            what = found.limit.replace("_", " ")
            bound = "rate" if found.subject.startswith("topic:") else "quota"
            said = f"{found.subject} is over its {bound} of {found.most} {what} a second here"
        return QuotaExceeded(
            f"{said}; come back in {found.wait_s:.3g} s",
            subject=found.subject,
            quota=found.limit,
            limit=found.most,
            wait_s=found.wait_s,
        )

    def _refuse(self, found: Wait) -> None:
        if found.wait_s:
            raise self.exceeded(found)
