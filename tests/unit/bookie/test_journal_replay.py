"""Journals after a crash or on a bad disk (BookKeeper's BookieJournalTest)."""

from __future__ import annotations

import pytest

from octavo.bookie.disk.files import File
from octavo.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    JournalDamaged,
    file_name,
)
from octavo.bookie.journal.journal import JournalWriter
from octavo.bookie.journal.mark import Position
from octavo.bookie.journal.reader import JournalReader
from tests.support.memory_disk import MemoryDisk

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
