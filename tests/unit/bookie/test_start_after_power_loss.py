"""A bookie starts after a power failure, and counts only synced bytes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import MutableSequence
from typing import Any, TypeVar

import pytest

import octavo.bookie.startup.opening
from octavo.bookie.disk.files import DiskError, DiskFull, SyncFailed
from octavo.bookie.entrylog.format import FILE_HEADER_BYTES, encode_file_header
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.journal.journal import JournalWriter
from octavo.bookie.journal.reader import JournalReader
from octavo.protocol.codes import BookieIOError, Code, NoSuchLedger
from tests.crash_states.explore import CrashStateFailed, Explored, explore_kills, explore_one
from tests.sim.disk import SimDisk
from tests.sim.disk_handle import SimFile, SimHandle
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, KEY, Bench, abandon, entry_bytes, is_fenced
from tests.unit.bookie.test_entry_log import log_run, opened

# A bookie could not rebuild its index: an old log was longer than its records again. A start cut a
# log where the mark ended, the sync failed, and the process died. The next start saw the shorter
# file in the page cache and did not sync it; a power failure brought the reserve back, and behind a
# newer log nothing showed where the records end. Now a cut log is sealed with map and footer,
# written again at each start that finds the mark there. The simulator found it (seed 2037646).


def test_a_cut_log_says_itself_where_it_ends() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    (first,) = logs.append([log_run(1, 0)])
    logs.sync()
    mark = logs.position

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.endswith(".log"):
            raise SyncFailed(f"fdatasync {path}: input/output error")

    disk.hook = hook
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    with pytest.raises(SyncFailed):
        again.cut_abandoned(mark, journaled=True)
    disk.hook = lambda call, path: None
    third = EntryLogs(disk, ["/a", "/b"], 4000)
    third.open()
    written: list[str] = []
    disk.hook = lambda call, path: written.append(call) if path.endswith(".log") else None
    third.cut_abandoned(mark, journaled=True)
    assert written[-1] == "datasync", "what a failed sync left in the page cache is written anew"
    disk.hook = lambda call, path: None
    third.append([log_run(1, 3)])
    assert [record.first_entry for record, _ in third.scan_all(first.log_id)] == [0]


def test_a_log_that_lost_its_end_is_not_taken_for_whole() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    places = logs.append([log_run(1, 0), log_run(1, 3)])
    logs.seal()
    path = logs._paths[1]
    disk.open(path, write=True).truncate(places[1].offset)
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    with pytest.raises(BookieIOError, match=f"damaged from byte {places[1].offset} on"):
        list(again.scan_all(1))


# A restarted bookie treated data from the page cache as durable, and a power failure removed it. A
# bookie that was killed while it sealed its journal left the END block in the page cache. The next
# start did not sync it and began another file. A power failure then removed the END block, so the
# journal counted as damaged and the bookie never started again. The same held after a failed
# `fsync`: a fence that was replayed from the page cache was answered as durable, and forgotten. The
# simulator found it.

T = TypeVar("T")


class Worst(random.Random):
    """No unsynced byte survives a power failure; the page cache survives every process."""

    def random(self) -> float:
        return 0.999

    def choice(self, seq: Any) -> Any:
        return seq[0]

    def shuffle(self, x: MutableSequence[Any]) -> None:
        pass


WORST = Worst(0)


async def started_again(bench: Bench) -> Bench:
    """Start another process with the same page cache."""
    await abandon(bench.storage)
    bench.disk.kill(WORST)  # type: ignore[attr-defined]
    return await bench_on(bench.disk)


async def bench_on(disk: Any) -> Bench:
    bench = Bench(disk=disk)
    await bench.start()
    return bench


async def after_a_power_failure(bench: Bench) -> Bench:
    await abandon(bench.storage)
    bench.disk.crash(None)
    return await bench_on(bench.disk)


async def test_killed_while_sealing_the_journal() -> None:
    disk = SimDisk()
    bench = await bench_on(disk)
    assert await bench.add(1, 0, b"acked") is Code.OK
    await abandon(bench.storage)
    disk.faults.fail_sync(WORST, ".journal")
    with pytest.raises(Exception, match="input/output"):
        await bench_on(disk)
    disk.kill(WORST)
    bench = await bench_on(disk)
    bench = await after_a_power_failure(bench)
    assert (await bench.storage.reads.read(1, 0)).endswith(b"acked")
    await bench.storage.close()


async def test_a_fence_whose_sync_failed_is_no_durable_fence() -> None:
    disk = SimDisk()
    bench = await bench_on(disk)
    assert await bench.add(1, 0) is Code.OK
    disk.faults.fail_sync(WORST, ".journal")
    with pytest.raises(BookieIOError):
        await bench.storage.control.fence(1, KEY)
    bench = await started_again(bench)
    await bench.storage.control.fence(1, KEY)
    bench = await after_a_power_failure(bench)
    assert is_fenced(bench.storage, 1), "it was answered as durable"
    await bench.storage.close()


@pytest.mark.long
def test_the_power_fails_after_a_kill_between_rename_and_sync(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bookie never started again because it relied on a journal file's name that only the page
    cache had. A process was killed after it had named a new journal file and before it synced the
    folder; the next process closed the file and began another. After a power failure the second
    name was there and the first was not: `JournalDamaged`, though nothing was lost. A bookie now
    syncs its folders before it builds on them. Second lives found it
    (`tests/crash_states/kills.py`)."""
    assert explore_kills([("restart",)]).states > 100
    monkeypatch.setattr(
        octavo.bookie.startup.opening,
        "make_folders",
        lambda disk, folders: [disk.make_directory(folder) for folder in folders],
    )
    with pytest.raises(CrashStateFailed, match=r"killed .* sync_directory /j.*JournalDamaged"):
        explore_kills([("restart",)])


