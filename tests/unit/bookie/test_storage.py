"""The storage engine: add, read, fence, LAC, deletion, deferred syncs, restart, crash."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk, SyncFailed
from octavo.bookie.storage import Storage
from octavo.bookie.write.duplicate_adds import next_round
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger, Unauthorized
from tests.support.raw_bookie import RawClient, add_of, running_bookie
from tests.support.storage_support import (
    CONFIG,
    KEY,
    OTHER_KEY,
    Bench,
    entry_bytes,
    eventually,
    is_fenced,
    make_run,
)


async def test_an_added_entry_is_read_back() -> None:
    async with Bench() as bench:
        assert await bench.add(7, 0, b"a", b"bb", b"ccc") is Code.OK
        assert await bench.storage.reads.read(7, 1) == entry_bytes(7, 1, b"bb")
        assert await bench.storage.reads.read(7, -1) == entry_bytes(7, 2, b"ccc")
        assert bench.storage.control.last_add_confirmed(7) == 1
        assert bench.storage.control.last_entry(7) == 2
        assert bench.storage.ledgers() == [7]
        assert await bench.storage.reads.entries(7) == [(0, 2)]


async def test_absent_is_told_from_unknown_ledger() -> None:
    async with Bench() as bench:
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.read(7, 0)
        with pytest.raises(NoSuchLedger):
            bench.storage.control.last_add_confirmed(7)
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.entries(7)
        await bench.add(7, 5)
        for missing in (4, 6, 2**62, -2):
            with pytest.raises(NoSuchEntry):
                await bench.storage.reads.read(7, missing)
        await bench.storage.checkpoint()
        for missing in (4, 6, 2**62, -2):
            with pytest.raises(NoSuchEntry):
                await bench.storage.reads.read(7, missing)


async def test_reads_from_all_four_places() -> None:
    async with Bench() as bench:
        storage = bench.storage
        await bench.add(1, 0, b"logged")
        await storage.checkpoint()
        await bench.add(1, 1, b"flushing")
        storage._cache.swap()
        await bench.add(1, 2, b"active")
        assert storage._cache.find(1, 0) == (None, 0), "only the entry log has it"
        assert await storage.reads.read_many(1, 0, 10, 10_000) == [
            entry_bytes(1, 0, b"logged"),
            entry_bytes(1, 1, b"flushing"),
            entry_bytes(1, 2, b"active"),
        ]
        assert storage._read_cache.find(1, 0) is not None, "a cold read fills the read cache"
        assert await storage.reads.read(1, 0) == entry_bytes(1, 0, b"logged")
        storage._cache.active.ledgers.clear()
        storage._cache.flushing = None


@pytest.mark.parametrize("flushed", [False, True])
async def test_read_many_keeps_its_bounds(flushed: bool) -> None:
    async with Bench() as bench:
        await bench.add(1, 0, *[b"x" * 64] * 50)
        await bench.add(1, 60, b"after the gap")
        if flushed:
            await bench.storage.checkpoint()
        size = 4 + len(entry_bytes(1, 0, b"x" * 64))
        read_many = bench.storage.reads.read_many
        assert len(await read_many(1, 0, 10, 10**9)) == 10
        assert len(await read_many(1, 0, 100, size * 7)) == 7
        assert len(await read_many(1, 0, 100, size * 7 - 1)) == 6
        assert len(await read_many(1, 0, 100, 1)) == 1, "at least one, however long"
        assert len(await read_many(1, 45, 100, 10**9)) == 5, "ends before the first gap"
        with pytest.raises(NoSuchEntry):
            await read_many(1, 50, 100, 10**9)


async def test_a_wrong_key_can_neither_write_nor_fence() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        assert await bench.add(1, 1, key=OTHER_KEY) is Code.UNAUTHORIZED
        assert await bench.add(1, 1, key=OTHER_KEY, recovery=True) is Code.UNAUTHORIZED
        with pytest.raises(Unauthorized):
            await bench.storage.control.fence(1, OTHER_KEY)
        with pytest.raises(Unauthorized):
            await bench.storage.control.set_explicit_lac(1, OTHER_KEY, 0)
        with pytest.raises(Unauthorized):
            await bench.storage.control.fence(2, b"short")
        assert await bench.add(1, 1) is Code.OK
        await bench.crash()
        assert await bench.add(1, 2, key=OTHER_KEY) is Code.UNAUTHORIZED


async def test_ids_below_zero_are_refused() -> None:
    async with Bench() as bench:
        assert await bench.add(-1, 0) is Code.BAD_REQUEST
        assert await bench.add(1, -2) is Code.BAD_REQUEST
        assert bench.storage.ledgers() == []


async def test_a_chunk_is_answered_in_one_call_with_each_code() -> None:
    async with Bench() as bench:
        await bench.storage.control.fence(2, KEY)
        codes = await bench.send(
            make_run(1, 0, [b"a"]), make_run(2, 0, [b"b"]), make_run(1, 1, [b"c"], key=OTHER_KEY)
        )
        assert codes == [Code.OK, Code.FENCED, Code.UNAUTHORIZED]
        assert await bench.send(make_run(2, 0, [b"b"])) == [Code.FENCED]


async def test_a_fence_stands_behind_the_adds_before_it() -> None:
    async with Bench() as bench:
        order: list[str] = []
        before = bench.send(make_run(1, 0, [b"a"] * 3))
        before.add_done_callback(lambda _: order.append("add"))
        fence = asyncio.ensure_future(bench.storage.control.fence(1, KEY))
        fence.add_done_callback(lambda _: order.append("fence"))
        await asyncio.sleep(0)
        after = bench.send(make_run(1, 3, [b"late"]))
        recovery = bench.send(make_run(1, 3, [b"recovered"], recovery=True))
        await asyncio.gather(before, fence, after, recovery)
        assert order == ["add", "fence"]
        assert before.result() == [Code.OK]
        assert after.result() == [Code.FENCED]
        assert recovery.result() == [Code.OK]
        assert await bench.storage.reads.read(1, 3) == entry_bytes(1, 3, b"recovered")


async def test_a_fence_of_an_unknown_ledger_sticks_and_sets_the_key() -> None:
    async with Bench() as bench:
        await bench.storage.control.fence(9, KEY)
        for _ in range(2):
            assert await bench.add(9, 0) is Code.FENCED
            assert await bench.add(9, 0, key=OTHER_KEY, recovery=True) is Code.UNAUTHORIZED
            with pytest.raises(NoSuchEntry):
                await bench.storage.reads.read(9, 0)
            await bench.crash()
        assert await bench.add(9, 0, recovery=True) is Code.OK


async def test_a_fence_with_an_empty_write_cache_outlives_checkpoint_and_crash() -> None:
    """BookKeeper PR #4843: an empty cache skipped the flush of the state, and the mark moved."""
    async with Bench() as bench:
        await bench.add(1, 0)
        await bench.storage.checkpoint()
        await bench.storage.control.fence(1, KEY)
        await bench.storage.control.set_explicit_lac(1, KEY, 0)
        assert not bench.storage._cache.active.ledgers
        await bench.storage.checkpoint()
        await bench.crash()
        assert is_fenced(bench.storage, 1)
        assert bench.storage.control.last_add_confirmed(1) == 0
        assert await bench.add(1, 1) is Code.FENCED


