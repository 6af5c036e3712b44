"""Policies in the simulator: the options of a seed, and the referee of messages that policies pass
over.

P64, P65 and S9 (docs/properties.md), by the one true time.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from octavo.broker.partition.backlogs import Backlogs
from octavo.broker.types import TopicSettings
from octavo.metadata.topics import Policies
from tests.sim.cluster import Cluster
from tests.sim.time_audit import TimeAudit
from tests.sim.topic_audit import TopicAudit

_WHY: ContextVar[str] = ContextVar("why messages are passed over", default="")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions:
    ttl_ms: int | None
    backlog_bytes: int | None
    """Beyond it the oldest messages are evicted: a publisher that is held for ever would never
    finish."""
    backlog_age_ms: int | None

    @property
    def are_there(self) -> bool:
        return (self.ttl_ms, self.backlog_bytes, self.backlog_age_ms) != (None, None, None)

    def over(self, settings: TopicSettings) -> TopicSettings:
        said = Policies(
            ttl_ms=self.ttl_ms,
            backlog_bytes=self.backlog_bytes,
            backlog_age_ms=self.backlog_age_ms,
            backlog_policy="evict",
        )
        return replace(settings, policies=said) if self.are_there else settings


def draw(rng: random.Random) -> PolicyOptions:
    """Draw the options from a separate stream, so that other seeds stay as they were."""
    return PolicyOptions(
        ttl_ms=rng.choice((None, None, 200, 900)),
        backlog_bytes=rng.choice((None, None, 300, 1_500)),
        backlog_age_ms=rng.choice((None, None, None, 400)),
    )


class PolicyAudit:
    def __init__(
        self, cluster: Cluster, audit: TopicAudit, times: TimeAudit, *, clocks_jump: bool
    ) -> None:
        self._cluster = cluster
        self._audit = audit
        self._times = times
        self._clocks_jump = clocks_jump

    @contextmanager
    def installed(self) -> Iterator[None]:
        names = ("_pass_over", "_expire", "_evict")
        real = {name: getattr(Backlogs, name) for name in names}
        referee, put = self, setattr

        async def pass_over(backlogs: Backlogs, name: str, start: int, end: int) -> int:
            log = referee._audit.logs.get(backlogs._name)
            if log is None or name not in log.cursors:
                passed: int = await real["_pass_over"](backlogs, name, start, end)
                return passed
            epoch = backlogs._subscriptions._log.lease_epoch & 0xFFFF_FFFF
            referee._look(backlogs, name, start, end)
            moves = log.ack_begins(name, range(start, end))
            passed = await real["_pass_over"](backlogs, name, start, end)
            log.ack_ends(name, range(start, end), epoch, moves)
            referee._cluster.trace.probe(f"policy.{_WHY.get()}")
            return passed

        async def expire(backlogs: Backlogs, ttl_ms: int) -> None:
            _WHY.set("expired")
            await real["_expire"](backlogs, ttl_ms)

        async def evict(backlogs: Backlogs) -> Any:
            _WHY.set("evicted")
            return await real["_evict"](backlogs)

        for name, watched in zip(names, (pass_over, expire, evict), strict=True):
            put(Backlogs, name, watched)
        try:
            yield
        finally:
            for name in names:
                put(Backlogs, name, real[name])

    def _look(self, backlogs: Backlogs, name: str, start: int, end: int) -> None:
        policies = backlogs._settings().policies
        if _WHY.get() == "expired":
            self._too_young(backlogs, name, range(start, end), policies.ttl_ms)
            return
        quota, stored = policies.backlog_bytes, backlogs._stored()
        kept = sum(
            part.bytes * (part.end - max(part.start, end - 1)) / (part.end - part.start)
            for part in stored
            if part.end > end - 1 and part.end > part.start
        )
        if quota is not None and kept > quota:
            return
        if policies.backlog_age_ms is None:
            self._audit.fail(
                f"P65 {backlogs._name} subscription {name}: evicted up to {end}, and from "
                f"{end - 1} on {kept:g} bytes are kept of {quota}"
            )
        self._too_young(backlogs, name, range(start, end), policies.backlog_age_ms)

    def _too_young(self, backlogs: Backlogs, name: str, offsets: range, age_ms: int | None) -> None:
        times = self._times
        if age_ms is None or times._misled or (self._clocks_jump and not times._two_clocks):
            return
        log, now_ms = self._audit.logs[backlogs._name], self._cluster.loop.wall_ms()
        for offset in offsets:
            message = log.at.get(offset)
            if message is None or not message.sent_ms:
                continue
            self._cluster.trace.probe("policy.age_known")
            if now_ms - message.sent_ms + times._slack_ms() < age_ms:
                self._audit.fail(
                    f"P64 {backlogs._name} subscription {name} offset {offset} "
                    f"{message.value!r} was passed over {now_ms - message.sent_ms} ms after it was "
                    f"sent, and may live {age_ms} ms"
                )
                return
