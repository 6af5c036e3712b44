"""Entry logs in which everything was live were rewritten at every major compaction, for ever.

How much of a log is live was told by the bytes of its live entries as a share of the whole file. In
a log of many small ledgers each record's header and the ledgers map take more than the fifth that a
major compaction allows to be dead. So such a log was copied to the current one, which came out the
same, at each round when space was short, and gave nothing back. Found by reading the engine.
"""

from __future__ import annotations

from dataclasses import replace

from octavo.bookie.gc.rules import Action, Rules, plan
from octavo.protocol.codes import Code
from tests.support.storage_support import CONFIG, Bench

SMALL = replace(CONFIG, entry_log_bytes_max=16 * 1024)
EVERYTHING = Rules(0.2, 0.8, minor_due=True, major_due=True, room_bytes=2**40)
LEDGERS = 400


async def test_what_is_all_live_stays() -> None:
    async with Bench(SMALL) as bench:
        for ledger_id in range(LEDGERS):
            assert await bench.add(ledger_id, 0, b"x") is Code.OK
        await bench.storage.checkpoint()
        await bench.storage.compactor.renew_current()
        counted = await bench.storage.compactor.log_metadata({})
        assert len(counted.logs) > 2
        decisions = plan(counted.logs, EVERYTHING)
        assert [one.action for one in decisions] == [Action.KEEP] * len(decisions)
        sealed = counted.logs[0]
        assert sealed.ratio == 1

        for ledger_id in range(LEDGERS // 2):
            await bench.storage.delete_ledger(ledger_id)
        await bench.storage.checkpoint()
        decisions = plan((await bench.storage.compactor.log_metadata({})).logs, EVERYTHING)
        assert decisions[0].action is Action.UNLINK