async def test_concurrent_fences_share_one_record() -> None:
    async with Bench() as bench:
        before = bench.disk.syncs
        await asyncio.gather(*(bench.storage.control.fence(1, KEY) for _ in range(20)))
        assert bench.disk.syncs == before + 1
        await bench.storage.control.fence(1, KEY)
        assert bench.disk.syncs == before + 1


@pytest.mark.parametrize("checkpoint", [False, True])
async def test_explicit_lac_is_durable_and_never_goes_back(checkpoint: bool) -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"", b"", b"")
        await bench.storage.control.set_explicit_lac(1, KEY, 2)
        await bench.storage.control.set_explicit_lac(1, KEY, 1)
        assert bench.storage.control.last_add_confirmed(1) == 2
        if checkpoint:
            await bench.storage.checkpoint()
        await bench.crash()
        assert bench.storage.control.last_add_confirmed(1) == 2


async def test_lac_watchers_wake() -> None:
    async with Bench() as bench:
        unknown = bench.storage.control.watch_lac(1, -1)
        await bench.add(1, 0, b"", b"")
        assert await unknown == 0
        passed = bench.storage.control.watch_lac(1, -1)
        assert passed.done()
        waiting = bench.storage.control.watch_lac(1, 0)
        cancelled = bench.storage.control.watch_lac(1, 0)
        cancelled.cancel()
        await bench.storage.control.set_explicit_lac(1, KEY, 1)
        assert await waiting == 1
        assert len(bench.storage.control._watches) == 0


