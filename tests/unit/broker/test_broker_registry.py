"""Which brokers are alive, and since when, as their records come, go and are written again.

Time is virtual; the records are a dictionary.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.cluster.broker_status import BrokerStatus, encode_status
from octavo.broker.cluster.registry import BrokerRegistry, encode_broker
from octavo.broker.types import BrokerInfo, TopicName
from octavo.metadata.store import MetadataUnavailable, RecordNotFound, SessionState
from octavo.metadata.topics import broker_path, standing_path
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace

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
