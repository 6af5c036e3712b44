"""Ledgers over real bookies: write, read, close, follow, recover."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.ledger.errors import (
    BeyondLastConfirmed,
    LedgerClosed,
    LedgerFenced,
    LedgerNotFound,
    OutcomeUnknown,
    PayloadTooLong,
    TooFewBookies,
)
from octavo.ledger.recover.events import RecoveryEvent
from octavo.metadata.ledgers import LedgerState
from octavo.protocol.codes import Unauthorized
from octavo.protocol.entry import DigestType
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from tests.support.cluster import Cluster, add_many, payload_of


async def test_an_ack_quorum_of_one_is_warned_of_once_in_a_process(cluster: Cluster) -> None:
    client = await cluster.client()
    with capture_logs() as logs:
        for quorum in ((3, 2), (1, 1), (2, 1), (3, 1), (2, 1)):
            write, ack = quorum
            writer = await client.create(ensemble_size=3, write_quorum=write, ack_quorum=ack)
            await writer.close()
    told = [log for log in logs if log["event"] == "ack_quorum_of_one"]
    assert [log["log_level"] for log in told] == ["warning"]
    assert "ack_quorum is 1 of write_quorum 2" in told[0]["reason"]


async def test_written_closed_and_read_back(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    await add_many(writer, 3000)
    assert writer.last_add_confirmed == 2999
    metadata = await writer.close()
    assert metadata.state is LedgerState.CLOSED
    assert (metadata.last_entry, metadata.length) == (2999, 300_000)

    reader = await client.open(writer.ledger_id)
    entries = await reader.read(0, 2999)
    assert [e.entry_id for e in entries] == list(range(3000))
    assert all(e.payload == payload_of(e.entry_id) for e in entries)
    assert entries[-1].length == 300_000
    assert [e.entry_id async for e in reader.entries(7, 2990)] == list(range(7, 2991))
    with pytest.raises(BeyondLastConfirmed):
        await reader.read(0, 3000)


@pytest.mark.parametrize("digest_type", list(DigestType))
async def test_every_digest(cluster: Cluster, digest_type: DigestType) -> None:
    client = await cluster.client()
    writer = await client.create(digest_type=digest_type, password=b"pw")
    await add_many(writer, 20)
    await writer.close()
    reader = await client.open(writer.ledger_id, password=b"pw")
    assert [e.payload for e in await reader.read(0, 19)] == [payload_of(i) for i in range(20)]
    with pytest.raises(Unauthorized):
        await client.open(writer.ledger_id, password=b"other")


async def test_striped_over_five_bookies(cluster: Cluster) -> None:
    for name in ("b4", "b5"):
        await cluster.start_bookie(name)
    client = await cluster.client()
    writer = await client.create(ensemble_size=5, write_quorum=3, ack_quorum=2)
    await add_many(writer, 500)
    await writer.close()
    reader = await client.open(writer.ledger_id)
    entries = await reader.read(0, 499)
    assert [e.payload for e in entries] == [payload_of(i) for i in range(500)]


async def test_large_and_empty_payloads(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    payloads: list[Any] = [b"", b"a" * 1_000_000, bytearray(b"b" * 70_000), b"c", b"d" * 4_000_000]
    await asyncio.gather(*(writer.append(payload) for payload in payloads))
    with pytest.raises(PayloadTooLong):
        await writer.append(b"e" * (ENTRY_PAYLOAD_BYTES_MAX + 1))
    await writer.close()
    reader = await client.open(writer.ledger_id)
    assert [e.payload for e in await reader.read(0, 4)] == payloads


async def test_an_empty_ledger_closes_at_minus_one(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    assert (await writer.close()).last_entry == -1
    reader = await client.open(writer.ledger_id)
    assert reader.is_closed
    assert reader.last_add_confirmed == -1


async def test_close_waits_for_what_is_under_way_and_refuses_more(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    appends = [asyncio.ensure_future(writer.append(b"x")) for _ in range(10)]
    await asyncio.sleep(0)
    first, second = await asyncio.gather(writer.close(), writer.close())
    assert first == second
    assert first.last_entry == 9
    assert await asyncio.gather(*appends) == list(range(10))
    with pytest.raises(LedgerClosed):
        await writer.append(b"late")


async def test_fewer_bookies_than_an_ensemble_names_who_is_up(cluster: Cluster) -> None:
    client = await cluster.client()
    with pytest.raises(
        TooFewBookies, match=r"4 bookies, but this cluster has 3 \(b1, b2, b3\), 3 of"
    ):
        await client.create(ensemble_size=4)


async def test_delete_and_list(cluster: Cluster) -> None:
    client = await cluster.client()
    writers = [await client.create() for _ in range(3)]
    assert await client.list() == [w.ledger_id for w in writers]
    await client.delete(writers[1].ledger_id)
    assert await client.list() == [writers[0].ledger_id, writers[2].ledger_id]
    # An operator's list met a ledger that retention had just deleted, and failed as a whole.
    assert list(await client.standing([0, 1, 2])) == [0, 2]
    for use in (client.delete, client.open, client.recover, client.metadata):
        with pytest.raises(LedgerNotFound):
            await use(writers[1].ledger_id)  # type: ignore[operator]


async def test_a_reader_follows_an_open_ledger(cluster: Cluster) -> None:
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 10)
    reader = await other.open(writer.ledger_id)
    assert not reader.is_closed
    assert await reader.wait_for(8, 10) == 9
    assert (await reader.read(9, 9))[0].payload == payload_of(9)
    waiting = asyncio.ensure_future(reader.wait_for(9, 10))
    await add_many(writer, 1)
    assert await waiting == 10
    assert await reader.refresh() == 10
    assert await reader.wait_for(10, 0.05) == 10
    waiting = asyncio.ensure_future(reader.wait_for(10, 10))
    await asyncio.sleep(0)
    await writer.close()
    assert await waiting == 10
    assert reader.is_closed
    await reader.close()


async def test_recovery_closes_an_abandoned_ledger(cluster: Cluster) -> None:
    """Reference 21 (testBasicFencing): the old writer gets no further ack."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 100)
    seen: list[RecoveryEvent] = []
    metadata = await other.recover(writer.ledger_id, observe=seen.append)
    assert metadata.state is LedgerState.CLOSED
    assert (metadata.last_entry, metadata.length) == (99, 10_000)
    assert sorted({event.step for event in seen}) == [1, 2, 3, 4, 6] or sorted(
        {event.step for event in seen}
    ) == [1, 2, 3, 4, 5, 6]
    with pytest.raises((LedgerFenced, OutcomeUnknown)):
        await writer.append(b"late")
    with pytest.raises(LedgerFenced):
        await writer.append(b"later")
    with pytest.raises(LedgerFenced):
        await writer.close()
    reader = await client.open(writer.ledger_id)
    assert len(await reader.read(0, 99)) == 100


