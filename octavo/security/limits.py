"""How much a principal or a namespace may do: rates as token buckets, counts as gauges. Pure.

    requests                              calls a second
    publish_bytes, publish_messages       what is brought, a second
    read_bytes, read_messages             what is taken, a second
    processor_ms                          of a broker's processor, in milliseconds a second
    connections, streams                  open at once, of a principal
    memory                                bytes of bodies that a broker holds of a principal at once
    groups                                consumer groups at one broker, of either
    topics, subscriptions                 of a namespace

A rate may be exceeded for a moment: a bucket holds what `BURST_S` bring. What is asked for at once
and is more than that waits until the bucket is full, and leaves a debt. So does what is known only
afterwards, the size of an answer. Whoever comes later waits until the debt is paid. A debt is never
more than `DEBT_S_MAX` bring: nobody is locked out for longer, and a rate so low that one answer is
more than that is exceeded.

Each broker counts for itself, as each broker of Kafka does: a principal who calls all of three
brokers gets three times its rate. What stands here lives as long as the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from octavo.security.principal import ANY_USER

BURST_S = 1.0
DEBT_S_MAX = 60.0
SUBJECTS_KEPT = 10_000
"""With a bucket in use; beyond, the one that asked longest ago begins anew."""
UNLIMITED = -1
"""A rate or count without a bound, where a default sets one."""
ANY_NAMESPACE = "namespace:*"
RATES = (
    "requests", "publish_bytes", "publish_messages", "read_bytes", "read_messages", "processor_ms",
)  # fmt: skip
COUNTS = ("connections", "streams", "memory", "groups", "topics", "subscriptions")


@dataclass(frozen=True, slots=True)
class Quota:
    """What one subject may do; None where nothing is said, `UNLIMITED` where that is said."""

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
        """What is said, by name."""
        return {name: value for name in NAMES if (value := getattr(self, name)) is not None}

    def over(self, default: Quota) -> Quota:
        """This one, and what it does not say by the default."""
        return replace(default, **self.said)

    def bound(self, name: str) -> int | None:
        """The most of `name`; None when there is no bound."""
        found: int | None = getattr(self, name)
        return None if found == UNLIMITED else found


NAMES = tuple(one.name for one in fields(Quota))
NO_QUOTA = Quota()


class Quotas:
    """All that are set, by subject: `user:alice`, `user:*`, `anonymous`, `namespace:payments`,
    `namespace:*`."""

    def __init__(self, quotas: Mapping[str, Quota] | None = None) -> None:
        self._set = dict(quotas or {})

    def __bool__(self) -> bool:
        return bool(self._set)

    def of(self, subject: str) -> Quota:
        """What holds for it: its own, and what that leaves open by the default of its kind."""
        own = self._set.get(subject, NO_QUOTA)
        default = _DEFAULTS.get(subject.partition(":")[0])
        return own if default is None else own.over(self._set.get(default, NO_QUOTA))


_DEFAULTS = {"user": ANY_USER, "namespace": ANY_NAMESPACE}


class Wait(NamedTuple):
    """How long somebody has to wait, and for what."""

    wait_s: float
    """0: go on."""
    subject: str = ""
    limit: str = ""
    """Which of the names of a quota."""
    most: int = 0


GO_ON = Wait(0.0)


class Bucket:
    """Tokens that come at a rate, as many as `BURST_S` bring at most; below 0 they are owed."""

    __slots__ = ("_at_s", "_rate", "_tokens")

    def __init__(self, rate: float, now_s: float) -> None:
        self._rate = rate
        self._tokens = self.burst
        self._at_s = now_s

    @property
    def burst(self) -> float:
        """What may be taken at once."""
        return max(1.0, self._rate * BURST_S)

    def wait_s(self, amount: float, now_s: float) -> float:
        """How long until so much may be taken; 0: now."""
        if now_s > self._at_s:
            self._tokens = min(self.burst, self._tokens + (now_s - self._at_s) * self._rate)
            self._at_s = now_s
        return max(0.0, (min(amount, self.burst) - self._tokens) / self._rate)

    def take(self, amount: float, now_s: float) -> None:
        """Take it, whether it is there or not."""
        self.wait_s(0, now_s)
        self._tokens = max(self._tokens - amount, -self._rate * DEBT_S_MAX)


class Limits:
    """What is left of the quotas, for whoever asks. Seconds are of a clock that never goes back."""

    def __init__(self, subjects_kept: int = SUBJECTS_KEPT) -> None:
        self._kept = subjects_kept
        self._quotas = Quotas()
        self._buckets: dict[str, dict[str, Bucket]] = {}
        """Of those who have asked, who asked last at the end."""
        self._free: set[str] = set()
        """Those who have asked and have no bound."""
        self._held: dict[tuple[str, str], int] = {}

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"held": sum(self._held.values())}

    @property
    def quotas(self) -> Quotas:
        """As they are set."""
        return self._quotas

    def use(self, quotas: Quotas) -> None:
        """From now on these hold; debts are forgotten, what is open is not."""
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
        """Take all of it or nothing: how long to wait, by the limit that is furthest away.

        `principal` and `namespace`: either may be empty. 0 of something takes nothing and waits
        until no debt is left; None is not concerned.
        """
        amounts = (requests, bytes_in, messages_in, bytes_out, messages_out, processor_ms)
        found = GO_ON
        asked: list[tuple[Bucket, float]] = []
        for subject in (principal, namespace and f"namespace:{namespace}"):
            buckets = self._of(subject, now_s)
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
        """What was known only afterwards: it is taken, and leaves a debt."""
        amounts = (0, bytes_in, messages_in, bytes_out, messages_out, processor_ms)
        for subject in (principal, namespace and f"namespace:{namespace}"):
            buckets = self._of(subject, now_s)
            for name, amount in zip(RATES, amounts, strict=True):
                if amount and (bucket := buckets.get(name)) is not None:
                    bucket.take(amount, now_s)

    def bounds(self, subject: str, rate: str, now_s: float) -> bool:
        """Whether `rate` has a bound for this subject."""
        return rate in self._of(subject, now_s)

    def hold(self, subject: str, what: str) -> Wait:
        """One more of what is counted; refused at the bound, and then not counted."""
        held = self._held.get((subject, what), 0)
        most = self._quotas.of(subject).bound(what)
        if most is not None and held >= most:
            return Wait(1.0, subject, what, most)
        self._held[subject, what] = held + 1
        return GO_ON

    def let_go(self, subject: str, what: str) -> None:
        """One less, of those that were counted."""
        left = self._held.pop((subject, what)) - 1
        if left:
            self._held[subject, what] = left

    def _of(self, subject: str, now_s: float) -> dict[str, Bucket]:
        """The buckets of a subject: one for each rate that has a bound."""
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
