"""A forged copy with a right checksum is replaced from the others; if the right copy is unknown,
nothing changes and it is reported."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest
import structlog

from octavo.ledger.client import LedgerClient
from octavo.ledger.rereplication.comparing import CopyComparer
from octavo.metadata.ledgers import LedgerMetadata
from octavo.process.copies import NodeCopies, kept_copies
from octavo.protocol.batch import with_base_offset
from octavo.protocol.codes import BadRequest
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from octavo.protocol.extension import Op
from tests.support.cluster import Cluster, add_many, batch, payload_of
from tests.support.processes.standalone import octavo
from tests.support.raw_bookie import until

pytestmark = pytest.mark.usefixtures("no_pause")


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.ledger.rereplication.comparing._PAUSE_S", 0.0)


async def comparer_of(cluster: Cluster, name: str) -> CopyComparer:
    client = await cluster.client(int(name[1:]))
    return CopyComparer(client, NodeCopies(cluster.nodes[name]), retry_s=0.05, bytes_per_s=1e9)


async def forge(
    cluster: Cluster, metadata: LedgerMetadata, name: str, entry_id: int, payload: bytes
) -> None:
    digest = digest_for(metadata.digest_type, metadata.password)
    data = pack_entry(digest, metadata.ledger_id, entry_id, entry_id - 1, 100, payload)
    await put(cluster, metadata, name, data)


async def put(cluster: Cluster, metadata: LedgerMetadata, name: str, data: bytes) -> None:
    await NodeCopies(cluster.nodes[name]).replace(master_key(metadata.password), data)


async def payload_on(cluster: Cluster, metadata: LedgerMetadata, name: str, entry_id: int) -> bytes:
    data = await cluster.nodes[name].storage.reads.read(metadata.ledger_id, entry_id)
    digest = digest_for(metadata.digest_type, metadata.password)
    return bytes(unpack_entry(digest, metadata.ledger_id, entry_id, data).payload)


async def written(client: LedgerClient, count: int = 5, **how: Any) -> LedgerMetadata:
    writer = await client.create(**how)
    await add_many(writer, count)
    await writer.close()
    return await client.metadata(writer.ledger_id)


async def of_batches(client: LedgerClient) -> LedgerMetadata:
    writer = await client.create()
    for number in range(5):
        await writer.append(with_base_offset(batch(count=3), 3 * number))
    await writer.close()
    return await client.metadata(writer.ledger_id)


@pytest.mark.parametrize("digest", [DigestType.CRC32C, DigestType.HMAC])
async def test_the_others_prove_it_wrong(cluster: Cluster, digest: DigestType) -> None:
    metadata = await written(await cluster.client(9), digest_type=digest)
    await forge(cluster, metadata, "b1", 3, b"forged")
    if digest is DigestType.HMAC:
        data = bytearray(await cluster.nodes["b1"].storage.reads.read(metadata.ledger_id, 3))
        data[40] ^= 1
        await put(cluster, metadata, "b1", bytes(data))
    comparer = await comparer_of(cluster, "b1")
    with structlog.testing.capture_logs() as logs:
        comparer.doubt(metadata.ledger_id, 2, 3)
        await until(lambda: comparer.status.replaced)
    assert [log["entry"] for log in logs if log["event"] == "copy_replaced"] == [3]
    assert comparer.status.compared_entries == 2
    assert comparer.status.disagreeing == {}
    await cluster.nodes["b1"].storage.checkpoint()
    for _ in range(2):
        assert await payload_on(cluster, metadata, "b1", 3) == payload_of(3)
        await cluster.stop_bookie("b1")
        await cluster.start_bookie("b1")


async def test_the_others_compare_too_and_change_nothing(cluster: Cluster) -> None:
    metadata = await written(await cluster.client(9))
    await forge(cluster, metadata, "b1", 3, b"forged")
    comparer = await comparer_of(cluster, "b2")
    comparer.doubt(metadata.ledger_id, 0, 99)
    await until(lambda: not comparer._doubted)
    assert comparer.status.compared_entries == 5
    assert comparer.status.replaced == 0
    assert comparer.status.disagreeing == {}
    assert await payload_on(cluster, metadata, "b1", 3) == b"forged", "b1's own matter"


@pytest.mark.parametrize("how", ["three differ", "two of two differ"])
async def test_where_nobody_can_tell_nothing_is_touched(cluster: Cluster, how: str) -> None:
    quorums = {} if how == "three differ" else {"write_quorum": 2}
    metadata = await written(await cluster.client(9), **quorums)
    holders = [metadata.fragments[0].bookies[(3 + k) % 3] for k in range(metadata.write_quorum)]
    for name in holders[1:]:
        await forge(cluster, metadata, name, 3, f"by {name}".encode())
    before = [await payload_on(cluster, metadata, name, 3) for name in holders]
    for name in holders:
        comparer = await comparer_of(cluster, name)
        with structlog.testing.capture_logs() as logs:
            comparer.doubt(metadata.ledger_id, 0, 4)
            await until(lambda of=comparer: of.status.disagreeing)  # type: ignore[misc]
            await comparer.compare()
        assert list(comparer.status.disagreeing) == [(metadata.ledger_id, 3)]
        (told,) = [log for log in logs if log["event"] == "copies_disagree"]
        assert (told["ledger"], told["entry"], told["bookie"]) == (metadata.ledger_id, 3, name)
        assert all(bookie in told["reason"] for bookie in holders)
    assert [await payload_on(cluster, metadata, name, 3) for name in holders] == before
    await (await cluster.client(9)).delete(metadata.ledger_id)
    await until(lambda: not comparer._doubted)
    assert comparer.status.disagreeing == {}, "it is gone"


async def test_most_are_not_believed_against_the_order_of_the_batches(cluster: Cluster) -> None:
    metadata = await of_batches(await cluster.client(9))
    evil = with_base_offset(batch(count=4, tag="evil"), 6)
    for name in ("b2", "b3"):
        await forge(cluster, metadata, name, 2, evil)
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(metadata.ledger_id, 1, 2)
    await until(lambda: comparer.status.disagreeing)
    assert comparer.status.replaced == 0
    assert await payload_on(cluster, metadata, "b1", 2) == with_base_offset(batch(count=3), 6)


async def test_one_that_breaks_the_order_is_replaced(cluster: Cluster) -> None:
    metadata = await of_batches(await cluster.client(9))
    for entry_id in range(5):
        evil = with_base_offset(batch(count=3, tag="evil"), 3 * entry_id + 1)
        await forge(cluster, metadata, "b1", entry_id, evil)
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(metadata.ledger_id, 0, 4)
    await until(lambda: comparer.status.replaced == 5)
    for entry_id in range(5):
        good = with_base_offset(batch(count=3), 3 * entry_id)
        assert await payload_on(cluster, metadata, "b1", entry_id) == good


async def test_who_is_away_may_matter(cluster: Cluster) -> None:
    metadata = await written(await cluster.client(9))
    await forge(cluster, metadata, "b1", 3, b"forged")
    await cluster.stop_bookie("b3")
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(metadata.ledger_id, 3, 3)
    await comparer.compare()
    assert (comparer.status.replaced, comparer.status.disagreeing) == (0, {})
    assert comparer._doubted, "it is looked at again"
    await cluster.start_bookie("b3")
    await until(lambda: comparer.status.replaced == 1)
    await until(lambda: not comparer._doubted)


async def test_an_open_ledger_is_compared_once_it_is_closed(cluster: Cluster) -> None:
    client = await cluster.client(9)
    writer = await client.create()
    await add_many(writer, 5)
    metadata = await client.metadata(writer.ledger_id)
    await forge(cluster, metadata, "b1", 3, b"forged")
    comparer = await comparer_of(cluster, "b1")
    comparer.doubt(writer.ledger_id, 2, 3)
    await comparer.compare()
    assert comparer.status.compared_entries == 0
    await writer.close()
    await until(lambda: comparer.status.replaced == 1)


@pytest.mark.long
async def test_a_person_has_a_ledger_compared(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.process.copies._START_S", 0.0)
    await cluster.stop_bookie("b1")
    node = await cluster.start_bookie("b1", admin_port=0)
    metadata = await written(await cluster.client(9))
    await forge(cluster, metadata, "b1", 3, b"forged")
    url = f"http://127.0.0.1:{node.admin.port}"

    async def shown(*more: str) -> Any:
        found = await asyncio.to_thread(octavo, "bookie", "copies", "--url", url, "--json", *more)
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)

    async with kept_copies(node, cluster.store, rng=random.Random(5)):
        assert (await shown())["replaced"] == 0
        await shown("--compare", str(metadata.ledger_id))
        async with asyncio.timeout(60):
            while not (told := await shown())["replaced"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert (told["replaced"], told["compared_entries"], told["disagreeing"]) == (1, 5, [])
        assert b"octavo_bookie_replaced_copies_total 1.0" in node.metrics.exposition()
        assert await payload_on(cluster, metadata, "b1", 3) == payload_of(3)
        for name in ("b1", "b2"):
            await forge(cluster, metadata, name, 3, f"by {name}".encode())
        await shown("--compare", str(metadata.ledger_id))
        async with asyncio.timeout(60):
            while not (told := await shown())["disagreeing"]:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        assert told["disagreeing"][0]["entry"] == 3
        plain = await asyncio.to_thread(octavo, "bookie", "copies", "--url", url)
        assert "copies of entry 3: b" in plain.stdout
        assert b"octavo_bookie_copies_disagree 1.0" in node.metrics.exposition()


async def test_anybody_may_ask_and_nobody_can_say_by_what(cluster: Cluster) -> None:
    client = await cluster.client(9)
    metadata = await written(client)
    span = {"ledger": metadata.ledger_id, "first": 3, "last": 2**62}
    with pytest.raises(BadRequest, match="keeps no copies"):
        await client.request("b1", Op.FETCH_COPIES, span)
    async with AsyncExitStack() as stack:
        node = cluster.nodes["b1"]
        await stack.enter_async_context(kept_copies(node, cluster.store, rng=random.Random(5)))
        seen: list[tuple[int, int, int]] = []
        node.server.requests.compare_copies = lambda *doubted: seen.append(doubted)
        assert await client.request("b1", Op.FETCH_COPIES, span) == {}
        assert seen == [(metadata.ledger_id, 3, 102)], "one request has so much looked at"
