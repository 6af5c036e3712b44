"""The referee of the balance by load fails each story in which X21 is broken."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.cluster.load import Giving
from octavo.broker.types import TopicName
from tests.sim.loop import SimLoop
from tests.sim.process import Process
from tests.sim.spread_audit import SpreadAudit, SpreadOptions
from tests.sim.trace import Trace

TOPIC = TopicName("public", "t")
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
