"""A bookie that lost its mark took a damaged record for a torn one, and cut the log there.

Without a mark, and with journal files gone that it had allowed to go, entry logs count "as far as
they are good": what follows the first bad record was cut. But the index had gone on behind it, so
all of that had been synced, and perhaps acknowledged; good records of other ledgers went, and a
later round of garbage collection removed the log, with live ledgers in the index. Two faults on one
disk; nothing was answered as absent. Found by the simulator (seeds 1800363 `copies` and 1800793
`beyond`).
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind
from octavo.protocol.codes import BookieIOError
from tests.support.storage_support import CONFIG, Bench, abandon

CONFIG_OF_ONE = replace(CONFIG, ledger_directories=("/l",), journal_file_bytes_max=2000)
LOG = "/l/0000000000000001.log"


async def lose_the_mark(bench: Bench) -> None:
    """Three ledgers in one log, the journal before it gone; mark and first record damaged."""
    for ledger_id in (1, 2):
        await bench.add(ledger_id, 0, b"x" * 800)
        await bench.storage.checkpoint()
    for number in range(3):
        await bench.add(3, number, b"y" * 1500)
    await bench.storage.checkpoint()
    assert not bench.disk.exists("/j/0000000000000001.journal"), "the log alone has them"
    after = bench.disk.after_crash()
    await abandon(bench.storage)
    bench.disk = after
    after.flip("/l/journal.mark", 9, 1)
    after.flip(LOG, 60, 1)  # in the first record


async def test_what_the_index_goes_beyond_is_not_cut() -> None:
    async with Bench(CONFIG_OF_ONE) as bench:
        await lose_the_mark(bench)
        await bench.start()

        assert (await bench.storage.reads.read(2, 0)).endswith(b"x" * 800)
        assert (await bench.storage.reads.read(3, 2)).endswith(b"y" * 1500)
        with pytest.raises(BookieIOError):
            await bench.storage.reads.read(1, 0)


async def test_nothing_is_cut_when_the_index_is_damaged_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(path: str) -> None:
        raise DamagedRead(f"{path} is damaged", Damage(DamageKind.INDEX, path, 0, 0))

    async with Bench(CONFIG_OF_ONE) as bench:
        await lose_the_mark(bench)
        with monkeypatch.context() as patched:
            patched.setattr(bench.disk, "open_index", damaged)
            with pytest.raises(DamagedRead):
                await bench.start()
        await bench.start()
        assert (await bench.storage.reads.read(2, 0)).endswith(b"x" * 800)
