"""A copy that was forged, checksum and all, was read around, and stayed: every reader met it again.

Readers turned away from the bookie and told its name to a log. No scrubber finds such a copy, and
the bookie itself refuses the right bytes, as others than those that it has.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from octavo.process.copies import NodeCopies, kept_copies
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from tests.issues.test_forged_entries_skip_offsets import EXPECTED, FORGERIES, filled
from tests.support.cluster import Cluster, values

CRC32C = digest_for(DigestType.CRC32C, b"")
ENTRY = 4


@pytest.mark.parametrize("what", FORGERIES)
async def test_one_bad_copy_is_repaired_from_the_others(
    cluster: Cluster, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("octavo.process.copies._START_S", 0.0)
    _, partition, ledger_id = await filled(cluster)
    client = await cluster.client(8)
    metadata = await client.metadata(ledger_id)
    node = cluster.nodes["b1"]
    right = await node.storage.reads.read(ledger_id, ENTRY)
    entry = unpack_entry(CRC32C, ledger_id, ENTRY, right)
    payload = FORGERIES[what](bytes(entry.payload))
    wrong = pack_entry(CRC32C, ledger_id, ENTRY, ENTRY - 1, entry.length, payload)
    await NodeCopies(node).replace(master_key(metadata.password), wrong)
    assert await node.storage.reads.read(ledger_id, ENTRY) == wrong
    async with AsyncExitStack() as stack:
        for one in cluster.nodes.values():
            keeping = kept_copies(one, cluster.store, rng=random.Random(5))
            keeper = await stack.enter_async_context(keeping)
            assert keeper is not None
            async with asyncio.timeout(30):
                while not keeper.status.walks:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
        looked: Any = partition
        log = looked._log.reader
        reader = await log._reader(log._record.ledgers.find(0))
        reader._sticky = metadata.fragments[0].bookies.index("b1")
        assert await values(partition) == EXPECTED
        async with asyncio.timeout(30):
            while (found := await node.storage.reads.read(ledger_id, ENTRY)) == wrong:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert unpack_entry(CRC32C, ledger_id, ENTRY, found).payload == entry.payload
    for name in ("b2", "b3"):
        await cluster.stop_bookie(name)
    entries = await (await client.open(ledger_id)).read(0, 9)
    assert bytes(entries[ENTRY].payload) == entry.payload
