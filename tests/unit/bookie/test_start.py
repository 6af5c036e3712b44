"""A bookie's start: after a power failure, and on older metadata."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import MutableSequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

import octavo.bookie.startup.opening
from octavo.bookie.disk.files import DiskError, DiskFull, RealDisk, SyncFailed
from octavo.bookie.disk.finishing import finished
from octavo.bookie.entrylog.format import FILE_HEADER_BYTES, encode_file_header
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.journal.journal import JournalWriter
from octavo.bookie.journal.reader import JournalReader
from octavo.bookie.ledgers.high_water import (
    NAME,
    HighWaterDamaged,
    HighWaterMark,
    decode_high_water,
    encode_high_water,
    is_older,
    raised,
    read_high_water,
    write_high_water,
)
from octavo.metadata.high_water import HighWater
from octavo.protocol.codes import BookieIOError, Code, NoSuchLedger
from tests.crash_states.explore import CrashStateFailed, Explored, explore_kills, explore_one
from tests.sim.disk import SimDisk
from tests.sim.disk_handle import SimFile, SimHandle
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, KEY, Bench, abandon, entry_bytes, is_fenced
from tests.unit.bookie.test_entry_log import log_run, opened

# A start cut a log at the mark, the sync failed, and the process died. The next start did not sync
# the shorter file; a power failure brought the reserve back, and nothing showed where the records
# end. So each start seals the cut log again.


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


# A killed bookie left the journal's END block or a fence in the page cache. The next start treated
# it as durable; a power failure removed it, and the journal counted as damaged or the fence was
# forgotten.

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
    """A process was killed after it had named a journal file and before it synced the folder; the
    next process began another file. After a power failure only the second name was there:
    `JournalDamaged`. So a bookie syncs its folders before it builds on them."""
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
    """The next process flushed unsynced entries of a killed one to the log. A power failure then
    left their journal block gone and their log record torn or alone. So the journal is synced
    before it is read, and log data behind the mark is dropped."""
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


# Writing a good header again tore it in a power failure, and the bookie never started. The same for
# an entry log's first header, which is durable before the first record is written.


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


# A journal's next file was named and could not be opened. A smaller group then went into the old
# file, over its END block: the next start found a file without an end and a newer one.


@pytest.mark.parametrize("full", [False, True])
def test_nothing_is_written_into_a_journal_file_that_has_a_successor(
    full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`full`: the disk has no room for the new name, and may have taken it all the same. Otherwise
    a full disk is no reason to fail: the group goes into the old file's margin."""
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


# A checkpoint removed a deleted ledger from the index before state and mark were durable; the mark
# failed, and the ledger was there again without entries. So the index comes after the mark, and a
# start removes deleted ledgers from it.


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


# A bookie refuses a store that is older than its high-water mark.
def test_what_is_older() -> None:
    assert not is_older(None, None), "a first start, or one of a release that kept no mark"
    assert not is_older(HighWater(7, 0), None), "the folders are new, or were lost"
    assert not is_older(HighWater(7, 0), HighWater(7, 0))
    assert not is_older(HighWater(8, 0), HighWater(7, 0)), "a crash came between the two"
    assert is_older(HighWater(6, 0), HighWater(7, 0))
    assert is_older(None, HighWater(7, 0))


def test_a_mark_rises_above_all_that_is_known() -> None:
    assert raised(None, None, 0) == HighWater(1, 0)
    assert raised(HighWater(4, 2), None, 1) == HighWater(5, 2)
    assert raised(HighWater(4, 2), HighWater(9, 1), 3) == HighWater(10, 3)
    assert raised(None, HighWater(9, 5), 0) == HighWater(10, 5)


def test_the_highest_file_that_can_be_read_counts(tmp_path: Path) -> None:
    disk = RealDisk()
    folders = [str(tmp_path / name) for name in "abc"]
    for folder in folders:
        disk.make_directory(folder)
    assert read_high_water(disk, folders) is None
    write_high_water(disk, folders, HighWater(3, 1))
    write_high_water(disk, folders[:1], HighWater(4, 0))
    assert read_high_water(disk, folders) == HighWater(4, 1)
    (tmp_path / "a" / NAME).write_bytes(b"nonsense")
    assert read_high_water(disk, folders) == HighWater(3, 1)


def test_every_damaged_byte_and_every_cut_is_noticed() -> None:
    data = encode_high_water(HighWater(41, 2))
    assert decode_high_water(data) == HighWater(41, 2)
    for length in range(len(data)):
        with pytest.raises(HighWaterDamaged):
            decode_high_water(data[:length])
    for place in range(len(data)):
        with pytest.raises(HighWaterDamaged):
            decode_high_water(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
    with pytest.raises(HighWaterDamaged):
        decode_high_water(data + b"\0")


@pytest.mark.parametrize("mark", [HighWater(-1, 0), HighWater(0, -1)])
def test_numbers_that_no_mark_has(mark: HighWater) -> None:
    with pytest.raises(HighWaterDamaged):
        decode_high_water(encode_high_water(mark))


# A caller that is cancelled while a thread writes waits for the thread. A bookie's stop and its
async def test_a_cancellation_is_raised_when_the_change_has_ended() -> None:
    gate, ended = threading.Event(), threading.Event()

    def write() -> int:
        gate.wait(60)
        ended.set()
        return 7

    caller = asyncio.create_task(finished(asyncio.to_thread(write)))
    for _ in range(3):
        await asyncio.sleep(0)
        caller.cancel()
    await asyncio.sleep(0.01)
    assert not caller.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert ended.is_set()
    assert await finished(asyncio.to_thread(write)) == 7


async def test_a_failure_is_raised_also_to_a_cancelled_caller() -> None:
    gate = threading.Event()

    def write() -> None:
        gate.wait(60)
        raise SyncFailed("fdatasync: input/output error")

    caller = asyncio.create_task(finished(asyncio.to_thread(write)))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.sleep(0)
    gate.set()
    with pytest.raises(SyncFailed):
        await caller


class Records:
    url = "memory:"

    def __init__(self) -> None:
        self.mark: HighWater | None = None

    async def read(self, bookie_id: str) -> tuple[HighWater | None, int]:
        return self.mark, 0

    async def write(self, bookie_id: str, mark: HighWater, version: int) -> None:
        self.mark = mark

    async def stretch(self) -> int:
        return 0


async def test_a_stop_raises_the_mark_behind_a_rise_that_it_cancelled(tmp_path: Path) -> None:
    gate, begun = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    under_way: list[int] = [0]

    async def blocking(call: Any, *args: Any) -> Any:
        def held() -> Any:
            loop.call_soon_threadsafe(begun.set)
            gate.wait(60)
            under_way[0] += 1
            assert under_way[0] == 1, "two threads write the same file"
            try:
                return call(*args)
            finally:
                under_way[0] -= 1

        return await asyncio.to_thread(held)

    records: Any = Records()
    mark = HighWaterMark("b1", records, records, RealDisk(), [str(tmp_path)], blocking)
    rising = asyncio.create_task(mark.rise())
    await begun.wait()
    rising.cancel()
    loop.call_later(0.05, gate.set)
    await asyncio.gather(rising, return_exceptions=True)
    await mark.rise()
    assert records.mark == read_high_water(RealDisk(), [str(tmp_path)]) == HighWater(2, 0)
