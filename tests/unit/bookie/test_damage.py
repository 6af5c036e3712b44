"""Damage: its registry, the scrubber, and starts on damaged files."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

import msgpack
import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from octavo.bookie.check.scrub import Scrubber
from octavo.bookie.disk.damage import Damage, DamageKind, DamageRegistry
from octavo.bookie.disk.files import DiskError
from octavo.bookie.entrylog.format import RECORD_BYTES, file_name, log_id_of
from octavo.bookie.entrylog.log import EntryLogMissing
from octavo.bookie.gc.status import ledger_sizes
from octavo.bookie.journal.format import (
    JournalDamaged,
    JournalVersionUnknown,
    MetaOp,
    encode_meta,
    file_id_of,
)
from octavo.bookie.journal.reader import records_of
from octavo.bookie.ledgers.limbo import (
    LimboDamaged,
    decode_limbo,
    deepened,
    read_limbo,
    write_limbo,
)
from octavo.bookie.ledgers.state import LedgerStateDamaged
from octavo.bookie.ledgers.state import file_id_of as state_id_of
from octavo.bookie.startup.repair import restore_states
from octavo.protocol.codes import BookieIOError, Code, NoSuchLedger, OctavoError, UnknownState
from tests.support.damaged_logs import Placed, checked_run, cut, fill, flip
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import (
    CONFIG,
    KEY,
    Bench,
    abandon,
    entry_bytes,
    is_fenced,
    make_run,
)


def test_a_finding_is_kept_and_told_once() -> None:
    found = DamageRegistry(clock=iter((7, 8, 9)).__next__)
    with capture_logs() as logs:
        for _ in range(3):
            found.report(
                DamageKind.EXTENT_CHECKSUM, "/l/1.log", 24, 100, ledger_id=5, first=0, last=9
            )
    assert found.current() == [Damage(DamageKind.EXTENT_CHECKSUM, "/l/1.log", 24, 100, 5, 0, 9, 7)]
    assert [entry["event"] for entry in logs] == ["damage_found"]
    assert (logs[0]["path"], logs[0]["ledger"], logs[0]["last"]) == ("/l/1.log", 5, 9)


def test_another_place_or_kind_is_another_finding() -> None:
    found = DamageRegistry()
    found.report(DamageKind.EXTENT_CHECKSUM, "/l/1.log", 24)
    found.report(DamageKind.EXTENT_CHECKSUM, "/l/1.log", 25)
    found.report(DamageKind.UNREADABLE, "/l/1.log", 24)
    assert len(found.current()) == 3
    counts = found.counts()
    assert counts["extent-checksum"] == 2
    assert counts["unreadable"] == 1
    assert sum(counts.values()) == 3
    assert set(counts) == {kind.value for kind in DamageKind}


def test_a_finding_without_ledger_is_completed_by_one_that_knows_it() -> None:
    found = DamageRegistry(clock=iter((7, 8)).__next__)
    found.report(DamageKind.RECORD_HEADER, "/l/1.log", 24, 10)
    found.report(DamageKind.RECORD_HEADER, "/l/1.log", 24, 100, ledger_id=3, first=1, last=2)
    found.report(DamageKind.RECORD_HEADER, "/l/1.log", 24, 10)
    assert found.current() == [Damage(DamageKind.RECORD_HEADER, "/l/1.log", 24, 100, 3, 1, 2, 7)]


def test_the_list_is_bounded_and_says_once_that_it_is_full() -> None:
    found = DamageRegistry(findings_max=2)
    with capture_logs() as logs:
        for offset in range(5):
            found.report(DamageKind.ENTRY_DIGEST, "/l/1.log", offset)
    assert [damage.offset for damage in found.current()] == [0, 1]
    assert found.dropped == 3
    assert [e["event"] for e in logs] == ["damage_found", "damage_found", "damage_list_full"]


def test_a_log_that_goes_takes_its_damage_with_it_and_no_other() -> None:
    found = DamageRegistry()
    for log_id in (1, 2):
        found.report(DamageKind.EXTENT_CHECKSUM, f"/l/{file_name(log_id)}", 24)
    found.clear_file(file_name(1))
    assert [damage.path for damage in found.current()] == [f"/l/{file_name(2)}"]


def test_a_range_that_is_good_again_ends_only_the_kinds_named() -> None:
    found = DamageRegistry()
    for offset in (10, 20, 30):
        found.report(DamageKind.UNREADABLE, "/l/a", offset)
    found.report(DamageKind.NOT_INDEXED, "/l/a", 20)
    found.clear_range("/l/a", 10, 30, DamageKind.UNREADABLE)
    left = [(damage.kind, damage.offset) for damage in found.current()]
    assert left == [(DamageKind.UNREADABLE, 30), (DamageKind.NOT_INDEXED, 20)]


def test_json_holds_all_fields_and_the_plain_kind() -> None:
    made = DamageRegistry().report(DamageKind.JOURNAL, "/j/1", 5, 6).as_json()
    assert made == {
        "kind": "journal",
        "path": "/j/1",
        "offset": 5,
        "length": 6,
        "ledger_id": None,
        "first": None,
        "last": None,
        "found_ms": 0,
    }
    assert type(made["kind"]) is str


# A start cut log data behind the mark, which the journal has too, before it found that the journal
# is damaged: the bookie lost data that it had twice.

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
    """The process was killed between the log's sync and the mark."""
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


