"""Which brokers are alive, and since when, as their records come, go and are written again.

Time is virtual; the records are a dictionary.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.cluster.broker_status import (
    BrokerStatus,
    BrokerStatuses,
    decode_status,
    encode_status,
)
from octavo.broker.cluster.load import (
    GAIN,
    MEASURED_EVERY_S,
    SMOOTHED_OVER_S,
    TOLD_WITHIN_S,
    Giving,
    LoadRules,
    Loads,
    LoadTurns,
    choose,
    worth_telling,
)
from octavo.broker.cluster.membership import (
    REMEMBERED_MAX,
    REMEMBERED_S,
    GoneBrokers,
    preferred_brokers,
)
from octavo.broker.cluster.registry import BrokerRegistry, decode_broker, encode_broker
from octavo.broker.config import BrokerConfig, BrokerConfigError
from octavo.broker.errors import INVALID_ACK_ID, INVALID_MESSAGE_ID, InvalidName, InvalidSettings
from octavo.broker.types import (
    AckId,
    BrokerInfo,
    MessageId,
    PartitionName,
    SubscriptionSettings,
    TopicName,
    TopicSettings,
    Work,
    checked_name,
)
from octavo.metadata.store import (
    MetadataUnavailable,
    RecordExists,
    RecordNotFound,
    SessionState,
    VersionConflict,
)
from octavo.metadata.topics import broker_path, standing_path
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.kit.refusals import raises_code

TOPIC = TopicName("public", "t")
SETTLE_S = 10.0


class Store:
    """The brokers' records."""

    session_state = SessionState.CONNECTED
    session_timeout_ms = 2_000

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.watcher: Callable[[], None] = lambda: None
        self.session: Callable[[SessionState], None] = lambda _: None
        self.statuses: dict[str, bytes] = {}
        self.alarms: dict[str, Callable[[], None]] = {}
        self.answers_lost = 0
        """The number of coming reads of a broker status without an answer."""

    def watch_children(self, _: str, watcher: Callable[[], None]) -> Any:
        self.watcher = watcher
        return SimpleNamespace(cancel=lambda: None)

    def watch(self, path: str, watcher: Callable[[], None]) -> Any:
        self.alarms[path] = watcher
        return SimpleNamespace(cancel=lambda: None)

    def put_standing(self, name: str, standing: BrokerStatus) -> None:
        """Write the broker's status; the watch fires once."""
        registered = self.values[name]
        self.statuses[standing_path(name)] = encode_status(standing, registered)
        self.alarms[standing_path(name)]()

    def on_session(self, session: Callable[[SessionState], None]) -> None:
        self.session = session

    async def children(self, _: str) -> list[str]:
        return [*self.values]

    async def get(self, path: str) -> Any:
        if path in self.alarms and self.answers_lost:
            self.answers_lost -= 1
            raise MetadataUnavailable("no answer came in time")
        found = [value for name, value in self.values.items() if path == broker_path(name)]
        found += [self.statuses[path]] if path in self.statuses else []
        if not found:
            raise RecordNotFound(path)
        return SimpleNamespace(value=found[0])


class Ours:
    def held(self, _: str) -> bool:
        return True

    async def release(self, _: str) -> None:
        pass


class Known:
    """Broker a's view of the others."""

    def __init__(self) -> None:
        self.store = Store()
        self.times_gone = 0
        unused: Any = None
        store: Any = self.store
        ours: Any = Ours()
        self.registry = BrokerRegistry(
            store, ours, int(SETTLE_S * 1000), self._gone, unused, asyncio.ensure_future
        )

    def _gone(self) -> None:
        self.times_gone += 1

    async def see(self, **runs: str) -> None:
        """Set the records: these brokers, each with its run."""
        self.store.values = {
            name: encode_broker(BrokerInfo(name, f"http://{name}"), run)
            for name, run in runs.items()
        }
        self.store.watcher()
        await asyncio.sleep(0.1)


def told(story: Callable[[Known], Awaitable[None]]) -> None:
    async def whole() -> None:
        known = Known()
        own = BrokerInfo("a", "http://a")
        await known.registry.start(own, encode_broker(own, "1"))
        await story(known)
        await known.registry.close()

    loop = SimLoop(1, trace=Trace())
    try:
        loop.run_until_complete(whole())
        assert loop.errors == []
    finally:
        loop.close()


