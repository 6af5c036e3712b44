"""The registry of damage: reported once, bounded, completed, cleared with the damage."""

from __future__ import annotations

import struct
from dataclasses import replace

import msgpack
import pytest
from crc32c import crc32c
from structlog.testing import capture_logs

from octavo.bookie.disk.damage import Damage, DamageKind, DamageRegistry
from octavo.bookie.disk.files import DiskError
from octavo.bookie.entrylog.format import file_name
from octavo.bookie.gc.status import ledger_sizes
from octavo.bookie.journal.format import JournalDamaged, MetaOp, encode_meta
from octavo.bookie.journal.reader import records_of
from octavo.bookie.ledgers.limbo import LimboDamaged, decode_limbo
from octavo.bookie.startup.repair import restore_states
from octavo.protocol.codes import BookieIOError, Code
from tests.support.damaged_logs import fill
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, KEY, Bench, abandon, entry_bytes, make_run


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