PAYLOADS = [b"%d" % n * 300 for n in range(3)]


@pytest.mark.parametrize("length", [0, 10, 500])
async def test_a_log_that_lost_its_end(length: int) -> None:
    """A log that a file system had shortened below the mark ended the start with an assertion. The
    missing part is damage; the rest is served."""
    async with Bench() as bench:
        assert await bench.add(1, 0, *PAYLOADS) is Code.OK
        await bench.storage.checkpoint()
        assert await bench.add(1, 3, b"in the journal") is Code.OK
        (path,) = [path for path in bench.disk.names if path.endswith(".log")]
        file = bench.disk.open(path, write=True)
        file.truncate(length)
        file.datasync()
        await bench.crash()
        with pytest.raises(BookieIOError):
            await bench.storage.reads.read(1, 0)
        assert await bench.storage.reads.read(1, 3) == entry_bytes(1, 3, b"in the journal")
        assert await bench.add(1, 4, b"goes on") is Code.OK
        await bench.storage.checkpoint()
        await bench.restart()
        assert await bench.storage.reads.read(1, 4) == entry_bytes(1, 4, b"goes on")
        with pytest.raises(BookieIOError):
            await bench.storage.reads.read(1, 2)


# A block with a good checksum and a body of a newer release must be refused with the file's name.


@pytest.mark.parametrize("cut", [1, 7, 9, 30])
def test_a_record_cut_short(cut: int) -> None:
    meta = encode_meta(MetaOp.EXPLICIT_LAC, 1, KEY, 5)
    for body in (meta + meta[:cut], meta + make_run(1, 0, [b"x" * 50]).frames[:cut]):
        with pytest.raises(JournalDamaged):
            list(records_of(body))


def test_an_add_that_claims_more_than_there_is() -> None:
    frame = bytearray(make_run(1, 0, [b"x" * 50]).frames)
    frame[0:4] = struct.pack(">I", 1000)
    with pytest.raises(JournalDamaged):
        list(records_of(bytes(frame)))


def test_a_limbo_body_of_another_kind() -> None:
    for body in (b"", msgpack.packb([1]), msgpack.packb({"whole": 3}), b"\xc1"):
        front = struct.pack(">8sII", b"OctvLimb", 1, len(body)) + body
        with pytest.raises(LimboDamaged):
            decode_limbo(front + struct.pack(">I", crc32c(front)))


SMALL_LOGS = replace(CONFIG, entry_log_bytes_max=2000, scrub_bytes_per_s=2**30)