def test_a_broker_that_came_back_between_two_looks_was_gone() -> None:
    """Its name was there before and is there now, but its partitions have no owner."""

    async def story(known: Known) -> None:
        await known.see(b="1")
        assert known.times_gone == 0
        await known.see(b="2")
        assert known.times_gone == 1
        await known.see(b="2", c="1")
        assert known.times_gone == 1, "who comes leaves nothing behind"
        await known.see(c="1")
        assert known.times_gone == 2

    told(story)


def test_a_broker_that_came_back_has_to_settle_again() -> None:
    """Otherwise a broker that dies again and again gets other brokers' partitions each time."""

    async def story(known: Known) -> None:
        await known.see(b="1")
        await asyncio.sleep(SETTLE_S)
        assert known.registry.settled() == ("a", "b")
        await known.see(b="2")
        assert known.registry.settled() == ("a",)
        await asyncio.sleep(SETTLE_S)
        assert known.registry.settled() == ("a", "b")

    told(story)


def test_nobody_is_handed_anything_while_our_own_session_was_disturbed() -> None:
    async def story(known: Known) -> None:
        await known.see(b="1")
        await asyncio.sleep(SETTLE_S)
        known.store.session(SessionState.SUSPENDED)
        assert known.registry.settled() == ()
        assert {known.registry.successor(TOPIC.partition(n), 4, ()) for n in range(4)} == {None}
        await asyncio.sleep(SETTLE_S)
        assert known.registry.settled() == ("a", "b")

    told(story)


def test_who_leaves_does_not_count_itself() -> None:
    """Our own record may still be listed; we must not prefer ourselves."""

    async def story(known: Known) -> None:
        await known.see(a="1", b="1")
        await known.registry.leave()
        await known.see(a="1", b="1")
        assert sorted(known.registry.live) == ["b"]
        owners = {one.broker_id for one in known.registry.preferred(TOPIC, 4)}
        assert owners == {"b"}

    told(story)


def test_what_ten_thousand_topics_should_lie_at_is_computed_once() -> None:
    """A broker asks for all its partitions each second; with a smaller cache each was computed
    again."""

    async def story(known: Known) -> None:
        await known.see(b="1")
        for _ in range(2):
            for number in range(10_000):
                known.registry.preferred(TopicName("public", f"t{number}"), 1)
        assert known.registry._preferred.cache_info().misses == 10_000

    told(story)


class Counted(dict[str, BrokerInfo]):
    """The live brokers, and how often a broker was looked up."""

    looks = 0

    def __getitem__(self, name: str) -> BrokerInfo:
        self.looks += 1
        return super().__getitem__(name)


def test_the_heir_of_each_partition_costs_no_look_at_the_others() -> None:
    """With 2,000 partitions a broker looked at four million, in one turn of the loop."""

    async def story(known: Known) -> None:
        await known.see(b="1")
        await asyncio.sleep(SETTLE_S)
        settled, live = known.registry.settled(), Counted(known.registry.live)
        known.registry.live = live
        names = [TOPIC.partition(number) for number in range(2_000)]
        successors = [known.registry.successor(name, len(names), settled) for name in names]
        owners = [known.registry.preferred_of(name, len(names)) for name in names]
        assert live.looks <= 2 * len(names)
        assert successors == [one.broker_id for one in known.registry.preferred(TOPIC, len(names))]
        assert successors == [one.broker_id for one in owners]

    told(story)


@pytest.mark.parametrize("answers_lost", [1, 2, 5])
def test_a_standing_whose_reading_failed_is_read_again(answers_lost: int) -> None:
    """No second alarm came, and the undrained broker got nothing from then on."""

    async def story(known: Known) -> None:
        await known.see(b="1")
        known.store.put_standing("b", BrokerStatus(draining=True))
        await asyncio.sleep(SETTLE_S)
        assert known.registry.settled() == ("a",)
        known.store.answers_lost = answers_lost
        known.store.put_standing("b", BrokerStatus(draining=False))
        await asyncio.sleep(SETTLE_S)
        assert known.registry.settled() == ("a", "b")

    told(story)


