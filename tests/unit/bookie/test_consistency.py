"""Index against logs against ledger states: the check names each contradiction."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from octavo.bookie.check.consistency import ConsistencyCheck
from octavo.bookie.check.folder_check import Report, check_folders
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import Damage, DamageKind, DamageRegistry
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.entrylog.format import RECORD_BYTES, Location
from octavo.bookie.index.index import IndexedExtent, RocksIndex
from octavo.bookie.ledgers.cookies import CookieRefused, check_cookies, lost_folders
from octavo.inspect.folders import NoBookieHere, find_folders
from octavo.metadata.cookie import Cookie, encode_cookie
from octavo.protocol.codes import BookieIOError
from tests.support.damaged_logs import Placed, checked_run, cut, fill, flip, records_in
from tests.support.memory_index import MemoryIndex
from tests.support.real_folders import RealBench, filled, names_in, read, remove, write
from tests.support.storage_support import CONFIG, Bench

KINDS = DamageKind
SMALL_LOGS = replace(CONFIG, entry_log_bytes_max=2000)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench(SMALL_LOGS) as made:
        yield made


def index_of(bench: Bench) -> MemoryIndex:
    index = bench.storage._index
    assert isinstance(index, MemoryIndex)
    return index


def checked(bench: Bench) -> list[Damage]:
    storage = bench.storage
    found = DamageRegistry(told=False)
    index = index_of(bench)
    check = ConsistencyCheck(
        bench.disk,
        storage.logs,
        index,
        storage._states,
        found,
        vouched=storage._checkpointer.vouched(),
        index_path="/l/index",
        state_path="/l",
    )
    check.run()
    assert check.runs == len(list(index.all_runs()))
    assert check.records + len(found.current()) > 0
    return found.current()


def finding(kind: DamageKind, at: Placed, first: int = 0, last: int = 0) -> Damage:
    record, location = at.record, at.location
    return Damage(
        kind,
        at.path,
        location.offset,
        location.length,
        record.ledger_id,
        record.first_entry + first,
        record.last_entry - last,
    )


def run_of(at: Placed) -> IndexedExtent:
    record = at.record
    return IndexedExtent(record.ledger_id, record.first_entry, record.last_entry, at.location)


async def test_what_was_written_and_cut_and_deleted_in_good_order_is_consistent(
    bench: Bench,
) -> None:
    await fill(bench)
    await bench.send(checked_run(1, 2, [b"again"] * 4))
    await bench.storage.checkpoint()
    await bench.storage.delete_ledger(2)
    assert checked(bench) == []
    await bench.storage.checkpoint()
    await bench.send(checked_run(7, 0, [b"in the write cache"]))
    assert checked(bench) == []
    await bench.restart()
    assert checked(bench) == []
    await bench.crash()
    assert checked(bench) == []


@pytest.mark.parametrize("number", range(9))
async def test_damage_in_a_log_has_one_finding(bench: Bench, number: int) -> None:
    at = (await fill(bench))[number]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES + 3)
    assert checked(bench) == [finding(KINDS.EXTENT_CHECKSUM, at)]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES + 3)
    flip(bench.disk, at.path, at.location.offset)
    assert checked(bench) == [finding(KINDS.RECORD_HEADER, at)]


async def test_a_log_cut_between_two_records_is_seen_by_the_index(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    cut(bench.disk, placed[2].path, placed[2].location.offset)
    assert checked(bench) == [finding(KINDS.TRUNCATED, placed[2])]


async def test_a_missing_log_is_named_for_each_of_its_ledgers(bench: Bench) -> None:
    placed = await fill(bench)
    path = placed[0].path
    gone = [at.record for at in placed if at.path == path]
    await bench.storage.close()
    del bench.disk.names[path]
    await bench.start()
    assert {found[:1] + found[4:7] for found in checked(bench)} == {
        (KINDS.MISSING_FILE, one.ledger_id, one.first_entry, one.last_entry) for one in gone
    }


async def test_a_record_that_the_index_lost_is_not_indexed(bench: Bench) -> None:
    placed = await fill(bench)
    index_of(bench).delete_ledger(2)
    lost = [at for at in placed if at.record.ledger_id == 2]
    assert checked(bench) == [finding(KINDS.NOT_INDEXED, at) for at in lost]


async def test_a_hole_in_the_index_is_named_with_its_entries(bench: Bench) -> None:
    at = (await fill(bench, rounds=1, ledgers=1))[0]
    index = index_of(bench)
    index.delete_ledger(1)
    index.put(
        [IndexedExtent(1, 0, 0, at.location), IndexedExtent(1, 3, 3, at.location)],
        bench.storage._checkpointer.vouched(),
    )
    assert checked(bench) == [finding(KINDS.NOT_INDEXED, at, first=1, last=1)]


async def test_an_older_copy_counts_only_if_it_holds_the_same(bench: Bench) -> None:
    await bench.send(checked_run(1, 0, [b"one", b"two", b"three"]))
    await bench.storage.checkpoint()
    await bench.overwrite(checked_run(1, 0, [b"one", b"two", b"other"]))
    await bench.storage.checkpoint()
    old, new = records_in(bench.disk, bench.config.ledger_directories)
    index = index_of(bench)
    index.put([IndexedExtent(1, 0, 1, old.location)], bench.storage._checkpointer.vouched())
    assert checked(bench) == []
    index.put([IndexedExtent(1, 0, 2, old.location)], bench.storage._checkpointer.vouched())
    assert checked(bench) == [finding(KINDS.NOT_INDEXED, new)]


async def test_an_index_that_points_at_another_ledgers_record(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    wrong = IndexedExtent(1, 0, 3, placed[2].location)
    index_of(bench).put([wrong], bench.storage._checkpointer.vouched())
    found = finding(KINDS.WRONG_RECORD, placed[2])._replace(ledger_id=1)
    assert checked(bench) == [found]


async def test_an_index_that_points_between_two_records(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    at = placed[1].location
    aside = Location(at.log_id, at.offset + 1, at.length - 1)
    index_of(bench).put(
        [run_of(placed[1])._replace(location=aside)], bench.storage._checkpointer.vouched()
    )
    found = finding(KINDS.RECORD_HEADER, placed[1])
    assert checked(bench) == [found._replace(offset=aside.offset, length=aside.length)]


async def test_an_index_that_finds_more_in_a_record_than_it_holds(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    index_of(bench).put([run_of(placed[1])._replace(last=4)], bench.storage._checkpointer.vouched())
    state = bench.storage._states.get(2)
    assert state is not None
    state.last_entry = 4
    assert checked(bench) == [finding(KINDS.WRONG_RECORD, placed[1], last=-1)]


async def test_an_index_beyond_the_mark(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    at = placed[-1].location
    behind = Location(at.log_id, at.offset + at.length, at.length)
    index_of(bench).put([run_of(placed[-1])._replace(first=0, location=behind)], (9, 9))
    kinds = {(found.kind, found.path) for found in checked(bench)}
    assert (KINDS.INDEX, "/l/index") in kinds
    assert any(kind in (KINDS.TRUNCATED, KINDS.RECORD_HEADER) for kind, _ in kinds)


async def test_a_state_that_knows_less_than_the_index(bench: Bench) -> None:
    await fill(bench)
    states = bench.storage._states
    state = states.get(2)
    assert state is not None
    state.last_entry = 5
    del states._all[3]
    assert checked(bench) == [
        Damage(KINDS.STATE, "/l", 0, 0, 2, 6, 11),
        Damage(KINDS.STATE, "/l", 0, 0, 3, 0, 11),
    ]


async def test_a_start_reports_what_it_finds_and_serves(bench: Bench) -> None:
    placed = await fill(bench)
    flip(bench.disk, placed[4].path, placed[4].location.offset + RECORD_BYTES)
    bench.config = replace(bench.config, consistency_check_on_start=True)
    await bench.restart()
    found = [damage._replace(found_ms=0) for damage in bench.storage.damages.current()]
    assert found == [finding(KINDS.EXTENT_CHECKSUM, placed[4])]
    assert await bench.storage.reads.read(1, 0)


# The check of a stopped bookie's folders changes nothing and names what is wrong.
def folders_checked(config: BookieConfig) -> Report:
    before = everything(config)
    passed: list[int] = []
    report = check_folders(
        RealDisk(), config.journal_directories, config.ledger_directories, passed.append
    )
    assert everything(config) == before
    assert json.loads(json.dumps(report.as_json()))["ok"] is report.ok
    assert sum(passed) >= report.log_bytes
    return report


def everything(config: BookieConfig) -> dict[str, tuple[str, int]]:
    found = {}
    for folder in config.directories:
        for root, _, names in os.walk(folder):
            for name in names:
                path = Path(root, name)
                digest = hashlib.sha256(path.read_bytes()).hexdigest()
                found[str(path)] = digest, path.stat().st_mtime_ns
    return found


def spoil(path: Path, at: int) -> None:
    data = read(path)
    data[at] ^= 0x10
    write(path, data)


async def test_a_bookie_that_stopped_in_good_order_is_whole(tmp_path: Path) -> None:
    config, runs = await filled(tmp_path)
    report = folders_checked(config)
    assert report.ok
    assert report.notes == report.refusals == []
    assert report.ledgers == 4
    assert (report.log_records, report.index_runs) == (20, len(runs))
    assert report.index_entries == sum(run.last - run.first + 1 for run in runs)


async def test_what_the_journal_holds_beyond_the_mark_is_taken_into_account(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path / "bookie")
    bench = RealBench(config)
    async with bench:
        await bench.send(checked_run(9, 0, [b"only in the journal"]))
        await bench.storage.delete_ledger(1)
        shutil.copytree(tmp_path / "bookie", tmp_path / "killed")
    killed = BookieConfig(
        journal_directories=(f"{tmp_path}/killed/j",), ledger_directories=(f"{tmp_path}/killed/l",)
    )
    report = folders_checked(killed)
    assert (report.damage, report.refusals) == ([], [])
    assert report.journal_blocks >= 2
    assert report.ledgers == 4


async def test_an_index_that_is_missing_or_behind_is_a_note(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    index = RocksIndex(f"{config.ledger_directories[0]}/index")
    index.put(before[-1:], (before[-1].location.log_id, before[-1].location.offset))
    index.flush()
    index.close()
    report = folders_checked(config)
    assert report.ok
    assert "a start indexes the rest" in report.notes[0]
    shutil.rmtree(f"{config.ledger_directories[0]}/index")
    report = folders_checked(config)
    assert report.ok
    assert "holds no index" in report.notes[0]


async def test_a_damaged_index_is_a_note_for_a_start_makes_it_anew(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path)
    (manifest,) = names_in(f"{config.ledger_directories[0]}/index", "MANIFEST-*")
    spoil(manifest, len(read(manifest)) // 2)
    report = folders_checked(config)
    assert "Corruption" in report.notes[0]


async def test_a_damaged_record_is_a_finding(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    run = before[3]
    path = names_in(config.ledger_directories[0], "*.log")[run.location.log_id - 1]
    spoil(path, run.location.offset + 50)
    report = folders_checked(config)
    (found,) = report.damage
    assert found[:2] == (KINDS.EXTENT_CHECKSUM, str(path))
    assert (found.offset, found.ledger_id, found.first) == (run.location.offset, *run[:2])
    assert not report.ok


async def test_a_damaged_copy_of_the_mark(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path)
    spoil(Path(config.ledger_directories[0], "journal.mark"), 20)
    report = folders_checked(config)
    assert [found.kind for found in report.damage] == [KINDS.MARK]
    assert "no readable journal.mark" in report.notes[0]


async def test_a_missing_journal_file_and_a_damaged_state_are_refusals(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path)
    for path in names_in(config.journal_directories[0], "*.journal"):
        remove(path)
    report = folders_checked(config)
    assert [found.kind for found in report.damage] == [KINDS.JOURNAL]
    assert "is missing from" in report.refusals[0]
    spoil(names_in(config.ledger_directories[0], "*.state")[-1], 40)
    report = folders_checked(config)
    assert "is damaged at byte" in report.refusals[0]


async def test_the_log_that_the_mark_names(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    remove(names_in(config.ledger_directories[0], "*.log")[-1])
    report = folders_checked(config)
    assert "which the journal mark names, is missing" in report.refusals[0]
    lost = [run for run in before if run.location.log_id == before[-1].location.log_id]
    named = [found.ledger_id for found in report.damage if found.ledger_id is not None]
    assert {run.ledger_id for run in lost} <= set(named)


async def test_an_index_that_is_looked_at_takes_no_writes(tmp_path: Path) -> None:
    from octavo.bookie.index.index import IndexView

    config, before = await filled(tmp_path)
    view = IndexView(f"{config.ledger_directories[0]}/index")
    assert list(view.all_runs()) == before
    with pytest.raises(BookieIOError, match="opened for reading only"):
        view.put(before, (0, 0))
    with pytest.raises(BookieIOError, match="opened for reading only"):
        view.delete_ledger(1)
    view.flush()
    view.close()


# An Apache bookie's folders have a cookie like ours and files with other names: the check found "no
# damage", and an Octavo bookie under the same id asked to accept the loss.

APACHES = Cookie("10.0.0.1:3181", "/bk/journal", ("/bk/ledgers",), instance_id="one")
OURS = Cookie(
    "10.0.0.1:3181", "/bk/journal", ("/bk/ledgers",), instance_id="one", incarnation="0123"
)
EMPTY: dict[str, Cookie | None] = {"/bk/journal": None, "/bk/ledgers": None}


def test_apaches_folders_are_said_to_be_apaches(tmp_path: Path) -> None:
    for name in ("journal", "ledgers"):
        folder = tmp_path / name / "current"
        folder.mkdir(parents=True)
        (folder / "VERSION").write_bytes(encode_cookie(APACHES))
        (folder / "0.log").write_bytes(b"BKLO" + bytes(1020))
    with pytest.raises(NoBookieHere, match=r"3181 of Apache BookKeeper: use `bookkeeper shell`"):
        find_folders(RealDisk(), [str(tmp_path)])


def test_the_id_of_a_bookie_of_apaches_is_refused() -> None:
    with pytest.raises(
        CookieRefused, match=r"belongs to an Apache BookKeeper bookie.*octavo bookie forget"
    ):
        check_cookies(OURS, APACHES, EMPTY, [])


def test_also_with_the_loss_accepted() -> None:
    with pytest.raises(CookieRefused, match="belongs to an Apache BookKeeper bookie"):
        lost_folders(OURS, APACHES, EMPTY, [], "")
