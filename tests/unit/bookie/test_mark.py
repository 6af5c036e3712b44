"""The journal mark: order, copies, versions, its use by a start, and its loss."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c

from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind
from octavo.bookie.disk.files import SyncFailed
from octavo.bookie.entrylog.format import FILE_HEADER_BYTES
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
from octavo.bookie.ledgers.state import (
    FILE_HEADER,
    MAGIC,
    LedgerState,
    LedgerStateDamaged,
    StateFile,
    encode_block,
    encode_record,
    file_name,
)
from octavo.metadata.store import MetadataUnavailable
from octavo.protocol.codes import BookieIOError, Code
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import CONFIG, KEY, Bench, abandon, entry_bytes, is_fenced

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


# A bookie that has lost its journal mark keeps fences, deletions and losses.
CONFIG_OF_ONE = replace(CONFIG, ledger_directories=("/l",), journal_file_bytes_max=2000)


async def test_all_states_are_read_when_no_mark_says_which_count() -> None:
    """The mark is damaged, and the power failed while ledger states were rewritten. A start that
    reads only the newest state file finds it empty, and forgets keys and fences."""
    async with Bench(CONFIG_OF_ONE) as bench:
        await bench.add(1, 0, b"acked")
        await bench.storage.control.fence(1, b"k" * 20)
        await bench.storage.checkpoint()
        for number in range(3):
            await bench.add(2, number, b"x" * 1500)
        await bench.storage.checkpoint()
        assert not bench.disk.exists("/j/0000000000000001.journal"), "the fence is in the state"
        after = bench.disk.after_crash()
        await abandon(bench.storage)
        bench.disk = after
        after.open("/l/0000000000000002.state", create=True).close()
        after.flip("/l/journal.mark", 9, 1)
        await bench.start()
        assert (await bench.storage.reads.read(1, 0)).endswith(b"acked")
        assert await bench.add(1, 1, b"late") is Code.FENCED


SMALL = replace(CONFIG, entry_log_bytes_max=4096)


async def test_the_next_start_finds_it_again() -> None:
    """A start rebuilt its index over a damaged log and ended before limbo was durable; the next
    start saw neither damage nor limbo, and denied the entries."""
    bench = Bench(SMALL)
    async with bench:
        for ledger_id in range(3):
            assert await bench.add(ledger_id, 0, b"x" * 3000) is Code.OK
            await bench.storage.checkpoint()
    path = bench.storage.logs.path_of(bench.storage.logs.log_ids[0])
    file = bench.disk.open(path, write=True)
    file.pwritev([b"damaged!"], FILE_HEADER_BYTES)
    file.datasync()
    bench.indexes.clear()

    async def silent(why: str) -> None:
        raise MetadataUnavailable("no answer")

    bench.on_loss = silent
    with pytest.raises(MetadataUnavailable):
        await bench.start()

    bench.on_loss = None
    with pytest.raises(BookieIOError, match="damaged"):
        await bench.start()

    told: list[str] = []

    async def tell(why: str) -> None:
        told.append(why)

    bench.on_loss = tell
    async with bench:
        assert len(told) == 1
        assert await bench.storage.reads.read(2, 0) == entry_bytes(2, 0, b"x" * 3000)

    bench.on_loss = None  # reported once, durably; limbo reports it from now on
    async with bench:
        assert await bench.storage.reads.read(2, 0) == entry_bytes(2, 0, b"x" * 3000)


# Without a readable mark, a state file of a later version was skipped with its fences, keys and
# deletions, though docs/formats/ledger_state.md promises a refusal by name.


def later_file(disk: MemoryDisk, version: int) -> None:
    front = FILE_HEADER.pack(MAGIC, version, 1, 0)[:-4]
    front += crc32c(front).to_bytes(4, "big")
    state = LedgerState(KEY)
    state.fenced = True
    disk.make_directory("/a")
    file = disk.open(f"/a/{file_name(1)}", create=True)
    file.pwritev([front + encode_block([encode_record(7, state)], FILE_HEADER_BYTES)], 0)


@pytest.mark.parametrize("position", [None, (1, 100)])
def test_a_later_version_is_refused_by_name(position: tuple[int, int] | None) -> None:
    disk = MemoryDisk()
    later_file(disk, 2)
    with pytest.raises(LedgerStateDamaged, match="is of version 2; this program reads 1"):
        list(StateFile(disk, "/a").load(position))


def test_the_known_version_is_read() -> None:
    disk = MemoryDisk()
    later_file(disk, 1)
    assert [found.fenced for _, found in StateFile(disk, "/a").load(None)] == [True]


# A start replayed an unsynced block, flushed log and index, and died before the mark. The next
# start cut the log without that block, but the index still named its entries. So the index is
# flushed after the mark.


async def test_the_index_is_never_ahead_of_the_mark() -> None:
    async with Bench() as bench:
        await bench.add(1, 0, b"first copy")
        await bench.storage.checkpoint()
        before = bench.storage._index.runs(1)
        await bench.add(1, 0, b"first copy")
        await bench.add(1, 1, b"x")

        def hook(call: str, path: str) -> None:
            if call == "datasync" and "journal.mark" in path:
                raise SyncFailed(f"fdatasync {path}: input/output error")

        bench.disk.hook = hook
        with pytest.raises(SyncFailed):
            await bench.storage.checkpoint()
        assert bench.storage._index.runs(1) == before
        await bench.crash()
        assert await bench.storage.reads.read(1, 0) == entry_bytes(1, 0, b"first copy")


async def test_a_crash_between_mark_and_index_is_made_good_from_the_logs() -> None:
    async with Bench() as bench:
        for number in range(3):
            await bench.add(1, number, b"%d" % number)
        index = bench.storage._index
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(index, "put", lambda *_: (_ for _ in ()).throw(SyncFailed("power")))
            with pytest.raises(SyncFailed):
                await bench.storage.checkpoint()
        await bench.crash()
        assert await bench.storage.reads.entries(1) == [(0, 2)]
        assert await bench.storage.reads.read(1, 2) == entry_bytes(1, 2, b"2")


# Without a mark and old journal files, a start keeps each log up to its first bad record. If the
# index has entries behind it, the record is damaged and not torn: cutting there lost synced
# records.

LOG = "/l/0000000000000001.log"


async def lose_the_mark(bench: Bench) -> None:
    """Make three ledgers in one log without its journal; damage the mark and the first record."""
    for ledger_id in (1, 2):
        await bench.add(ledger_id, 0, b"x" * 800)
        await bench.storage.checkpoint()
    for number in range(3):
        await bench.add(3, number, b"y" * 1500)
    await bench.storage.checkpoint()
    assert not bench.disk.exists("/j/0000000000000001.journal"), "the log alone has them"
    after = bench.disk.after_crash()
    await abandon(bench.storage)
    bench.disk = after
    after.flip("/l/journal.mark", 9, 1)
    after.flip(LOG, 60, 1)


async def test_what_the_index_goes_beyond_is_not_cut() -> None:
    async with Bench(CONFIG_OF_ONE) as bench:
        await lose_the_mark(bench)
        await bench.start()

        assert (await bench.storage.reads.read(2, 0)).endswith(b"x" * 800)
        assert (await bench.storage.reads.read(3, 2)).endswith(b"y" * 1500)
        with pytest.raises(BookieIOError):
            await bench.storage.reads.read(1, 0)


async def test_nothing_is_cut_when_the_index_is_damaged_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def damaged(path: str) -> None:
        raise DamagedRead(f"{path} is damaged", Damage(DamageKind.INDEX, path, 0, 0))

    async with Bench(CONFIG_OF_ONE) as bench:
        await lose_the_mark(bench)
        with monkeypatch.context() as patched:
            patched.setattr(bench.disk, "open_index", damaged)
            with pytest.raises(DamagedRead):
                await bench.start()
        await bench.start()
        assert (await bench.storage.reads.read(2, 0)).endswith(b"x" * 800)
