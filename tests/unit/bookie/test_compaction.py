"""Emptying an entry log: live entries move, no crash loses an entry, damage keeps the log."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import pytest

from octavo.bookie.disk.damage import DamagedRead, DamageKind
from octavo.bookie.disk.files import DiskError, DiskFull, SyncFailed
from octavo.bookie.entrylog.format import encode_map
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.gc.compaction import Cleared
from octavo.protocol.codes import BookieError, Code, NoSuchEntry, NoSuchLedger, ReadOnly
from tests.support.memory_disk import MemoryDisk
from tests.support.memory_index import MemoryIndex
from tests.support.storage_support import CONFIG, Bench, abandon, entry_bytes, make_run

TINY = replace(
    CONFIG,
    entry_log_bytes_max=4096,
    journal_preallocate_bytes=2048,
    journal_file_bytes_max=8192,
    gc_bytes_per_s=2**40,
)
PAYLOAD = b"p" * 300


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench(TINY) as made:
        yield made


def logs_of(bench: Bench) -> EntryLogs:
    return bench.storage.logs


async def fill(bench: Bench, rounds: int = 6, ledgers: int = 3) -> dict[tuple[int, int], bytes]:
    held: dict[tuple[int, int], bytes] = {}
    for number in range(rounds):
        for ledger_id in range(ledgers):
            payloads = [b"%d:%d:%d" % (ledger_id, number, n) + PAYLOAD for n in range(3)]
            assert await bench.add(ledger_id, number * 3, *payloads) is Code.OK
            held |= {(ledger_id, number * 3 + n): payloads[n] for n in range(3)}
        await bench.storage.checkpoint()
    return held


async def check(bench: Bench, held: dict[tuple[int, int], bytes]) -> None:
    for (ledger_id, entry_id), payload in held.items():
        assert await bench.storage.reads.read(ledger_id, entry_id) == entry_bytes(
            ledger_id, entry_id, payload
        )


async def clear_all(bench: Bench) -> list[Cleared]:
    storage = bench.storage
    for ledger_id in storage.compactor.unsure_deletions():
        await storage.delete_ledger(ledger_id)
    settled = storage._checkpointer.settled_log_id()
    return [
        await storage.compactor.clear(log_id, copy=True)
        for log_id in logs_of(bench).log_ids
        if log_id < settled
    ]


async def test_what_is_live_moves_and_the_logs_go(bench: Bench) -> None:
    held = await fill(bench)
    old = logs_of(bench).log_ids
    assert len(old) > 3
    await bench.storage.delete_ledger(1)
    await bench.storage.checkpoint()
    held = {key: payload for key, payload in held.items() if key[0] != 1}
    done = await clear_all(bench)
    assert [one.log_id for one in done if one.removed] == old[:-1]
    assert sum(one.copied_bytes for one in done) < sum(one.read_bytes for one in done)
    assert not [path for path in bench.disk.names if any(f"{n:016x}.log" in path for n in old[:-1])]
    await check(bench, held)
    with pytest.raises(NoSuchLedger):
        await bench.storage.reads.read(1, 0)
    await bench.crash()
    await check(bench, held)
    bench.indexes.clear()
    await bench.crash()
    await check(bench, held)


async def test_only_the_newest_copy_moves(bench: Bench) -> None:
    held = await fill(bench)
    newer = [b"newer %d" % n for n in range(4)]
    assert await bench.overwrite(make_run(0, 1, newer, recovery=True)) is Code.OK
    held |= {(0, 1 + n): newer[n] for n in range(4)}
    await bench.storage.checkpoint()
    again = [b"newest"]
    assert await bench.overwrite(make_run(0, 2, again, recovery=True)) is Code.OK
    held[0, 2] = again[0]  # only in the write cache
    await clear_all(bench)
    await check(bench, held)
    await bench.storage.checkpoint()
    await clear_all(bench)
    await check(bench, held)
    bench.indexes.clear()
    await bench.crash()
    await check(bench, held)


async def test_a_log_with_live_entries_stays_when_nothing_may_be_copied(bench: Bench) -> None:
    held = await fill(bench)
    done = await bench.storage.compactor.clear(1, copy=False)
    assert not done.removed
    assert "has entries in it" in done.reason
    await check(bench, held)


async def test_a_log_of_an_unknown_ledger_stays(bench: Bench) -> None:
    """The ledger's state was lost, which is not a deletion."""
    await fill(bench)
    del bench.storage._states._all[2]
    done = await bench.storage.compactor.clear(1, copy=True)
    assert not done.removed
    assert done.reason == "ledger 2 has entries in it, and nothing is known of it"


