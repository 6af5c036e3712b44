"""A broker with much more load than the others gives partitions away, one at a time. The test
sets the clock of loads."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import Any

from structlog.testing import capture_logs

from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, Work
from tests.cluster.test_balance import serve, share
from tests.support.cluster import TOPIC, Cluster, RunningBroker, batch, make_topic, until, values

BY_LOAD: dict[str, Any] = {
    "balance_after_ms": 1,
    "balance_interval_ms": 3_600_000,
    "balance_load_floor": 1_000,
    "balance_load_pause_ms": 60_000,
    "balance_load_rest_ms": 600_000,
}


class Hour:
    """The time, and each partition's work by then."""

    def __init__(self, running: list[RunningBroker], rates: dict[PartitionName, int]) -> None:
        self.running, self.rates = running, rates
        self.later_s = 0.0
        self.began_s = asyncio.get_running_loop().time()
        self._opened: set[object] = set()
        self._done: Counter[PartitionName] = Counter()
        for one in running:
            one.broker.balance.clock = self.now_s
            one.broker.balance.measure_of = self._work
        self._date_what_was_opened()

    def now_s(self) -> float:
        return self.began_s + self.later_s

    def _work(self, partition: Partition) -> Work:
        return Work(self._done[partition.name], 0)

    async def pass_s(self, s: float) -> None:
        """Let brokers measure, announce and act every ten seconds."""
        for _ in range(round(s / 10)):
            self.later_s += 10
            for name, rate in self.rates.items():
                self._done[name] += 10 * rate
            for one in self.running:
                one.broker.balance.measure()
                await one.broker._tell_standing()
            await until(self._have_heard, "they know of each other's load")
            for one in self.running:
                await one.broker.balance.look()
            self._date_what_was_opened()

    def _date_what_was_opened(self) -> None:
        for one in self.running:
            for tenure in one.broker.ownership.tenures():
                if tenure not in self._opened:
                    self._opened.add(tenure)
                    tenure.since_s = self.now_s()

    def _have_heard(self) -> bool:
        return all(
            one.broker.registry.statuses.of(other.broker.broker_id).load
            == other.broker.registry.statuses.own.load
            for one in self.running
            for other in self.running
            if one is not other
        )


async def loaded(cluster: Cluster, **config: Any) -> tuple[Hour, RunningBroker, RunningBroker]:
    one = await cluster.start("A", **{**BY_LOAD, **config})
    two = await cluster.start("B", **{**BY_LOAD, **config})
    running = [one, two]
    await until(lambda: all(len(who.broker.registry.live) == 2 for who in running), "they meet")
    await make_topic(one.broker, partitions=6)
    for number in range(6):
        await serve(running, TOPIC.partition(number))
    mine = [partition.name for partition in one.broker.ownership.open_partitions()]
    assert len(mine) == 3
    return Hour(running, dict.fromkeys(mine, 4_000)), one, two


async def test_the_loaded_one_gives_what_brings_both_nearest_and_then_all_is_quiet(
    cluster: Cluster,
) -> None:
    hour, one, two = await loaded(cluster)
    mine = one.broker.ownership.open_partitions()
    for partition in mine:
        await partition.publish(batch(2, tag=str(partition.name.partition)))
    await hour.pass_s(590)
    assert share(one.broker) == 3, "what was opened a moment ago rests"
    with capture_logs() as logs:
        await hour.pass_s(60)
    given = [log for log in logs if log["event"] == "load_given_away"]
    assert [(log["to"], log["own_load"], log["mean_load"]) for log in given] == [
        ("B", 12_000, 6_000)
    ]
    assert (share(one.broker), share(two.broker)) == (2, 4)
    assert "partition_taken_as_left" in {log["event"] for log in logs}, "by planned hand-over"
    moved = next(p.name for p in mine if str(p.name) == given[0]["partition"])
    found = await values(await two.broker.ownership.partition(moved))
    assert found == [f"{moved.partition}-0", f"{moved.partition}-1"]
    await hour.pass_s(2_400)
    assert (share(one.broker), share(two.broker)) == (2, 4), "8,000 and 4,000: no move is better"
    assert not one.broker.balance.to_move()
    assert not two.broker.balance.to_move(), "the even spread does not take it back"


