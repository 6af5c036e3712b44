"""One entry under each of 300,000 ids nobody gave out took a bookie from 69 to 245 MB, for good.

A bookie knows each ledger in memory. That somebody made it was asked by garbage collection only,
which lets a quarter of an hour pass. Found from outside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.ledgers.control import LedgerControl
from octavo.bookie.ledgers.newcomers import Newcomers
from octavo.bookie.ledgers.state import LedgerStates
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.codes import Code, TooManyRequests
from tests.support.cluster import Cluster, add_many, running_cluster
from tests.support.raw_bookie import KEY, RawClient, add_of, until

BOUND = 50


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, unlisted_ledgers_max=BOUND) as found:
        yield found


@pytest.mark.long
async def test_who_makes_ledgers_in_metadata_goes_on(cluster: Cluster) -> None:
    client = await cluster.client()
    old = await client.create()
    await add_many(old, 1)
    for node in cluster.nodes.values():
        raw = await RawClient.connect(node)
        codes = [await raw.add(add_of(1_000 + one, 0, b"mine")) for one in range(4 * BOUND)]
        assert set(codes) == {Code.OK, Code.TOO_MANY_REQUESTS}
        assert len(node.storage.ledgers()) <= BOUND + 1, "and the one that has a record"
        raw.close()
    for _ in range(5):
        new = await client.create()
        await add_many(new, 10)
        fresh = await client.create()
        assert (await client.recover(fresh.ledger_id)).last_entry == -1, "fenced before any add"
        assert (await client.recover(new.ledger_id)).last_entry == 9
    await add_many(old, 10)
    for node in cluster.nodes.values():
        assert len(node.storage.ledgers()) <= BOUND + 11


async def test_what_has_a_record_does_not_count() -> None:
    states = LedgerStates()
    newcomers = Newcomers(states, BOUND)
    for one in range(BOUND):
        assert newcomers.may_begin(one)
        states.create(one, KEY)
    assert newcomers.may_begin(BOUND), "nobody can be asked yet"
    listings = 0
    away = True

    async def listing() -> list[int]:
        nonlocal listings
        listings += 1
        if away:
            raise MetadataUnavailable("away")
        return list(range(10, 2 * BOUND))

    newcomers.ask(listing)
    assert not newcomers.may_begin(BOUND)
    await until(lambda: listings == 1)
    assert not newcomers.may_begin(BOUND), "without an answer nothing begins"
    away = False
    while not newcomers.may_begin(BOUND):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    assert listings == 2
    states.create(BOUND, KEY)
    for one in range(1_000, 1_000 + BOUND - 10):
        assert newcomers.may_begin(one), "ten were not listed"
        states.create(one, KEY)
    assert not newcomers.may_begin(2_000)
    await newcomers.close()


async def test_a_fence_waits_as_well() -> None:
    """A denial would be taken for a fence."""
    unasked: Any = None  # what is refused is not journaled
    control = LedgerControl(LedgerStates(), unasked, lambda _: None, unlisted_max=0)

    async def listing() -> list[int]:
        return []

    control.newcomers.ask(listing)
    with pytest.raises(TooManyRequests):
        await control.fence(7, KEY)
    await control.newcomers.close()
