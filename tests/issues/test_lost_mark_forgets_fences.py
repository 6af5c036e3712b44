"""A damaged mark, and a power failure while ledger states were rewritten: fences were forgotten.

Found by the sweep of single faults over disks cut short in a checkpoint (`tests/single_fault`).
Without a readable mark (a bookie with one ledger folder has one copy) only the newest file of
ledger states was read, and that of a rewrite that did not end is empty: keys, fences and last
entries that only the older file held were gone, and the bookie answered "no such ledger".
"""

from __future__ import annotations

from dataclasses import replace

from octavo.protocol.codes import Code
from tests.support.storage_support import CONFIG, Bench, abandon

CONFIG_OF_ONE = replace(CONFIG, ledger_directories=("/l",), journal_file_bytes_max=2000)


async def test_all_states_are_read_when_no_mark_says_which_count() -> None:
    async with Bench(CONFIG_OF_ONE) as bench:
        await bench.add(1, 0, b"acked")
        await bench.storage.control.fence(1, b"k" * 20)
        await bench.storage.checkpoint()
        for number in range(3):
            await bench.add(2, number, b"x" * 1500)
        await bench.storage.checkpoint()
        assert not bench.disk.exists("/j/0000000000000001.journal"), "the fence is in the state"
        after = bench.disk.after_crash()
        await abandon(bench.storage)
        bench.disk = after
        after.open("/l/0000000000000002.state", create=True).close()
        after.flip("/l/journal.mark", 9, 1)
        await bench.start()
        assert (await bench.storage.reads.read(1, 0)).endswith(b"acked")
        assert await bench.add(1, 1, b"late") is Code.FENCED
