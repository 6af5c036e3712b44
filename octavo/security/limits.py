"""Quotas of principals and namespaces: rates as token buckets, counts as gauges. Pure.

    requests                           calls, a second
    publish_bytes, publish_messages    published, a second
    read_bytes, read_messages          read, a second
    processor_ms                       CPU time of a broker, milliseconds a second
    connections, streams               open at once, of a principal
    memory                             bytes of request bodies that a broker holds at once
    groups                             consumer groups at one broker
    topics, subscriptions              of a namespace

A bucket holds `BURST_S` worth of tokens. A larger request waits until it is full, then leaves a
debt; so does an amount known only afterwards. Later calls wait until the debt, at most `DEBT_S_MAX`
worth of tokens, is paid. Each broker counts for itself, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from octavo.security.principal import ANY_USER

BURST_S = 1.0
DEBT_S_MAX = 60.0
SUBJECTS_KEPT = 10_000
"""The most subjects with buckets; beyond, the subject that asked longest ago starts again."""
UNLIMITED = -1
"""Overrides a default that sets a bound."""
ANY_NAMESPACE = "namespace:*"
RATES = (
    "requests", "publish_bytes", "publish_messages", "read_bytes", "read_messages", "processor_ms",
)  # fmt: skip
COUNTS = ("connections", "streams", "memory", "groups", "topics", "subscriptions")


@dataclass(frozen=True, slots=True)
class Quota:
    """None: not set. `UNLIMITED`: explicitly without a bound."""

    requests: int | None = None
    publish_bytes: int | None = None
    publish_messages: int | None = None
    read_bytes: int | None = None
    read_messages: int | None = None
    connections: int | None = None
    streams: int | None = None
    topics: int | None = None
    processor_ms: int | None = None
    memory: int | None = None
    groups: int | None = None
    subscriptions: int | None = None

    @property
    def said(self) -> dict[str, int]:
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def over(self, default: Quota) -> Quota:
        return replace(default, **self.said)

    def bound(self, name: str) -> int | None:
        found: int | None = getattr(self, name)
        return None if found == UNLIMITED else found


NAMES = tuple(one.name for one in fields(Quota))
NO_QUOTA = Quota()


class Quotas:
    """Quotas of `user:alice`, `user:*`, `anonymous`, `namespace:payments`, `namespace:*`."""

    def __init__(self, quotas: Mapping[str, Quota] | None = None) -> None:
        self._set = dict(quotas or {})

    def __bool__(self) -> bool:
        return bool(self._set)

    def of(self, subject: str) -> Quota:
        own = self._set.get(subject, NO_QUOTA)
        default = _DEFAULTS.get(subject.partition(":")[0])
        return own if default is None else own.over(self._set.get(default, NO_QUOTA))


_DEFAULTS = {"user": ANY_USER, "namespace": ANY_NAMESPACE}


class Wait(NamedTuple):
    wait_s: float
    subject: str = ""
    limit: str = ""
    most: int = 0


GO_ON = Wait(0.0)


class Bucket:
    """Filled at `rate` a second up to `burst`. Below 0, tokens are owed."""

    __slots__ = ("_at_s", "_rate", "_tokens")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._tokens = self.burst
        self._at_s = now_s

    @property
    def burst(self) -> float:
        return max(1.0, self._rate * BURST_S)

    def wait_s(self, amount: float, now_s: float) -> float:
        if now_s > self._at_s:
            self._tokens = min(self.burst, self._tokens + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
        return max(0.0, (min(amount, self.burst) - self._tokens) / self._rate)

    def take(self, amount: float, now_s: float) -> None:
        self.wait_s(0, now_s)
        self._tokens = max(self._tokens - amount, -self._rate * DEBT_S_MAX)

    def give_back(self, amount: float) -> None:
        """Return tokens that were taken while none were owed, and not used."""
        most = self._rate * DEBT_S_MAX  # `take` took no more than this and what was there
        self._tokens = min(self.burst, self._tokens + min(amount, most))


class Limits:
    def __init__(self, subjects_kept: int = SUBJECTS_KEPT) -> None:
        self._kept = subjects_kept
        self._quotas = Quotas()
        self._buckets: dict[str, dict[str, Bucket]] = {}
        self._free: set[str] = set()
        self._held: dict[tuple[str, str], int] = {}

    def describe(self) -> dict[str, int]:
        return {"held": sum(self._held.values())}

    @property
    def quotas(self) -> Quotas:
        return self._quotas

    def use(self, quotas: Quotas) -> None:
        """Replace the quotas. Debts are forgotten; held counts stay."""
        self._quotas = quotas
        self._buckets.clear()
        self._free.clear()

    def take(
        self,
        principal: str,
        namespace: str = "",
        *,
        requests: int | None = 1,
        bytes_in: int | None = None,
        messages_in: int | None = None,
        bytes_out: int | None = None,
        messages_out: int | None = None,
        processor_ms: float | None = None,
        now_s: float,
    ) -> Wait:
        """Take all amounts or none. Returns the longest wait of all limits.

        `principal` or `namespace` may be empty. An amount of 0 takes nothing, but waits until no
        debt is left; None skips that limit.
        """
        amounts = (requests, bytes_in, messages_in, bytes_out, messages_out, processor_ms)
        found = GO_ON
        asked: list[tuple[Bucket, float]] = []
        for subject in (principal, namespace and f"namespace:{namespace}"):
            buckets = self._of(subject, now_s)
            if not buckets:
                continue
            for name, amount in zip(RATES, amounts, strict=True):
                bucket = None if amount is None else buckets.get(name)
                if bucket is None or amount is None:
                    continue
                asked.append((bucket, amount))
                wait_s = bucket.wait_s(amount, now_s)
                if wait_s > found.wait_s:
                    found = Wait(wait_s, subject, name, getattr(self._quotas.of(subject), name))
        if not found.wait_s:
            for bucket, amount in asked:
                bucket.take(amount, now_s)
        return found

    def charge(
        self,
        principal: str,
        namespace: str = "",
        *,
        bytes_in: int = 0,
        messages_in: int = 0,
        bytes_out: int = 0,
        messages_out: int = 0,
        processor_ms: float = 0.0,
        now_s: float,
    ) -> None:
        """Charge amounts known only afterwards. Never waits; may leave a debt."""
        amounts = (0, bytes_in, messages_in, bytes_out, messages_out, processor_ms)
        for subject in (principal, namespace and f"namespace:{namespace}"):
            buckets = self._of(subject, now_s)
            for name, amount in zip(RATES, amounts, strict=True):
                if amount and (bucket := buckets.get(name)) is not None:
                    bucket.take(amount, now_s)

    def give_back(self, namespace: str, *, bytes_in: int, messages_in: int, now_s: float) -> None:
        """Return what a publish was charged that stored nothing."""
        buckets = self._of(f"namespace:{namespace}", now_s)
        for name, amount in zip(RATES[1:3], (bytes_in, messages_in), strict=True):
            if (bucket := buckets.get(name)) is not None:
                bucket.give_back(amount)

    def bounds(self, subject: str, rate: str, now_s: float) -> bool:
        return rate in self._of(subject, now_s)

    def hold(self, subject: str, what: str) -> Wait:
        """Count one more of `what`; at the bound return a wait instead."""
        held = self._held.get((subject, what), 0)
        most = self._quotas.of(subject).bound(what)
        if most is not None and held >= most:
            return Wait(1.0, subject, what, most)
        self._held[subject, what] = held + 1
        return GO_ON

    def let_go(self, subject: str, what: str) -> None:
        left = self._held.pop((subject, what)) - 1
        if left:
            self._held[subject, what] = left

    def _of(self, subject: str, now_s: float) -> dict[str, Bucket]:
        if not subject or subject in self._free:
            return {}
        found = self._buckets.pop(subject, None)
        if found is None:
            quota = self._quotas.of(subject)
            bounds = {name: quota.bound(name) for name in RATES}
            found = {name: Bucket(most, now_s) for name, most in bounds.items() if most is not None}
            if not found:
                if len(self._free) >= self._kept:
                    self._free.clear()
                self._free.add(subject)
                return found
            if len(self._buckets) >= self._kept:
                del self._buckets[next(iter(self._buckets))]
        self._buckets[subject] = found
        return found
