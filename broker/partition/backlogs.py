"""Enforce time to live and backlog quotas on the unacked messages of subscriptions.

Promises: a message counts as acked for a subscription only when it has been stored for longer than
the topic's `ttl`, by the deletion clock; a producer or one machine's clock cannot cause that. The
change is durable before it is counted. The known ages are in the state ledger, so a new owner has
them. A quota holds publishes, refuses them, or skips the oldest messages of the subscription that
exceeds it; it deletes nothing. Held publishes keep their order. Subscriptions for dead letters or
retries have neither time to live nor quota.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from octavo.broker.errors import BacklogQuotaExceeded, BacklogQuotaRejected
from octavo.broker.partition.context import PartitionContext
from octavo.broker.policies import (
    Ages,
    Backlog,
    Quota,
    Stored,
    backlog_policy,
    bytes_from,
    room_from,
)
from octavo.broker.state.format import Op, ages_op
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import PartitionName, TopicSettings
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
_MARKS_A_SPAN = 16
"""Marks per time to live: a message is skipped at most a sixteenth late."""
_PASSED_AT_ONCE = 100_000
"""Offsets skipped in one operation, so that other work gets its turn."""
_JUDGED_A_QUOTA = 16
"""Checks while a quota fills: it may be exceeded by a sixteenth."""

_NO_QUOTA = Quota(None, None)


class Backlogs:
    def __init__(
        self,
        name: PartitionName,
        context: PartitionContext,
        settings: Callable[[], TopicSettings],
        subscriptions: SubscriptionSet,
        persist: Callable[[Op], Awaitable[None]],
        stored: Callable[[], list[Stored]],
        ages: Ages,
    ) -> None:
        self._name = name
        self._context = context
        self._settings = settings
        self._subscriptions = subscriptions
        self._persist = persist
        self._stored = stored
        self.ages = ages
        self._over: tuple[Quota, Backlog] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._turns = asyncio.Lock()
        self._held = 0
        self._unjudged_bytes = 0
        self._evicting: asyncio.Task[None] | None = None

    def describe(self) -> dict[str, int]:
        return {"held": self._held}

    def waits_in_vain(self) -> str:
        waits = self._held and self._room.is_set() and not self._turns.locked()
        return "publishes are held, and no backlog exceeds its quota" if waits else ""

    async def admit(self) -> None:
        """Return when a publish may proceed, in the order of the calls."""
        if self._over is None and not self._held:
            return
        policy = backlog_policy(self._settings().policies)
        if policy == "reject" and self._over is not None:
            raise BacklogQuotaRejected(*self._said("publish again when it has caught up"))
        if policy == "evict" and not self._held:
            return
        self._held += 1
        hold_ms = self._context.config.backlog_hold_ms
        try:
            async with asyncio.timeout(hold_ms / 1000), self._turns:
                await self._room.wait()
        except TimeoutError:
            raise BacklogQuotaExceeded(
                *self._said(f"nothing changed within {hold_ms} ms; not stored, come back later")
            ) from None
        finally:
            self._held -= 1

    @property
    def over(self) -> tuple[str, str] | None:
        if self._over is None:
            return None
        quota, slowest = self._over
        policy = backlog_policy(self._settings().policies)
        then = {
            "hold": f"publishes wait up to {self._context.config.backlog_hold_ms} ms",
            "reject": "publishes are refused",
        }.get(policy, "its oldest messages are skipped")
        return slowest.subscription, f"backlog_quota: {quota.said_of(slowest)}; {then}"

    def _said(self, then: str) -> tuple[str, str]:
        if self._over is None:
            return f"{self._name}: other publishes waited for a backlog before this one; {then}", ""
        quota, slowest = self._over
        return (
            f"{self._name} is over its backlog_quota: {quota.said_of(slowest)}. Read or skip its "
            f"messages, delete it, or raise the quota; {then}",
            slowest.subscription,
        )

    def confirmed(self, payload_bytes: int) -> None:
        self._unjudged_bytes += payload_bytes
        bytes_max = self._settings().policies.backlog_bytes
        if bytes_max is not None and self._unjudged_bytes * _JUDGED_A_QUOTA >= bytes_max:
            self.judge()

    def acked(self) -> None:
        if self._over is not None:
            self.judge()

    def judge(self) -> None:
        self._unjudged_bytes = 0
        quota = self._quota()
        slowest = quota.slowest(self._backlogs()) if quota != _NO_QUOTA else None
        self._over = None if slowest is None else (quota, slowest)
        evicts = backlog_policy(self._settings().policies) == "evict"
        if slowest is None or evicts:
            self._room.set()
        else:
            self._room.clear()
        if slowest is not None and evicts and self._evicting is None:
            self._evicting = asyncio.create_task(self._evict_now(), name=f"evict {self._name}")

    def close(self) -> None:
        self._over = None
        self._room.set()
        if self._evicting is not None:
            self._evicting.cancel()

    def _quota(self) -> Quota:
        policies = self._settings().policies
        return Quota(policies.backlog_bytes, policies.backlog_age_ms)

    def _backlogs(self) -> list[Backlog]:
        stored, time = self._stored(), self._context.deletion_time()
        end = stored[-1].end if stored else 0
        return [
            Backlog(
                name,
                offset,
                bytes_from(offset, stored),
                0 if time is None else self.ages.age_of(offset, time.now_ms),
            )
            for name, offset in self._subscriptions.bounded().items()
            if offset < end
        ]

    async def keep(self) -> None:
        """Note ages, skip messages that are too old, and check quotas; call periodically."""
        policies = self._settings().policies
        spans = [span for span in (policies.ttl_ms, policies.backlog_age_ms) if span is not None]
        if spans or policies.backlog_bytes is not None:
            names = await self._context.topics.list_subscriptions(*self._name.topic_name)
            await self._subscriptions.follow(names)
            await self._subscriptions.know_letters()
        if spans:
            await self._mark(min(spans))
        if policies.ttl_ms is not None:
            await self._expire(policies.ttl_ms)
        if self._over is not None or self._quota() != _NO_QUOTA:
            self.judge()

    async def _mark(self, span_ms: int) -> None:
        """Note durably, when due, that all messages up to the end are stored."""
        time, stored = self._context.deletion_time(), self._stored()
        end = stored[-1].end if stored else 0
        unacked = min(self._subscriptions.committed().values(), default=end)
        self.ages.forget_before(unacked)
        if time is None or time.doubt or unacked >= end:
            return
        if self.ages.is_due(end, time.date_ms, span_ms // _MARKS_A_SPAN):
            self.ages.note(end, time.date_ms)
            await self._persist(ages_op(self.ages.marks[-1]))

    async def _expire(self, ttl_ms: int) -> None:
        time = self._context.deletion_time()
        if time is None:
            return
        old = self.ages.stored_before(time.now_ms - ttl_ms - 1)
        for name, committed in self._subscriptions.bounded().items():
            if committed < old:
                passed = await self._pass_over(name, committed, old)
                self._context.passed_over.expired += passed
                _log.info(
                    "messages_expired", partition=str(self._name), subscription=name,
                    messages=passed, before_offset=old,
                )  # fmt: skip

    async def _evict_now(self) -> None:
        passed = 0
        try:
            passed = await self._evict()
        except Exception as error:  # the next round tries again
            bug = None if isinstance(error, OctavoError) else error
            _log.warning(
                "backlog_not_evicted", partition=str(self._name), reason=str(error), exc_info=bug
            )
        finally:
            self._evicting = None
        if passed:
            self.judge()

    async def _evict(self) -> int:
        await self._subscriptions.know_letters()
        quota, time = self._quota(), self._context.deletion_time()
        total = 0
        for backlog in self._backlogs():
            if quota.excess(backlog) <= 1.0:
                continue
            upto = backlog.unacked_from
            if quota.bytes is not None:
                upto = max(upto, room_from(quota.bytes, self._stored()))
            if quota.age_ms is not None and time is not None:
                upto = max(upto, self.ages.stored_before(time.now_ms - quota.age_ms - 1))
            passed = await self._pass_over(backlog.subscription, backlog.unacked_from, upto)
            self._context.passed_over.evicted += passed
            total += passed
            _log.warning(
                "backlog_evicted", partition=str(self._name), subscription=backlog.subscription,
                messages=passed, before_offset=upto,
            )  # fmt: skip
        return total

    async def _pass_over(self, name: str, start: int, end: int) -> int:
        passed = 0
        for upto in range(start + _PASSED_AT_ONCE, end, _PASSED_AT_ONCE):
            passed += await self._subscriptions.pass_over(name, upto)
        return passed + await self._subscriptions.pass_over(name, end)