async def test_one_move_in_a_pause_and_none_twice_in_a_rest(cluster: Cluster) -> None:
    hour, one, two = await loaded(cluster)
    hour.rates = {TOPIC.partition(number): 0 for number in range(6)}
    mine = [partition.name for partition in one.broker.ownership.open_partitions()]
    hour.rates |= dict(zip(mine, (2_000, 6_000, 4_000), strict=True))
    moved: list[tuple[float, str]] = []
    began_s = hour.later_s
    with capture_logs() as logs:
        for _ in range(200):
            seen = len(logs)
            await hour.pass_s(10)
            moved += [
                (hour.later_s - began_s, log["partition"])
                for log in logs[seen:]
                if log["event"] == "load_given_away"
            ]
    assert [name for _, name in moved] == [str(mine[1])], "6,000 and 6,000 at once"
    hour.rates |= {mine[1]: 20_000, **dict.fromkeys(_names(two, besides=mine[1]), 9_000)}
    moved.clear()
    with capture_logs() as logs:
        for _ in range(120):
            seen = len(logs)
            await hour.pass_s(10)
            moved += [
                (hour.later_s, log["partition"])
                for log in logs[seen:]
                if log["event"] == "load_given_away"
            ]
    assert moved, "B gives, too"
    assert max(Counter(name for _, name in moved).values()) == 1
    times = [at_s for at_s, _ in moved]
    assert all(later - at >= 60 for at, later in itertools.pairwise(times))


def _names(running: RunningBroker, besides: PartitionName) -> list[PartitionName]:
    found = [partition.name for partition in running.broker.ownership.open_partitions()]
    return [name for name in found if name != besides]


async def test_switched_off_nothing_moves(cluster: Cluster) -> None:
    hour, one, _ = await loaded(cluster, balance_by_load=False)
    await hour.pass_s(1_000)
    assert share(one.broker) == 3
    assert one.broker.registry.statuses.own.load == 12_000, "it tells all the same"


async def test_nothing_moves_a_while_after_a_broker_came(cluster: Cluster) -> None:
    hour, one, two = await loaded(cluster)
    await hour.pass_s(590)
    three = await cluster.start("C", **BY_LOAD)
    await until(lambda: len(one.broker.registry.live) == 3, "C is seen")
    came_s = one.broker.registry.changed_s
    assert came_s > hour.began_s
    await three.broker._tell_standing()
    one.broker.registry.statuses.changed_s = hour.now_s()
    two.broker.registry.statuses.changed_s = hour.now_s()
    with capture_logs() as logs:
        await hour.pass_s(50)
    assert "load_given_away" not in {log["event"] for log in logs}


async def test_who_has_told_no_load_is_given_nothing(cluster: Cluster) -> None:
    hour, one, two = await loaded(cluster)
    await hour.pass_s(600)
    assert one.broker.registry.statuses.of("B").load == 0
    hour.later_s += 60
    one.broker.balance.measure()
    standings = one.broker.registry.statuses
    standings._others["B"].registered = b"another run"
    assert standings.of("B").load is None
    assert one.broker.balance.to_give() is None
    assert share(two.broker) >= 3


async def test_what_is_published_and_read_is_counted(cluster: Cluster) -> None:
    one = await cluster.start("A", **BY_LOAD)
    name = await make_topic(one.broker)
    await serve([one], name)
    partition = await one.broker.ownership.partition(name)
    before = partition.work
    await partition.publish(batch(3))
    published = partition.work
    assert published.messages == before.messages + 3
    assert await values(partition) == ["m-0", "m-1", "m-2"]
    both = partition.work
    assert both.messages == published.messages + 3
    assert both.payload_bytes - published.payload_bytes == (
        published.payload_bytes - before.payload_bytes
    )


async def test_others_hear_soon_that_a_small_load_has_ended(cluster: Cluster) -> None:
    """B showed 397 for minutes, for A that had nothing to do: less than a tenth of the floor."""
    hour, one, two = await loaded(cluster, balance_load_floor=10_000, balance_by_load=False)
    rates = dict(hour.rates)
    hour.rates.clear()
    hour.rates.update(dict.fromkeys(rates, 60))
    await hour.pass_s(300)
    heard = two.broker.registry.statuses
    before = heard.of("A").load
    assert before is not None
    assert abs(before - one.broker.balance.load()) <= 0.1 * before + 1, before
    hour.rates.update(dict.fromkeys(rates, 0))
    await hour.pass_s(60)
    load = one.broker.balance.load()
    told = heard.of("A").load
    assert told is not None
    assert load < before / 2
    assert abs(told - load) <= 0.1 * told + 1, (told, load)
    await hour.pass_s(240)
    assert heard.of("A").load == 0
    age_s = heard.age_s("A")
    assert age_s is not None
    assert 0 <= age_s < 60
    assert heard.age_s("nobody") is None