async def test_latest_write_of_an_entry_wins_wherever_it_lies() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, *[b"old"] * 10)
        await bench.storage.checkpoint()
        assert await bench.storage.reads.read(1, 4) == entry_bytes(1, 4, b"old")
        await bench.overwrite(make_run(1, 3, [b"new", b"new"], recovery=True))
        wanted = [entry_bytes(1, n, b"new" if n in (3, 4) else b"old") for n in range(10)]
        assert await bench.storage.reads.read_many(1, 0, 10, 10**6) == wanted
        await bench.storage.checkpoint()
        assert await bench.storage.reads.read_many(1, 0, 10, 10**6) == wanted
        await bench.crash()
        assert await bench.storage.reads.read_many(1, 0, 10, 10**6) == wanted
        assert await bench.storage.reads.entries(1) == [(0, 9)]


async def test_a_deleted_ledger_stays_deleted() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        await bench.storage.checkpoint()
        await bench.add(1, 1)
        await bench.add(2, 0)
        await bench.storage.delete_ledger(1)
        await bench.storage.delete_ledger(1)
        await bench.storage.delete_ledger(404)
        for step in ("now", "crash", "checkpoint", "crash"):
            if step == "crash":
                await bench.crash()
            if step == "checkpoint":
                await bench.storage.checkpoint()
            with pytest.raises(NoSuchLedger):
                await bench.storage.reads.read(1, 0)
            assert await bench.add(1, 2) is Code.FENCED
            assert await bench.add(1, 2, recovery=True) is Code.NO_LEDGER
            with pytest.raises(NoSuchLedger):
                await bench.storage.control.fence(1, KEY)
            assert bench.storage.ledgers() == [2]
        assert bench.storage._index.runs(1) == []


async def test_restart_and_crash_keep_everything() -> None:
    async with Bench() as bench:
        wanted = {}
        for number in range(30):
            ledger_id, first = number % 3, number // 3 * 4
            payloads = [b"%d-%d" % (number, index) for index in range(4)]
            assert await bench.add(ledger_id, first, *payloads) is Code.OK
            for index, payload in enumerate(payloads):
                wanted[ledger_id, first + index] = payload
            if number == 10:
                await bench.storage.checkpoint()
            if number == 15:
                await bench.crash()
            if number == 20:
                await bench.restart()
            if number == 25:
                await bench.crash()
        await bench.crash()
        for (ledger_id, entry_id), payload in wanted.items():
            entry = entry_bytes(ledger_id, entry_id, payload)
            assert await bench.storage.reads.read(ledger_id, entry_id) == entry
        assert bench.storage.control.last_entry(2) == 39


async def test_the_cache_is_flushed_when_full_and_old_journal_files_go() -> None:
    async with Bench() as bench:
        for number in range(80):
            assert await bench.add(1, number, b"x" * 100_000) is Code.OK
        await bench.storage.checkpoint()
        files = bench.disk.list_directory("/j")
        assert len([name for name in files if name.endswith(".journal")]) <= 2, files
        assert bench.storage.logs.position[1] > 7_000_000
        await bench.crash()
        for number in range(80):
            assert await bench.storage.reads.read(1, number) == entry_bytes(
                1, number, b"x" * 100_000
            )


async def test_reads_go_on_while_flushing() -> None:
    async with Bench() as bench:
        for number in range(50):
            await bench.add(1, number * 20, *[b"%d" % number * 50] * 20)

        async def reader(start: int) -> None:
            for entry_id in range(start, 1000, 7):
                number = entry_id // 20
                entry = await bench.storage.reads.read(1, entry_id)
                assert entry == entry_bytes(1, entry_id, b"%d" % number * 50)

        await asyncio.gather(bench.storage.checkpoint(), *(reader(start) for start in range(7)))