def test_a_broker_that_went_is_not_asked_for_its_standing_any_more() -> None:
    async def story(known: Known) -> None:
        await known.see(b="1")
        known.store.answers_lost = 1_000
        known.store.put_standing("b", BrokerStatus(draining=True))
        await asyncio.sleep(0.1)
        await known.see()
        await asyncio.sleep(1.0)
        left = known.store.answers_lost
        await asyncio.sleep(SETTLE_S)
        assert known.store.answers_lost == left

    told(story)


ME = b"registered"
PATH = standing_path("a")
DRAINING = BrokerStatus(draining=True)


class StatusStore:
    """One ephemeral record; the session ends, or an error comes, during a call."""

    def __init__(self) -> None:
        self.record: tuple[bytes, int] | None = None
        self.session: Any = None
        self.calls = 0
        self.ends_at = -1
        """The session ends after this call, before its answer is looked at."""
        self.fails: list[Exception] = []

    def on_session(self, session: Any) -> None:
        self.session = session

    def expire(self) -> None:
        self.record = None
        self.session(SessionState.EXPIRED)
        self.session(SessionState.CONNECTED)

    async def _called(self) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails.pop(0)

    def _done(self) -> None:
        self.calls += 1
        if self.calls == self.ends_at:
            self.expire()

    async def create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        await self._called()
        assert (path, ephemeral) == (PATH, True)
        if self.record is not None:
            raise RecordExists(path)
        self.record = value, 0
        self._done()

    async def put(self, path: str, value: bytes, version: int) -> int:
        await self._called()
        if self.record is None:
            raise RecordNotFound(path)
        if self.record[1] != version:
            raise VersionConflict(path)
        self.record = value, version + 1
        self._done()
        return version + 1

    async def get(self, path: str) -> Any:
        await self._called()
        if self.record is None:
            raise RecordNotFound(path)
        found = SimpleNamespace(value=self.record[0], version=self.record[1])
        self._done()
        return found

    async def delete(self, path: str) -> None:
        await self._called()
        if self.record is None:
            raise RecordNotFound(path)
        self.record = None
        self._done()

    @property
    def said(self) -> BrokerStatus | None:
        return None if self.record is None else decode_status(self.record[0], ME)


def standings(store: StatusStore) -> BrokerStatuses:
    any_store: Any = store
    found = BrokerStatuses(any_store, lambda: None, asyncio.ensure_future)
    found.start("a", ME)
    return found


@pytest.mark.parametrize("ends_at", range(1, 8))
async def test_a_session_that_ends_amid_any_call(ends_at: int) -> None:
    """The registry announces again in the next session, as it does after every alarm."""
    store = StatusStore()
    own = standings(store)
    for standing in (BrokerStatus(partitions=1), BrokerStatus(partitions=2), DRAINING):
        store.ends_at = ends_at
        await own.tell(standing)
        await own.tell_again()
        assert store.said == standing
    calls = store.calls
    await own.tell_again()
    assert store.calls == calls, "it is told"


async def test_what_could_not_be_written_counts_as_not_told() -> None:
    """Another writer's record came in between each time; after the last try it is still
    unannounced."""
    store = StatusStore()
    own = standings(store)
    store.record = b"of a former process", 0
    real = store.delete

    async def nothing_goes(path: str) -> None:
        raise RecordNotFound(path)

    store.delete = nothing_goes  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable, match="status"):
        await own.tell(DRAINING)
    store.delete = real  # type: ignore[method-assign]
    await own.tell_again()
    assert store.said == DRAINING


async def test_an_error_amid_it_leaves_it_untold() -> None:
    store = StatusStore()
    own = standings(store)
    store.fails = [MetadataUnavailable("no answer came in time")]
    with pytest.raises(MetadataUnavailable):
        await own.tell(DRAINING)
    await own.tell_again()
    assert store.said == DRAINING


def infos(*names: str) -> dict[str, BrokerInfo]:
    return {name: BrokerInfo(name, f"http://{name}") for name in names}


def shown(gone: GoneBrokers, now_s: float) -> list[tuple[str, float]]:
    return [(one.info.broker_id, one.since_s) for one in gone.at(now_s)]


