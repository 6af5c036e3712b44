"""An unforeseen error in a background task of a partition left everybody waiting in silence.

A claim whose opening ended so was never opened and never given up: each call was told "it is being
opened". A roll-over that ended so kept all answers back for ever. A reopening that ended so was not
tried again. Found by reading; the errors are planted here.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.log.record import PartitionRecordKeeper
from octavo.broker.partition.opening import PartitionOpener
from octavo.broker.types import PartitionState
from octavo.ledger.errors import NotEnoughBookies
from tests.support.cluster import Cluster, batch, make_topic, owned, until


def fail_once(monkeypatch: pytest.MonkeyPatch, owner: type, method: str) -> None:
    """The next call of `method` ends with an error that nobody raises on purpose."""
    right: Any = getattr(owner, method)

    async def wrong(self: Any, *args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(owner, method, right)
        raise RuntimeError("a bug")

    monkeypatch.setattr(owner, method, wrong)


async def test_an_opening_is_tried_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = (await cluster.start("A")).broker
    name = await make_topic(broker)
    fail_once(monkeypatch, PartitionOpener, "take_over")

    async def opened() -> bool:
        try:
            return (await broker.ownership.owner_of(name, forwarded=True)).local
        except Exception:
            return False

    async with asyncio.timeout(10):
        while not await opened():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_roll_over_that_fails_ends_the_pipeline_and_another_begins(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker, rollover_entries=2))
    await partition.publish(batch(tag="none"))
    right = PartitionRecordKeeper.change
    fail_once(monkeypatch, PartitionRecordKeeper, "change")
    await partition.publish(batch(tag="one"))  # it is due after this
    await until(lambda: PartitionRecordKeeper.change is right, "it has failed", 10.0)
    async with asyncio.timeout(10):
        while True:
            try:
                await partition.publish(batch(tag="two"))
                break
            except Exception:
                await asyncio.sleep(0.02)


async def test_a_reopening_is_tried_again(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    await partition.publish(batch())
    fail_once(monkeypatch, PartitionOpener, "reopen")
    assert partition._publisher is not None
    partition._publisher.fail(NotEnoughBookies("planted", 2, []))
    await until(lambda: partition.state is PartitionState.OPEN, "it is open again", 10.0)
    await partition.publish(batch())