@pytest.mark.parametrize("refused", ["footer", "map"])
async def test_a_map_that_cannot_be_read_is_unreadable(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """The disk refused two reads and served later ones: an unreadable map is no damage for ever."""
    async with Bench(SMALL_LOGS) as bench:
        placed = await fill(bench)
        scrubber = bench.storage.scrubber
        assert scrubber is not None
        path = placed[0].path
        end = max(at.location.offset + at.location.length for at in placed if at.path == path)
        size = bench.disk.names[path].size
        kind = type(bench.disk.open(path))
        pread = kind.pread
        left = 2

        def troubled(self: object, length: int, offset: int) -> bytes:
            nonlocal left
            wanted = offset == end if refused == "map" else offset + length == size
            if left and wanted and self.path == path:  # type: ignore[attr-defined]
                left -= 1
                raise DiskError(f"pread {path}: input/output error")
            return pread(self, length, offset)  # type: ignore[arg-type]

        monkeypatch.setattr(kind, "pread", troubled)
        await scrubber.one_pass()
        assert left == 0
        found = [(one.kind, one.offset) for one in bench.storage.damages.current()]
        assert found == [(DamageKind.UNREADABLE, end)]
        await scrubber.one_pass()
        assert not bench.storage.damages.current()


# One unreadable sector in a map ended the bookie at each round of the collector, and ended a start
# that accepted losses.

SMALL = replace(CONFIG, entry_log_bytes_max=4096)


async def sealed_logs(bench: Bench) -> list[int]:
    for ledger_id in range(3):
        assert await bench.add(ledger_id, 0, b"x" * 3000) is Code.OK
        await bench.storage.checkpoint()
    return bench.storage.logs.log_ids


def refuse(bench: Bench, path: str) -> None:
    def hook(call: str, its_path: str) -> None:
        if call == "pread" and its_path == path:
            raise DiskError(f"pread {path}: input/output error")

    bench.disk.hook = hook


async def test_a_census_names_the_log_and_goes_on() -> None:
    async with Bench(SMALL) as bench:
        first, second, _ = await sealed_logs(bench)
        await bench.restart()
        path = bench.storage.logs.path_of(first)
        refuse(bench, path)
        counted = await bench.storage.compactor.log_metadata({})
        assert not counted.complete
        assert {facts.log_id: bool(facts.why_not) for facts in counted.logs}[first]
        assert not {facts.log_id: bool(facts.why_not) for facts in counted.logs}[second]
        (damage,) = bench.storage.damages.current()
        assert (damage.kind, damage.path) == (DamageKind.UNREADABLE, path)
        sizes = await ledger_sizes(bench.storage.logs, 1000)
        assert [log["log_id"] for log in sizes["unreadable_logs"]] == [first]


async def test_stepping_through_it_is_an_unknown_not_an_end() -> None:
    async with Bench(SMALL) as bench:
        first, second, third = await sealed_logs(bench)
        await bench.restart()
        logs = bench.storage.logs
        refuse(bench, logs.path_of(second))
        with pytest.raises(BookieIOError):
            list(logs.scan_all(second))
        states = bench.storage._states
        for ledger_id in range(3):
            states._all.pop(ledger_id)
        assert restore_states(logs, states, (first, 0)) == 2, f"of {first} and {third}"


# A start refuses damaged files. Once the loss is accepted, good data is kept, the rest is unknown,
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
    operator = Operator(bench)
    bench.on_loss = operator.accept if accept else None
    await bench.start()
    return operator.said


async def refused(bench: Bench, kind: type[OctavoError]) -> str:
    with pytest.raises(kind) as error:
        await start_again(bench, accept=False)
    return str(error.value)


async def crashed(bench: Bench) -> MemoryDisk:
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


# The scrubber names damage exactly, never good data, and goes slowly.
KINDS = DamageKind


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench(SMALL_LOGS) as made:
        yield made


async def scrubbed(bench: Bench) -> list[Damage]:
    scrubber = bench.storage.scrubber
    assert scrubber is not None
    await scrubber.one_pass()
    return [found._replace(found_ms=0) for found in bench.storage.damages.current()]


def lost(kind: DamageKind, at: Placed) -> Damage:
    record, location = at.record, at.location
    span = (record.ledger_id, record.first_entry, record.last_entry)
    return Damage(kind, at.path, location.offset, location.length, *span)


async def test_what_is_good_is_never_reported(bench: Bench) -> None:
    placed = await fill(bench)
    await bench.send(make_run(9, 0, [b"of a foreign writer, of a digest that nobody knows"]))
    await bench.storage.checkpoint()
    await bench.send(checked_run(9, 1, [b"not flushed"]))
    assert len({at.path for at in placed}) > 1
    assert await scrubbed(bench) == []
    scrubber = bench.storage.scrubber
    assert scrubber is not None
    assert scrubber.passes == 1
    assert scrubber.bytes > sum(at.location.length for at in placed)


@pytest.mark.parametrize("number", range(9))
async def test_a_flipped_bit_in_a_body_is_a_run_checksum(bench: Bench, number: int) -> None:
    at = (await fill(bench))[number]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES + 40)
    assert await scrubbed(bench) == [lost(KINDS.EXTENT_CHECKSUM, at)]