def test_one_that_is_missed_is_shown_until_it_is_back() -> None:
    gone = GoneBrokers()
    gone.follow({}, infos("a", "b", "c"), 1.0)
    assert shown(gone, 2.0) == []
    gone.follow(infos("a", "b", "c"), infos("a"), 5.0)
    gone.follow(infos("a"), infos("a"), 9.0)
    assert shown(gone, 10.0) == [("b", 5.0), ("c", 5.0)], "since it was missed first"
    gone.follow(infos("a"), infos("a", "c"), 11.0)
    assert shown(gone, 12.0) == [("b", 5.0)]


def test_it_is_forgotten_after_a_while_and_there_are_never_many() -> None:
    gone = GoneBrokers()
    gone.follow(infos("b"), infos("a"), 5.0)
    assert shown(gone, 5.0 + REMEMBERED_S) == [("b", 5.0)]
    assert shown(gone, 5.1 + REMEMBERED_S) == []
    many = [f"k{number:03}" for number in range(REMEMBERED_MAX + 5)]
    for at, name in enumerate(many):
        gone.follow(infos(name), {}, 9e9 + at)
    assert [name for name, _ in shown(gone, 9e9 + len(many))] == many[5:]


RULES = LoadRules(floor=100.0, above_mean=1.25, pause_s=60.0, rest_s=600.0)

Lying = dict[str, dict[PartitionName, float]]
"""Broker → its partitions, with their loads."""


def part(number: int) -> PartitionName:
    return PartitionName("public", "t", number)


@st.composite
def clusters(draw: st.DrawFn) -> Lying:
    ids = [f"b{number}" for number in range(draw(st.integers(1, 6)))]
    # A load whose half is 0 as a float counts as no load.
    loads = draw(st.lists(st.just(0.0) | st.floats(1e-6, 50_000), max_size=40))
    lying: Lying = {one: {} for one in ids}
    for number, load in enumerate(loads):
        lying[draw(st.sampled_from(ids))][part(number)] = load
    return lying


def totals(lying: Lying) -> dict[str, float]:
    return {one: sum(loads.values()) for one, loads in lying.items()}


def distance(lying: Lying) -> float:
    """Return all brokers' distance from their mean."""
    found = totals(lying)
    mean = sum(found.values()) / len(found)
    return sum(abs(load - mean) for load in found.values())


def moves_until_rest(lying: Lying, rules: LoadRules) -> list[Giving]:
    """Return the moves while loads stay constant, and no pause is needed."""
    most = round(2 * len(lying) / GAIN)
    made: list[Giving] = []
    while True:
        now = totals(lying)
        found = [one for own in sorted(lying) if (one := choose(own, now, lying[own], rules))]
        assert len(found) <= 1, "only the most loaded gives"
        if not found:
            return made
        giving = found[0]
        giver = next(one for one, loads in lying.items() if giving.partition in loads)
        lying[giving.to][giving.partition] = lying[giver].pop(giving.partition)
        made.append(giving)
        assert len(made) <= most, "it does not come to rest"


@given(clusters())
def test_with_constant_loads_it_comes_to_rest_and_each_move_brings_something(
    lying: Lying,
) -> None:
    seen = {_state(lying)}
    mean = sum(totals(lying).values()) / len(lying)
    while True:
        before = distance(lying)
        now = totals(lying)
        found = [one for own in sorted(lying) if (one := choose(own, now, lying[own], RULES))]
        if not found:
            return
        giving = found[0]
        giver = next(one for one, loads in lying.items() if giving.partition in loads)
        assert now[giver] == max(now.values())
        assert now[giver] > max(RULES.floor, RULES.above_mean * mean)
        assert now[giving.to] == min(now.values())
        lying[giving.to][giving.partition] = lying[giver].pop(giving.partition)
        assert distance(lying) <= before - GAIN * mean + 1e-6 * max(1.0, mean)
        assert max(totals(lying).values()) <= now[giver] + 1e-6 * now[giver]
        assert _state(lying) not in seen, "to and fro"
        seen.add(_state(lying))


def _state(lying: Lying) -> tuple[tuple[str, tuple[PartitionName, ...]], ...]:
    return tuple((one, tuple(sorted(loads))) for one, loads in sorted(lying.items()))


