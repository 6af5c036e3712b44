"""A bookie that was told to stop looked at all its entry logs first.

The collector ends a round between two slices of a log, but its census went through the map of each
log to the end: on a bookie with tens of thousands of them that is longer than a stop may take.
Found by reading the engine.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.protocol.codes import Code
from tests.support.storage_support import CONFIG, Bench

SMALL = replace(CONFIG, entry_log_bytes_max=4096)


async def test_it_looks_at_no_further_log() -> None:
    async with Bench(SMALL) as bench:
        for ledger_id in range(4):
            assert await bench.add(ledger_id, 0, b"x" * 3000) is Code.OK
            await bench.storage.checkpoint()
        compactor = bench.storage.compactor
        whole = await compactor.log_metadata({})
        assert whole.complete
        assert len(whole.logs) == 4
        compactor.stop()
        cut = await compactor.log_metadata({})
        assert not cut.complete, "no marker of a deletion goes by it"
        assert not cut.logs
