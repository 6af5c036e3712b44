"""An error that nobody expected in one partition ended the maintenance of all, with one log line.

Retention, roll-over by age and the sweep of bulk loads ran one after the other in one task. Now
each piece is a chore apart (broker/cluster/chores.py), and every loop in the background survives a
bug.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.broker.cluster.chores import Chores
from octavo.broker.partition.partition import Partition
from octavo.broker.types import TopicName
from octavo.ledger.write.ensemble_writer import EnsembleWriter
from octavo.protocol.codes import OctavoError
from tests.support.cluster import Cluster, batch, make_topic, owned, until


@pytest.mark.parametrize("how", ["raises", "hangs"])
async def test_a_bug_in_one_partition_leaves_the_others_maintained(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    one = await cluster.start("A", trim_interval_ms=20)
    partitions = []
    for number in range(3):
        name = await make_topic(
            one.broker, TopicName("public", f"t{number}"), retention_bytes=0, rollover_entries=1
        )
        partitions.append(await owned(one.broker, name))
    maintain, ill = Partition.maintain, partitions[0].name

    async def broken(partition: Partition) -> None:
        if partition.name == ill:
            if how == "hangs":
                await asyncio.Event().wait()
            raise RuntimeError("a bug")
        await maintain(partition)

    with monkeypatch.context() as patch:
        patch.setattr(Partition, "maintain", broken)
        with capture_logs() as logs:
            for partition in partitions:
                for _ in range(4):
                    await partition.publish(batch(1))
            await until(lambda: all(p.earliest_offset >= 3 for p in partitions[1:]), "trimmed")
            if how == "raises":
                await until(lambda: one.broker.chores.failures["upkeep"] > 1, "tried again")
        assert partitions[0].earliest_offset == 0
    if how == "raises":
        failed = [line for line in logs if line["event"] == "chore_failed"]
        assert {(line["chore"], line["of"]) for line in failed} == {("upkeep", str(ill))}
        assert one.broker.duties().chore_failures.keys() == {"upkeep"}
        await until(lambda: partitions[0].earliest_offset >= 3, "trimmed once the bug is gone")


async def test_what_goes_on_failing_is_tried_ever_less_often_and_seldom_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = asyncio.get_running_loop()
    now_s, tried = 0.0, 0
    monkeypatch.setattr(loop, "time", lambda: now_s)
    begun: list[asyncio.Task[None]] = []

    def spawn(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        begun.append(loop.create_task(work))
        return begun[-1]

    chores = Chores(1_000, spawn)

    async def fail() -> None:
        nonlocal tried
        tried += 1
        raise RuntimeError("a bug")

    with capture_logs() as logs:
        for _ in range(36_000):  # ten hours
            chores.begin("trim", "p", fail)
            await asyncio.gather(*begun)
            begun.clear()
            now_s += 1.0
    assert tried == chores.failures["trim"]
    assert 600 <= tried <= 610, "once a minute"
    assert len(logs) <= 7 + 60, "every ten minutes, once the pauses have grown"
    chores.keep_only("trim", [])
    chores.begin("trim", "p", fail)
    await asyncio.gather(*begun)
    assert tried in range(601, 612), "forgotten, so tried at once"


async def test_a_bug_in_a_ledgers_clock_ends_that_writer_alone(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    ill, well = [
        await one.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2) for _ in range(2)
    ]
    tick = EnsembleWriter.tick
    ticked = 0

    def broken(replication: EnsembleWriter, now: float) -> bool:
        nonlocal ticked
        if replication.core.metadata.ledger_id == ill.ledger_id:
            raise RuntimeError("a bug")
        ticked += 1
        tick(replication, now)
        return True

    monkeypatch.setattr(EnsembleWriter, "tick", broken)
    for bookie in ("b2", "b3"):
        await cluster.stop_bookie(bookie)  # so that nothing is answered
    asked = [asyncio.create_task(writer.append(b"x")) for writer in (ill, well)]
    with pytest.raises(OctavoError, match="a bug"):
        await asked[0]
    before = ticked
    await until(lambda: ticked > before + 2, "the other writer's clock ticks on")
    asked[1].cancel()


async def test_a_bug_while_brokers_are_read_does_not_deafen_a_broker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    registry: Any = one.broker.registry  # type: ignore[attr-defined]
    reload, failed = registry._reload, asyncio.Event()

    async def broken() -> None:
        if not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        await reload()

    monkeypatch.setattr(registry, "_reload", broken)
    await cluster.start("B")
    await until(lambda: len(one.broker.registry.brokers()) == 2, "A sees B")
    assert failed.is_set()


async def test_a_bug_while_a_bookie_is_connected_to_does_not_end_the_trying(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await cluster.start("A")
    writer = await one.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await writer.append(b"x")
    bookie: Any = one.ledgers.bookies.get("b1")
    await until(lambda: bookie.is_up, "connected")
    opens, failed = type(bookie)._open, asyncio.Event()

    async def broken(self: Any) -> Any:
        if self is bookie and not failed.is_set():
            failed.set()
            raise RuntimeError("a bug")
        return await opens(self)

    monkeypatch.setattr(type(bookie), "_open", broken)
    bookie.drop("a test")
    await until(lambda: failed.is_set() and bookie.is_up, "connected again")
