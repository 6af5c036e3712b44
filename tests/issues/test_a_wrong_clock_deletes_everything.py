"""A broker's clock, wrong for two seconds, and retention deleted a topic for good.

With the clock 8 days ahead and a retention of 7 days the next trim took all there was. And the
other way round: one message stamped ten years ahead kept everything behind it for ever, and one
that says of no time (-1) went at once. Now deletion by age goes by several clocks, and messages
are not younger than their arrival. Tried from outside; the simulator's clocks jumped, but nothing
judged what was trimmed then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.broker import Broker
from octavo.broker.clock.deletion_clock import ClockLimits
from octavo.broker.clock.timekeeper import Timekeeper
from octavo.broker.log.ledger_list import Contents, LedgerList, RetentionPolicy
from octavo.broker.partition.partition import Partition
from octavo.metadata.clock import ClockRecord, Written
from tests.support.cluster import Cluster, batch, make_topic, owned, running_cluster, until

DAY_MS = 24 * 3600 * 1000
QUICK: dict[str, Any] = {"clock_beat_ms": 20, "clock_quarantine_ms": 100}


async def filled(brokers: Cluster, *ages_days: float) -> tuple[Broker, Partition]:
    """A topic kept for 7 days, each message in a ledger of its own, the clocks believed."""
    broker = (await brokers.start("A", **QUICK)).broker
    name = await make_topic(broker, retention_ms=7 * DAY_MS, rollover_entries=1)
    partition = await owned(broker, name)
    for number, age in enumerate(ages_days, 1):
        stamp = -1 if age == float("inf") else brokers.clock.now_ms - int(age * DAY_MS)
        await partition.publish(batch(1, time_ms=stamp))
        await until(lambda n=number: len(partition._record.ledgers.segments) > n, "a roll-over")
    await until(lambda: broker.deletion_time() is not None, "the store was heard")
    return broker, partition


def believes(broker: Broker) -> bool:
    """Whether it would delete by the time it has."""
    time = broker.deletion_time()
    return time is not None and not time.doubt


@pytest.mark.parametrize("days", [8, 4000])
async def test_a_clock_set_forward_deletes_nothing(tmp_path: Path, days: int) -> None:
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, 0, 0, 0)
        brokers.clock.now_ms += days * DAY_MS
        await partition.maintain()
        assert partition.earliest_offset == 0
        time = broker.deletion_time()
        assert time is not None
        assert "ahead of the time that was counted" in time.doubt
        brokers.clock.now_ms -= days * DAY_MS
        time = broker.deletion_time()
        assert time is not None
        assert not time.doubt


async def test_a_broker_that_starts_with_a_wrong_clock_deletes_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        _, partition = await filled(brokers, 0, 0, 0)
        await brokers.brokers["A"].close()
        brokers.clock.now_ms += 8 * DAY_MS
        broker = (await brokers.start("B", **QUICK)).broker
        partition = await owned(broker, partition.name)
        await until(lambda: broker.deletion_time() is not None, "the store was heard")
        await partition.maintain()
        assert partition.earliest_offset == 0


async def test_who_operates_it_confirms_that_a_week_has_passed(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, 0, 0, 0)
        other = (await brokers.start("B", **QUICK)).broker
        await until(lambda: other.deletion_time() is not None, "the store was heard")
        brokers.clock.now_ms += 8 * DAY_MS
        await partition.maintain()
        assert partition.earliest_offset == 0
        await other.confirm_clock()
        await until(lambda: believes(broker), "the other brokers take it over")
        await partition.maintain()
        assert partition.earliest_offset == 3


async def test_a_message_from_the_future_is_as_old_as_its_arrival(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, -3650, 30, float("inf"), 30)
        await partition.maintain()
        assert partition.earliest_offset == 0, "none of the first ledger has come long ago"
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 4


async def test_a_clock_set_back_makes_nothing_old(tmp_path: Path) -> None:
    """By it every message is from the future: dated by it, they were days old when it was right."""
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers, 0, 0)
        brokers.clock.now_ms -= 8 * DAY_MS
        assert not believes(broker)
        await until(lambda: believes(broker), "it has stayed so for long enough")
        await partition.maintain()
        assert partition.earliest_offset == 0
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 0
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 2


async def test_a_message_from_while_a_clock_was_behind_is_not_old(tmp_path: Path) -> None:
    """It says of no time, and was dated by a clock 8 days behind: it went when that was right."""
    async with running_cluster(tmp_path) as brokers:
        broker, partition = await filled(brokers)
        brokers.clock.now_ms -= 8 * DAY_MS
        assert not believes(broker)
        await until(lambda: believes(broker), "it has stayed so for long enough")
        await partition.publish(batch(1, time_ms=-1))
        await until(lambda: len(partition._record.ledgers.segments) > 1, "a roll-over")
        await partition.maintain()
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 0
        brokers.clock.now_ms += 8 * DAY_MS
        await broker.confirm_clock()
        await partition.maintain()
        assert partition.earliest_offset == 1


def test_a_doubted_time_dates_nothing() -> None:
    """Pure: what says of no time ages from the time that was written down, and by no other."""
    ledger_list = LedgerList().appending(1).closing_last(1, Contents(1, 1, -1, -1), 5).appending(2)
    policy = RetentionPolicy(100, None)
    assert ledger_list.trimming(policy, 10**15) is ledger_list
    dated = ledger_list.dating(1_000)
    assert dated.dating(2_000) is dated, "once"
    assert dated.trimming(policy, 1_100) is dated
    assert dated.trimming(policy, 1_101).earliest_offset == 1


def test_what_was_stamped_since_its_date_is_no_older_than_its_stamp() -> None:
    """Pure: dated by a clock that never knew the truth, or by a version that believed any clock."""
    week_ms, now_ms = 7 * DAY_MS, 1_700_000_000_000
    closed = (
        LedgerList().appending(1).closing_last(1, Contents(1, 1, now_ms, now_ms), 5).appending(2)
    )
    policy = RetentionPolicy(week_ms, None)
    dated = closed.dating(now_ms - 8 * DAY_MS)
    assert dated is not closed, "from the future, by that clock"
    assert dated.trimming(policy, now_ms) is dated
    assert dated.trimming(policy, now_ms + week_ms + 1).earliest_offset == 1


async def test_the_first_time_is_not_one_clocks_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store had told its time, then was away for so long that this was no witness any more.

    Seed 1200291 of profile `recreate`: a cluster's very first time was written down an hour ahead.
    """
    steady = SimpleNamespace(now=10.0)
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: steady.now)
    hour_ms, true_ms = 3_600_000, 1_700_000_000_000
    written: list[int] = []

    class Store:
        record = ClockRecord()

        async def write(self, make: Callable[[ClockRecord], ClockRecord]) -> Written:
            if len(written) == 1:
                steady.now += 1.0  # the second write waits for a store that is away
            self.record = make(self.record)
            written.append(self.record.time_ms)
            return Written(self.record, true_ms)

    store: Any = Store()
    keeper = Timekeeper(store, lambda: true_ms + hour_ms, ClockLimits(300_000, 600_000), beat_ms=20)
    await keeper.beat()
    assert written == [0, 0]
    found = keeper.now()
    assert found is not None
    assert found.now_ms == true_ms
    await keeper.beat()
    assert set(written) <= {0, true_ms}
