"""`octavo inspect` called files damaged that a running bookie was just writing, sealing or reusing.

Found by looking, again and again, at a bookie under load (test_inspect.py): an entry log that was
sealed after the walk had asked for its length showed "a ledgers map without a good footer". The
same kind of race was in four more places; each is shown here without one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from octavo.bookie.disk.files import File, RealDisk, RealFile
from octavo.bookie.entrylog.format import RECORD_BYTES, encode_map, encode_record
from octavo.inspect.line import Line, Wish
from octavo.inspect.walks import walks_of
from tests.fixtures.formats import make

WHOLE = sorted((make.HERE / "bookie").iterdir())[-1]
MARKED = 1602
"""Where in the second log the mark ends; nothing but zeros follows."""


@pytest.fixture
def bookie(tmp_path: Path) -> Path:
    shutil.copytree(WHOLE, tmp_path / "b")
    return tmp_path / "b"


class Moving(RealDisk):
    """Something happens to the file just after its `reads`-th read; that one saw the old bytes."""

    def __init__(self, reads: int, happens: Callable[[], None]) -> None:
        super().__init__()
        self._reads = reads
        self._happens = happens

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:
        file = super().open(path, create=create, write=write)
        assert isinstance(file, RealFile)
        if not path.endswith("1.journal"):
            return file
        disk = self

        class Watched:
            path = file.path
            size = staticmethod(file.size)
            close = staticmethod(file.close)

            @staticmethod
            def pread(length: int, offset: int) -> bytes:
                data = file.pread(length, offset)
                disk._reads -= 1
                if not disk._reads:
                    disk._happens()
                return data

        return Watched()  # type: ignore[return-value]


def looked(kind: str, path: Path, disk: RealDisk | None = None) -> list[Line]:
    walks, _ = walks_of(disk or RealDisk(), kind, str(path), Wish(verify=True))
    return [line for walk in walks for line in walk.lines()]


def kinds(lines: list[Line]) -> list[str]:
    assert not [line for line in lines if line.damage]
    return [line.kind for line in lines]


def test_a_map_that_is_just_being_written(bookie: Path) -> None:
    log = bookie / "ledgers-1/0000000000000002.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:MARKED] + encode_map({7: 1372, 10: 170}, MARKED) + bytes(4096))
    assert kinds(looked("entrylog", log)) == ["header", "run", "run", "torn"]
    log.write_bytes(whole[: MARKED - 20] + encode_map({7: 1372}, MARKED - 20) + bytes(4096))
    assert [line for line in looked("entrylog", log) if line.damage], "before the mark it is damage"


def test_a_run_that_is_just_being_written(bookie: Path) -> None:
    log = bookie / "ledgers-1/0000000000000002.log"
    frames = make.run_of(7, 16, 2).frames
    run = encode_record(7, 16, 2, [bytes(frames)])
    log.write_bytes(log.read_bytes()[:MARKED] + run + frames[:40] + bytes(4096))
    lines = looked("entrylog", log)
    assert kinds(lines) == ["header", "run", "run", "torn", "free"]
    assert lines[3].length == RECORD_BYTES + len(frames)


def test_a_journal_block_written_while_what_follows_is_looked_for(bookie: Path) -> None:
    journal = bookie / "journal/0000000000000001.journal"
    (bookie / "journal/0000000000000002.journal").unlink()
    whole = journal.read_bytes()
    reserved = whole[:3530] + bytes(len(whole) - 3530)

    def written() -> None:
        with journal.open("r+b") as file:
            file.write(whole)

    journal.write_bytes(whole[:3530] + bytes(44) + whole[3574:])
    assert [line for line in looked("journal", journal) if line.damage], "it stays so: damage"
    for read in range(1, 30):  # whichever read it is that sees the old bytes last
        journal.write_bytes(reserved)
        kinds(looked("journal", journal, Moving(read, written)))
        if journal.read_bytes() == reserved:
            assert read > 10
            return
    pytest.fail("not all reads were tried")


def test_a_journal_file_that_becomes_the_next_one_meanwhile(bookie: Path) -> None:
    journal = bookie / "journal/0000000000000001.journal"

    def reused() -> None:
        journal.rename(bookie / "journal/spare")
        with (bookie / "journal/spare").open("r+b") as file:
            file.write(make.HERE.joinpath("journal/v1/0000000000000002.journal").read_bytes())

    assert kinds(looked("journal", journal, Moving(1, reused))) == ["header", "gone"]
