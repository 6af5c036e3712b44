"""Journals: several of them, their groups, thread and replay."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from typing import Any, cast

import pytest

from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.files import DiskFull, File, SyncFailed
from octavo.bookie.journal import reader
from octavo.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    BlockKind,
    JournalDamaged,
    MetaOp,
    encode_block_header,
    encode_meta,
    file_name,
)
from octavo.bookie.journal.journal import Journal, JournalWriter, journal_of
from octavo.bookie.journal.mark import NOWHERE, Position, read_mark
from octavo.bookie.journal.reader import JournalReader, records_of
from octavo.bookie.journal.thread import JournalThread
from octavo.protocol.codes import Code, NoSuchLedger
from octavo.protocol.entry import HEADER
from octavo.protocol.frames import ADD_IDS, Flag, add_prefix
from tests.support.kit.quiescence import in_use
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import (
    CONFIG,
    KEY,
    Bench,
    entry_bytes,
    eventually,
    is_fenced,
    make_run,
)

TWO = replace(CONFIG, journal_directories=("/j", "/k"))
FIRST = "/{}/0000000000000001.journal"
IN = {0: 2, 1: 1}
"""For each of two journals, a ledger in it."""
_FENCE = encode_meta(MetaOp.FENCE, IN[0], KEY)
ONE_FENCE = (
    encode_block_header(BlockKind.GROUP, 1, FILE_HEADER_BYTES, FILE_HEADER_BYTES, [_FENCE]) + _FENCE
)


def test_the_journal_of_a_ledger_never_changes() -> None:
    # Part of the format: otherwise unflushed entries would be sought in the wrong journal.
    assert [journal_of(ledger_id, 2) for ledger_id in range(12)] == [
        *(0, 1, 0, 1, 0, 0, 1, 0, 1, 1, 0, 1)
    ]
    assert [journal_of(ledger_id, 3) for ledger_id in (0, 1, 2, 3, 2**40, 2**63 - 1)] == [
        *(0, 1, 0, 2, 0, 2)
    ]
    assert {journal_of(ledger_id, 1) for ledger_id in range(100)} == {0}


@pytest.mark.parametrize("count", [2, 3, 4, 7])
@pytest.mark.parametrize("stride", [1, 2, 3, 4, 8, 100])
def test_ids_spread_evenly_in_any_stride(count: int, stride: int) -> None:
    share = Counter(journal_of(n * stride, count) for n in range(4000))
    assert len(share) == count
    assert max(share.values()) < 1.15 * 4000 / count


async def test_each_ledger_stands_in_its_journal_alone() -> None:
    async with Bench(TWO) as bench:
        names = {0: b"in the first", 1: b"in the second"}
        for index, ledger_id in IN.items():
            await bench.add(ledger_id, 0, names[index])
            await bench.storage.control.fence(ledger_id, KEY)
            await bench.storage.control.set_explicit_lac(ledger_id, KEY, 0)
        for index, path in enumerate(TWO.journal_directories):
            data = b"".join(
                bytes(inode.data)
                for name, inode in bench.disk.names.items()
                if name.startswith(path + "/")
            )
            assert names[index] in data
            assert names[1 - index] not in data
            meta = data.count(IN[index].to_bytes(8, "big") + KEY)
            assert meta == 2, "fence and LAC"
            assert data.count(IN[1 - index].to_bytes(8, "big") + KEY) == 0


async def test_one_add_with_ledgers_of_both_is_answered_in_parts() -> None:
    async with Bench(TWO) as bench:
        runs = [make_run(ledger, n, [b"%d" % n]) for n in range(5) for ledger in (1, 2, 3, 5)]
        parts: list[Sequence[tuple[AddBatch, Code]]] = []
        bench.storage.add(runs, parts.append)
        await eventually(lambda: sum(map(len, parts)) == len(runs))
        assert len(parts) == 2
        for part in parts:
            assert len({journal_of(run.ledger_id, 2) for run, _ in part}) == 1
            assert [run for run, _ in part] == [r for r in runs if r in [run for run, _ in part]]
            assert all(code is Code.OK for _, code in part)
        await bench.crash()
        for ledger_id in (1, 2, 3, 5):
            assert await bench.storage.reads.entries(ledger_id) == [(0, 4)]


@pytest.mark.long
async def test_a_slow_journal_does_not_hold_up_the_other() -> None:
    async with Bench(TWO) as bench:
        gate = threading.Event()

        def hook(call: str, path: str) -> None:
            if call == "datasync" and path.startswith("/k"):
                gate.wait(10)

        bench.disk.hook = hook
        try:
            slow = bench.send(make_run(IN[1], 0, [b"waits"]))
            for number in range(20):
                assert await bench.add(IN[0], number) is Code.OK
            assert not slow.done()
            with pytest.raises(NoSuchLedger):
                bench.storage.control.known(99)
            assert bench.storage.pending_add_bytes > 0
            # A checkpoint does not vouch for adds in flight.
            await bench.storage.checkpoint()
            mark = bench.storage._checkpointer.mark
            assert mark is not None
            assert mark.journals[1] == Position(1, 24)
            assert mark.journals[0] > Position(1, 24)
        finally:
            gate.set()
        assert await slow == [Code.OK]
        await bench.crash()
        assert await bench.storage.reads.entries(IN[1]) == [(0, 0)]
        assert await bench.storage.reads.entries(IN[0]) == [(0, 19)]


@pytest.mark.parametrize("broken", ["/j", "/k"])
async def test_a_sync_that_fails_in_one_stops_all(broken: str) -> None:
    bench = Bench(TWO)
    await bench.start()
    await bench.add(IN[0], 0)
    await bench.add(IN[1], 0)

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.startswith(broken):
            raise SyncFailed(f"fdatasync {path}: input/output error")

    bench.disk.hook = hook
    index = TWO.journal_directories.index(broken)
    assert await bench.add(IN[index], 1) is Code.IO
    assert [type(error) for error in bench.fatal] == [SyncFailed]
    bench.disk.hook = lambda call, path: None
    assert await bench.add(IN[1 - index], 1) is Code.IO, "the other journal acks no more either"
    with pytest.raises(Exception, match="input/output"):
        await bench.storage.control.fence(IN[1 - index], KEY)
    await bench.storage.close()


async def test_each_journal_rolls_and_is_trimmed_by_itself() -> None:
    config = replace(TWO, journal_file_bytes_max=4096, journal_preallocate_bytes=1024)
    async with Bench(config) as bench:
        for number in range(20):
            await bench.add(IN[1], number, b"x" * 1000)
        await bench.add(IN[0], 0, b"y")
        await bench.storage.checkpoint()
        mark = bench.storage._checkpointer.mark
        assert mark is not None
        assert mark.journals[0].file_id == 1
        assert mark.journals[1].file_id > 5
        left = [name for name in bench.disk.names if name.endswith(".journal")]
        assert sorted(left) == [
            "/j/0000000000000001.journal",
            f"/k/{mark.journals[1][0]:016x}.journal",
        ]
        assert "/k/journal.spare" in bench.disk.names
        await bench.crash()
        assert await bench.storage.reads.entries(IN[1]) == [(0, 19)]
        assert await bench.storage.reads.entries(IN[0]) == [(0, 0)]


async def test_only_one_journal_to_replay() -> None:
    async with Bench(TWO) as bench:
        await bench.add(IN[0], 0)
        await bench.storage.checkpoint()
        await bench.add(IN[1], 0, b"not flushed")
        await bench.crash()
        assert await bench.storage.reads.read(IN[1], 0) == entry_bytes(IN[1], 0, b"not flushed")
        assert await bench.storage.reads.entries(IN[0]) == [(0, 0)]


async def test_a_replay_that_flushes_between_the_journals() -> None:
    async with Bench(TWO) as bench:
        for index in (0, 1):
            for number in range(8):
                await bench.add(IN[index], number, b"z" * 50_000)
        await bench.crash(write_cache_bytes_max=120_000)
        for index in (0, 1):
            assert await bench.storage.reads.entries(IN[index]) == [(0, 7)]


async def test_a_power_failure_within_such_a_replay() -> None:
    rng = random.Random(7)
    async with Bench(TWO) as bench:
        for index in (0, 1):
            for number in range(6):
                await bench.add(IN[index], number, b"z" * 50_000)
        await bench.storage.control.fence(IN[1], KEY)
        for skip in range(0, 60, 3):
            left = skip

            def hook(call: str, path: str) -> None:
                nonlocal left
                if call in ("datasync", "rename", "sync_directory"):
                    left -= 1
                    if left < 0:
                        raise SyncFailed(f"{call} {path}: power")

            after = bench.disk.after_crash(rng)
            bench.disk = after
            after.hook = hook
            bench.config = replace(TWO, write_cache_bytes_max=120_000)
            try:
                await bench.start()
            except SyncFailed:
                await bench.storage.close()
            after.hook = lambda call, path: None
        await bench.crash(rng)
        assert is_fenced(bench.storage, IN[1])
        for index in (0, 1):
            assert await bench.storage.reads.entries(IN[index]) == [(0, 5)]


async def test_the_file_that_the_mark_names_is_gone_from_one_journal() -> None:
    async with Bench(TWO) as bench:
        await bench.add(IN[0], 0)
        await bench.add(IN[1], 0)
        await bench.storage.checkpoint()
        after = bench.disk.after_crash()
        for name in [found for found in after.names if found.startswith("/k/")]:
            del after.names[name]
        bench.disk = after
        with pytest.raises(JournalDamaged, match="missing from /k"):
            await bench.start()


async def test_a_crash_between_the_beginnings_of_two_journals() -> None:
    """The first has a file, the second none; then the second is marked as not begun."""
    bench = Bench(TWO)

    def hook(call: str, path: str) -> None:
        if path.startswith("/k") and call == "rename":
            raise SyncFailed("power")

    bench.disk.hook = hook
    with pytest.raises(SyncFailed):
        await bench.start()
    bench.disk = bench.disk.after_crash()
    assert [name for name in bench.disk.names if name.endswith(".journal")] == [FIRST.format("j")]
    # The process died here, after a start that had replayed the first journal.
    bench.disk.open(FIRST.format("j"), write=True).pwritev([ONE_FENCE], FILE_HEADER_BYTES)
    bench.disk.hook = hook
    with pytest.raises(SyncFailed):
        await bench.start()
    bench.disk = bench.disk.after_crash()
    mark = read_mark(bench.disk, TWO.ledger_directories)
    assert mark is not None
    assert mark.journals == (Position(1, FILE_HEADER_BYTES + len(ONE_FENCE)), NOWHERE)
    async with bench:
        assert is_fenced(bench.storage, IN[0])
        await bench.add(IN[1], 0)
        await bench.crash()
        assert await bench.storage.reads.entries(IN[1]) == [(0, 0)]
        after = bench.disk.after_crash()
        del after.names[FIRST.format("k")]
    bench.disk = after
    with pytest.raises(JournalDamaged, match="missing from /k"):
        await bench.start()


async def test_many_ledgers_under_load_with_crashes_at_any_time() -> None:
    rng = random.Random(11)
    config = replace(
        TWO,
        journal_directories=("/j", "/k", "/i"),
        journal_file_bytes_max=16_384,
        journal_preallocate_bytes=4096,
        write_cache_bytes_max=20_000,
        flush_interval_ms=5,
    )
    async with Bench(config) as bench:
        acked: dict[int, int] = dict.fromkeys(range(1, 9), 0)
        for _ in range(6):
            for _ in range(rng.randrange(5, 40)):
                runs = []
                for ledger_id in rng.sample(sorted(acked), 4):
                    runs.append(make_run(ledger_id, acked[ledger_id], [rng.randbytes(200)] * 2))
                    acked[ledger_id] += 2
                assert set(await bench.send(*runs)) == {Code.OK}
            unsure = bench.send(*[make_run(one, 10_000, [b""]) for one in acked])
            await asyncio.sleep(0)
            await bench.crash(rng)
            unsure.cancel()
            for ledger_id, count in acked.items():
                if count:
                    found = await bench.storage.reads.entries(ledger_id)
                    assert found[0] == (0, count - 1), ledger_id


# The journal commits group after group until its queue is empty, and then counts nothing.
class AtOnce(Executor):
    def submit(self, call: Any, /, *args: Any, **_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(call(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class Writer:
    """Takes groups: it is full, takes one, and is full again, as the test says."""

    file_id, offset, is_behind, short_of_space = 1, 0, False, False

    def __init__(self, full: list[bool]) -> None:
        self.full = full
        self.groups: list[bytes] = []

    def write(self, buffers: list[bytes], _length: int, _sync: bool) -> None:
        if self.full.pop(0):
            raise DiskFull("/j is full")
        self.groups.append(b"".join(buffers))


@pytest.mark.parametrize(
    "full", [[False] * 4, [True, False, True, False], [True] * 4], ids=["well", "again", "full"]
)
async def test_all_that_is_queued_is_committed_by_one_start(full: list[bool]) -> None:
    writer = Writer(list(full))
    journal = Journal(
        cast(Any, writer), executor=AtOnce(), group_bytes_max=10, on_fatal=lambda _: None,
        on_group=lambda _: None,
    )  # fmt: skip
    reported: list[str] = []
    for name in (b"a", b"b", b"c", b"d"):
        journal.append([name * 10], 10, lambda error: reported.append(type(error).__name__))
    assert in_use(journal) == {"bytes": 40, "buffers": 4}
    for _ in range(100):
        await asyncio.sleep(0)
    assert reported == ["DiskFull" if one else "NoneType" for one in full]
    assert len(writer.groups) == full.count(False), "a group holds ten bytes"
    assert in_use(journal) == {}
    assert journal.waits_in_vain() == ""


# The journal's thread: calls in order, answers in the loop, nothing after the end.
@pytest.fixture
def thread() -> Iterator[JournalThread]:
    found = JournalThread("octavo-journal-test")
    yield found
    found.shutdown()


async def test_calls_are_made_in_order_and_on_one_thread(thread: JournalThread) -> None:
    loop = asyncio.get_running_loop()
    made: list[tuple[int, str]] = []

    def call(number: int) -> int:
        made.append((number, threading.current_thread().name))
        if number == 3:
            raise OSError("disk")
        return number * 10

    found = await asyncio.gather(
        *(loop.run_in_executor(thread, call, number) for number in range(6)), return_exceptions=True
    )
    assert made == [(number, "octavo-journal-test") for number in range(6)]
    assert [repr(one) for one in found] == ["0", "10", "20", "OSError('disk')", "40", "50"]


async def test_what_is_cancelled_before_its_turn_is_not_made(thread: JournalThread) -> None:
    loop = asyncio.get_running_loop()
    go_on = threading.Event()
    made: list[int] = []
    first = loop.run_in_executor(thread, go_on.wait)
    second = loop.run_in_executor(thread, made.append, 2)
    third = loop.run_in_executor(thread, made.append, 3)
    second.cancel()
    go_on.set()
    await asyncio.gather(first, third)
    assert made == [3]


async def test_one_that_is_cancelled_while_it_is_made_ends_quietly(thread: JournalThread) -> None:
    loop = asyncio.get_running_loop()
    errors: list[object] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    begun, go_on = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        go_on.wait()

    one = loop.run_in_executor(thread, call)
    await asyncio.to_thread(begun.wait)
    one.cancel()
    go_on.set()
    assert await loop.run_in_executor(thread, lambda: 7) == 7
    assert one.cancelled()
    assert errors == []


async def test_after_its_end_it_takes_nothing_and_has_made_what_it_took() -> None:
    thread = JournalThread("octavo-journal-test")
    loop = asyncio.get_running_loop()
    made: list[int] = []
    taken = [loop.run_in_executor(thread, made.append, number) for number in range(5)]
    thread.shutdown(wait=True)
    assert made == [0, 1, 2, 3, 4]
    await asyncio.gather(*taken)
    with pytest.raises(RuntimeError, match="octavo-journal-test takes no more calls"):
        loop.run_in_executor(thread, made.append, 9)


def test_a_loop_that_closed_meanwhile_is_no_error(
    thread: JournalThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[object] = []
    monkeypatch.setattr(threading, "excepthook", died.append)
    go_on = threading.Event()

    async def leave() -> None:
        asyncio.get_running_loop().run_in_executor(thread, go_on.wait)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(leave())
    loop.close()
    go_on.set()
    thread.shutdown(wait=True)
    assert died == []


# Journals after a crash or on a bad disk (BookKeeper's BookieJournalTest).
BODIES = [b"first" * 10, b"second" * 200, b"third" * 30]


class Folder:
    def __init__(self, *, sync: bool = True, file_bytes_max: int = 1 << 20) -> None:
        self.disk = MemoryDisk()
        self.disk.make_directory("/j")
        self.writer = JournalWriter(
            self.disk, "/j", file_bytes_max=file_bytes_max, preallocate_bytes=8192, sync=sync
        )
        self.starts: list[tuple[int, int]] = []

    def begin(self, file_id: int = 1) -> Folder:
        self.writer.open(file_id)
        return self

    def write(self, *bodies: bytes) -> Folder:
        for body in bodies:
            self.writer.write([body], len(body))
            start = self.writer.offset - len(body) - BLOCK_HEADER_BYTES
            self.starts.append((self.writer.file_id, start))
        return self

    def file(self, file_id: int = 1) -> File:
        return self.disk.open(f"/j/{file_name(file_id)}", write=True)

    def spoil(self, offset: int, data: bytes, file_id: int = 1) -> Folder:
        self.file(file_id).pwritev([data], offset)
        return self

    def cut(self, length: int, file_id: int = 1) -> Folder:
        self.file(file_id).truncate(length)
        return self

    def read(self, mark: Position | None = None) -> list[bytes]:
        reader = JournalReader(self.disk, "/j", mark)
        found = [block.body for block in reader.blocks()]
        self.reader = reader
        return found


def written(**options: bool) -> Folder:
    return Folder(**options).begin().write(*BODIES)


def test_no_journal_at_all() -> None:
    folder = Folder()
    assert folder.read() == []
    assert folder.reader.seal() == 0


def test_what_was_written_is_read_back() -> None:
    folder = written()
    assert folder.read() == BODIES
    assert folder.reader.end == (1, folder.writer.offset)


def test_empty_file_and_header_only() -> None:
    folder = Folder().begin()
    assert folder.read() == []
    folder.cut(0)
    assert folder.read() == [], "made, never used"
    assert folder.reader.seal() == 1
    assert folder.read() == [], "sealed, a newer file may follow"
    folder.begin(2).write(BODIES[0])
    assert folder.read() == [BODIES[0]]


def test_all_junk() -> None:
    folder = Folder().begin().spoil(0, b"junk" * 1000)
    with pytest.raises(
        JournalDamaged, match=r"0000000000000001\.journal: header begins with b'junk"
    ):
        folder.read()


def test_junk_after_the_last_block_is_cut() -> None:
    folder = written()
    folder.spoil(folder.writer.offset, b"\xde\xad" * 500)
    assert folder.read() == BODIES


@pytest.mark.parametrize("cut", [1, 20, BLOCK_HEADER_BYTES, BLOCK_HEADER_BYTES + 1, 149 + 44])
def test_a_torn_last_block_is_cut(cut: int) -> None:
    folder = written()
    folder.cut(folder.starts[2][1] + cut)
    assert folder.read() == BODIES[:2]


def test_every_length_of_the_file_reads_a_prefix() -> None:
    folder = written()
    for length in range(folder.writer.offset, -1, -7):
        folder.cut(length)
        if 0 < length < FILE_HEADER_BYTES:
            with pytest.raises(JournalDamaged):
                folder.read()
        else:
            found = folder.read()
            assert found == BODIES[: len(found)]


@pytest.mark.parametrize("where", [0, 5, 8, 16, 30, 43, BLOCK_HEADER_BYTES + 3])
def test_damage_in_the_last_block_is_a_torn_tail(where: int) -> None:
    folder = written()
    offset = folder.starts[2][1] + where
    folder.spoil(offset, bytes([folder.file().pread(1, offset)[0] ^ 0x40]))
    assert folder.read() == BODIES[:2]


@pytest.mark.parametrize("where", [0, 5, 8, 16, 30, 43, BLOCK_HEADER_BYTES + 3])
@pytest.mark.parametrize("block", [0, 1])
def test_damage_before_good_blocks_is_refused(block: int, where: int) -> None:
    folder = written()
    start = folder.starts[block][1]
    offset = start + where
    folder.spoil(offset, bytes([folder.file().pread(1, offset)[0] ^ 0x40]))
    next_start = folder.starts[block + 1][1]
    message = rf"0000000000000001\.journal is damaged from byte {start} to byte {next_start}"
    with pytest.raises(JournalDamaged, match=message):
        folder.read()


def test_damage_before_the_mark_does_not_matter() -> None:
    folder = written().spoil(60, b"damaged")
    assert folder.read(Position(1, folder.starts[1][1])) == BODIES[1:]


def test_unsynced_blocks_may_be_lost_in_any_order() -> None:
    """With sync off, a hole before a later block breaks no promise: `synced` says so."""
    folder = written(sync=False)
    folder.spoil(folder.starts[1][1], b"\0" * 30)
    assert folder.read() == BODIES[:1]


def test_force_makes_a_hole_before_it_damage() -> None:
    folder = Folder(sync=False).begin().write(BODIES[0])
    folder.writer.sync()
    folder.write(BODIES[1])
    folder.spoil(folder.starts[0][1], b"\0" * 30)
    with pytest.raises(JournalDamaged):
        folder.read()


def test_files_follow_one_another() -> None:
    folder = Folder(file_bytes_max=2000).begin()
    bodies = [b"%03d" % number * 200 for number in range(20)]
    folder.write(*bodies)
    assert folder.writer.file_id > 5
    assert folder.read() == bodies
    assert folder.read(Position(*folder.starts[7])) == bodies[7:]


def test_a_block_larger_than_a_file_gets_one_of_its_own() -> None:
    folder = Folder(file_bytes_max=2000).begin().write(b"a" * 100, b"b" * 9000, b"c" * 100)
    assert folder.read() == [b"a" * 100, b"b" * 9000, b"c" * 100]


def test_damage_at_the_end_of_a_file_that_is_not_the_last_is_refused() -> None:
    folder = Folder(file_bytes_max=2000).begin().write(b"a" * 1500, b"b" * 1500)
    assert folder.writer.file_id == 2
    folder.spoil(folder.starts[0][1] + 100, b"X")
    with pytest.raises(JournalDamaged, match=r"1\.journal is damaged from byte 24 to byte 1568"):
        folder.read()
    folder.spoil(1568, bytes(44))
    with pytest.raises(JournalDamaged, match=r"1\.journal is damaged from byte 24 to its end"):
        folder.read()


def test_a_retired_file_is_used_again() -> None:
    folder = Folder(file_bytes_max=10_000).begin().write(*[b"old" * 1000] * 9)
    assert folder.writer.file_id > 2
    folder.writer.remove_below(folder.writer.file_id)
    assert folder.disk.list_directory("/j") == [file_name(folder.writer.file_id), "journal.spare"]
    kept = folder.disk.names["/j/journal.spare"]
    size = len(kept.data)
    mark = Position(folder.writer.file_id, 24)
    folder.writer.roll()
    assert folder.disk.names[f"/j/{file_name(folder.writer.file_id)}"] is kept
    assert folder.disk.list_directory("/j")[-1].endswith(".journal")
    folder.write(b"new")
    assert len(kept.data) == size, "its space is already there"
    assert folder.read(mark)[-1] == b"new", "the old blocks in it count for nothing"


def test_missing_files_are_named() -> None:
    folder = Folder(file_bytes_max=2000).begin().write(*[b"x" * 1500] * 5)
    folder.disk.unlink(f"/j/{file_name(3)}")
    with pytest.raises(JournalDamaged, match=r"0+3\.journal to 0+3\.journal are missing"):
        folder.read()
    with pytest.raises(JournalDamaged, match=r"0+3\.journal is missing"):
        folder.read(Position(3, 100))
    assert len(folder.read(Position(4, 24))) == 2


def test_a_stale_block_of_another_file_or_place_is_not_taken() -> None:
    folder = Folder().begin().write(BODIES[0], BODIES[1])
    size = folder.writer.offset
    image = folder.file().pread(size, 0)
    other = Folder().begin(2)
    other.spoil(FILE_HEADER_BYTES, image[FILE_HEADER_BYTES:], file_id=2)
    assert other.read() == []
    moved = Folder().begin()
    moved.spoil(FILE_HEADER_BYTES + 8, image[FILE_HEADER_BYTES:])
    assert moved.read() == []


def test_a_file_under_a_wrong_name_is_refused() -> None:
    folder = written()
    folder.disk.rename(f"/j/{file_name(1)}", f"/j/{file_name(4)}")
    with pytest.raises(JournalDamaged, match="rename it to that"):
        folder.read()


def test_after_a_torn_tail_a_new_file_goes_on() -> None:
    folder = written()
    folder.cut(folder.starts[2][1] + 60)
    assert folder.read() == BODIES[:2]
    assert folder.reader.seal() == 1
    folder.begin(2).write(b"after")
    assert folder.read() == [*BODIES[:2], b"after"]


def test_an_unknown_version_is_named() -> None:
    from octavo.bookie.journal import format as journal_format

    head = bytearray(journal_format.encode_file_header(1))
    head[11] = 9
    from crc32c import crc32c

    head[-4:] = crc32c(bytes(head[:-4])).to_bytes(4, "big")
    folder = Folder().begin().spoil(0, bytes(head))
    with pytest.raises(JournalDamaged, match="version 9 is unknown; this program reads 1"):
        folder.read()


# Equal frames of a journal block are decoded in bulk, with the same result as singly.
KEYS = (b"k" * 20, b"l" * 20)


def frame(ledger_id: int, entry_id: int, size: int, key: bytes, flags: int) -> bytes:
    entry = HEADER.pack(ledger_id, entry_id, entry_id - 1, 0) + b"x" * size
    return add_prefix(key, len(entry), flags) + entry


def draw(rng: random.Random) -> list[bytes]:
    """Draw frames that mostly continue the one before, and sometimes differ in one thing."""
    ledger, entry, size, key, flags = 1, 0, 30, KEYS[0], 0
    frames = []
    for _ in range(rng.randrange(1, 60)):
        frames.append(frame(ledger, entry, size, key, flags))
        entry += 1
        match rng.randrange(25):
            case 0:
                ledger = rng.randrange(1, 3)
            case 1:
                entry = max(0, entry + rng.choice((-3, -2, -1, 1, 7)))
            case 2:
                size = rng.choice((0, 1, 30, 31))
            case 3:
                key = rng.choice(KEYS)
            case 4:
                flags = rng.choice((0, int(Flag.RECOVERY_ADD)))
    return frames


def told(runs: list[AddBatch]) -> list[tuple[int, int, bytes, bool, bytes]]:
    found = []
    for run in runs:
        offsets = [*run.offsets, len(run.frames)]
        assert len(offsets) == run.count + 1
        for n in range(run.count):
            part = bytes(run.frames[offsets[n] : offsets[n + 1]])
            found.append((run.ledger_id, run.first_entry + n, run.key, run.recovery, part))
    return found


@pytest.mark.parametrize("seed", range(300))
def test_every_add_is_told_as_it_stands(seed: int) -> None:
    frames = draw(random.Random(seed))
    runs = [run for run in records_of(b"".join(frames)) if isinstance(run, AddBatch)]
    wanted = []
    for one in frames:
        _, head, key, ledger_id, entry_id = ADD_IDS.unpack_from(one)
        wanted.append((ledger_id, entry_id, key, bool(head & int(Flag.RECOVERY_ADD)), one))
    assert told(runs) == wanted


def test_alike_frames_make_one_run() -> None:
    frames = [frame(7, n, 100, KEYS[0], 0) for n in range(500)]
    frames += [
        frame(7, 500 + n, 99, KEYS[0], 0) for n in range(3)
    ]  # shorter entries continue the run
    (run,) = records_of(b"".join(frames))
    assert isinstance(run, AddBatch)
    assert (run.first_entry, run.count) == (0, 503)
    assert reader._alike(b"".join(frames), 0, len(frames[0])) == 500


@pytest.mark.parametrize("count", [1, 2, 40])
def test_a_frame_that_does_not_end_in_its_block_is_damage(count: int) -> None:
    body = b"".join(frame(7, n, 100, KEYS[0], 0) for n in range(count))
    with pytest.raises(JournalDamaged):
        list(records_of(body[:-1]))
