"""Partitions are spread evenly over brokers, by number and by load; a drained broker gets none."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.broker import Broker
from octavo.broker.cluster.balance import Patience
from octavo.broker.errors import (
    BROKER_DRAINING,
    BROKER_NOT_FOUND,
    NoOtherBroker,
    NotOwner,
    PartitionMoving,
)
from octavo.broker.partition.partition import Partition
from octavo.broker.types import PartitionName, Work
from octavo.metadata.store import MetadataUnavailable, RecordNotFound
from octavo.protocol.codes import OctavoError
from tests.support.cluster import (
    TOPIC,
    Cluster,
    RunningBroker,
    batch,
    make_topic,
    owned,
    running_cluster,
    until,
    values,
)
from tests.support.kit.refusals import raises_code

# Only unowned partitions were ever claimed, so a broker that joined or restarted got none.

QUICK: dict[str, Any] = {
    "balance_after_ms": 300,
    "balance_interval_ms": 50,
    "balance_pause_ms": 1,
}


async def serve(running: list[RunningBroker], name: PartitionName) -> RunningBroker:
    async with asyncio.timeout(15):
        while True:
            for one in running:
                try:
                    owner = await one.broker.ownership.owner_of(name)
                except OctavoError:
                    continue
                if owner.local:
                    return one
            await asyncio.sleep(0.01)


def share(broker: Broker) -> int:
    return len(broker.ownership.open_partitions())


async def test_a_broker_that_joins_is_given_its_share(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    name = await make_topic(one.broker, partitions=8)
    for number in range(8):
        await serve([one], TOPIC.partition(number))
    partition = await one.broker.ownership.partition(name)
    await partition.publish(batch(3))
    two = await cluster.start("B", **QUICK)
    await until(lambda: (share(one.broker), share(two.broker)) == (4, 4), "four and four")
    owner = await serve([one, two], name)
    assert await values(await owner.broker.ownership.partition(name)) == ["m-0", "m-1", "m-2"]
    assert not one.broker.balance.to_move()
    assert not two.broker.balance.to_move()


async def test_a_rolling_restart_ends_even_while_a_publisher_runs(cluster: Cluster) -> None:
    running = {name: await cluster.start(name, **QUICK) for name in "AB"}
    await make_topic(running["A"].broker, partitions=8)
    over = False
    stored: dict[int, list[str]] = {number: [] for number in range(8)}

    async def publish(number: int) -> None:
        name, sequence = TOPIC.partition(number), 0
        while not over:
            try:
                owner = await serve(list(running.values()), name)
                partition = await owner.broker.ownership.partition(name)
                await partition.publish(
                    batch(1, tag=str(sequence), producer_id=1, producer_epoch=0,
                          base_sequence=sequence)
                )  # fmt: skip
            except (NotOwner, PartitionMoving):
                await asyncio.sleep(0.005)
            else:
                stored[number].append(f"{sequence}-0")
                sequence += 1

    publishers = [asyncio.create_task(publish(number)) for number in range(8)]
    for name in "AB":
        await until(
            lambda: [share(one.broker) for one in running.values()] == [4, 4],
            "four and four",
            30,
        )
        await running[name].close()
        running[name] = await cluster.start(name, **QUICK)
    await until(
        lambda: [share(one.broker) for one in running.values()] == [4, 4], "four and four", 30
    )
    over = True
    await asyncio.gather(*publishers)
    for number in range(8):
        owner = await serve(list(running.values()), TOPIC.partition(number))
        found = await values(await owner.broker.ownership.partition(TOPIC.partition(number)))
        assert found == stored[number]


async def test_a_broker_that_comes_and_goes_moves_nothing(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    await make_topic(one.broker, partitions=8)
    for number in range(8):
        await serve([one], TOPIC.partition(number))
    epochs = {p.name: p.epoch for p in one.broker.ownership.open_partitions()}
    for _ in range(3):
        two = await cluster.start("B", **{**QUICK, "balance_after_ms": 600_000})
        await until(lambda: len(one.broker.registry.brokers()) == 2, "A sees B")
        assert not one.broker.balance.to_move(), "B has only just come"
        await two.close()
        await until(lambda: len(one.broker.registry.brokers()) == 1, "A sees that B has gone")
    assert {p.name: p.epoch for p in one.broker.ownership.open_partitions()} == epochs


async def test_what_nobody_takes_is_taken_back(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.cluster.balance._TAKEN_WITHIN_S", 0.2)
    one = await cluster.start("A", **QUICK)
    await make_topic(one.broker, partitions=2)
    for number in range(2):
        await serve([one], TOPIC.partition(number))
    two = await cluster.start("B", **QUICK)
    monkeypatch.setattr(two.broker.ownership, "reconcile", lambda: None)
    one.broker.ask_peer = None
    mine = {p.name: p.epoch for p in one.broker.ownership.open_partitions()}
    await until(
        lambda: any(p.epoch > mine[p.name] + 1 for p in one.broker.ownership.open_partitions()),
        "one was given away and taken back, twice",
    )
    assert share(two.broker) == 0


# A successor whose watch was late had not heard of the partition that was closed for it: the
# owner took it back and closed it again, and it was unserved for 5 s each time.


async def test_an_heir_whose_watches_are_silent_takes_it(cluster: Cluster) -> None:
    """It remembers another owner from an earlier request."""
    one = await cluster.start("A", **QUICK)
    name = await make_topic(one.broker, partitions=2)
    for number in range(2):
        partition = await owned(one.broker, name._replace(partition=number))
        await partition.publish(batch(1))
    two = await cluster.start("B", deaf=True, **QUICK)
    for number in range(2):
        found = await two.broker.ownership.owner_of(name._replace(partition=number))
        assert found.broker_id == "A"
    await until(lambda: len(two.broker.ownership.open_partitions()) == 1, "B has its half")
    assert len(one.broker.ownership.open_partitions()) == 1
    await until(lambda: one.broker.balance.moved == 1, "A has heard that B serves it")


async def test_an_heir_of_a_topic_made_again_takes_it(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    two = await cluster.start("B", **QUICK)
    await until(lambda: len(one.broker.registry.brokers()) == 2, "A sees B")
    for _ in range(2):
        name = await make_topic(one.broker, partitions=2)
        for number in range(2):
            await owned(one.broker, name._replace(partition=number))
        await until(lambda: len(two.broker.ownership.open_partitions()) == 1, "B has its half")
        await one.broker.topics.delete(name.topic_name)


async def test_an_heir_that_refuses_is_left_alone_for_longer_and_longer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.broker.cluster.balance._TAKEN_WITHIN_S", 0.05)
    one = await cluster.start("A", **{**QUICK, "balance_after_ms": 20})
    name = await make_topic(one.broker, partitions=8)
    for number in range(8):
        await owned(one.broker, name._replace(partition=number))
    asked: list[str] = []
    pauses: list[float] = []
    took_nothing = one.broker.balance._patience.took_nothing

    async def refuses(*of: Any) -> None:
        asked.append(str(of[1]))
        raise ConnectionRefusedError("no client listens")

    def noted(broker_id: str, now_s: float) -> float:
        pauses.append(took_nothing(broker_id, now_s))
        return pauses[-1]

    one.broker.ask_peer = refuses
    monkeypatch.setattr(one.broker.balance._patience, "took_nothing", noted)
    two = await cluster.start("B", deaf=True, **QUICK)
    monkeypatch.setattr(two.broker.ownership, "reconcile", lambda: None)
    await until(lambda: len(pauses) == 4, "it was tried four times")
    assert pauses == [0.04, 0.08, 0.16, 0.32]
    assert asked
    assert not one.broker.balance.moved


def test_the_pauses_of_a_broker() -> None:
    patience = Patience(20.0)
    assert patience.may_be_given("B", 0.0)
    now_s, pauses = 0.0, []
    for _ in range(7):
        pauses.append(patience.took_nothing("B", now_s))
        assert not patience.may_be_given("B", now_s + pauses[-1] - 1)
        assert patience.may_be_given("A", now_s), "others are not to blame"
        now_s += pauses[-1]
        assert patience.may_be_given("B", now_s)
    assert pauses == [20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    patience.took("B")
    assert patience.took_nothing("B", now_s) == 20.0
    patience.keep_only(["B"])
    assert not patience.may_be_given("B", now_s)
    patience.keep_only(["A"])
    assert patience.may_be_given("B", now_s), "it has started anew"


async def test_it_can_be_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Undoing a drain whose announcement got no answer looked like the announced state, so it
    was not announced: the others gave the broker nothing until its restart."""
    async with running_cluster(tmp_path, brokers=2) as cluster:
        drained, other = (cluster.brokers[f"broker-{number}"] for number in range(2))
        standings = other.broker.registry.statuses
        await _until(lambda: len(drained.broker.registry.live) == 2)
        await drained.broker.undrain()
        put: Any = drained.store.put

        async def answer_is_lost(path: str, value: bytes, version: int) -> Any:
            await put(path, value, version)
            raise MetadataUnavailable("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(drained.store, "put", answer_is_lost)
            with pytest.raises(MetadataUnavailable):
                await drained.broker.drain()
        await _until(lambda: standings.drained == {"broker-0"})
        await drained.broker.undrain()
        await _until(lambda: not standings.drained)


async def _until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


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


SLOW = {**QUICK, "balance_after_ms": 600_000}


async def spread(cluster: Cluster, partitions: int = 6) -> tuple[RunningBroker, RunningBroker]:
    one = await cluster.start("A", **SLOW)
    two = await cluster.start("B", **SLOW)
    await until(
        lambda: len(one.broker.registry.live) == len(two.broker.registry.live) == 2, "they meet"
    )
    await make_topic(one.broker, partitions=partitions)
    for number in range(partitions):
        await serve([one, two], TOPIC.partition(number))
    assert (share(one.broker), share(two.broker)) == (partitions // 2, partitions // 2)
    return one, two


async def test_a_drained_broker_gives_everything_away_and_is_given_nothing(
    cluster: Cluster,
) -> None:
    one, two = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0]
    await mine.publish(batch(3))
    await one.broker.drain()
    await until(lambda: (share(one.broker), share(two.broker)) == (0, 6), "A is empty")
    moved = await two.broker.ownership.partition(mine.name)
    assert await values(moved) == ["m-0", "m-1", "m-2"]
    await until(lambda: "A" in two.broker.registry.statuses.drained, "B has heard")
    for broker in (one.broker, two.broker):
        assert {who.broker_id for who in broker.registry.preferred(TOPIC, 6)} == {"B"}
    assert one.broker.registry.settled() == two.broker.registry.settled() == ()
    await until(lambda: two.broker.registry.statuses.of("A").partitions == 0, "B knows its count")


async def test_undone_it_is_preferred_again(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    await one.broker.drain()
    await until(lambda: one.broker.ownership.held() == 0, "A is empty")
    await one.broker.undrain()
    await until(lambda: "A" not in two.broker.registry.statuses.drained, "B has heard")
    names = {who.broker_id for who in two.broker.registry.preferred(TOPIC, 6)}
    assert names == {"A", "B"}


async def test_started_anew_it_is_not_drained_although_its_old_record_stands(
    cluster: Cluster,
) -> None:
    one, two = await spread(cluster)
    await one.broker.drain()
    await until(lambda: "A" in two.broker.registry.statuses.drained, "B has heard")
    record = await two.store.get("/octavo/standings/A")
    await one.close()
    await two.store.create("/octavo/standings/A", record.value)
    again = await cluster.start("A", **SLOW)
    await until(lambda: len(two.broker.registry.live) == 2, "it is back")
    assert not again.broker.registry.is_draining
    assert "A" not in two.broker.registry.statuses.drained
    assert {who.broker_id for who in two.broker.registry.preferred(TOPIC, 6)} == {"A", "B"}


async def test_a_drain_outlives_the_end_of_a_session(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    await one.broker.drain()
    await until(lambda: share(two.broker) == 6, "B has all")
    told = two.broker.registry.statuses
    await until(lambda: told.of("A") == one.broker.standing(), "it has told that none is left")
    path = "/octavo/standings/A"
    assert (await two.store.get(path)).version > 0
    await one.expire()
    async with asyncio.timeout(15):
        while True:
            with contextlib.suppress(RecordNotFound):
                if not (await two.store.get(path)).version:
                    break
            await asyncio.sleep(0.02)
    await until(lambda: "A" in two.broker.registry.live, "it is registered")
    await until(lambda: "A" in two.broker.registry.statuses.drained, "and it drains")
    assert share(one.broker) == 0


async def test_the_last_broker_cannot_be_drained(cluster: Cluster) -> None:
    one = await cluster.start("A", **SLOW)
    with pytest.raises(NoOtherBroker, match="no other broker"):
        await one.broker.drain()
    assert not one.broker.registry.is_draining
    two = await cluster.start("B", **SLOW)
    await until(lambda: len(one.broker.registry.live) == 2, "B is seen")
    await one.broker.drain()
    await until(lambda: "A" in two.broker.registry.statuses.drained, "B has heard")
    with pytest.raises(NoOtherBroker):
        await two.broker.drain()


async def test_drained_alone_it_serves_all_the_same(cluster: Cluster) -> None:
    one, two = await spread(cluster, partitions=2)
    await one.broker.drain()
    await until(lambda: one.broker.ownership.held() == 0, "A is empty")
    await two.close()
    await until(lambda: share(one.broker) == 2, "A serves what nobody else could")


async def test_what_is_placed_stays_until_that_broker_is_drained(cluster: Cluster) -> None:
    one = await cluster.start("A", **QUICK)
    two = await cluster.start("B", **QUICK)
    name = await make_topic(one.broker, partitions=4)
    parts = [PartitionName(*name[:2], number) for number in range(4)]
    await until(lambda: one.broker.registry.settled() == ("A", "B"), "both have settled")
    for part in parts:
        owner = await serve([one, two], part)
        if owner is one:
            await one.broker.balance.unload(part, "B")
    assert (share(one.broker), share(two.broker)) == (0, 4)
    await asyncio.sleep(1.0)
    assert share(two.broker) == 4, "the preference does not take it back"
    await two.broker.drain()
    await until(lambda: (share(one.broker), share(two.broker)) == (4, 0), "B is empty")


async def test_unloaded_where_it_should_be_it_is_opened_anew(cluster: Cluster) -> None:
    one, _ = await spread(cluster)
    mine = one.broker.ownership.open_partitions()[0]
    await mine.publish(batch(2))
    found = await one.broker.balance.unload(mine.name, "")
    assert found.broker_id == "A"
    again = await one.broker.ownership.partition(mine.name)
    assert again.epoch == mine.epoch + 1
    assert await values(again) == ["m-0", "m-1"]


async def test_what_cannot_be_unloaded(cluster: Cluster) -> None:
    one, two = await spread(cluster)
    mine, other = (one.broker.ownership.open_partitions()[0].name for one in (one, two))
    with raises_code(BROKER_NOT_FOUND, match=r"called nobody; there are: A, B"):
        await one.broker.balance.unload(mine, "nobody")
    with pytest.raises(NotOwner):
        await one.broker.balance.unload(other, "")
    assert (await owned(one.broker, mine)).name == mine
    await two.broker.drain()
    await until(lambda: "B" in one.broker.registry.statuses.drained, "A has heard")
    with raises_code(BROKER_DRAINING, match="B is being drained"):
        await one.broker.balance.unload(mine, "B")