@given(clusters())
def test_moves_are_bounded(lying: Lying) -> None:
    moves_until_rest(lying, RULES)
    assert not moves_until_rest(lying, RULES), "at rest it stays"


@given(clusters(), st.floats(1.01, 3.0), st.floats(0, 10_000))
def test_at_rest_nobody_is_far_above_the_mean_unless_nothing_can_go(
    lying: Lying, above: float, floor: float
) -> None:
    rules = LoadRules(floor, above, 60.0, 600.0)
    moves_until_rest(lying, rules)
    now = totals(lying)
    mean = sum(now.values()) / len(now)
    most = max(sorted(now), key=now.__getitem__)
    if now[most] > max(floor, above * mean) and len(now) > 1:
        least = min(now.values())
        for load in lying[most].values():
            gain = now[most] - least - abs(now[most] - mean - load) - abs(mean - least - load)
            assert gain < GAIN * mean + 1e-6 * max(1.0, mean)


def test_one_partition_that_is_all_the_load_stays() -> None:
    """A move would only load another broker."""
    loads = {"A": 50_000.0, "B": 0.0}
    assert choose("A", loads, {part(0): 50_000.0}, RULES) is None


def test_what_brings_both_nearest_to_the_mean_goes() -> None:
    movable = {part(0): 100.0, part(1): 2_900.0, part(2): 9_000.0}
    found = choose("A", {"A": 12_000.0, "B": 6_000.0, "C": 9_000.0}, movable, RULES)
    assert found == Giving(part(1), "B", 2_900.0, 12_000.0, 6_000.0, 9_000.0)


@pytest.mark.parametrize(
    ("own", "loads", "why"),
    [
        ("A", {"A": 90.0, "B": 0.0}, "below the floor"),
        ("A", {"A": 1_240.0, "B": 760.0}, "a quarter above the mean it may be"),
        ("B", {"A": 9_000.0, "B": 8_000.0, "C": 0.0}, "another has more to do"),
        ("A", {"A": 9_000.0}, "alone"),
        ("D", {"A": 9_000.0, "B": 0.0}, "it may be given nothing itself: it is drained"),
    ],
)
def test_who_gives_nothing(own: str, loads: Mapping[str, float], why: str) -> None:
    movable = {part(0): 50.0, part(1): 1_000.0}
    assert choose(own, loads, movable, RULES) is None, why


def test_a_move_that_brings_little_is_not_worth_it() -> None:
    loads = {"A": 2_000.0, "B": 0.0}
    assert choose("A", loads, {part(0): 49.0}, RULES) is None
    assert choose("A", loads, {part(0): 51.0}, RULES) is not None


def test_a_pause_follows_each_move_and_each_change_of_brokers() -> None:
    turns = LoadTurns(RULES)
    assert turns.may_move(1_000.0, changed_s=940.0)
    assert not turns.may_move(1_000.0, changed_s=941.0)
    turns.tried(1_000.0)
    assert not turns.may_move(1_059.0, changed_s=0.0)
    assert turns.may_move(1_060.0, changed_s=0.0)


# Measuring


def measured(loads: Loads, rate: float, s: float, start: tuple[float, int]) -> tuple[float, int]:
    """Measure this many messages of 1 KiB a second, for this long."""
    now_s, done = start
    until_s = now_s + s
    while now_s < until_s:
        now_s += MEASURED_EVERY_S
        done += round(rate * MEASURED_EVERY_S)
        loads.measure([(part(0), Work(done, done * 1024))], now_s)
    return now_s, done


def test_a_message_of_a_kib_counts_two() -> None:
    loads = Loads()
    measured(loads, 100, 60, (0.0, 0))
    assert loads.of(part(0)) == pytest.approx(200)
    assert loads.of(part(1)) == 0


def test_a_burst_is_smoothed_and_what_lasts_is_believed() -> None:
    loads = Loads()
    at = measured(loads, 100, 120, (0.0, 0))
    at = measured(loads, 1_000, MEASURED_EVERY_S, at)
    assert 200 < loads.of(part(0)) < 600
    at = measured(loads, 1_000, 5 * SMOOTHED_OVER_S, at)
    assert loads.of(part(0)) == pytest.approx(2_000, rel=0.02)