@pytest.mark.long
def test_the_power_fails_while_a_second_process_flushes_what_a_killed_one_wrote(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Entries that a killed process had written and not synced were half there after a power
    failure. The next process read them from the page cache and flushed them to the entry log. When
    the power failed during that, their journal block was gone and their log record torn or alone:
    with a rebuilt index the bookie held an entry that it had denied, or answered an I/O error for
    ever. Now the journal is synced before it is read, and entry-log data behind the mark is
    dropped. Second lives found it (`tests/crash_states/kills.py`)."""
    assert explore_kills([("add", "add")]).states > 100
    real, reading = SimFile.datasync, JournalReader.blocks

    def unsynced(reader: JournalReader):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(SimFile, "datasync", lambda file: None)
        blocks = reading(reader)
        first = next(blocks, None)
        monkeypatch.setattr(SimFile, "datasync", real)
        if first is not None:
            yield first
            yield from blocks

    monkeypatch.setattr(JournalReader, "blocks", unsynced)
    with pytest.raises(CrashStateFailed, match="killed"):
        explore_kills([("add", "add")])


# After a power failure during the write of a file's header, a bookie never started again. A restart
# rewrote the good header of the last journal file in case it had none; torn by the next power
# failure, the file was `JournalDamaged`. And an entry log with a torn first header counted as
# damaged, though the header is durable before the first record is written. Nothing was lost in
# either case. The crash states found both (`tests/crash_states`).


@pytest.mark.parametrize("sequence", [("restart",), ("add", "power"), ("add", "checkpoint")])
def test_the_power_fails_while_a_header_is_written(sequence: tuple[str, ...]) -> None:
    explored = Explored()
    explore_one(sequence, explored)
    assert explored.states > 5


@pytest.mark.parametrize("holds", [b"", b"not zeros"])
async def test_only_a_log_that_holds_nothing_is_removed(holds: bytes) -> None:
    disk = SimDisk()
    path = f"{CONFIG.ledger_directories[0]}/0000000000000001.log"
    disk.make_directory(CONFIG.ledger_directories[0])
    file = disk.open(path, create=True)
    file.pwritev([encode_file_header(1)[:10]], 0)
    file.pwritev([holds], FILE_HEADER_BYTES + 5000)
    file.close()
    bench = Bench(disk=disk)  # type: ignore[arg-type]
    if holds:
        with pytest.raises(Exception, match="header"):
            await bench.start()
    else:
        await bench.start()
        await bench.storage.close()
    assert disk.exists(path) == bool(holds)


# An acked deletion stopped a bookie for ever: its journal continued in a file that had a successor.
# The journal rolled; the next file was named and could not be opened (too many open files). The
# group failed, as it should, but a smaller group fitted into the old file, over its END block. At
# the next start the old file had no end and a newer one followed: "acknowledged entries are lost".
# Failing every disk call once found it (tests/io_errors).


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_written_into_a_journal_file_that_has_a_successor(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`full`: the disk has no room for the new name's folder, and may have taken it all the same.
    Otherwise a full disk is no reason to fail: the group goes into the old file's margin."""
    disk = SimDisk()
    disk.make_directory("/j")
    writer = JournalWriter(disk, "/j", file_bytes_max=1000, preallocate_bytes=1000, sync=True)
    writer.open(1)
    writer.write([b"a" * 600], 600)
    really_open, really_rename = SimHandle.open, SimHandle.rename

    def too_many_open_files(self: SimHandle, path: str, **how: bool) -> object:
        if path.endswith("2.journal"):
            raise DiskError(f"open {path}: too many open files")
        return really_open(self, path, **how)

    def no_room(self: SimHandle, old: str, new: str) -> None:
        if new.endswith("2.journal"):
            really_rename(self, old, new)
            raise DiskFull(f"rename {old} to {new}: no room")

    with monkeypatch.context() as patch:
        if full:
            patch.setattr(SimHandle, "rename", no_room)
        else:
            patch.setattr(SimHandle, "open", too_many_open_files)
        with pytest.raises(DiskError):
            writer.write([b"b" * 600], 600)
        with pytest.raises(DiskError):
            writer.write([b"c" * 100], 100)  # it would fit into the first file
    writer.write([b"d" * 100], 100)
    bodies = [block.body for block in JournalReader(disk, "/j", None).blocks()]
    assert bodies == [b"a" * 600, b"d" * 100]


# The index forgot a ledger whose deletion a power failure then undid. The collector deletes a
# ledger; its state and journal record are in flight when a checkpoint begins. The checkpoint
# removed the ledger from the index before state and mark were durable; the mark failed and the
# bookie died. The ledger was there again without its entries, which were denied. Now the index
# comes after the mark here too, and a start removes deleted ledgers from it. Seed 3001449 found it.


async def test_a_deletion_that_was_not_durable_takes_nothing_away() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"kept")
        await bench.storage.checkpoint()

        def hook(call: str, path: str) -> None:
            if call in ("pwritev", "datasync") and "journal" in path:
                raise SyncFailed(f"fdatasync {path}: input/output error")

        bench.disk.hook = hook
        deletion = asyncio.ensure_future(bench.storage.delete_ledger(1))
        with pytest.raises(SyncFailed):
            await bench.storage.checkpoint()
        await asyncio.gather(deletion, return_exceptions=True)
        await bench.crash()
        assert await bench.storage.reads.read(1, 0) == entry_bytes(1, 0, b"kept")


async def test_a_deletion_that_is_durable_reaches_the_index_at_the_next_start() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"gone")
        await bench.add(2, 0, b"kept")
        await bench.storage.checkpoint()
        await bench.storage.delete_ledger(1)
        index = bench.storage._index
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                index, "delete_ledger", lambda _: (_ for _ in ()).throw(SyncFailed("power"))
            )
            with pytest.raises(SyncFailed):
                await bench.storage.checkpoint()
        await bench.crash()
        assert not bench.storage._index.runs(1)
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.read(1, 0)
        assert await bench.storage.reads.read(2, 0) == entry_bytes(2, 0, b"kept")
