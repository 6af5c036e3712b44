"""A bookie in limbo serves its entries, denies nothing, and takes only new ledgers' adds."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from octavo.bookie.ledgers.cookies import CookieRefused, lost_folders
from octavo.bookie.ledgers.limbo import (
    NAME,
    Limbo,
    LimboDamaged,
    LimboRecord,
    decode_limbo,
    deepened,
    encode_limbo,
    read_limbo,
    remove_limbo,
    vouched,
    write_limbo,
)
from octavo.bookie.ledgers.rules import admission
from octavo.bookie.ledgers.state import LedgerState
from octavo.metadata.cookie import Cookie
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger, UnknownState
from tests.sim.disk import SimDisk
from tests.support.engine_lab.images import images
from tests.support.engine_lab.lives import CrashPoint, Recorder
from tests.support.storage_support import KEY, Bench, entry_bytes, is_fenced, make_run

FOLDERS = ("/l", "/m")
RECORD = LimboRecord(10, 5, "a disk", "77", (3, 4))


# Rules


def test_which_ledgers_are_covered() -> None:
    limbo = Limbo(RECORD)
    assert [found for found in range(-1, 13) if limbo.covers(found)] == [0, 1, 2, *range(5, 11)]
    assert not any(Limbo().covers(found) for found in range(-1, 5))


def test_admission_of_a_ledger_that_is_not_sure() -> None:
    ordinary, recovery = make_run(1, 0, [b""]), make_run(1, 0, [b""], recovery=True)
    fenced = LedgerState(KEY)
    fenced.fenced = True
    for state in (None, LedgerState(KEY)):
        assert admission(state, ordinary, read_only=False, unsure=True) is Code.UNKNOWN_STATE
        assert admission(state, recovery, read_only=False, unsure=True) is Code.OK
    # Certain knowledge is reported.
    assert admission(fenced, ordinary, read_only=False, unsure=True) is Code.FENCED
    other = make_run(1, 0, [b""], key=b"o" * 20)
    assert admission(fenced, other, read_only=False, unsure=True) is Code.UNAUTHORIZED


def test_another_loss_raises_the_bound_and_forgets_who_was_vouched_for() -> None:
    again = deepened(RECORD, 30, "the journal", 9, "77")
    assert (again.unsure_through, again.whole, again.why) == (30, (), "the journal")
    assert deepened(RECORD, 2, "", 9, "78").unsure_through == 10
    assert deepened(None, 2, "x", 9, "78") == LimboRecord(2, 9, "x", "78")


def test_only_ledgers_below_the_bound_are_vouched_for() -> None:
    assert vouched(RECORD, [11, 7, -1, 3]).whole == (3, 4, 7)


# File


def test_every_changed_byte_of_the_file_is_found() -> None:
    data = encode_limbo(RECORD)
    assert decode_limbo(data) == RECORD
    for at in range(len(data)):
        with pytest.raises(LimboDamaged):
            decode_limbo(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(LimboDamaged):
            decode_limbo(data[:at])


def test_the_highest_readable_bound_counts() -> None:
    disk = SimDisk()
    for folder in FOLDERS:
        disk.make_directory(folder)
    assert read_limbo(disk, FOLDERS) is None
    write_limbo(disk, FOLDERS, RECORD)
    assert read_limbo(disk, FOLDERS) == RECORD
    write_limbo(disk, FOLDERS[:1], LimboRecord(30, 9, "again", "78"))
    write_limbo(disk, FOLDERS[1:], vouched(RECORD, [9]))
    assert read_limbo(disk, FOLDERS) == LimboRecord(30, 9, "again", "78")
    write_limbo(disk, FOLDERS[:1], vouched(RECORD, [1]))
    found = read_limbo(disk, FOLDERS)
    assert found is not None
    assert found.whole == (3, 4), "whole is what all copies say"
    spoil(disk, "/l")
    assert read_limbo(disk, FOLDERS) == vouched(RECORD, [9])
    spoil(disk, "/m")
    with pytest.raises(LimboDamaged, match="--accept-loss"):
        read_limbo(disk, FOLDERS)
    remove_limbo(disk, FOLDERS)
    assert read_limbo(disk, FOLDERS) is None


def spoil(disk: SimDisk, folder: str) -> None:
    file = disk.open(f"{folder}/{NAME}", write=True)
    file.pwritev([b"?"], 20)
    file.close()


def bounds_after_crashes(write: Callable[[SimDisk], None], before: LimboRecord | None) -> set[int]:
    """Return the bounds that a reader finds after a crash at any step of `write`."""
    points: list[CrashPoint] = []
    disk = SimDisk()
    for folder in FOLDERS:
        disk.make_directory(folder)
    if before is not None:
        write_limbo(disk, FOLDERS, before)
    disk.faults = recorder = Recorder(tuple, points)
    recorder.record()
    write(disk)
    recorder.keep(disk, "at the end")
    found: set[int] = set()
    for point in points:
        for image in images(point.moment):
            record = read_limbo(image.disk(), FOLDERS)
            found.add(record.unsure_through if record is not None else -1)
    assert len(points) > 5
    return found


@pytest.mark.parametrize("seed", range(60))
def test_of_equal_bounds_whoever_is_unsure_is_believed(seed: int) -> None:
    """Folders written at different times, with losses, vouchers and ends."""
    rng = random.Random(seed)
    history = [LimboRecord(rng.randint(0, 6), 0, "a disk", "1")]
    for now_ms in range(1, 6):
        last = history[-1]
        kind = rng.random()
        if kind < 0.4:
            history.append(vouched(last, rng.sample(range(8), 2)))
        elif kind < 0.7:
            history.append(replace(last, over=True))
        else:
            history.append(deepened(last, rng.randint(0, 8), "again", now_ms, "2"))
    written = [rng.choice(history[-3:]) for _ in FOLDERS]
    disk = SimDisk()
    for folder, record in zip(FOLDERS, written, strict=True):
        disk.make_directory(folder)
        write_limbo(disk, [folder], record)
    found = Limbo(read_limbo(disk, FOLDERS))
    highest = max(record.unsure_through for record in written)
    for record in written:
        if record.unsure_through == highest:
            for ledger_id in range(10):
                assert found.covers(ledger_id) or not Limbo(record).covers(ledger_id)


def test_no_crash_takes_a_bookie_out_of_limbo() -> None:
    again = LimboRecord(30, 9, "again", "78")
    assert bounds_after_crashes(lambda d: write_limbo(d, FOLDERS, again), RECORD) == {10, 30}
    assert bounds_after_crashes(lambda d: write_limbo(d, FOLDERS, again), None) == {-1, 30}
    end = bounds_after_crashes(lambda d: remove_limbo(d, FOLDERS), RECORD)
    assert end == {10, -1}


# Storage


async def in_limbo(bench: Bench, through: int, whole: tuple[int, ...] = ()) -> None:
    await bench.storage.close()
    write_limbo(
        bench.disk, bench.config.ledger_directories, LimboRecord(through, 1, "test", "1", whole)
    )
    await bench.start()


async def unknown(call: Awaitable[Any]) -> None:
    with pytest.raises(UnknownState, match="lost data"):
        await call


async def told(call: Callable[[], Any]) -> Any:
    return call()


async def test_nothing_is_denied_of_an_old_ledger() -> None:
    async with Bench() as bench:
        assert await bench.add(1, 0, b"a", b"b") is Code.OK
        assert await bench.add(20, 0, b"n") is Code.OK
        await in_limbo(bench, 10)
        storage = bench.storage
        assert await storage.reads.read(1, 1) == entry_bytes(1, 1, b"b")
        assert len(await storage.reads.read_many(1, 0, 100, 1 << 20)) == 2
        for ledger_id in (1, 2):
            await unknown(storage.reads.read(ledger_id, 2))
            await unknown(storage.reads.read(ledger_id, -1))
            await unknown(storage.reads.read_many(ledger_id, 2, 9, 1 << 20))
            await unknown(storage.reads.entries(ledger_id))
            for ask in (
                storage.control.last_add_confirmed,
                storage.control.last_entry,
                partial(is_fenced, storage),
            ):
                await unknown(told(lambda ask=ask, at=ledger_id: ask(at)))  # type: ignore[misc]
        assert storage.control.last_add_confirmed(1, after=-1) == 0, "what is known is told"
        await unknown(told(lambda: storage.control.last_add_confirmed(1, after=0)))
        # A newer ledger behaves as usual.
        assert await storage.reads.entries(20) == [(0, 0)]
        with pytest.raises(NoSuchEntry):
            await storage.reads.read(20, 1)
        with pytest.raises(NoSuchLedger):
            await storage.reads.read(21, 0)
        assert not is_fenced(storage, 20)


async def test_what_an_old_ledger_may_be_sent() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        await in_limbo(bench, 10)
        for ledger_id in (1, 2):
            assert await bench.add(ledger_id, 1) is Code.UNKNOWN_STATE
            assert await bench.add(ledger_id, 1, recovery=True) is Code.OK
            assert await bench.storage.reads.read(ledger_id, 1) == entry_bytes(ledger_id, 1)
            assert await bench.add(ledger_id, 2) is Code.UNKNOWN_STATE, "its fence may be lost"
            await bench.storage.control.fence(ledger_id, KEY)
            assert is_fenced(bench.storage, ledger_id)
            assert await bench.add(ledger_id, 2) is Code.FENCED
        assert await bench.add(11, 0) is Code.OK
        await bench.crash(random.Random(1))
        assert await bench.add(2, 2) is Code.FENCED, "the fence is durable"
        assert await bench.add(3, 0) is Code.UNKNOWN_STATE, "and so is the limbo"
        await unknown(bench.storage.reads.read(3, 0))


async def test_a_deleted_ledger_is_known_to_be_gone() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        await in_limbo(bench, 10)
        await bench.storage.delete_ledger(1)
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.read(1, 0)


async def test_a_ledger_that_was_vouched_for_is_as_ever() -> None:
    async with Bench() as bench:
        await bench.add(1, 0)
        await in_limbo(bench, 10, (5,))
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.read(5, 0)
        await bench.storage.limbo_file.vouch([1, 40])
        for _ in range(2):
            assert bench.storage.control.last_entry(1) == 0
            with pytest.raises(NoSuchEntry):
                await bench.storage.reads.read(1, 1)
            assert bench.storage.limbo.record is not None
            assert bench.storage.limbo.record.whole == (1, 5)
            await unknown(bench.storage.reads.read(2, 0))
            await bench.crash(random.Random(2))


async def test_vouching_outside_limbo_does_nothing() -> None:
    async with Bench() as bench:
        await bench.storage.limbo_file.vouch([1])
        assert bench.storage.limbo.record is None
        assert not bench.disk.exists(f"/l/{NAME}")


async def test_a_damaged_limbo_file_is_refused() -> None:
    async with Bench() as bench:
        await in_limbo(bench, 10)
        await bench.storage.close()
        for folder in bench.config.ledger_directories:
            file = bench.disk.open(f"{folder}/{NAME}", write=True)
            file.pwritev([b"?"], 20)
            file.datasync()
            file.close()
        with pytest.raises(LimboDamaged):
            await bench.start()


# Folders that may be stamped again


def cookie(**changed: Any) -> Cookie:
    usual: dict[str, Any] = {
        "bookie_id": "b1",
        "journal_dir": "/j",
        "ledger_dirs": FOLDERS,
        "instance_id": "c",
        "incarnation": "old",
    }
    return Cookie(**{**usual, **changed})


def test_only_empty_folders_of_this_bookie_are_taken_for_lost() -> None:
    old, new = cookie(), cookie(incarnation="new")
    none: dict[str, Cookie | None] = dict.fromkeys(("/j", *FOLDERS))
    assert lost_folders(new, old, none, [], "") == ["/j", "/l", "/m"]
    assert lost_folders(new, old, {**none, "/l": old}, ["/l"], "") == ["/j", "/m"]
    begun = {"/j": new, "/l": new, "/m": None}
    assert lost_folders(cookie(incarnation="x"), old, begun, [], "new") == ["/m"]
    for on_disk, with_data, limbo in (
        ({**none, "/l": new}, [], ""),  # stamped by a life that no limbo file names
        (none, ["/m"], ""),
        ({**none, "/l": cookie(bookie_id="b2")}, [], ""),
        ({**none, "/l": cookie(instance_id="d")}, [], ""),
    ):
        with pytest.raises(CookieRefused):
            lost_folders(cookie(incarnation="x"), old, on_disk, with_data, limbo)
    with pytest.raises(CookieRefused, match="Configure it as it was"):
        lost_folders(cookie(ledger_dirs=("/l",)), old, none, [], "")
