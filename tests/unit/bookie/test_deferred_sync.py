"""Adds with a deferred sync: what acks them, makes them durable, loses them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest

from octavo.bookie.disk.files import SyncFailed
from octavo.protocol.codes import Code, NoSuchLedger
from tests.support.storage_support import (
    CONFIG,
    KEY,
    Bench,
    entry_bytes,
    eventually,
    is_fenced,
    make_run,
)


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