def test_what_has_gone_counts_no_more_at_once() -> None:
    loads = Loads()
    measured(loads, 100, 60, (0.0, 0))
    assert loads.total(lambda _: True) == pytest.approx(200)
    assert loads.total(lambda name: name != part(0)) == 0
    loads.measure([], 200.0)
    assert loads.of(part(0)) == 0


def test_opened_anew_it_is_measured_anew() -> None:
    """Its counters begin at 0, and no load is negative."""
    loads = Loads()
    measured(loads, 100, 60, (0.0, 0))
    loads.measure([(part(0), Work(5, 5_120))], 65.0)
    assert loads.of(part(0)) == 0
    loads.measure([(part(0), Work(505, 505 * 1024))], 70.0)
    assert loads.of(part(0)) == pytest.approx(200)


def test_small_changes_are_not_told() -> None:
    assert worth_telling(None, 0.4, 10_000) == 0
    assert worth_telling(0, 999.0, 10_000) == 0
    assert worth_telling(0, 1_001.0, 10_000) == 1_001
    assert worth_telling(50_000, 54_999.0, 10_000) == 50_000
    assert worth_telling(50_000, 44_000.0, 10_000) == 44_000


def test_a_load_that_falls_to_nothing_is_told_at_once() -> None:
    """Another broker showed 397 for minutes, for a broker that had nothing to do."""
    assert worth_telling(397, 0.0, 10_000) == 0
    assert worth_telling(397, 0.4, 10_000) == 0


def test_small_changes_are_told_within_seconds_and_not_each_time() -> None:
    assert worth_telling(397, 200.0, 10_000, TOLD_WITHIN_S - 0.1) == 397
    assert worth_telling(397, 200.0, 10_000, TOLD_WITHIN_S) == 200
    assert worth_telling(0, 5.0, 10_000, TOLD_WITHIN_S) == 5
    assert worth_telling(397, 380.0, 10_000, 3_600) == 397, "less than a tenth"
    assert worth_telling(0, 0.4, 10_000, 3_600) == 0


BROKERS = st.sets(st.text("abcdef", min_size=1, max_size=3), min_size=1, max_size=8)


def topic(number: int) -> TopicName:
    return TopicName("public", f"t{number}")


@given(BROKERS, st.integers(1, 70), st.integers(0, 1_000))
def test_every_broker_gets_as_many_as_any_other_or_one_more(
    brokers: set[str], partitions: int, number: int
) -> None:
    ids = tuple(sorted(brokers))
    chosen = preferred_brokers(topic(number), partitions, ids)
    assert len(chosen) == partitions
    counts = Counter(chosen)
    assert counts.keys() <= brokers
    assert max(counts[one] for one in ids) - min(counts[one] for one in ids) <= 1


def test_a_hundred_topics_of_four_partitions_lie_two_and_two() -> None:
    for number in range(100):
        counts = Counter(preferred_brokers(topic(number), 4, ("A", "B")))
        assert counts == {"A": 2, "B": 2}


def test_topics_of_one_partition_spread_over_the_brokers() -> None:
    ids = tuple(f"broker-{n}" for n in range(5))
    shares = Counter(preferred_brokers(topic(number), 1, ids)[0] for number in range(5_000))
    assert min(shares[one] for one in ids) > 900


def test_the_odd_partitions_of_many_topics_spread_as_well() -> None:
    ids = ("A", "B", "C")
    shares: Counter[str] = Counter()
    for number in range(1_000):
        shares.update(preferred_brokers(topic(number), 4, ids))
    assert min(shares.values()) > 1_250


def _moved(before: tuple[str, ...], after: tuple[str, ...]) -> int:
    return sum(one != other for one, other in zip(before, after, strict=True))


def test_few_move_when_a_broker_comes_or_goes() -> None:
    """At least its share must move; at most twice that, on the average of many topics."""
    for partitions, count in ((4, 2), (8, 3), (32, 4), (64, 5)):
        ids = tuple(f"broker-{n}" for n in range(count))
        came = least = 0
        for number in range(100):
            before = preferred_brokers(topic(number), partitions, ids)
            after = preferred_brokers(topic(number), partitions, (*ids, "broker-9"))
            came += _moved(before, after)
            least += partitions // (count + 1)
        assert came <= 2 * least, (partitions, count, came, least)


