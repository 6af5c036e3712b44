"""The check of a stopped bookie's folders changes nothing and names what is wrong."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

from octavo.bookie.check.folder_check import Report, check_folders
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.index.index import RocksIndex
from octavo.bookie.ledgers.cookies import CookieRefused, check_cookies, lost_folders
from octavo.inspect.folders import NoBookieHere, find_folders
from octavo.metadata.cookie import Cookie, encode_cookie
from octavo.protocol.codes import BookieIOError
from tests.support.damaged_logs import checked_run
from tests.support.real_folders import RealBench, filled, names_in, read, remove, write

KINDS = DamageKind


def checked(config: BookieConfig) -> Report:
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
    report = checked(config)
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
    report = checked(killed)
    assert (report.damage, report.refusals) == ([], [])
    assert report.journal_blocks >= 2
    assert report.ledgers == 4


async def test_an_index_that_is_missing_or_behind_is_a_note(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    index = RocksIndex(f"{config.ledger_directories[0]}/index")
    index.put(before[-1:], (before[-1].location.log_id, before[-1].location.offset))
    index.flush()
    index.close()
    report = checked(config)
    assert report.ok
    assert "a start indexes the rest" in report.notes[0]
    shutil.rmtree(f"{config.ledger_directories[0]}/index")
    report = checked(config)
    assert report.ok
    assert "holds no index" in report.notes[0]


async def test_a_damaged_index_is_a_note_for_a_start_makes_it_anew(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path)
    (manifest,) = names_in(f"{config.ledger_directories[0]}/index", "MANIFEST-*")
    spoil(manifest, len(read(manifest)) // 2)
    report = checked(config)
    assert "Corruption" in report.notes[0]


async def test_a_damaged_record_is_a_finding(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    run = before[3]
    path = names_in(config.ledger_directories[0], "*.log")[run.location.log_id - 1]
    spoil(path, run.location.offset + 50)
    report = checked(config)
    (found,) = report.damage
    assert found[:2] == (KINDS.EXTENT_CHECKSUM, str(path))
    assert (found.offset, found.ledger_id, found.first) == (run.location.offset, *run[:2])
    assert not report.ok


async def test_a_damaged_copy_of_the_mark(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path)
    spoil(Path(config.ledger_directories[0], "journal.mark"), 20)
    report = checked(config)
    assert [found.kind for found in report.damage] == [KINDS.MARK]
    assert "no readable journal.mark" in report.notes[0]


async def test_a_missing_journal_file_and_a_damaged_state_are_refusals(tmp_path: Path) -> None:
    config, _ = await filled(tmp_path)
    for path in names_in(config.journal_directories[0], "*.journal"):
        remove(path)
    report = checked(config)
    assert [found.kind for found in report.damage] == [KINDS.JOURNAL]
    assert "is missing from" in report.refusals[0]
    spoil(names_in(config.ledger_directories[0], "*.state")[-1], 40)
    report = checked(config)
    assert "is damaged at byte" in report.refusals[0]


async def test_the_log_that_the_mark_names(tmp_path: Path) -> None:
    config, before = await filled(tmp_path)
    remove(names_in(config.ledger_directories[0], "*.log")[-1])
    report = checked(config)
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
