"""What a process keeps of a bookie stayed for as long as the process lived.

Bookies come and go for good over a broker's life; each left an object for each request class, and
counted as one of the cluster: a topic that no longer fits was told to wait instead of to ask for
less.
"""

from __future__ import annotations

import pytest

from octavo.ledger.bookies.bookies import RequestClass
from octavo.ledger.client import LedgerClient
from octavo.ledger.errors import BookieUnavailable, LedgerClosed, NotEnoughBookies, TooFewBookies
from octavo.metadata.bookies import BookieRegistry
from tests.support.cluster import Cluster, add_many, until


def _kept(client: LedgerClient) -> set[str]:
    return {bookie_id for bookie_id, _ in client.bookies._bookies}


async def _come_and_go(cluster: Cluster, client: LedgerClient, name: str) -> None:
    """A ledger is written to it, recovered and read; then the bookie goes for good."""
    await cluster.start_bookie(name)
    await client.bookies.reload()
    writer = await client.create(ensemble_size=4, write_quorum=4, ack_quorum=3)
    await add_many(writer, 3)
    other = await cluster.client(seed=2)
    await other.recover(writer.ledger_id)
    await client.bookies.get(name, RequestClass.RECOVERY).connected()
    reader = await client.open(writer.ledger_id)
    assert len(await reader.read(0, 2)) == 3
    await reader.close()
    writer.abandon(LedgerClosed("not wanted any more"))
    await client.delete(writer.ledger_id)
    await cluster.drop_client(other)
    assert name in _kept(client)
    await cluster.stop_bookie(name)
    await BookieRegistry(cluster.store).delete_cookie(name, 0)


async def test_what_is_kept_is_as_many_as_there_are(cluster: Cluster) -> None:
    client = await cluster.client()
    for number in range(4, 8):
        await _come_and_go(cluster, client, f"b{number}")
    await until(lambda: _kept(client) <= {"b1", "b2", "b3"}, "those that are there")
    with pytest.raises(TooFewBookies, match="4"):
        await client.create(ensemble_size=4, write_quorum=4, ack_quorum=3)
    assert set(client.bookies._known) == {"b1", "b2", "b3"}


async def test_one_that_comes_back_is_talked_to_again(cluster: Cluster) -> None:
    client = await cluster.client()
    old = client.bookies.get("b3")
    await old.connected()
    await cluster.stop_bookie("b3")
    await until(lambda: "b3" not in _kept(client), "let go")
    with pytest.raises(BookieUnavailable):
        await old.connected()
    with pytest.raises(NotEnoughBookies):  # only down, says its cookie
        await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await cluster.start_bookie("b3")
    await until(lambda: "b3" in client.bookies.available, "there again")
    assert await old.connected() is client.bookies.get("b3").connection
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=3)
    await add_many(writer, 3)
    await writer.close()
