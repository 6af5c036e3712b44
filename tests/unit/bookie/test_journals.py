"""Several journals: the choice for a ledger, independence, and crashes."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.files import SyncFailed
from octavo.bookie.journal.format import (
    FILE_HEADER_BYTES,
    BlockKind,
    JournalDamaged,
    MetaOp,
    encode_block_header,
    encode_meta,
)
from octavo.bookie.journal.journal import journal_of
from octavo.bookie.journal.mark import NOWHERE, Position, read_mark
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
