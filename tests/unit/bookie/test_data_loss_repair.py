"""A start refuses damaged files. Once the loss is accepted, good data is kept, the rest is unknown,
and the next start is ordinary."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.entrylog.format import log_id_of
from octavo.bookie.entrylog.log import EntryLogMissing
from octavo.bookie.journal.format import JournalDamaged, JournalVersionUnknown, file_id_of
from octavo.bookie.ledgers.limbo import deepened, read_limbo, write_limbo
from octavo.bookie.ledgers.state import LedgerStateDamaged
from octavo.bookie.ledgers.state import file_id_of as state_id_of
from octavo.protocol.codes import BookieIOError, Code, NoSuchLedger, OctavoError, UnknownState
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, KEY, Bench, abandon, entry_bytes, is_fenced

BOUND = 100
BIG = b"x" * 2000


class Operator:
    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.said: list[str] = []

    async def accept(self, why: str) -> None:
        folders = self.bench.config.ledger_directories
        self.said.append(why)
        record = deepened(read_limbo(self.bench.disk, folders), BOUND, why, 1, "77")
        write_limbo(self.bench.disk, folders, record)


async def start_again(bench: Bench, *, accept: bool) -> list[str]:
    """Start on the disk's content; return the accepted losses."""
    operator = Operator(bench)
    bench.on_loss = operator.accept if accept else None
    await bench.start()
    return operator.said


async def refused(bench: Bench, kind: type[OctavoError]) -> str:
    with pytest.raises(kind) as error:
        await start_again(bench, accept=False)
    return str(error.value)


async def crashed(bench: Bench) -> MemoryDisk:
    """Lose power after every process has ended."""
    after = bench.disk.after_crash(random.Random(1))
    await abandon(bench.storage)
    bench.disk = after
    return after


def names(disk: MemoryDisk, folder: str, number: Callable[[str], int | None]) -> list[str]:
    return sorted(n for n in disk.list_directory(folder) if number(n) is not None)


def spoil(disk: MemoryDisk, path: str, at: int, data: bytes = b"?!?!") -> None:
    file = disk.open(path, write=True)
    file.pwritev([data], at)
    file.datasync()
    file.close()


async def held(bench: Bench, ledger_id: int) -> dict[int, object]:
    """Return the bookie's answer for each of six entries."""
    found: dict[int, object] = {}
    for entry_id in range(6):
        try:
            found[entry_id] = await bench.storage.reads.read(ledger_id, entry_id)
        except OctavoError as error:
            found[entry_id] = type(error)
    return found


def block_of(disk: MemoryDisk, path: str, entry: bytes) -> int:
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0).index(entry)
    finally:
        file.close()


async def test_a_journal_damaged_in_the_middle() -> None:
    async with Bench() as bench:
        for entry_id in range(5):
            assert await bench.add(1, entry_id, b"e%d" % entry_id) is Code.OK
        disk = await crashed(bench)
        path = "/j/" + names(disk, "/j", file_id_of)[0]
        spoil(disk, path, block_of(disk, path, entry_bytes(1, 2, b"e2")))
        assert "--accept-loss" in await refused(bench, JournalDamaged)
        said = await start_again(bench, accept=True)
        assert len(said) == 1
        assert path in said[0]
        assert "damaged from byte" in said[0]
        for _ in range(2):
            expected: dict[int, object] = {n: entry_bytes(1, n, b"e%d" % n) for n in (0, 1, 3, 4)}
            assert await held(bench, 1) == {**expected, 2: UnknownState, 5: UnknownState}
            assert await bench.add(1, 5) is Code.UNKNOWN_STATE, "a fence may have been lost"
            assert await bench.add(BOUND + 1, 0) is Code.OK
            await bench.storage.close()
            assert await start_again(bench, accept=False) == []
        await bench.storage.close()
        assert await start_again(bench, accept=True) == [], "nothing is lost a second time"


