"""Ledgers on bookies that behave as Apache's do."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write import ensemble_writer
from octavo.metadata.store import MetadataStore
from octavo.pipeline.audit import _ledger as audit_ledger
from octavo.protocol.codes import BadRequest
from octavo.protocol.entry import DigestType
from octavo.protocol.extension import Op
from octavo.spark.cluster import Cluster
from tests.support.apache_bookie import FakeApacheBookie, apache_bookie
from tests.support.cluster import add_many
from tests.support.raw_bookie import open_metadata, until

# Only the writer could read the last entries of an idle ledger on Apache's bookies: the explicit
# LAC that confirms them was sent to Octavo's bookies only.

DEADLINE_S = 20


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MetadataStore]:
    async with open_metadata(tmp_path) as store:
        yield store


@pytest.fixture
async def bookies(store: MetadataStore) -> AsyncIterator[list[FakeApacheBookie]]:
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(apache_bookie(store, f"a{n}")) for n in (1, 2, 3)]


@pytest.fixture
async def client(
    store: MetadataStore, bookies: list[FakeApacheBookie]
) -> AsyncIterator[LedgerClient]:
    client = LedgerClient(store, rng=random.Random(1), options=LedgerOptions())
    await client.start()
    yield client
    await client.close()
    assert not any(bookie.hung_up for bookie in bookies), "what one of Apache's does not understand"


@pytest.mark.parametrize("digest_type", DigestType)
async def test_the_end_of_an_idle_ledger_can_be_read(
    client: LedgerClient, digest_type: DigestType
) -> None:
    writer = await client.create(digest_type=digest_type, password=b"secret")
    await add_many(writer, 20)
    reader = await client.open(writer.ledger_id)
    assert await reader.wait_for(18, DEADLINE_S) == 19
    assert [entry.entry_id for entry in await reader.read(0, 19)] == list(range(20))


async def test_it_is_told_again_for_a_bookie_forgets_it(
    client: LedgerClient, bookies: list[FakeApacheBookie], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apache's bookies keep it in memory, for ten minutes."""
    monkeypatch.setattr(ensemble_writer, "_TELL_AGAIN_S", 0.2)
    writer = await client.create()
    await add_many(writer, 20)
    for _ in range(2):
        await until(lambda: all(bookie.lacs for bookie in bookies))
        for bookie in bookies:
            bookie.lacs.clear()
    await until(lambda: all(bookie.lacs for bookie in bookies))


async def test_a_lac_that_is_not_signed_is_not_believed(
    client: LedgerClient, bookies: list[FakeApacheBookie], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ensemble_writer, "_TELL_AGAIN_S", 3600)
    writer = await client.create()
    await add_many(writer, 20)
    await add_many(writer, 1)
    await until(lambda: all(bookie.lacs for bookie in bookies))
    signed = bookies[0].lacs[writer.ledger_id]
    for bookie in bookies:
        bookie.lacs[writer.ledger_id] = signed[:-1] + bytes((signed[-1] ^ 1,))
    reader = await client.open(writer.ledger_id)
    assert reader.last_add_confirmed == -1, "all that they say is doubtful"
    for bookie in bookies:
        bookie.lacs[writer.ledger_id] = signed
    assert await reader.refresh() == 20


async def test_what_is_octavos_own_is_not_asked(client: LedgerClient) -> None:
    """The bookie would hang up, and all requests on the connection would fail."""
    with pytest.raises(BadRequest, match="is an Apache bookie, and LIST_ENTRIES is"):
        await client.request("a1", Op.LIST_ENTRIES, {"ledger": 1})


async def test_audit_reads_what_it_cannot_ask(
    store: MetadataStore, client: LedgerClient, bookies: list[FakeApacheBookie]
) -> None:
    writer = await client.create()
    await add_many(writer, 20)
    metadata = await writer.close()
    cluster = Cluster(store)
    await cluster.ledgers.start()
    try:
        findings, copies = await audit_ledger(cluster, metadata, 19)
        assert (findings.counts, copies) == ({}, 60)
        del bookies[1].entries[writer.ledger_id][7]
        findings, copies = await audit_ledger(cluster, metadata, 19)
        assert (findings.counts, copies) == ({"copy-missing": 1}, 59)
        assert findings.kept[0].what == "bookie a2 lacks entries 7"
    finally:
        await cluster.ledgers.close()