async def test_with_sync_off_force_makes_durable() -> None:
    async with Bench(replace(CONFIG, journal_sync=False)) as bench:
        assert await bench.add(1, 0) is Code.OK
        await bench.storage.force(1)
        assert await bench.add(1, 1) is Code.OK
        await bench.crash()
        assert await bench.storage.reads.entries(1) == [(0, 0)], (
            "acked before the sync: may be lost"
        )


async def test_on_a_real_disk_with_rocksdb(tmp_path: Path) -> None:
    config = BookieConfig(
        journal_directories=(str(tmp_path / "journal"),),
        ledger_directories=(str(tmp_path / "a"), str(tmp_path / "b")),
        write_cache_bytes_max=256 * 1024,
    )
    for first in (0, 1000):
        storage = await Storage.open(config, disk=RealDisk())
        for start in range(first, first + 1000, 100):
            done = asyncio.get_running_loop().create_future()
            run = make_run(5, start, [b"%d" % n * 100 for n in range(start, start + 100)])
            storage.add([run], done.set_result)
            assert [code for _, code in await done] == [Code.OK]
        found = await storage.reads.read_many(5, 0, first + 1000, 10**9)
        assert found == [entry_bytes(5, n, b"%d" % n * 100) for n in range(first + 1000)]
        await storage.close()


# Adds with a deferred sync: what acks them, makes them durable, loses them.
def syncs(bench: Bench) -> list[str]:
    found: list[str] = []

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.startswith("/j"):
            found.append(path)

    bench.disk.hook = hook
    return found


async def held(bench: Bench, ledger_id: int = 1) -> list[tuple[int, int]]:
    return await bench.storage.reads.entries(ledger_id)


async def test_they_are_acked_and_read_without_a_sync_and_a_power_failure_takes_them_back() -> None:
    async with Bench() as bench:
        found = syncs(bench)
        for entry_id in range(5):
            assert await bench.defer(1, entry_id, b"%d" % entry_id) is Code.OK
        assert found == []
        assert await bench.storage.reads.read(1, 4) == entry_bytes(1, 4, b"4")
        await bench.crash()
        with pytest.raises(NoSuchLedger):
            await held(bench)


async def test_a_force_is_answered_when_what_was_acked_before_is_durable() -> None:
    async with Bench() as bench:
        await bench.defer(1, 0)
        await bench.defer(2, 0)
        found = syncs(bench)
        await bench.storage.force(1)
        assert len(found) == 1
        await bench.storage.force(1)
        assert len(found) == 1, "nothing was deferred since"
        await bench.defer(1, 1)
        await bench.crash()
        assert await held(bench) == [(0, 0)]
        assert await held(bench, 2) == [(0, 0)], "of the same journal"


async def test_a_force_waits_for_the_sync() -> None:
    async with Bench() as bench:
        await bench.defer(1, 0)
        gate = threading.Event()
        begun = threading.Event()

        def hook(call: str, path: str) -> None:
            if call == "datasync" and path.startswith("/j"):
                begun.set()
                gate.wait(10)

        bench.disk.hook = hook
        try:
            forced = asyncio.ensure_future(bench.storage.force(1))
            await eventually(lambda: begun.is_set() or forced.done())
            assert not forced.done()
        finally:
            gate.set()
        await forced


async def test_in_a_group_with_others_they_are_acked_before_the_sync_and_those_after() -> None:
    async with Bench() as bench:
        gate = threading.Event()
        begun = threading.Event()

        def hook(call: str, path: str) -> None:
            if call == "datasync" and path.startswith("/j"):
                begun.set()
                gate.wait(10)

        bench.disk.hook = hook
        try:
            synced = bench.send(make_run(1, 0, [b"synced"]))
            deferred = bench.send(make_run(2, 0, [b"deferred"]), deferred=True)
            await eventually(begun.is_set)
            assert await deferred == [Code.OK]
            assert not synced.done()
            assert bench.storage.pending_add_bytes == len(make_run(1, 0, [b"synced"]).frames)
        finally:
            gate.set()
        assert await synced == [Code.OK]
        assert bench.storage.pending_add_bytes == 0
        await bench.crash()
        assert await held(bench) == await held(bench, 2) == [(0, 0)]


