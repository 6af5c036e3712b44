"""A subscription that was deleted while it was being made answered 500, or was there all the same.

Its cursor was on the way to the state ledger when the deletion forgot it. What came back from the
state ledger then crossed it off a list on which it no longer stood (`KeyError`), or gave out a
subscription over a cursor that was nobody's. Found by the fuzzer of `make attack`, in its 20th
second and in none of 600 others with the same seed.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import SubscriptionNotFound
from octavo.broker.state.format import Op
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from tests.issues.test_subscription_kept_in_memory_only import INFO, Log


class Slow:
    """A set of subscriptions over a state ledger whose first answer waits."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.ops: list[Op] = []
        log: Any = Log()
        self.subscriptions = SubscriptionSet(log, BrokerConfig(), self.lookup, self.persist)

    async def lookup(self, name: str) -> Any:
        return INFO

    async def persist(self, op: Op) -> None:
        self.ops.append(op)
        if op[0] == "c":
            await self.may_answer.wait()


async def test_who_made_it_hears_that_it_is_gone() -> None:
    slow = Slow()
    making = asyncio.create_task(slow.subscriptions.make(INFO))
    await asyncio.sleep(0)
    await slow.subscriptions.follow([])  # it is deleted
    slow.may_answer.set()
    with pytest.raises(SubscriptionNotFound, match="deleted"):
        await making
    assert [op[0] for op in slow.ops] == ["c", "d"], "in the order of what happened"
    assert slow.subscriptions.cursors() == []
    assert slow.subscriptions.stats() == {}

    again = await slow.subscriptions.make(INFO)
    assert [op[0] for op in slow.ops] == ["c", "d", "c"]
    assert await slow.subscriptions.make(INFO) is again
