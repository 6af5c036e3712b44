"""Ledgers were anyone's: all had the empty password, and a bookie believed whatever came with it.

Without a credential, at a bookie's port, acked entries were overwritten (`orig0` was read back as
`EVIL0`), entries were put into fenced ledgers by recovery adds, and one add that claimed a LAC of a
million made its ledger unrecoverable. Now the cluster's ledgers have a key that is made of its
secret; and a bookie keeps what it has, whoever asks, and believes no LAC at or above the entry that
brings it. Found by attacking from outside: no test had ever spoken to a bookie as a stranger.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bookie.node import BookieNode
from ledger.ledgers import LedgerClient
from metadata.secret import cluster_secret
from octavo.cli.main import app
from protocol.codes import Code, Unauthorized
from protocol.entry import master_key
from protocol.frames import Flag
from tests.ledger_cluster import Cluster, add_many, payload_of, running_cluster
from tests.raw_bookie import OURS, RawClient, add_of

STRANGER = master_key(b"")
RECOVERY = OURS | int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as running:
        yield running


@contextlib.asynccontextmanager
async def speaking_to(node: BookieNode) -> AsyncIterator[RawClient]:
    """A connection of whoever reaches the port."""
    client = await RawClient.connect(node)
    try:
        yield client
    finally:
        client.close()


async def payloads(client: LedgerClient, ledger_id: int) -> list[bytes]:
    """All of a closed ledger."""
    reader = await client.open(ledger_id, recover=True)
    found = await reader.read(0, reader.last_add_confirmed)
    await reader.close()
    return [bytes(entry.payload) for entry in found]


# -- the key


async def test_a_stranger_can_neither_overwrite_nor_forge_nor_fence(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create()
    ledger = writer.ledger_id
    await add_many(writer, 5)
    for node in cluster.nodes.values():
        async with speaking_to(node) as stranger:
            for flags in (OURS, RECOVERY, 0):
                for entry_id in (0, 4, 5, 1_000_000):
                    frame = add_of(ledger, entry_id, b"EVIL", flags=flags, key=STRANGER)
                    assert await stranger.add(frame) is Code.UNAUTHORIZED
            fencing = await stranger.read(ledger, 0, int(Flag.FENCE), STRANGER)
            assert fencing is Code.UNAUTHORIZED
    await add_many(writer, 5)  # nobody has fenced it
    await writer.close()
    for node in cluster.nodes.values():
        async with speaking_to(node) as stranger:
            frame = add_of(ledger, 10, b"EVIL", flags=RECOVERY, key=STRANGER)
            assert await stranger.add(frame) is Code.UNAUTHORIZED
    assert await payloads(client, ledger) == [payload_of(n) for n in range(10)]


async def test_all_processes_of_a_cluster_use_one_key(cluster: Cluster) -> None:
    one, other = await cluster.client(1), await cluster.client(2)
    password = (await cluster_secret(cluster.store)).ledger_password
    writers = [await client.create() for client in (one, other)]
    assert {writer.metadata.password for writer in writers} == {password}
    assert password.decode() not in repr(writers[0].metadata)
    await add_many(writers[0], 3)
    # As a foreign client does it that was configured with the password, and with another.
    await (await other.open(writers[0].ledger_id, password=password)).close()
    with pytest.raises(Unauthorized):
        await other.open(writers[0].ledger_id, password=b"")
    with pytest.raises(Unauthorized):
        await other.recover(writers[0].ledger_id, password=b"another")
    assert await payloads(other, writers[0].ledger_id) == [payload_of(n) for n in range(3)]


async def test_ledgers_that_an_older_version_made_stay_what_they_were(cluster: Cluster) -> None:
    client = await cluster.client()
    writer = await client.create(password=b"")  # as every ledger was made
    await add_many(writer, 5)
    assert await payloads(client, writer.ledger_id) == [payload_of(n) for n in range(5)]
    metadata = await client.metadata(writer.ledger_id)
    assert (metadata.password, metadata.last_entry) == (b"", 4)


async def test_the_command_that_prints_the_password_for_foreign_clients(cluster: Cluster) -> None:
    made = await (await cluster.client()).create()
    url = f"file://{cluster.folder}/metadata.db"
    command = ["ledger", "password", "--metadata", url]
    said = await asyncio.to_thread(CliRunner().invoke, app, command)
    assert said.stdout.encode() == made.metadata.password + b"\n"