async def test_a_log_of_a_ledger_that_is_not_surely_deleted_stays(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a crash the ledger may be there again, and needs its entries."""
    held = await fill(bench)

    def no_room(_: object, __: int, done: Callable[[BaseException], None]) -> None:
        asyncio.get_running_loop().call_soon(done, DiskFull("no room"))

    with monkeypatch.context() as patch:
        patch.setattr(bench.storage._journals.of(1), "append", no_room)
        with pytest.raises(ReadOnly):
            await bench.storage.delete_ledger(1)
    done = await bench.storage.compactor.clear(1, copy=True)
    assert done.reason == "ledger 1 is not surely deleted yet"
    await bench.crash()
    await check(bench, held)


@pytest.mark.parametrize("what", ["header", "record header", "frames", "map", "footer", "cut"])
async def test_a_damaged_log_stays(bench: Bench, what: str) -> None:
    held = await fill(bench)
    for ledger_id in range(3):
        await bench.storage.delete_ledger(ledger_id)
    await bench.storage.checkpoint()
    del held
    path = logs_of(bench).path_of(2)
    data = bench.disk.names[path].data
    at = {
        "header": 3,
        "record header": 30,
        "frames": 200,
        "map": len(data) - 25,
        "footer": len(data) - 1,
        "cut": 0,
    }[what]
    if what == "cut":
        bench.disk.names[path].resize(300)
    else:
        data[at] ^= 0x40
    done = await bench.storage.compactor.clear(2, copy=True)
    assert not done.removed
    assert done.reason.startswith("damaged from byte ")
    assert path in bench.disk.names
    assert [damage.path for damage in bench.storage.damages.current()] == [path]
    assert (await bench.storage.compactor.clear(1, copy=True)).removed


async def test_a_map_that_names_too_little_keeps_the_log(bench: Bench) -> None:
    await fill(bench)
    for ledger_id in range(3):
        await bench.storage.delete_ledger(ledger_id)
    await bench.storage.checkpoint()
    sealed = logs_of(bench)
    path = sealed.path_of(1)
    inode = bench.disk.names[path]
    offset = inode.data.index(b"EMAP")
    inode.resize(offset)
    inode.write(offset, encode_map({5: 10}, offset))
    done = await bench.storage.compactor.clear(1, copy=True)
    assert not done.removed
    assert "ledgers map" in done.reason


async def test_a_reader_asks_the_index_again_when_its_log_goes(bench: Bench) -> None:
    held = await fill(bench)
    index = bench.storage._index
    assert index is not None
    stale = index.find(0, 0)
    assert stale is not None
    await clear_all(bench)
    found = index.find(0, 0)
    assert found is not None
    assert found.location.log_id != stale.location.log_id
    answers = [stale, found]
    original = MemoryIndex.find

    def find(self: MemoryIndex, ledger_id: int, entry_id: int) -> object:
        return answers.pop(0) if answers else original(self, ledger_id, entry_id)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryIndex, "find", find)
        assert await bench.storage.reads.read(0, 0) == entry_bytes(0, 0, held[0, 0])
    assert not answers
    assert not bench.storage.damages.current()


async def test_a_read_under_way_keeps_the_file_open_and_no_later_one_begins(bench: Bench) -> None:
    await fill(bench)
    logs = logs_of(bench)
    with logs._file(1) as file:
        await clear_all(bench)
        assert not file.closed  # type: ignore[attr-defined]
        with pytest.raises(DamagedRead) as refused:
            logs.read_bytes(1, 0, 1)
        assert refused.value.damage.kind is DamageKind.MISSING_FILE
    assert file.closed  # type: ignore[attr-defined]


async def test_a_full_disk_stops_copying_and_not_unlinking(bench: Bench) -> None:
    held = await fill(bench)
    await bench.storage.delete_ledger(1)
    # Logs from 2 on are full of live entries; make a log without any.
    await bench.storage.checkpoint()
    bench.disk.capacity = bench.disk.used
    done = await clear_all(bench)
    assert any("no room" in one.reason for one in done)
    held = {key: payload for key, payload in held.items() if key[0] != 1}
    await check(bench, held)
    for ledger_id in (0, 2):
        await bench.storage.delete_ledger(ledger_id)
    done = await clear_all(bench)
    assert all(one.removed for one in done)
    assert not bench.fatal


async def test_a_failed_sync_is_final(bench: Bench) -> None:
    await fill(bench)

    def hook(call: str, path: str) -> None:
        if call == "datasync" and ".log" in path:
            raise SyncFailed("the disk is gone")

    bench.disk.hook = hook
    with pytest.raises(SyncFailed):
        await bench.storage.compactor.clear(1, copy=True)
    bench.disk.hook = lambda call, path: None
    assert [type(error) for error in bench.fatal] == [SyncFailed]


class Life:
    """Fill, delete a ledger, compact; the power fails before one disk call."""

    def __init__(self, crash_at: int, seed: int) -> None:
        self.held: dict[tuple[int, int], bytes] = {}
        self.gone: dict[int, bool] = {}
        """Deleted ledgers; False during the deletion."""
        self.calls = 0
        self.after: MemoryDisk | None = None
        self.bench = Bench(TINY)
        self.armed = False
        rng = random.Random(seed)

        def hook(call: str, path: str) -> None:
            if not self.armed:
                return
            self.calls += 1
            if self.calls == crash_at:
                self.after = self.bench.disk.after_crash(rng)
                raise DiskError("the power fails")

        self.bench.disk.hook = hook

    async def live(self) -> None:
        bench = self.bench
        await bench.start()
        self.held = await fill(bench)
        self.armed = True
        self.gone[1] = False
        await bench.storage.delete_ledger(1)
        self.gone[1] = True
        await clear_all(bench)
        assert await bench.add(0, 30, b"in between") is Code.OK
        self.held[0, 30] = b"in between"
        await bench.storage.checkpoint()
        assert await bench.overwrite(make_run(2, 2, [b"again"], recovery=True)) is Code.OK
        self.held[2, 2] = b"again"
        await clear_all(bench)
        await bench.storage._checkpointer.roll()
        await clear_all(bench)
        self.armed = False
        await bench.storage.close()

    async def check(self, disk: MemoryDisk) -> None:
        """tests/crash_states has these failures with a lost index too."""
        async with Bench(TINY, disk) as bench:
            for attempt in range(2):
                for (ledger_id, entry_id), payload in self.held.items():
                    if ledger_id in self.gone:
                        continue
                    found = await bench.storage.reads.read(ledger_id, entry_id)
                    wanted = {payload, b"again"} if (ledger_id, entry_id) == (2, 2) else {payload}
                    assert found in [entry_bytes(ledger_id, entry_id, one) for one in wanted]
                if self.gone.get(1):
                    with pytest.raises((NoSuchLedger, NoSuchEntry)):
                        await bench.storage.reads.read(1, 0)
                if not attempt:
                    await bench.storage.checkpoint()
                    done = await clear_all(bench)
                    assert all(one.removed for one in done), done


async def live_until(crash_at: int, seed: int) -> Life:
    life = Life(crash_at, seed)
    try:
        await life.live()
    except Exception:
        assert life.after is not None, "only the failing power may end a life"
    if life.after is not None:
        life.bench.disk.dead = True
        await abandon(life.bench.storage)
    return life


@pytest.mark.long
async def test_power_fails_before_every_disk_call_and_takes_the_index() -> None:
    whole = await live_until(0, 0)
    assert whole.after is None
    assert whole.calls > 150
    for crash_at in range(1, whole.calls + 1):
        life = await live_until(crash_at, crash_at)
        assert life.after is not None
        try:
            async with asyncio.timeout(20):
                await life.check(life.after)
        except BaseException as error:
            error.add_note(f"power failed before disk call {crash_at} of {whole.calls}")
            raise


# A flush that fails halfway during garbage collection loses nothing. The mark may have moved by
LEDGERS = 4


class CollectedLife:
    """A storage, entries that it must have, and entries that it must never have again."""

    def __init__(self, bench: Bench, rng: random.Random) -> None:
        self.bench = bench
        self.rng = rng
        self.held: dict[tuple[int, int], bytes] = {}
        self.next_entry = [0] * LEDGERS
        self.gone: set[int] = set()
        self.forgotten: set[int] = set()
        """Deleted, perhaps without a marker by now."""

    async def add(self) -> None:
        ledger_id = self.rng.randrange(LEDGERS)
        if ledger_id in self.forgotten:
            return
        payload = b"%d:" % self.rng.randrange(10**6) + b"p" * self.rng.choice((1, 300))
        first = self.next_entry[ledger_id]
        code = await self.bench.add(ledger_id, first, payload)
        if ledger_id in self.gone:
            assert code is not Code.OK, "a deleted ledger takes no add ever again"
        elif code is Code.OK:
            self.held[ledger_id, first] = payload
            self.next_entry[ledger_id] += 1

    async def delete(self) -> None:
        ledger_id = self.rng.randrange(1, LEDGERS)
        if ledger_id not in self.gone and self.next_entry[ledger_id]:
            await self.bench.storage.delete_ledger(ledger_id)
            self.gone.add(ledger_id)

    async def flush(self) -> None:
        await self.bench.storage.checkpoint()

    async def flush_fails(self) -> None:
        """Fail a flush at a random step of the disk, or of the index, which comes last."""
        checkpointer = self.bench.storage._checkpointer
        names = ("_append_slice", "_flush_index", "_move_mark", "_state")
        with pytest.MonkeyPatch.context() as patch:
            step = self.rng.choice(names)

            def fail(*_: object) -> None:
                raise DiskFull("no room left")

            if step == "_state":
                patch.setattr(checkpointer._state_file, "append", fail)
            else:
                patch.setattr(checkpointer, step, fail)
            with contextlib.suppress(DiskFull):
                await checkpointer.run(
                    lambda: self.bench.storage._journals.durable_positions, lambda _: None
                )

    async def collect(self) -> None:
        with contextlib.suppress(BookieError, DiskFull):
            await clear_all(self.bench)
        with contextlib.suppress(DiskFull):
            await self.bench.storage._checkpointer.roll()

    async def drop_markers(self) -> None:
        logs = self.bench.storage.logs
        in_logs = {ledger_id: None for one in logs.log_ids for ledger_id in logs.ledgers_of(one)}
        if await self.bench.storage.compactor.drop_markers(2**60, in_logs):
            self.forgotten |= self.gone - in_logs.keys()

    async def crash(self) -> None:
        await self.bench.crash(self.rng)

    async def check(self) -> None:
        storage = self.bench.storage
        for (ledger_id, entry_id), payload in self.held.items():
            if ledger_id not in self.gone:
                found = await storage.reads.read(ledger_id, entry_id)
                assert found == entry_bytes(ledger_id, entry_id, payload)
            else:
                with pytest.raises((NoSuchLedger, NoSuchEntry)):
                    await storage.reads.read(ledger_id, entry_id)


@pytest.mark.parametrize("seed", range(60))
async def test_nothing_is_lost_and_nothing_comes_back(seed: int) -> None:
    rng = random.Random(seed)
    async with Bench(TINY) as bench:
        life = CollectedLife(bench, rng)
        steps = (
            *(life.add,) * 6,
            *(life.flush, life.flush_fails, life.flush_fails),
            *(life.delete, life.collect, life.drop_markers, life.crash),
        )
        for _ in range(60):
            await rng.choice(steps)()
            await life.check()
        await life.crash()
        await life.check()