async def test_the_lost_range_is_in_the_list_of_damage() -> None:
    async with Bench() as bench:
        for entry_id in range(3):
            await bench.add(1, entry_id, b"e%d" % entry_id)
        disk = await crashed(bench)
        path = "/j/" + names(disk, "/j", file_id_of)[0]
        spoil(disk, path, block_of(disk, path, entry_bytes(1, 1, b"e1")))
        await start_again(bench, accept=True)
        [damage] = bench.storage.damages.current()
        assert (damage.kind, damage.path) == (DamageKind.JOURNAL, path)
        assert damage.length > 0


@pytest.mark.parametrize("which", [1, 2])
async def test_a_missing_journal_file(which: int) -> None:
    async with Bench(replace(CONFIG, journal_file_bytes_max=1400)) as b:
        for entry_id in range(6):
            await b.add(1, entry_id, b"x" * 600)
        disk = await crashed(b)
        files = names(disk, "/j", file_id_of)
        assert len(files) > 3
        disk.unlink(f"/j/{files[which]}")
        await refused(b, JournalDamaged)
        await start_again(b, accept=True)
        found = await held(b, 1)
        assert found[5] == entry_bytes(1, 5, b"x" * 600)
        missing = [n for n, said in found.items() if said is UnknownState]
        assert len(missing) in (1, 2, 3)
        assert await b.add(1, 6) is Code.UNKNOWN_STATE


async def test_the_whole_journal_folder_is_lost() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"a")
        await bench.storage.checkpoint()
        await bench.add(1, 1, b"b")
        disk = await crashed(bench)
        for name in disk.list_directory("/j"):
            disk.unlink(f"/j/{name}")
        assert "is missing from /j" in await refused(bench, JournalDamaged)
        assert len(await start_again(bench, accept=True)) == 1
        for _ in range(2):
            found = await held(bench, 1)
            assert found[0] == entry_bytes(1, 0, b"a")
            assert found[1] is UnknownState
            assert await bench.add(BOUND + 1, 0) is Code.OK
            await bench.storage.close()
            await start_again(bench, accept=False)


async def test_a_damaged_header_of_a_journal_file() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"a")
        disk = await crashed(bench)
        path = "/j/" + names(disk, "/j", file_id_of)[0]
        spoil(disk, path, 0)
        await refused(bench, JournalDamaged)
        await start_again(bench, accept=True)
        assert (await held(bench, 1))[0] == entry_bytes(1, 0, b"a"), "its blocks are good"
        with pytest.raises(UnknownState):
            await bench.storage.reads.read(2, 0)


async def test_a_newer_version_is_no_loss_to_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"a")
        await crashed(bench)
        monkeypatch.setattr("octavo.bookie.journal.format.VERSION", 9)
        with pytest.raises(JournalVersionUnknown):
            await start_again(bench, accept=True)
        monkeypatch.undo()
        await start_again(bench, accept=False)
        assert (await held(bench, 1))[0] == entry_bytes(1, 0, b"a")


@pytest.mark.parametrize("how", ["missing", "damaged"])
async def test_the_ledger_state_is_lost(how: str) -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"a")
        await bench.add(2, 0, b"b")
        await bench.storage.control.fence(2, KEY)
        await bench.storage.checkpoint()
        disk = await crashed(bench)
        path = "/l/" + names(disk, "/l", state_id_of)[-1]
        if how == "missing":
            disk.unlink(path)
        else:
            spoil(disk, path, 60)
        assert "--accept-loss" in await refused(bench, LedgerStateDamaged)
        assert len(await start_again(bench, accept=True)) == 1
        for _ in range(2):
            assert (await held(bench, 1))[0] == entry_bytes(1, 0, b"a")
            assert (await held(bench, 2))[0] == entry_bytes(2, 0, b"b")
            assert await bench.add(2, 1) is Code.UNKNOWN_STATE, "it was fenced"
            assert await bench.add(2, 1, key=b"o" * 20, recovery=True) is Code.UNAUTHORIZED
            with pytest.raises(UnknownState):
                is_fenced(bench.storage, 2)
            await bench.storage.close()
            assert await start_again(bench, accept=False) == []