@pytest.mark.parametrize("number", range(9))
@pytest.mark.parametrize("byte", [0, 5, 20, 26, 30, RECORD_BYTES - 1])
async def test_a_flipped_bit_in_a_header_takes_this_record_and_no_other(
    bench: Bench, number: int, byte: int
) -> None:
    at = (await fill(bench))[number]
    flip(bench.disk, at.path, at.location.offset + byte)
    assert await scrubbed(bench) == [lost(KINDS.RECORD_HEADER, at)]


async def test_two_bad_headers_in_a_row_are_two_findings(bench: Bench) -> None:
    placed = await fill(bench)
    for at in placed[0:2]:
        flip(bench.disk, at.path, at.location.offset)
    assert await scrubbed(bench) == [lost(KINDS.RECORD_HEADER, at) for at in placed[0:2]]


async def test_an_entry_that_came_damaged_is_named_alone(bench: Bench) -> None:
    await bench.send(checked_run(1, 0, [b"abc"] * 5, bad=3))
    await bench.storage.checkpoint()
    frame = len(checked_run(1, 0, [b"abc"]).frames)
    found = await scrubbed(bench)
    path = found[0].path
    offset = 24 + RECORD_BYTES + 3 * frame
    assert found == [Damage(KINDS.ENTRY_DIGEST, path, offset, frame, 1, 3, 3)]


async def test_a_file_header_is_named_and_the_rest_is_read(bench: Bench) -> None:
    placed = await fill(bench)
    flip(bench.disk, placed[0].path, 3)
    flip(bench.disk, placed[0].path, placed[0].location.offset + RECORD_BYTES)
    assert await scrubbed(bench) == [
        Damage(KINDS.FILE_HEADER, placed[0].path, 0, 24),
        lost(KINDS.EXTENT_CHECKSUM, placed[0]),
    ]


@pytest.mark.parametrize("from_end", [1, 10, 20, 25, 40])
async def test_a_damaged_map_loses_no_entry(bench: Bench, from_end: int) -> None:
    placed = await fill(bench)
    path = placed[0].path
    size = bench.disk.names[path].size
    end = max(at.location.offset + at.location.length for at in placed if at.path == path)
    assert size > end + 40
    flip(bench.disk, path, size - from_end)
    assert await scrubbed(bench) == [Damage(KINDS.LEDGERS_MAP, path, end, size - end)]
    flip(bench.disk, path, size - from_end)
    assert await scrubbed(bench) == []


async def test_a_log_cut_within_a_record(bench: Bench) -> None:
    placed = await fill(bench)
    for at in placed[:1]:
        cut(bench.disk, at.path, at.location.offset + RECORD_BYTES + 10)
    found = await scrubbed(bench)
    assert found[0] == lost(KINDS.TRUNCATED, placed[0])


async def test_the_current_log_cut_before_the_mark(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=1)
    cut(bench.disk, placed[-1].path, placed[-1].location.offset + 10)
    assert await scrubbed(bench) == [lost(KINDS.TRUNCATED, placed[-1])]


async def test_a_missing_log_names_what_it_held(bench: Bench) -> None:
    placed = await fill(bench)
    path = placed[0].path
    del bench.disk.names[path]
    found = await scrubbed(bench)
    held = {at.record.ledger_id: at.record for at in placed if at.path == path}
    assert {(d.kind, d.path) for d in found} == {(KINDS.MISSING_FILE, path)}
    assert {(d.ledger_id, d.first, d.last) for d in found} == {
        (r.ledger_id, r.first_entry, r.last_entry) for r in held.values()
    }