def test_of_two_brokers_one_goes_and_comes_again_and_all_is_as_before() -> None:
    both = preferred_brokers(topic(0), 32, ("A", "B"))
    assert set(preferred_brokers(topic(0), 32, ("A",))) == {"A"}
    assert preferred_brokers(topic(0), 32, ("A", "B")) == both


NAME = TopicName("public", "t")


@pytest.mark.parametrize("name", ["a", "A-b_c.9", "...", "x" * 249, "-", "_"])
def test_good_names(name: str) -> None:
    assert checked_name("topic", name) == name
    assert TopicName.parse(f"ns/{name}") == ("ns", name)
    assert TopicName.parse(name) == ("public", name)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "a/b", "a\x00", "%00", "a%2Fb", "x" * 250, "a b", "ä", "a\n", "a\\b", "⁄"],
)
def test_bad_names_are_refused_with_the_rule(name: str) -> None:
    with pytest.raises(InvalidName, match=r"1 to 249 of A-Z a-z 0-9 \. _ -") as error:
        checked_name("topic", name)
    assert len(str(error.value)) < 300
    with pytest.raises(InvalidName):
        TopicName.of("public", name)
    with pytest.raises(InvalidName):
        TopicName.of(name, "t")


def test_a_second_slash_is_no_way_out() -> None:
    with pytest.raises(InvalidName):
        TopicName.parse("a/b/../c")


@given(st.tuples(*[st.integers(0, 2**63 - 1)] * 4))
def test_ids_print_and_parse(numbers: tuple[int, int, int, int]) -> None:
    assert MessageId.parse(str(MessageId(*numbers[:3]))) == numbers[:3]
    assert AckId.parse(str(AckId(*numbers))) == numbers


@pytest.mark.parametrize(
    "text", ["", "1:2", "1:2:3:4", "a:b:c", "1:2:-3", "1:2:" + "9" * 30, "١:1:1"]
)
def test_no_message_ids(text: str) -> None:
    with raises_code(INVALID_MESSAGE_ID):
        MessageId.parse(text)


@pytest.mark.parametrize("text", ["", "1-2-3", "1-2-3-4-5", "1--2-3-4", "a-b-c-d"])
def test_no_ack_ids(text: str) -> None:
    with raises_code(INVALID_ACK_ID):
        AckId.parse(text)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"partitions": 0}, "partitions"),
        ({"partitions": 10_001}, "partitions"),
        ({"ack_quorum": 4}, "ack_quorum"),
        ({"ack_quorum": 0}, "ack_quorum"),
        ({"ensemble_size": 2}, "ensemble_size"),
        ({"retention_ms": -2}, "retention.time is -0.002 s"),
        ({"rollover_entries": 0}, "rollover.entries is 0"),
    ],
)
def test_senseless_topics_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        TopicSettings(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "fanout"},
        {"start": "yesterday"},
        {"ack_timeout_ms": 0},
        {"consumer_timeout_ms": 0},
        {"max_unacked": 0},
        {"max_unacked_per_consumer": 2**40},
        {"filter_headers": (("", ("a",)),)},
        {"filter_headers": (("a", ()),)},
        {"filter_headers": (("a", ("b",) * 65),)},
        {"filter_headers": (("a", ("b",)), ("a", ("c",)))},
        {"filter_headers": tuple((f"h{number}", ("a",)) for number in range(17))},
        {"filter_headers": (("a", ("b" * 257,)),)},
        {"filter_key_prefix": "k" * 257},
    ],
)
def test_senseless_subscriptions_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidSettings, match=next(iter(settings)).partition("_headers")[0][:6]):
        SubscriptionSettings(**settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("setting", ["port", "batch_bytes_max", "tail_cache_bytes_max"])
def test_senseless_brokers_are_refused(setting: str) -> None:
    with pytest.raises(BrokerConfigError, match=setting):
        BrokerConfig(**{setting: -1})  # type: ignore[arg-type]


def test_a_brokers_record() -> None:
    info = BrokerInfo("b1", "http://h:1")
    assert decode_broker(encode_broker(info, "run")) == info
    assert encode_broker(info, "run") != encode_broker(info, "another run")
    for foreign in (b"", b"\xc1", b"noise", b"\x80"):
        assert decode_broker(foreign) is None