async def test_states_behind_a_damaged_block_are_kept() -> None:
    async with Bench() as bench:
        for ledger_id in (1, 2, 3):
            await bench.add(ledger_id, 0)
            await bench.storage.control.fence(ledger_id, KEY)
            await bench.storage.checkpoint()
        disk = await crashed(bench)
        path = "/l/" + names(disk, "/l", state_id_of)[-1]
        # The first block belongs to the first checkpoint: damage the second checkpoint's.
        file = disk.open(path)
        data = file.pread(file.size(), 0)
        file.close()
        spoil(disk, path, data.index(b"LSTA", data.index(b"LSTA") + 4) + 40)
        await start_again(bench, accept=True)
        assert is_fenced(bench.storage, 1)
        assert is_fenced(bench.storage, 3)
        with pytest.raises(UnknownState):
            is_fenced(bench.storage, 2)


async def test_a_missing_entry_log() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, BIG)
        await bench.storage.checkpoint()
        await bench.restart()
        await bench.add(1, 1, BIG)
        await bench.storage.checkpoint()
        await bench.add(1, 2, BIG)
        disk = await crashed(bench)
        logs = sorted(
            f"{folder}/{name}" for folder in ("/l", "/m") for name in names(disk, folder, log_id_of)
        )
        newest = max(logs, key=lambda path: path.rpartition("/")[2])
        disk.unlink(newest)
        assert "--accept-loss" in await refused(bench, EntryLogMissing)
        assert len(await start_again(bench, accept=True)) == 1
        for _ in range(3):
            found = await held(bench, 1)
            assert found[0] == entry_bytes(1, 0, BIG)
            assert isinstance(found[1], type)
            assert issubclass(found[1], UnknownState | BookieIOError)
            assert found[2] == entry_bytes(1, 2, BIG), "it was in the journal"
            assert await bench.add(BOUND + 1, 0, BIG) is Code.OK
            await bench.storage.checkpoint()
            await crashed(bench)
            assert await start_again(bench, accept=False) == []
            assert await bench.storage.reads.read(BOUND + 1, 0) == entry_bytes(BOUND + 1, 0, BIG)


async def test_what_the_logs_hold_behind_the_mark_is_kept_when_the_journal_lost_it() -> None:
    """An unfinished checkpoint has put entries into a log; then their journal is damaged."""
    async with Bench() as bench:
        await bench.add(1, 0, b"e0")
        await bench.storage.checkpoint()
        for entry_id in (1, 2, 3):
            await bench.add(1, entry_id, b"e%d" % entry_id)

        def no_mark(*_: object) -> None:
            raise RuntimeError("the power goes before the mark is written")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("octavo.bookie.write.checkpoint.write_mark", no_mark)
            with pytest.raises(RuntimeError):
                await bench.storage.checkpoint()
        disk = await crashed(bench)
        path = "/j/" + names(disk, "/j", file_id_of)[-1]
        spoil(disk, path, block_of(disk, path, entry_bytes(1, 2, b"e2")))
        await start_again(bench, accept=True)
        for _ in range(2):
            found = await held(bench, 1)
            assert {n: found[n] for n in range(4)} == {
                n: entry_bytes(1, n, b"e%d" % n) for n in range(4)
            }
            await bench.storage.close()
            await start_again(bench, accept=False)


async def test_a_loss_is_found_again_until_limbo_is_durable() -> None:
    """Writing the operator's limbo fails: nothing has moved, and the next start refuses."""
    async with Bench() as bench:
        for entry_id in range(3):
            await bench.add(1, entry_id, b"e%d" % entry_id)
        disk = await crashed(bench)
        path = "/j/" + names(disk, "/j", file_id_of)[0]
        spoil(disk, path, block_of(disk, path, entry_bytes(1, 1, b"e1")))

        async def fails(_: str) -> None:
            raise BookieIOError("the disk says no")

        bench.on_loss = fails
        with pytest.raises(BookieIOError):
            await bench.start()
        await refused(bench, JournalDamaged)
        await start_again(bench, accept=True)
        assert (await held(bench, 1))[1] is UnknownState


async def test_accepting_changes_nothing_when_nothing_is_lost() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"a")
        await crashed(bench)
        assert await start_again(bench, accept=True) == []
        assert bench.storage.limbo.record is None
        with pytest.raises(NoSuchLedger):
            await bench.storage.reads.read(2, 0)
