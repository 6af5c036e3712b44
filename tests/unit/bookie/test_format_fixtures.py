"""Today's code reads the files of every version that a bookie ever wrote.
tests/fixtures/formats/make.py wrote them once, and lists their content."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.index.index import RocksIndex
from octavo.bookie.journal.mark import decode_mark
from octavo.bookie.journal.reader import JournalReader, records_of
from octavo.bookie.ledgers.high_water import decode_high_water, read_high_water
from octavo.bookie.ledgers.limbo import decode_limbo, read_limbo
from octavo.bookie.ledgers.state import StateFile
from octavo.bookie.storage import Storage
from octavo.inspect.line import Wish
from octavo.inspect.small import mark_fields
from octavo.inspect.walks import KINDS, walks_of
from octavo.metadata.cookie import decode_cookie
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger
from octavo.protocol.entry import digest_for, unpack_entry
from tests.fixtures.formats import make
from tests.support.storage_support import is_fenced

ROOT = Path(__file__).resolve().parents[3]
FIXTURES = make.HERE
GENERATIONS = sorted((FIXTURES / "bookie").iterdir())
NOT_OF_FILES = {
    "protocol/availability.py", "protocol/extension.py", "protocol/frames.py", "protocol/v3.py",
    "protocol/encrypted.py",
}  # fmt: skip
"""Versions of wire formats and payloads, which a bookie does not read from files."""
WHERE = {
    "bookie/journal/format.py": "journal",
    "bookie/entrylog/format.py": "entry_log",
    "bookie/ledgers/state.py": "ledger_state",
    "bookie/ledgers/high_water.py": "high_water",
    "bookie/ledgers/limbo.py": "limbo",
    "bookie/journal/mark.py": "mark",
    "metadata/cookie.py": "cookie",
}


def kept(name: str) -> list[Path]:
    return sorted((FIXTURES / name).iterdir())


def copied(source: Path, target: Path) -> Path:
    """Copy the folder: reading may write (a sync, a seal)."""
    shutil.copytree(source, target / "copy")
    return target / "copy"


def entry_of(data: bytes, ledger_id: int, entry_id: int) -> bytes:
    digest = digest_for(make.DIGESTS[ledger_id], make.PASSWORD)
    return bytes(unpack_entry(digest, ledger_id, entry_id, data).payload)


def test_every_version_has_its_fixture() -> None:
    for name, version in make.versions().items():
        assert (FIXTURES / name / f"v{version}").is_dir(), f"run {make.__name__}: {name} {version}"
    assert (FIXTURES / "bookie" / make.generation()).is_dir(), f"run {make.__name__}"


def test_no_format_was_forgotten() -> None:
    found: set[str] = set()
    for package in ("bookie", "metadata", "protocol"):
        for path in (ROOT / package).rglob("*.py"):
            if re.search(r"^_?(LAYOUT_)?VERSION = \d+", path.read_text(), re.MULTILINE):
                found.add(path.relative_to(ROOT).as_posix())
    found -= NOT_OF_FILES
    assert found <= set(WHERE), "give it a fixture: a line here, and one in make.py"
    assert {WHERE[path] for path in found} | {"index"} == set(make.versions())


@pytest.mark.parametrize("name", sorted(make.versions()))
def test_each_page_says_which_version_is_current(name: str) -> None:
    page = (ROOT / "docs" / "formats" / f"{name}.md").read_text()
    (found,) = re.findall(
        r"^\*\*Version and upgrade\.\*\* The current (?:layout )?version is (\d+)",
        page,
        re.MULTILINE,
    )
    assert int(found) == make.versions()[name]
    assert f"`tests/fixtures/formats/{name}`" in page


@pytest.mark.parametrize("folder", kept("journal"), ids=lambda one: one.name)
def test_journal(folder: Path, tmp_path: Path) -> None:
    reader = JournalReader(RealDisk(), str(copied(folder, tmp_path)), None)
    found: list[tuple[object, ...]] = []
    for block in reader.blocks():
        for record in records_of(block.body):
            if isinstance(record, AddBatch):
                assert record.key == make.KEY
                frames = make.run_of(record.ledger_id, record.first_entry, record.count).frames
                assert len(record.frames) == len(frames)
                found.append((record.ledger_id, record.first_entry, record.count, record.recovery))
            else:
                found.append((record.op.name, record.ledger_id))
    assert found == [
        *((7, 0, 8, False), (8, 0, 3, False), (9, 0, 2, False), ("DELETE", 9)),
        *((7, 8, 8, False), (10, 0, 2, False), ("EXPLICIT_LAC", 10)),
        *((7, 16, 2, False), ("FENCE", 8), (8, 3, 1, True)),
    ]


@pytest.mark.parametrize("folder", kept("entry_log"), ids=lambda one: one.name)
def test_entry_log(folder: Path, tmp_path: Path) -> None:
    logs = EntryLogs(RealDisk(), [str(copied(folder, tmp_path))], 10**6)
    logs.open()
    found = []
    for log_id in logs.log_ids:
        for record, location in logs.scan(log_id):
            _, frames = logs.read(location, record.ledger_id)
            assert (
                frames == make.run_of(record.ledger_id, record.first_entry, record.entries).frames
            )
            found.append((log_id, record.ledger_id, record.first_entry, record.entries))
    logs.close()
    assert found == [(1, 7, 0, 8), (1, 8, 0, 3), (2, 7, 8, 8), (2, 10, 0, 2)]


@pytest.mark.parametrize("folder", kept("index"), ids=lambda one: one.name)
def test_index(folder: Path, tmp_path: Path) -> None:
    index = RocksIndex(str(copied(folder, tmp_path) / "index"))
    runs = [
        (run[:3], run.location.log_id) for ledger in (7, 8, 9, 10) for run in index.runs(ledger)
    ]
    assert runs == [((7, 0, 7), 1), ((7, 8, 15), 2), ((8, 0, 2), 1), ((10, 0, 1), 2)]
    assert index.covered is not None
    assert index.covered[0] == 2
    index.close()


@pytest.mark.parametrize("folder", kept("ledger_state"), ids=lambda one: one.name)
def test_ledger_state(folder: Path, tmp_path: Path) -> None:
    file = StateFile(RealDisk(), str(copied(folder, tmp_path)))
    found = dict(file.load(None))
    assert sorted(found) == [7, 8, 9, 10]
    assert {state.key for state in found.values()} == {make.KEY}
    assert [ledger for ledger, state in found.items() if state.deleted] == [9]
    assert (found[7].last_entry, found[7].lac) == (15, 14)
    assert (found[8].last_entry, found[8].fenced) == (2, False), "the fence is in the journal"
    assert (found[10].explicit_lac, found[10].lac) == (1, 0)


@pytest.mark.parametrize("folder", kept("mark"), ids=lambda one: one.name)
def test_mark(folder: Path) -> None:
    mark = decode_mark((folder / "journal.mark").read_bytes())
    assert mark is not None
    fields = mark_fields(mark)
    assert (fields["log_id"], fields["log_offset"]) == (2, 1602)
    assert fields["state_id"] == 1


@pytest.mark.parametrize("folder", kept("cookie"), ids=lambda one: one.name)
def test_cookie(folder: Path) -> None:
    assert decode_cookie((folder / "VERSION").read_bytes()) == make.COOKIE


@pytest.mark.parametrize("folder", kept("high_water"), ids=lambda one: one.name)
def test_high_water(folder: Path) -> None:
    assert decode_high_water((folder / "high-water").read_bytes()) == make.HIGH_WATER
    assert read_high_water(RealDisk(), [str(folder)]) == make.HIGH_WATER


@pytest.mark.parametrize("folder", kept("limbo"), ids=lambda one: one.name)
def test_limbo(folder: Path) -> None:
    assert decode_limbo((folder / "limbo").read_bytes()) == make.LIMBO
    assert read_limbo(RealDisk(), [str(folder)]) == make.LIMBO


@pytest.mark.parametrize("folder", GENERATIONS, ids=lambda one: one.name)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "limbo"])
def test_inspect_finds_no_damage(kind: str, folder: Path) -> None:
    walks, running = walks_of(RealDisk(), kind, str(folder), Wish(entries=True, verify=True))
    lines = [line for walk in walks for line in walk.lines()]
    assert lines
    assert running is None
    assert not [line for line in lines if line.damage]
    assert json.dumps([line.as_json("p") for line in lines])


@pytest.mark.parametrize("folder", GENERATIONS, ids=lambda one: one.name)
async def test_a_whole_bookie_opens_and_serves(folder: Path, tmp_path: Path) -> None:
    expected = json.loads((folder / "expected.json").read_text())
    copy = copied(folder, tmp_path)
    journal, *ledgers = [str(copy / name) for name in make.FOLDERS]
    config = BookieConfig(
        journal_directories=(journal,),
        ledger_directories=tuple(ledgers),
        flush_interval_ms=3_600_000,
    )
    for _ in range(2):  # as it was killed, then as today's code left it
        storage = await Storage.open(config, disk=RealDisk())
        try:
            assert storage.ledgers() == sorted(map(int, expected["entries"]))
            for name, count in expected["entries"].items():
                ledger_id = int(name)
                for entry_id in range(count):
                    data = await storage.reads.read(ledger_id, entry_id)
                    wanted = make.payload_of(ledger_id, entry_id)
                    assert entry_of(data, ledger_id, entry_id) == wanted
                with pytest.raises(NoSuchEntry):
                    await storage.reads.read(ledger_id, count)
                assert is_fenced(storage, ledger_id) == (ledger_id in expected["fenced"])
            for ledger_id in expected["deleted"]:
                with pytest.raises(NoSuchLedger):
                    await storage.reads.read(ledger_id, 0)
            for name, lac in expected["explicit_lac"].items():
                assert storage.control.last_add_confirmed(int(name)) == lac
            assert await refused(storage, make.run_of(8, 4, 1)) == Code.FENCED
        finally:
            await storage.close()


async def refused(storage: Storage, run: AddBatch) -> Code:
    done: asyncio.Future[Code] = asyncio.get_running_loop().create_future()

    def told(results: Sequence[tuple[AddBatch, Code]]) -> None:
        done.set_result(results[0][1])

    storage.add([run], told)
    return await done
