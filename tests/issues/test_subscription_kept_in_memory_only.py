"""A subscription that was answered as made was not durable: a take-over and a trim lost messages.

Making it failed once because the bookies were away, and was repeated; the second call found the
cursor in memory and answered that all was well, with nothing written. The next owner knew of no
cursor, and retention removed what the subscription had never been given. The same trim did not
wait for subscriptions that exist but were not used in this partition yet. Found by the simulator
(topic seed 3269).
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import AckOutcomeUnknown, SubscriptionNotFound
from octavo.broker.state.format import Op
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import PartitionName, SubscriptionInfo, SubscriptionSettings

INFO = SubscriptionInfo("s", SubscriptionSettings(), 1)


class Log:
    name = PartitionName("public", "t", 0)
    lease_epoch = 1
    earliest_offset = kept_from = 0
    hidden = ()
    next_offset = 9


class Kept:
    """A set of subscriptions over a state ledger that refuses the first operations."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.ops: list[Op] = []
        log: Any = Log()
        self.subscriptions = SubscriptionSet(log, BrokerConfig(), self.lookup, self.persist)

    async def lookup(self, name: str) -> SubscriptionInfo:
        if name != INFO.name:
            raise SubscriptionNotFound(name)
        return INFO

    def wall_ms(self) -> int:
        return 0

    async def persist(self, op: Op) -> None:
        if self.refusals:
            self.refusals -= 1
            raise AckOutcomeUnknown("the bookies are away")
        self.ops.append(op)


async def test_what_was_not_written_is_written_when_it_is_made_again() -> None:
    kept = Kept(refusals=2)
    for _ in range(2):
        with pytest.raises(AckOutcomeUnknown):
            await kept.subscriptions.make(INFO)
    made = await kept.subscriptions.make(INFO)
    assert kept.ops == [["c", "s", 1, 0]]
    assert await kept.subscriptions.make(INFO) is made
    assert len(kept.ops) == 1, "it is written once"


async def test_a_trim_waits_for_subscriptions_that_were_not_used_here_yet() -> None:
    kept = Kept(refusals=0)
    await kept.subscriptions.follow(["s", "deleted meanwhile"])
    assert kept.subscriptions.oldest_unacked() == 0
    assert kept.ops == [["c", "s", 1, 0]]
    await kept.subscriptions.follow([])
    assert kept.subscriptions.oldest_unacked() is None