async def test_open_without_recovery_does_not_fence(cluster: Cluster) -> None:
    """Reference 23 (testNoRecoveryOpen)."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create()
    await add_many(writer, 10)
    reader = await other.open(writer.ledger_id)
    assert await reader.wait_for(8, 10) == 9
    assert len(await reader.read(0, 9)) == 10
    await add_many(writer, 10)
    assert (await writer.close()).last_entry == 19


async def test_recovering_with_a_wrong_password_changes_nothing(cluster: Cluster) -> None:
    """Reference 26 and 41 (testFencingBadPassword, testLedgerRecoveryWithWrongPassword)."""
    client, other = await cluster.client(1), await cluster.client(2)
    writer = await client.create(password=b"right")
    await add_many(writer, 5)
    with pytest.raises(Unauthorized):
        await other.recover(writer.ledger_id, password=b"wrong")
    await add_many(writer, 5)
    assert (await writer.close()).last_entry == 9


async def test_many_open_with_recovery_at_once_and_agree(cluster: Cluster) -> None:
    """Reference 22 (testManyOpenParallel)."""
    writer = await (await cluster.client()).create()
    await add_many(writer, 50)
    patient = {"read_timeout_s": 60.0, "add_timeout_s": 60.0, "stall_timeout_s": 60.0}
    clients = [await cluster.client(seed, **patient) for seed in range(2, 8)]
    closed = await asyncio.gather(*(c.recover(writer.ledger_id) for c in clients))
    assert {(m.last_entry, m.length, m.state) for m in closed} == {(49, 5000, LedgerState.CLOSED)}


@pytest.mark.parametrize("passwords", [(b"right", b"wrong"), (b"wrong", b"right")])
async def test_a_recovery_is_shared_by_callers_of_one_password(
    cluster: Cluster, passwords: tuple[bytes, bytes]
) -> None:
    """A wrong password was accepted while a recovery with the right one ran, and the other way
    round."""
    client = await cluster.client(1)
    writer = await client.create(password=b"right")
    await add_many(writer, 3)
    other = await cluster.client(2)
    tasks = [
        asyncio.ensure_future(other.recover(writer.ledger_id, password=password))
        for password in (*passwords, b"right")
    ]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    for password, outcome in zip((*passwords, b"right"), found, strict=True):
        assert isinstance(outcome, Unauthorized) == (password == b"wrong"), (password, outcome)
    assert other.describe()["recoveries"] == 0
