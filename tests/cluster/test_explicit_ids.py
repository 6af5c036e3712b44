"""Adds under ids of the caller's choice, in any order; and reads of unconfirmed entries."""

from __future__ import annotations

import asyncio
import random

import pytest

from octavo.ledger.errors import DuplicateEntryId, LedgerClosed, LedgerError, WriterBusy
from octavo.ledger.write.explicit_ids import ExplicitIds
from octavo.protocol.codes import OctavoError
from tests.support.cluster import Cluster, add_many, payload_of
from tests.support.raw_bookie import until


async def test_in_any_order_answered_in_the_order_of_ids(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    adds, answered = ExplicitIds(writer), list[int]()
    ids = list(range(300))
    random.Random(5).shuffle(ids)

    def done(entry_id: int, error: OctavoError | None) -> None:
        assert error is None
        answered.append(entry_id)

    for entry_id in ids:
        adds.add(entry_id, payload_of(entry_id), done)
    await until(lambda: len(answered) == 300)
    assert answered == list(range(300))
    assert adds.early_bytes == 0
    await adds.append(300, payload_of(300))
    await adds.close()
    reader = await client.open(writer.ledger_id)
    found = await reader.read(0, 300)
    assert [entry.payload for entry in found] == [payload_of(n) for n in range(301)]


async def test_a_gap_stalls_what_is_behind_it_and_a_close_drops_that(cluster: Cluster) -> None:
    adds = ExplicitIds(await (await cluster.client()).create())
    await adds.append(0, b"first")
    late = asyncio.create_task(adds.append(2, b"third"))
    await asyncio.sleep(0)
    with pytest.raises(DuplicateEntryId, match="entry 2 was added before"):
        adds.add(2, b"once more", lambda *_: None)
    with pytest.raises(DuplicateEntryId):
        adds.add(0, b"once more", lambda *_: None)
    with pytest.raises(LedgerError, match="ids begin with 0"):
        adds.add(-1, b"", lambda *_: None)
    metadata = await adds.close()
    assert metadata.last_entry == 0
    with pytest.raises(LedgerClosed):
        await late
    with pytest.raises(LedgerClosed):
        adds.add(1, b"too late", lambda *_: None)


async def test_what_waits_is_bounded(cluster: Cluster) -> None:
    adds = ExplicitIds(await (await cluster.client()).create(), early_bytes_max=10_000)
    answered: list[int] = []
    for entry_id in (3, 2):
        adds.add(entry_id, bytes(4_000), lambda entry_id, _: answered.append(entry_id))
    with pytest.raises(WriterBusy, match="wait for entry 0"):
        adds.add(1, bytes(4_000), lambda *_: None)
    await adds.append(0, b"")
    await adds.append(1, b"")
    await until(lambda: answered == [2, 3])


async def test_unconfirmed_entries_are_read_as_far_as_they_are_there(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create(deferred_sync=True)
    await add_many(writer, 10)
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == -1
    found = await reader.read_unconfirmed(3, 20)
    assert [entry.payload for entry in found] == [payload_of(n) for n in range(3, 10)]
    assert await reader.read_unconfirmed(10, 20) == []
    with pytest.raises(LedgerError, match="no range"):
        await reader.read_unconfirmed(5, 3)
    await writer.close()
    other = await client.open(writer.ledger_id)
    assert len(await other.read_unconfirmed(0, 99)) == 10