def failing(path: str, start: int, end: int, times: int) -> Callable[[int, int], bool]:
    left = [times]

    def fails(length: int, offset: int) -> bool:
        hit = offset < end and offset + length > start and left[0] > 0
        left[0] -= hit
        return hit

    return fails


@pytest.mark.parametrize(("times", "found"), [(1, False), (99, True)])
async def test_a_refused_read_is_repeated_once(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, times: int, found: bool
) -> None:
    placed = await fill(bench)
    at = placed[1]
    body = at.location.offset + RECORD_BYTES
    fails = failing(at.path, body, body + 1, times)
    real = bench.disk.open(at.path)
    pread = type(real).pread

    def troubled(self: object, length: int, offset: int) -> bytes:
        if self.path == at.path and fails(length, offset):  # type: ignore[attr-defined]
            raise DiskError(f"pread {at.path}: input/output error")
        return pread(self, length, offset)  # type: ignore[arg-type]

    monkeypatch.setattr(type(real), "pread", troubled)
    assert await scrubbed(bench) == ([lost(KINDS.UNREADABLE, at)] if found else [])


async def test_damage_where_nothing_lives_names_no_ledger(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=2)
    await bench.storage.delete_ledger(1)
    await bench.storage.checkpoint()
    for at in placed[:2]:
        flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    dead = lost(KINDS.EXTENT_CHECKSUM, placed[0])._replace(ledger_id=None, first=None, last=None)
    assert await scrubbed(bench) == [dead, lost(KINDS.EXTENT_CHECKSUM, placed[1])]


async def test_only_entries_that_the_index_finds_there_are_named(bench: Bench) -> None:
    await bench.send(checked_run(1, 0, [b"old"] * 6))
    await bench.storage.checkpoint()
    await bench.overwrite(checked_run(1, 0, [b"new"] * 2))
    await bench.storage.checkpoint()
    at = (await fill(bench, ledgers=0))[0]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    assert await scrubbed(bench) == [lost(KINDS.EXTENT_CHECKSUM, at)._replace(first=2)]


async def test_what_is_good_again_is_cleared_and_the_rest_stays(bench: Bench) -> None:
    placed = await fill(bench)
    hurt = [placed[0], placed[4], placed[8]]
    for at in hurt:
        flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    assert len(await scrubbed(bench)) == 3
    flip(bench.disk, placed[4].path, placed[4].location.offset + RECORD_BYTES)
    assert await scrubbed(bench) == [
        lost(KINDS.EXTENT_CHECKSUM, placed[0]),
        lost(KINDS.EXTENT_CHECKSUM, placed[8]),
    ]


async def test_a_read_and_the_scrubber_report_the_same_finding_once(bench: Bench) -> None:
    placed = await fill(bench)
    at = placed[4]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES)
    for _ in range(2):
        with pytest.raises(Exception, match="checksum"):
            await bench.storage.reads.read(at.record.ledger_id, at.record.first_entry)
    assert len(bench.storage.damages.current()) == 1
    assert await scrubbed(bench) == [lost(KINDS.EXTENT_CHECKSUM, at)]


async def test_it_keeps_to_its_rate(bench: Bench) -> None:
    await fill(bench)
    scrubber = bench.storage.scrubber
    assert scrubber is not None
    scrubber._bytes_per_s = 20_000
    loop = asyncio.get_running_loop()
    before = loop.time()
    await scrubber.one_pass()
    assert loop.time() - before >= scrubber.bytes / 20_000 * 0.9


async def test_a_pass_on_request_and_the_end_of_the_task(bench: Bench) -> None:
    await fill(bench)
    scrubber = bench.storage.scrubber
    assert isinstance(scrubber, Scrubber)
    scrubber._interval_s = 0.0
    task = asyncio.create_task(scrubber.run())
    await asyncio.sleep(0.05)
    assert scrubber.passes == 0
    assert scrubber.last_pass_age_s == -1
    scrubber.start_pass()
    async with asyncio.timeout(5):
        while not scrubber.passes:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
    assert scrubber.last_pass_age_s >= 0
    assert scrubber.status()["passes"] == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
