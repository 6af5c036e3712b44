"""After its ledger failed, an owner reopens its partition only while it still is the owner."""

from __future__ import annotations

import asyncio
import gc
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import PartitionUnavailable
from octavo.broker.log.record import OwnershipLost
from octavo.broker.partition.opening import PartitionOpener
from octavo.broker.state.producers import ProducerTable
from octavo.broker.types import TopicSettings
from octavo.ledger.client import LedgerClient
from octavo.metadata.snapshot_store import SnapshotStore
from octavo.metadata.store import MetadataUnavailable
from tests.unit.broker.test_partition_record import NAME, FakeTopics, opened

NEW = 5


@pytest.mark.parametrize("taken_over", [0, 1, 2])
async def test_what_another_has_taken_over_is_not_opened_anew(
    taken_over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a replaced owner replaces its successor, and takes back acks that the successor
    gave."""
    made: list[int] = []

    async def create_ledger(*_: object) -> Any:
        made.append(NEW)
        return SimpleNamespace(ledger_id=NEW)

    monkeypatch.setattr("octavo.broker.partition.opening.create_ledger", create_ledger)
    topics = FakeTopics()
    keeper = await opened(topics)
    assert topics.record is not None
    topics.record = stands = replace(topics.record, epoch=keeper.value.epoch + taken_over)
    unused: Any = None
    opener = PartitionOpener(
        NAME,
        BrokerConfig(broker_id="A"),
        SimpleNamespace(spawn=asyncio.ensure_future),  # type: ignore[arg-type]
        keeper,
        unused,
        TopicSettings,
        lambda: 0,
        lambda work: work.close(),
    )
    if taken_over:
        with pytest.raises(OwnershipLost):
            await opener.reopen(ProducerTable(8), 0)
        assert (topics.record, made) == (stands, [])
    else:
        writer = (await opener.reopen(ProducerTable(8), 0)).writer
        assert writer is not None
        assert writer.ledger_id == NEW
        assert [link.ledger_id for link in topics.record.ledgers] == [NEW]
        assert topics.record.epoch == stands.epoch + 1


async def test_a_ledger_whose_making_fails_when_nobody_waits_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stopping broker starts no tasks, so the new ledger's outcome goes unnoticed. Seed 1700075
    of profile `recreate`: the store was closed between the two failures."""
    unheard: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, said: unheard.append(said))

    async def create_ledger(*_: object) -> Any:
        await asyncio.sleep(0)
        raise MetadataUnavailable("the store is closed")

    async def no_last(_: PartitionOpener) -> None:
        raise PartitionUnavailable("the last ledger cannot be closed")

    monkeypatch.setattr("octavo.broker.partition.opening.create_ledger", create_ledger)
    monkeypatch.setattr(PartitionOpener, "_close_last", no_last)
    unused: Any = None
    opener = PartitionOpener(
        NAME,
        BrokerConfig(broker_id="A"),
        LedgerClient(SnapshotStore({}, "none"), rng=random.Random(1)),
        await opened(FakeTopics()),
        unused,
        TopicSettings,
        lambda: 0,
        lambda work: work.close(),
    )
    with pytest.raises(PartitionUnavailable):
        await opener.reopen(ProducerTable(8), 0)
    await asyncio.sleep(0.01)
    gc.collect()
    assert not unheard
