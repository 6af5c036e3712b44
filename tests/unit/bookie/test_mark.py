"""The journal mark: order, copies, versions, and its use by a start."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from octavo.bookie.journal.format import JournalDamaged
from octavo.bookie.journal.mark import (
    NAME,
    Mark,
    MarkRefused,
    Position,
    check_journals,
    decode_mark,
    encode_mark,
    read_mark,
    write_mark,
)
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, Bench, is_fenced

FOLDERS = ("/j", "/k")
BASE = Mark((Position(3, 100), Position(5, 200)), 7, 70, 2, 20, FOLDERS)


def at(*journals: tuple[int, int], **more: Any) -> Mark:
    return replace(BASE, journals=tuple(Position(*one) for one in journals), **more)


AHEAD = [
    at((3, 101), (5, 200)),
    at((4, 24), (5, 200)),
    at((3, 100), (6, 24)),
    at((3, 100), (5, 200), log_offset=71),
    at((3, 100), (5, 200), log_id=8, log_offset=0),
    at((3, 100), (5, 200), state_id=3, state_offset=0),
]
CROSSED = [
    at((4, 24), (5, 199)),
    at((3, 99), (6, 24)),
    at((4, 24), (5, 200), log_offset=69),
    at((3, 100), (6, 24), state_id=1),
]


@pytest.mark.parametrize("other", AHEAD)
def test_ahead_in_any_component_covers(other: Mark) -> None:
    assert other.covers(BASE)
    assert not BASE.covers(other)
    assert BASE.covers(BASE)


@pytest.mark.parametrize("other", CROSSED)
def test_marks_that_cross_have_no_order(other: Mark) -> None:
    # BookKeeper #4844: one of them was taken for the higher, and the flush between was skipped.
    assert not other.covers(BASE)
    assert not BASE.covers(other)
    with pytest.raises(TypeError):
        _ = other < BASE  # type: ignore[operator]


def test_marks_of_other_journals_have_no_order() -> None:
    for other in (at((9, 9)), at((9, 9), (9, 9), (9, 9))):
        assert not other.covers(BASE)
        assert not BASE.covers(other)


def folder(*marks: Mark | bytes | None) -> tuple[MemoryDisk, tuple[str, ...]]:
    """Return a disk with a copy in each folder."""
    disk = MemoryDisk()
    names = tuple(f"/l{number}" for number in range(len(marks)))
    for name, mark in zip(names, marks, strict=True):
        disk.make_directory(name)
        if mark is not None:
            data = mark if isinstance(mark, bytes) else encode_mark(mark)
            disk.open(f"{name}/{NAME}", create=True).pwritev([data], 0)
    return disk, names


def test_the_highest_copy_counts_wherever_it_lies() -> None:
    # BookKeeper #3329: only the folder that was written last had it.
    for marks in ((BASE, AHEAD[2]), (AHEAD[2], BASE), (None, AHEAD[2]), (b"rot", AHEAD[2], BASE)):
        assert read_mark(*folder(*marks)) == AHEAD[2]
    assert read_mark(*folder(None, b"rot")) is None


@pytest.mark.parametrize("other", CROSSED)
def test_copies_that_contradict_one_another_are_refused(other: Mark) -> None:
    with pytest.raises(MarkRefused, match="contradict"):
        read_mark(*folder(BASE, other))


def test_every_folder_gets_the_mark() -> None:
    disk, names = folder(BASE, None, b"rot")
    write_mark(disk, names, AHEAD[0])
    after = disk.after_crash()
    for name in names:
        assert read_mark(after, [name]) == AHEAD[0]


def version_1(*fields: int) -> bytes:
    front = struct.pack(">8sIQQQQQQ", b"OctvMark", 1, *fields)
    return front + struct.pack(">I", crc32c(front))


def test_a_mark_of_version_1_is_of_one_journal() -> None:
    old = decode_mark(version_1(3, 100, 7, 70, 2, 20))
    assert old == Mark((Position(3, 100),), 7, 70, 2, 20)
    new = Mark((Position(3, 101),), 7, 70, 2, 20, ("/j",))
    assert new.covers(old)
    assert read_mark(*folder(version_1(3, 100, 7, 70, 2, 20), new)) == new
    check_journals(old, ["/j"])
    with pytest.raises(MarkRefused, match="one folder"):
        check_journals(old, ["/j", "/k"])


def test_a_mark_of_a_later_version_is_not_passed_over() -> None:
    data = encode_mark(BASE)[:-4].replace(b"OctvMark\0\0\0\2", b"OctvMark\0\0\0\3")
    data += struct.pack(">I", crc32c(data))
    with pytest.raises(MarkRefused, match=r"/l1/journal.mark: mark of version 3"):
        read_mark(*folder(BASE, data))


def test_no_damaged_byte_goes_unnoticed() -> None:
    whole = encode_mark(BASE)
    for at_byte in range(len(whole)):
        for mask in (1, 0x80):
            spoiled = bytearray(whole)
            spoiled[at_byte] ^= mask
            assert decode_mark(bytes(spoiled)) is None
    for length in range(len(whole)):
        assert decode_mark(whole[:length]) is None
    assert decode_mark(whole + b"\0") is None


def test_counts_and_lengths_that_lie_are_no_mark() -> None:
    for start, more in ((12, 1), (12, 2**31), (64, 1), (64, 2**15)):
        size = 4 if start == 12 else 2
        data = bytearray(encode_mark(BASE)[:-4])
        value = int.from_bytes(data[start : start + size], "big") + more
        data[start : start + size] = value.to_bytes(size, "big")
        data += struct.pack(">I", crc32c(bytes(data)))
        assert decode_mark(bytes(data)) is None


@pytest.mark.parametrize(
    "changed", [("/j",), ("/x",), ("/k", "/j"), ("/j", "/k", "/x"), ("/x", "/j")]
)
async def test_other_journal_folders_are_refused(changed: tuple[str, ...]) -> None:
    bench = Bench(replace(CONFIG, journal_directories=("/j", "/k")))
    async with bench:
        await bench.add(1, 0)
        await bench.storage.checkpoint()
    bench.config = replace(CONFIG, journal_directories=changed)
    before = {name: bytes(inode.data) for name, inode in bench.disk.names.items()}
    with pytest.raises(MarkRefused, match="cannot be changed once a bookie has begun"):
        await bench.start()
    assert before == {name: bytes(inode.data) for name, inode in bench.disk.names.items()}


async def test_an_empty_folder_in_the_place_of_a_journal_is_refused() -> None:
    bench = Bench(replace(CONFIG, journal_directories=("/j", "/k")))
    async with bench:
        await bench.add(1, 0)
    bench.config = replace(CONFIG, journal_directories=("/j", "/x"))
    with pytest.raises(JournalDamaged, match="missing from /x"):
        await bench.start()


def test_folders_that_were_moved_together_pass() -> None:
    check_journals(BASE, ["/new/j", "/new/k"])


async def test_a_bookie_with_a_mark_of_version_1_goes_on() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"before")
        await bench.storage.checkpoint()
        mark = bench.storage._checkpointer.mark
        await bench.add(1, 1, b"behind the mark")
        await bench.storage.control.fence(2, b"k" * 20)
        after = bench.disk.after_crash()
        assert mark is not None
        old = version_1(
            *mark.journals[0], mark.log_id, mark.log_offset, mark.state_id, mark.state_offset
        )
        for folder_name in CONFIG.ledger_directories:
            inode = after.names[f"{folder_name}/{NAME}"]
            inode.resize(0)
            inode.write(0, old)
            inode.sync()
        bench.disk = after
        await bench.start()
        assert await bench.storage.reads.entries(1) == [(0, 1)]
        assert is_fenced(bench.storage, 2)
        assert read_mark(bench.disk, CONFIG.ledger_directories).folders == ("/j",)  # type: ignore[union-attr]
