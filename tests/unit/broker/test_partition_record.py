"""Compare-and-set of a partition's record when replies are lost and others write too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from octavo.broker.errors import TopicNotFound
from octavo.broker.log.record import OwnershipLost, PartitionRecordKeeper
from octavo.broker.types import PartitionName
from octavo.metadata.store import MetadataUnavailable, RecordNotFound, VersionConflict
from octavo.metadata.topics import (
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    TopicRecord,
    TopicSettings,
)

NAME = PartitionName("public", "t", 0)


class FakeTopics:
    """One record. `faults` are taken one per write or read: when the reply is lost, and how."""

    def __init__(self) -> None:
        self.record: PartitionRecord | None = PartitionRecord(incarnation="i")
        self.version = 0
        self.faults: list[str] = []
        self.topic: TopicRecord | None = TopicRecord(TopicSettings(), incarnation="i")
        self.synced = 0

    async def sync(self) -> None:
        self.synced += 1

    def _fault(self) -> str:
        return self.faults.pop(0) if self.faults else "none"

    async def read_partition(self, *name: Any) -> tuple[PartitionRecord, int]:
        await asyncio.sleep(0)
        if self._fault() != "none":
            raise MetadataUnavailable("no answer")
        if self.record is None:
            raise RecordNotFound("gone")
        return self.record, self.version

    async def write_partition(self, *args: Any, guard: str | None = None) -> int:
        await asyncio.sleep(0)
        record, version = args[-2:]
        fault = self._fault()
        if fault == "lost request":
            raise MetadataUnavailable("no answer")
        if self.record is None:
            raise RecordNotFound("gone")
        if version != self.version:
            raise VersionConflict("changed")
        self.record = record
        self.version += 1
        if fault == "lost reply":
            raise MetadataUnavailable("no answer")
        if fault == "lost reply, then another's write":
            self.record = replace(record, epoch=record.epoch + 1)
            self.version += 1
            raise MetadataUnavailable("no answer")
        return self.version

    async def read_topic(self, *name: Any) -> tuple[TopicRecord, int]:
        if self.topic is None:
            raise RecordNotFound("gone")
        return self.topic, 0

    async def create_partition(self, *args: Any) -> None:
        self.record, self.version = args[-1], 0


async def opened(topics: FakeTopics, timeout_ms: int = 5_000) -> PartitionRecordKeeper:
    keeper = PartitionRecordKeeper(topics, NAME, timeout_ms, "i")  # type: ignore[arg-type]
    await keeper.read()
    return keeper


def with_ledger(ledger_id: int) -> Any:
    return lambda record: replace(record, ledgers=(PartitionLedger(ledger_id, 0),))


@pytest.mark.parametrize(
    "faults",
    [
        [],
        ["lost request"],
        ["lost reply"],
        ["lost reply", "no read", "no read"],
        ["lost request", "none", "lost request", "no read", "none", "lost reply"],
    ],
)
async def test_a_change_takes_effect_once_whatever_is_lost(faults: list[str]) -> None:
    topics = FakeTopics()
    keeper = await opened(topics)
    topics.faults = list(faults)
    await keeper.change(with_ledger(5))
    assert topics.version == 1
    assert keeper.ledgers.last == PartitionLedger(5, 0)
    await keeper.change(lambda record: replace(record, epoch=9))
    assert (topics.version, topics.record) == (2, keeper.value)


async def test_anothers_write_is_an_ownership_lost_for_certain() -> None:
    topics = FakeTopics()
    first, second = await opened(topics), await opened(topics)
    await second.change(with_ledger(6))
    with pytest.raises(OwnershipLost) as lost:
        await first.change(with_ledger(5))
    assert lost.value.refused
    assert topics.record == second.value


async def test_anothers_write_after_a_lost_reply_leaves_ours_in_doubt() -> None:
    topics = FakeTopics()
    keeper = await opened(topics)
    topics.faults = ["lost reply, then another's write"]
    with pytest.raises(OwnershipLost) as lost:
        await keeper.change(with_ledger(5))
    assert not lost.value.refused, "the ledger may be part of the other's chain: keep it"


def next_epoch(record: PartitionRecord) -> PartitionRecord:
    """Return the write of any broker that takes over and makes no ledger."""
    return replace(record, epoch=record.epoch + 1)


async def test_a_take_over_without_a_ledger_is_nobodys_after_a_lost_reply() -> None:
    topics = FakeTopics()
    first, second = await opened(topics), await opened(topics)
    topics.faults = ["lost request"]
    losing = asyncio.create_task(first.change(next_epoch))
    await asyncio.sleep(0)
    await second.change(next_epoch)
    with pytest.raises(OwnershipLost) as lost:
        await losing
    assert not lost.value.refused
    await first.read()
    assert (await first.change(next_epoch)).epoch == 2, "two owners never have one epoch"
    with pytest.raises(OwnershipLost):
        await second.change(with_ledger(5))


async def test_a_deleted_partition_is_lost_and_is_not_made_again_while_deleting() -> None:
    topics = FakeTopics()
    keeper = await opened(topics)
    topics.record = None
    with pytest.raises(OwnershipLost):
        await keeper.change(with_ledger(5))
    assert topics.topic is not None
    topics.topic = replace(topics.topic, deleting=True)
    with pytest.raises(TopicNotFound, match="is being deleted"):
        await keeper.read()
    topics.topic = None
    with pytest.raises(TopicNotFound):
        await keeper.read()


async def test_the_first_owner_makes_the_record() -> None:
    topics = FakeTopics()
    topics.record = None
    assert (await opened(topics)).value == PartitionRecord(incarnation="i")


async def test_a_store_that_stays_away_is_an_unknown_outcome() -> None:
    topics = FakeTopics()
    keeper = await opened(topics, timeout_ms=150)
    topics.faults = ["lost reply"] + ["no read"] * 100
    with pytest.raises(MetadataUnavailable, match=r"within 0\.15 s"):
        await keeper.change(with_ledger(5))
    assert keeper.value == PartitionRecord(incarnation="i")


async def test_changes_take_turns() -> None:
    topics = FakeTopics()
    keeper = await opened(topics)
    await asyncio.gather(
        *(keeper.change(lambda record: replace(record, epoch=record.epoch + 1)) for _ in range(9))
    )
    assert keeper.value.epoch == topics.version == 9


# ---------------------------------------------------------------------- ledgers that move meanwhile


def offload_in(topics: FakeTopics, ledger_id: int, state: str = "offloaded") -> None:
    """Return the write of a job that runs while the owner does."""
    assert topics.record is not None
    links = tuple(
        replace(link, offload=OffloadRecord("u", state, "x"))
        if link.ledger_id == ledger_id
        else link
        for link in topics.record.ledgers
    )
    topics.record, topics.version = replace(topics.record, ledgers=links), topics.version + 1


def appended(ledger_id: int) -> Any:
    def make(record: PartitionRecord) -> PartitionRecord:
        first = replace(record.ledgers[0], count=3)
        return replace(record, ledgers=(first, PartitionLedger(ledger_id, 3)))

    return make


@pytest.mark.parametrize(
    "faults", [[], ["lost request"], ["lost reply"], ["lost reply", "no read"]]
)
async def test_an_offload_beside_the_owner_disturbs_neither(faults: list[str]) -> None:
    topics = FakeTopics()
    keeper = await opened(topics)
    await keeper.change(with_ledger(5))
    offload_in(topics, 5)
    topics.faults = list(faults)
    await keeper.change(appended(6))
    assert topics.record == keeper.value
    assert [link.ledger_id for link in keeper.value.ledgers] == [5, 6]
    assert keeper.value.ledgers[0].offload is not None
    offload_in(topics, 5, "dropped")
    assert keeper.ledgers.segments[0].offload == OffloadRecord("u", "offloaded", "x")
    await keeper.look()
    assert keeper.ledgers.segments[0].offload == OffloadRecord("u", "dropped", "x")
    assert topics.synced == 0
    await keeper.look(newest=True)
    assert topics.synced == 1
    await keeper.change(lambda record: replace(record, epoch=9))
    assert topics.record == keeper.value


async def test_an_offload_after_a_lost_reply_is_told_from_another_owner() -> None:
    topics = FakeTopics()
    keeper = await opened(topics)
    await keeper.change(with_ledger(5))
    write = topics.write_partition

    async def then_offloaded(*args: Any, **kwargs: Any) -> int:
        try:
            return await write(*args, **kwargs)
        finally:
            topics.write_partition = write  # type: ignore[method-assign]
            offload_in(topics, 5)

    topics.write_partition = then_offloaded  # type: ignore[method-assign]
    topics.faults = ["lost reply"]
    await keeper.change(appended(6))
    assert topics.record == keeper.value
    assert keeper.value.ledgers[0].offload is not None
    assert len(keeper.value.ledgers) == 2


async def test_a_look_never_takes_over_another_owners_record() -> None:
    topics = FakeTopics()
    first, second = await opened(topics), await opened(topics)
    await second.change(with_ledger(6))
    await first.look()
    assert first.value == PartitionRecord(incarnation="i")
    with pytest.raises(OwnershipLost):
        await first.change(with_ledger(5))
    topics.record = None
    await first.look()
