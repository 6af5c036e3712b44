"""A bookie that has lost its journal mark keeps fences, deletions and losses."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crc32c import crc32c

from octavo.bookie.disk.damage import Damage, DamagedRead, DamageKind
from octavo.bookie.disk.files import SyncFailed
from octavo.bookie.entrylog.format import FILE_HEADER_BYTES
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
from tests.support.storage_support import CONFIG, KEY, Bench, abandon, entry_bytes

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
