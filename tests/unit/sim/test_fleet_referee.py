"""The referee of balance, leftovers and maintenance reports faults, and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.broker.cluster.membership import preferred_brokers
from octavo.broker.types import TopicName
from tests.sim.fleet import Fleet, FleetOptions

TOPIC = TopicName("public", "t")


class Told:
    """A fleet whose brokers serve what a story says."""

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