@pytest.mark.parametrize("by", ["an add", "a fence", "a LAC", "the same entry", "a checkpoint"])
async def test_what_else_is_durable_makes_them_durable(by: str) -> None:
    async with Bench() as bench:
        for entry_id in range(3):
            await bench.defer(1, entry_id)
        match by:
            case "an add":
                assert await bench.add(2, 0) is Code.OK
            case "a fence":
                await bench.storage.control.fence(1, KEY)
            case "a LAC":
                await bench.storage.control.set_explicit_lac(2, KEY, 0)
            case "the same entry":
                assert await bench.add(1, 1) is Code.OK
            case "a checkpoint":
                await bench.storage.checkpoint()
        await bench.crash()
        assert await held(bench) == [(0, 2)]


async def test_the_mark_passes_what_was_deferred_and_journal_files_go() -> None:
    config = replace(CONFIG, journal_file_bytes_max=200_000, journal_preallocate_bytes=20_000)
    async with Bench(config) as bench:
        for entry_id in range(60):
            assert await bench.defer(1, entry_id, bytes(10_000)) is Code.OK
        await bench.storage.checkpoint()
        mark = bench.storage._checkpointer.mark
        assert mark is not None
        assert mark.journals == bench.storage._journals.durable_positions
        assert len([name for name in bench.disk.list_directory("/j") if "00" in name]) == 1
        await bench.defer(1, 60)
        await bench.crash()
        assert await held(bench) == [(0, 59)]


async def test_a_file_that_ends_is_whole() -> None:
    config = replace(CONFIG, journal_file_bytes_max=100_000, journal_preallocate_bytes=20_000)
    async with Bench(config) as bench:
        for entry_id in range(30):
            await bench.defer(1, entry_id, bytes(10_000))
        files = [name for name in bench.disk.list_directory("/j") if name.endswith(".journal")]
        assert len(files) > 2
        await bench.crash()
        [(first, last)] = await held(bench)
        assert first == 0
        assert 8 * (len(files) - 1) <= last + 1 < 30


async def test_a_clean_end_keeps_all() -> None:
    async with Bench() as bench:
        await bench.defer(1, 0)
        await bench.restart()
        await bench.crash()
        assert await held(bench) == [(0, 0)]


async def test_after_a_fence_they_are_refused() -> None:
    async with Bench() as bench:
        await bench.defer(1, 0)
        deferred = bench.send(make_run(1, 1, [b""]), deferred=True)
        fence = asyncio.ensure_future(bench.storage.control.fence(1, KEY))
        await asyncio.sleep(0)
        late = bench.send(make_run(1, 2, [b""]), deferred=True)
        assert await late == [Code.FENCED]
        await fence
        assert deferred.done()
        assert await deferred == [Code.OK]
        await bench.storage.force(1)
        await bench.crash()
        assert is_fenced(bench.storage, 1)
        assert await held(bench) == [(0, 1)], "who was let in before the fence is durable with it"


async def test_a_force_of_what_is_unknown_or_fenced_is_none_of_its_business() -> None:
    # It syncs and says so, as Apache's bookies do.
    async with Bench() as bench:
        await bench.storage.force(404)
        await bench.add(1, 0)
        await bench.storage.control.fence(1, KEY)
        await bench.storage.force(1)


async def test_a_sync_that_fails_stops_everything_and_no_force_succeeds() -> None:
    bench = Bench()
    await bench.start()
    assert await bench.defer(1, 0) is Code.OK

    def hook(call: str, path: str) -> None:
        if call == "datasync" and path.startswith("/j"):
            raise SyncFailed(f"fdatasync {path}: planted")

    bench.disk.hook = hook
    with pytest.raises(SyncFailed):
        await bench.storage.force(1)
    assert [type(error) for error in bench.fatal] == [SyncFailed]
    assert await bench.defer(1, 1) is Code.IO
    bench.disk.hook = lambda call, path: None
    with pytest.raises(SyncFailed):
        await bench.storage.force(1)
    await bench.storage.close()


