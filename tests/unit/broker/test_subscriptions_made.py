"""A subscription is durable when its creation is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import AckOutcomeUnknown, Overloaded, SubscriptionNotFound
from octavo.broker.state import log as state_log
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import Op, ack_op, cursor_op, delete_op, snapshot
from octavo.broker.subscriptions.subscriptions import SubscriptionSet
from octavo.broker.types import PartitionName, SubscriptionInfo, SubscriptionSettings
from tests.support.memory_state_ledgers import Served

# An answered creation was not durable: a take-over and a trim lost messages. Creating it failed
# once because the bookies were away; the second call found the cursor in memory and answered
# success, with nothing written. The next owner had no cursor, and retention removed undelivered
# messages. The same trim did not wait for subscriptions that exist but were not used in this
# partition yet. The simulator found it (topic seed 3269).

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
    """Creating a subscription that was deleted meanwhile was a 500, or succeeded all the same. Its
    cursor was on the way to the state ledger when the deletion forgot it. The answer then removed
    it from a list on which it no longer was (`KeyError`), or returned a subscription without a
    cursor. The fuzzer of `make attack` found it once, in its 20th second."""
    slow = Slow()
    making = asyncio.create_task(slow.subscriptions.make(INFO))
    await asyncio.sleep(0)
    await slow.subscriptions.follow([])  # it is deleted
    slow.may_answer.set()
    with pytest.raises(SubscriptionNotFound, match="deleted"):
        await making
    assert [op[0] for op in slow.ops] == ["c", "d"], "in the order of what happened"
    assert slow.subscriptions.cursors() == []
    assert await slow.subscriptions.stats() == {}

    again = await slow.subscriptions.make(INFO)
    assert [op[0] for op in slow.ops] == ["c", "d", "c"]
    assert await slow.subscriptions.make(INFO) is again


async def turns() -> None:
    """Run everything that can run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_ack_and_an_unsubscribe_during_a_roll_over_can_be_replayed() -> None:
    """A concurrent ack and unsubscribe, while the state ledger rolled over, made the partition
    impossible to open. A new state ledger begins with a snapshot of the state in memory, which may
    be ahead of queued operations: the subscription was gone from it, and the next group began with
    an ack of that subscription. Replay took that for damage (`BadStateLedger`) at every take-over.
    Found by reading."""
    cursors = {"kept": Cursor(), "gone": Cursor()}
    served = Served(
        lambda: snapshot([(name, 1, cursor) for name, cursor in cursors.items()], [], 0),
        state_ledger_entries_max=1,
    )
    log = served.log
    await log.append(cursor_op("kept", 1, 0))
    await log.append(cursor_op("gone", 1, 0))

    served.ledgers.may_create.clear()  # the next group rolls the ledger over, which takes a while
    cursors["kept"].ack(0, 5)
    rolling = asyncio.create_task(log.append(ack_op("kept", [(0, 5)])))
    await turns()
    cursors["gone"].ack(0, 3)
    ack = asyncio.create_task(log.append(ack_op("gone", [(0, 3)])))
    await turns()
    del cursors["gone"]
    unsubscribe = asyncio.create_task(log.append(delete_op("gone")))
    await turns()
    served.ledgers.may_create.set()
    await asyncio.gather(rolling, ack, unsubscribe)

    found = served.after_a_restart().cursors
    assert set(found) == {"kept"}
    assert found["kept"].cursor.committed_offset == 5


async def test_a_cumulative_ack_after_a_refused_one_is_durable_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operation that was refused for overload was in memory but in no state ledger. Cursors in
    memory change first, and are made durable later. A repeated cumulative ack wrote only what was
    new to the memory, and was answered; a restart went back behind it. Producers were lost in the
    same way, so their batches could be stored twice. Found by reading."""
    monkeypatch.setattr(state_log, "_WAITING_MAX", 1)
    cursors = {"s": Cursor(), "other": Cursor()}
    served = Served(lambda: snapshot([(name, 1, c) for name, c in cursors.items()], [], 0))
    log = served.log
    await log.append(cursor_op("s", 1, 0))
    served.writer.go_on.clear()  # a slow disk: acks queue up
    queued = []
    for offset in (0, 1):
        cursors["other"].ack(offset, offset + 1)
        op = ack_op("other", [(offset, offset + 1)])
        queued.append(asyncio.create_task(log.append(op)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    cursors["s"].ack(0, 100)
    with pytest.raises(Overloaded):
        await log.append(ack_op("s", [(0, 100)]))
    served.writer.go_on.set()
    await asyncio.gather(*queued)

    cursors["s"].ack(0, 200)
    await log.append(ack_op("s", [(100, 200)]))  # as an ack up to 199 is written now
    assert served.after_a_restart().cursors["s"].cursor.committed_offset == 200
