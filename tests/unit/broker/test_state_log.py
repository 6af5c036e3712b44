"""A state log that is closed while its writer is slow: queued changes have a writer until the
end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, cast

import pytest

from octavo.broker.config import BrokerConfig
from octavo.broker.errors import NotOwner
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import State, ack_op, producers_op, snapshot, used_op
from octavo.broker.state.log import StateLog
from octavo.broker.state.producers import ProducerTable
from octavo.broker.types import PartitionName, TopicSettings
from octavo.metadata.topics import PartitionRecord
from tests.support.kit.quiescence import in_use
from tests.support.memory_state_ledgers import Served


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_closed_while_changes_wait(drain: bool, turns: int) -> None:
    """With `drain` all are written in order; otherwise each gets an error."""
    served = Served(list, state_ledger_entries_max=100)
    log = served.log
    await log.append(used_op("s", 1))  # the snapshot: from here on each change is an entry
    held = served.writer
    held.go_on.clear()
    written = [asyncio.ensure_future(log.append(used_op("s", number))) for number in (2, 3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    written.append(asyncio.ensure_future(log.append(used_op("s", 4))))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(log.close(drain=drain))
    for _ in range(10):
        await asyncio.sleep(0)
        assert log.waits_in_vain() == ""
    assert closing.done() == (not drain)
    held.go_on.set()
    await closing
    outcomes = await asyncio.gather(*written, return_exceptions=True)
    assert [type(one) for one in outcomes] == 3 * [type(None) if drain else NotOwner]
    assert (in_use(log), log.waits_in_vain()) == ({}, "")
    with pytest.raises(NotOwner):
        await log.append(used_op("s", 5))


# After a take-over a producer got `sequence-gap` for ever, or its batch was stored twice.
# Checkpoints make producers durable. A checkpoint that was queued while the state ledger was being
# replaced came after the snapshot in the new ledger, although it was older. Replay took the
# producer back to it; the snapshot counted the newer state as written, so no later checkpoint wrote
# it again. Seed 1922004 of the profile `topic` found it.


class Writer:
    """A state ledger in memory."""

    def __init__(self, ledger_id: int, last: int) -> None:
        self.ledger_id = ledger_id
        self.last_add_confirmed = last
        self.length = 0
        self.metadata = None
        self.entries: list[bytes] = []

    async def append(self, payload: bytes) -> None:
        self.entries.append(payload)

    async def close(self) -> None: ...

    def abandon(self, why: object) -> None: ...


class Ledgers:
    """Ledgers are made when `gate` opens."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.made: list[Writer] = []

    def has_unsure_bookie(self, _: object) -> bool:
        return False

    async def create(self, **_: Any) -> Writer:
        await self.gate.wait()
        self.made.append(Writer(7, -1))
        return self.made[-1]

    async def delete(self, ledger_id: int) -> None: ...


class Record:
    """The partition's record."""

    def __init__(self, value: PartitionRecord) -> None:
        self.value = value

    async def change(self, how: Any) -> None:
        self.value = how(self.value)


async def test_what_was_queued_before_a_snapshot_takes_no_producer_back() -> None:
    config = BrokerConfig()
    table = ProducerTable(10)
    ledgers = Ledgers()
    end = 0

    def publish(producer: int, sequence: int) -> None:
        nonlocal end
        table.accept(producer, 0, sequence, 1, end)
        end += 1

    def whole() -> Iterator[bytes]:
        table.take_changed()
        return snapshot([("s", 1, Cursor(0))], table.snapshot(), end)

    log = StateLog(
        cast(Any, ledgers),
        cast(Any, Record(PartitionRecord(epoch=1, incarnation="i", state_ledger=3))),
        PartitionName("public", "t", 0),
        config,
        TopicSettings,
        whole,
        lambda error: None,
        cast(Any, Writer(3, config.state_ledger_entries_max)),
    )
    publish(1, 0)
    ack = asyncio.create_task(log.append(ack_op("s", [(0, 1)])))
    await asyncio.sleep(0.01)  # the ledger is long: a new one is being made
    checkpoint = asyncio.create_task(log.append(producers_op(end, table.take_changed())))
    await asyncio.sleep(0.01)
    publish(1, 1)
    ledgers.gate.set()
    await asyncio.gather(ack, checkpoint)
    publish(2, 0)
    await log.append(producers_op(end, table.take_changed()))
    state = State()
    for entry in ledgers.made[0].entries:
        state.apply(entry)
    assert len(ledgers.made[0].entries) == 3
    assert state.producers_upto == 3
    assert {one: held.batches[-1].last_sequence for one, held in state.producers.items()} == {
        1: 1,
        2: 0,
    }
    await log.close(drain=False)


def test_coverage_never_goes_back() -> None:
    """A checkpoint of an older state, after a newer one, only adds what it knows."""
    table = ProducerTable(10)
    table.accept(1, 0, 0, 5, 0)
    old = producers_op(5, list(table.snapshot()))
    table.accept(1, 1, 0, 5, 5)
    state = State()
    for entry in snapshot([], table.snapshot(), 10):
        state.apply(entry)
    state._apply(old)
    assert state.producers_upto == 10
    assert state.producers[1].epoch == 1
