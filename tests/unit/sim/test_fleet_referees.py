"""Referees of balance, maintenance and the production client report faults, and nothing else."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.broker.cluster.load import Giving
from octavo.broker.cluster.membership import preferred_brokers
from octavo.broker.types import TopicName
from octavo.protocol.records import Record
from tests.sim.client_load import judge_loops
from tests.sim.fleet import Fleet, FleetOptions
from tests.sim.loop import SimLoop
from tests.sim.odd_values import OddValues
from tests.sim.process import Process
from tests.sim.spread_audit import SpreadAudit, SpreadOptions
from tests.sim.trace import Trace

TOPIC = TopicName("public", "t")


class Told:
    def __init__(self, served: dict[str, list[int]], partitions: int = 4) -> None:
        self.said: list[str] = []
        self.now_s = 100.0
        cluster = SimpleNamespace(
            loop=SimpleNamespace(time=lambda: self.now_s, stream=lambda _: None),
            audit=SimpleNamespace(fail=self.said.append),
            trace=SimpleNamespace(probe=lambda _: None),
        )
        options = FleetOptions(config={}, partitions=None, moves_s=None, ill=0, held_s=None)
        brokers = {name: broker(numbers) for name, numbers in served.items()}
        self.fleet = Fleet(
            cast(Any, cluster),
            cast(Any, brokers),
            {"trim_interval_ms": 100},
            options,
            TOPIC,
            partitions,
        )


def partition(number: int) -> Any:
    return SimpleNamespace(name=TOPIC.partition(number), _state_log=None)


def broker(numbers: list[int]) -> Any:
    """Serves these partitions, with a writer for each that listens to one bookie."""
    writers = {SimpleWriter(): None for _ in numbers}
    listeners = {writer._ensemble_writer: None for writer in writers}
    return SimpleNamespace(
        broker=SimpleNamespace(
            ownership=SimpleNamespace(open_partitions=lambda: [partition(n) for n in numbers])
        ),
        ledgers=SimpleNamespace(
            _writers=writers,
            _recoveries={},
            bookies=SimpleNamespace(
                _bookies={("b1", 0): SimpleNamespace(bookie_id="b1", _listeners=listeners)}
            ),
        ),
    )


class SimpleWriter:
    def __init__(self) -> None:
        self._ensemble_writer = object()


def as_it_should_be() -> dict[str, list[int]]:
    found: dict[str, list[int]] = {"k1": [], "k2": []}
    for number, name in enumerate(preferred_brokers(TOPIC, 4, ("k1", "k2"))):
        found[name].append(number)
    return found


def test_forks_lie_where_they_lie() -> None:
    told = Told(as_it_should_be())
    served = told.fleet._serving()
    fork: Any = SimpleNamespace(name=TopicName("public", "f1").partition(0), _state_log=None)
    told.fleet._serving = lambda: {  # type: ignore[method-assign]
        name: [*found, fork] for name, found in served.items()
    }
    assert not told.fleet.uneven()


def test_a_good_end_is_not_blamed() -> None:
    told = Told(as_it_should_be())
    assert not told.fleet.uneven()
    assert not told.fleet.left_over()


@pytest.mark.parametrize(
    ("served", "says"),
    [
        ({"k1": [0, 1, 2, 3], "k2": []}, "{'k1': 4} of"),
        ({"k1": [0, 1, 2], "k2": [3]}, "{'k1': 3, 'k2': 1}"),
        ({"k1": [0, 1], "k2": [2]}, "are served, by"),
        (
            dict(zip(("k2", "k1"), as_it_should_be().values(), strict=True)),
            "partition → (served by, should be)",
        ),
    ],
)
def test_what_lies_wrong_is_said(served: dict[str, list[int]], says: str) -> None:
    assert says in Told(served).fleet.uneven()


def test_a_writer_without_a_partition_is_said() -> None:
    told = Told(as_it_should_be())
    ledgers: Any = told.fleet.brokers["k1"].ledgers
    ledgers._writers[SimpleWriter()] = None
    assert told.fleet.left_over() == "k1: 3 writers for 2 partitions, not 2"


def test_a_listener_without_a_ledger_is_said() -> None:
    told = Told(as_it_should_be())
    ledgers: Any = told.fleet.brokers["k2"].ledgers
    ledgers.bookies._bookies["b1", 0]._listeners[object()] = None
    assert told.fleet.left_over() == "k2: 1 listen to b1 for no ledger"


def test_a_neglected_partition_is_said_unless_it_is_the_ill_one() -> None:
    told = Told({"k1": [0, 1], "k2": []}, partitions=2)
    told.fleet._maintained["k1", TOPIC.partition(1)] = told.now_s - 0.5
    assert not told.fleet.neglected()
    told.now_s += 10
    assert told.fleet.neglected().startswith("public/t/1 was maintained by k1 at 99.500 s last")


async def test_what_stays_wrong_fails_the_seed() -> None:
    told = Told({"k1": [0, 1, 2, 3], "k2": []})
    told.fleet._until_none = _at_once  # type: ignore[method-assign, assignment]
    await told.fleet.check(lambda: True)
    assert not told.said, "a ledger cannot be closed: nothing is expected"
    await told.fleet.check(lambda: False)
    assert [what[:3] for what in told.said] == ["S10", "S12"]


async def _at_once(what: Any, _: float) -> str:
    return str(what())


# The referee of the balance by load fails each story in which X21 is broken.
CONFIG = {
    "balance_load_floor": 1,
    "balance_load_percent": 125,
    "balance_load_pause_ms": 100,
    "balance_load_rest_ms": 1_000,
}


class Place:
    """Two brokers; `a` has both partitions."""

    def __init__(self) -> None:
        self.loop = SimLoop(1, trace=Trace())
        self.failures: list[str] = []
        cluster: Any = SimpleNamespace(
            loop=self.loop,
            trace=self.loop.trace,
            events=SimpleNamespace(add=lambda *_: None),
            audit=SimpleNamespace(fail=self.failures.append),
        )
        served = {"a": [0, 1], "b": []}
        brokers: dict[str, Any] = {
            name: SimpleNamespace(
                broker=SimpleNamespace(
                    registry=SimpleNamespace(changed_s=0.0),
                    ownership=SimpleNamespace(
                        open_partitions=lambda n=numbers: [
                            SimpleNamespace(name=TOPIC.partition(one)) for one in n
                        ]
                    ),
                )
            )
            for name, numbers in served.items()
        }
        self.audit = SpreadAudit(cluster, brokers, SpreadOptions((100,), 1.0, CONFIG), TOPIC, 2)

    def gives(self, own: str, number: int, to: str, at_s: float) -> None:
        self.audit.gave(own, Giving(TOPIC.partition(number), to, 1.0, 2.0, 0.0, 1.0), at_s)

    def settles(self) -> None:
        judge = Process(self.loop, "judge").spawn(self.audit.check(lambda: False), "judge")
        self.loop.run_until(judge.done, virtual_s_max=60.0)
        assert judge.done()


@pytest.fixture
def place() -> Any:
    place = Place()
    yield place
    place.loop.close()


def test_a_partition_rests(place: Place) -> None:
    place.gives("a", 0, "b", 0.0)
    place.gives("b", 0, "c", 1.1)
    assert not place.failures
    place.gives("c", 0, "a", 2.0)
    assert "was to rest" in place.failures[0]


def test_a_broker_pauses(place: Place) -> None:
    place.gives("a", 0, "b", 0.0)
    place.gives("a", 1, "b", 0.05)
    assert "was to rest" in place.failures[0]


@pytest.mark.parametrize("healed", [True, False])
def test_none_comes_back(place: Place, healed: bool) -> None:
    if healed:
        place.audit.heal()
    place.gives("a", 0, "b", 10.0)
    place.gives("b", 0, "a", 20.0)
    assert bool(place.failures) is healed


def test_what_would_help_is_done(place: Place) -> None:
    place.settles()
    assert "is not done" in place.failures[0]


def test_it_comes_to_rest(place: Place) -> None:
    async def swing() -> None:
        while True:
            place.audit._moved_s = place.loop.time()
            await asyncio.sleep(1.0)

    Process(place.loop, "swing").spawn(swing(), "swing")
    place.settles()
    assert "without an end" in place.failures[0]


# The referee of the production client fails each story that it must.
def sent(value: bytes | None) -> tuple[OddValues, list[str], Record]:
    said: list[str] = []
    odd = OddValues(said.append)
    rng = random.Random(1)
    while True:
        key, found, headers = odd.make(rng, "e0.1-7", b"k")
        if found == value:
            return odd, said, Record(key, found, headers)


@pytest.mark.parametrize(
    ("value", "given"),
    [(b"null", None), (b'"hello"', b"hello"), (b"1\n", b"1"), (None, b""), (b"1.0", b"1")],
)
def test_a_value_that_came_back_otherwise(value: bytes | None, given: bytes | None) -> None:
    odd, said, record = sent(value)
    assert odd.name_of(record, "a reader") == "e0.1-7"
    assert said == []
    odd.name_of(record._replace(value=given), "a reader")
    assert said[0].startswith("X11 'e0.1-7' was sent as")


def test_keys_and_headers_count_as_well() -> None:
    odd, said, record = sent(b"null")
    odd.name_of(record._replace(key=None), "a reader")
    odd.name_of(record._replace(headers=[*record.headers, ("h", None)]), "a reader")
    odd.name_of(record._replace(headers=list(reversed(record.headers))), "a reader")
    assert len(said) == 3


def test_others_have_their_name_in_their_value() -> None:
    odd, said, _ = sent(b"null")
    assert odd.name_of(Record(None, b"p1.1-3"), "a reader") == "p1.1-3"
    assert odd.name_of(Record(None, b"\xff"), "a reader") == repr(b"\xff")
    assert said == []


def test_a_message_that_loops_processed_twice() -> None:
    said: list[str] = []
    judge_loops(Counter({(0, 1, "5"): 1, (0, 1, "6"): 1, (1, 1, "5"): 1}), said.append)
    assert said == [], "after a take-over it may come again"
    judge_loops(Counter({(0, 1, "5"): 2}), said.append)
    assert said[0].startswith("X12 partition 0 offset 1 was processed 2 times")