async def test_on_a_full_disk_what_is_there_can_be_forced() -> None:
    async with Bench() as bench:
        await bench.defer(1, 0)
        bench.disk.capacity = sum(len(inode.data) for inode in bench.disk.names.values())
        big = bench.send(make_run(2, 0, [bytes(500_000)]))
        await bench.storage.force(1)
        assert await big == [Code.READ_ONLY]
        bench.disk.capacity = 2**40
        await bench.crash()
        assert await held(bench) == [(0, 0)]


async def test_with_several_journals_a_force_syncs_the_ledgers_own() -> None:
    two = replace(CONFIG, journal_directories=("/j", "/k"))
    async with Bench(two) as bench:
        await bench.defer(2, 0)
        await bench.defer(1, 0)
        await bench.storage.force(2)
        await bench.crash()
        assert await held(bench, 2) == [(0, 0)]
        with pytest.raises(NoSuchLedger):
            await held(bench, 1)


async def test_with_sync_off_the_mark_goes_on() -> None:
    async with Bench(replace(CONFIG, journal_sync=False)) as bench:
        for entry_id in range(3):
            await bench.defer(1, entry_id)
        await bench.storage.checkpoint()
        mark = bench.storage._checkpointer.mark
        assert mark is not None
        assert mark.journals == bench.storage._journals.durable_positions
        await bench.crash()
        assert await held(bench) == [(0, 2)]


# Adds in any order: batches without a common entry wait together, others one after another. 1,000
class Waiting:
    def __init__(self, first: int, last: int) -> None:
        self.batch = type("Batch", (), {"first_entry": first, "last_entry": last})


@pytest.mark.parametrize("seed", range(50))
def test_a_round_is_the_longest_front_without_a_common_entry(seed: int) -> None:
    rng = random.Random(seed)
    spans = []
    for _ in range(rng.randint(1, 30)):
        first = rng.randint(0, 60)
        spans.append((first, first + rng.choice((0, 0, 0, 1, 5))))
    wanted: list[tuple[int, int]] = []
    taken: set[int] = set()
    for first, last in spans:
        ids = set(range(first, last + 1))
        if ids & taken:
            break
        taken |= ids
        wanted.append((first, last))
    line: Any = deque(Waiting(*span) for span in spans)
    found = next_round(line)
    assert [(one.batch.first_entry, one.batch.last_entry) for one in found] == wanted
    assert len(line) == len(spans) - len(wanted)


@pytest.mark.parametrize("order", ["backwards", "mixed"])
async def test_adds_in_disorder_share_their_syncs(tmp_path: Path, order: str) -> None:
    ids = list(range(300))
    ids.reverse() if order == "backwards" else random.Random(1).shuffle(ids)
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        groups: list[object] = []
        bookie.storage.write_stats.on_group = groups.append
        client.send(b"".join(add_of(1, entry_id) for entry_id in ids))
        acked = await client.acked(len(ids))
        assert sorted(acked) == [(1, entry_id) for entry_id in range(300)]
        assert len(groups) < 60
        assert await bookie.storage.reads.entries(1) == [(0, 299)]
        assert bookie.storage.duplicate_adds.describe() == dict.fromkeys(
            ("batches", "bytes", "lines", "tasks"), 0
        )
        client.close()


async def test_the_same_entry_twice_in_disorder_is_kept_once(tmp_path: Path) -> None:
    """A different entry under its id is refused, also when both wait at the same time."""
    async with running_bookie(tmp_path) as bookie:
        client = await RawClient.connect(bookie)
        assert await client.add(add_of(1, 9)) is Code.OK
        same, other = add_of(1, 3), add_of(1, 3, payload=b"another")
        client.send(add_of(1, 4) + same + same + other + add_of(1, 2))
        answers = [await client.answer() for _ in range(5)]
        refused = [one for one in answers if getattr(one, "code", Code.OK) is not Code.OK]
        assert len(refused) == 1
        client.close()
