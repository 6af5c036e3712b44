"""A start cut entry logs because the journal had it all, and then found that the journal had not.

What lies in entry logs behind the mark is in the journal too, so a start cuts it before it replays
the journal. A journal that is damaged behind the mark ended the start, as it must, but only after
that cut; and where the mark was damaged as well, and the journal's first file still there, every
log was dropped. Brought back with `--accept-loss`, the bookie had lost what it had had twice. Found
by the simulator (seed 2100208 of the profile `beyond`).
"""

from __future__ import annotations

import pytest

from octavo.bookie.journal.format import JournalDamaged
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, Bench, abandon

JOURNAL = "/j/0000000000000001.journal"
MARKS = [f"{folder}/journal.mark" for folder in CONFIG.ledger_directories]


def content(disk: MemoryDisk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def logs_of(disk: MemoryDisk) -> dict[str, bytes]:
    return {
        f"{folder}/{name}": content(disk, f"{folder}/{name}")
        for folder in CONFIG.ledger_directories
        for name in disk.list_directory(folder)
        if name.endswith(".log")
    }


async def killed(bench: Bench) -> MemoryDisk:
    after = bench.disk.after_crash()
    await abandon(bench.storage)
    bench.disk = after
    return after


async def refuses_and_keeps_all(bench: Bench, ledgers: range) -> None:
    """The start ends, the logs are as they were; brought back, all entries are there."""
    before = logs_of(bench.disk)
    for _ in range(2):
        with pytest.raises(JournalDamaged, match="good blocks follow"):
            await bench.start()
        assert logs_of(bench.disk) == before

    async def accepted(why: str) -> None:
        assert JOURNAL in why

    bench.on_loss = accepted
    await bench.start()
    for ledger_id in ledgers:
        assert (await bench.storage.reads.read(ledger_id, 0)).endswith(b"x" * 800)


async def test_without_a_mark_and_with_the_first_journal_file() -> None:
    async with Bench() as bench:
        for ledger_id in (1, 2, 3):
            await bench.add(ledger_id, 0, b"x" * 800)
        await bench.storage.checkpoint()
        after = await killed(bench)
        for mark in MARKS:
            after.flip(mark, 9, 1)
        where = content(after, JOURNAL).index(b"x" * 800)
        after.flip(JOURNAL, where, 1)
        await refuses_and_keeps_all(bench, range(1, 4))


async def test_with_a_mark_behind_which_the_logs_have_more() -> None:
    """The process was killed in a checkpoint, between the entry log's sync and the mark."""
    async with Bench() as bench:
        await bench.add(1, 0, b"x" * 800)
        await bench.storage.checkpoint()
        old = {mark: content(bench.disk, mark) for mark in MARKS}
        for ledger_id in (2, 3, 4):
            await bench.add(ledger_id, 0, b"x" * 800)
        await bench.storage.checkpoint()
        after = await killed(bench)
        for mark, data in old.items():
            file = after.open(mark, write=True)
            file.pwritev([data], 0)
            file.datasync()
            file.close()
        journal = content(after, JOURNAL)
        second = journal.index(b"x" * 800, journal.index(b"x" * 800) + 800)
        after.flip(JOURNAL, second, 1)
        await refuses_and_keeps_all(bench, range(1, 5))
