"""A partition was closed for an heir that had not heard of it, taken back, and closed again.

What was to be handed on was released, and the heir had to hear of that by its watch. A watch may
be late by any time, and of a topic that was deleted and made again the heir had none: nobody served
the partition for 5 s, again and again, and calls that were sent on to the heir were refused by what
it had heard long ago. Seed 8066 of profile `recreate` (S10), where watches are late by up to 20 s.
Now the heir is asked, looks for itself before it refuses, and one that takes nothing all the same
is given nothing for a while.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.broker.cluster.balance import Patience
from tests.issues.test_partitions_pile_up import QUICK
from tests.support.cluster import Cluster, batch, make_topic, owned, until


async def test_an_heir_whose_watches_are_silent_takes_it(cluster: Cluster) -> None:
    """It was asked for the partition before, so it remembers another owner, and watches already."""
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
    """With the topic went its watches, and nobody has asked for the new one's partitions yet."""
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
        raise ConnectionRefusedError("nobody listens")

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
