"""`octavo inspect` shows the files' content, finds every damaged byte, changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.disk.files import File, RealDisk, RealFile
from octavo.bookie.entrylog.format import (
    RECORD,
    RECORD_BYTES,
    encode_file_header,
    encode_map,
    encode_record,
)
from octavo.bookie.journal.format import BlockKind, encode_block_header
from octavo.bookie.journal.format import encode_file_header as encode_journal_header
from octavo.cli.main import run
from octavo.inspect.line import Line, Wish, spans
from octavo.inspect.walks import KINDS, NothingToInspect, walks_of
from octavo.protocol.frames import PREFIX
from tests.fixtures.formats import make
from tests.support.raw_bookie import RawClient, adds_of, running_bookie

WHOLE = sorted((make.HERE / "bookie").iterdir())[-1]
VERIFY = Wish(verify=True, entries=True)
LOG_1 = "ledgers-1/0000000000000001.log"
LOG_2 = "ledgers-1/0000000000000002.log"
JOURNAL_1 = "journal/0000000000000001.journal"
STATE = "ledgers-1/0000000000000001.state"


@pytest.fixture
def bookie(tmp_path: Path) -> Path:
    shutil.copytree(WHOLE, tmp_path / "b")
    return tmp_path / "b"


def lines(kind: str, path: Path, wish: Wish = VERIFY) -> list[Line]:
    return [
        line for walk in walks_of(RealDisk(), kind, str(path), wish)[0] for line in walk.lines()
    ]


def damage(kind: str, path: Path) -> list[str]:
    return [
        f"{one.kind} {one.offset}+{one.length} {one.ledger_id} {one.first}-{one.last}"
        for line in lines(kind, path)
        for one in line.damage
    ]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


def shown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(["inspect", *arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, " ".join(out.split()), " ".join(err.split())


def parsed(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    assert run(["inspect", *arguments, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("journal", "ledger 7: 0–7 · ledger 8: 0–2 · ledger 9: 0–1"),
        ("entrylog", "sealed; 2 ledgers"),
        ("index", "complete up to byte 1,602 of entry log 2"),
        ("mark", "log offset 1,602"),
        ("state", "ledger 10 last entry 1, LAC 0, explicit LAC 1"),
        ("cookie", "incarnation 0123456789abcdef"),
    ],
)
def test_each_kind_for_a_person(
    kind: str, said: str, bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shown([kind, str(bookie), "--verify"], capsys)
    assert code == 0
    assert said in out
    assert "no damage found" in err


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "limbo"])
def test_looking_changes_nothing(
    kind: str, bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def state() -> dict[str, tuple[int, bytes]]:
        files = sorted(path for path in bookie.rglob("*") if path.is_file())
        return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}

    before = state()
    assert shown([kind, str(bookie), "--verify"], capsys)[0] == 0
    assert state() == before


def test_limbo(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = shown(["limbo", str(bookie)], capsys)
    assert (code, "holds no limbo file" in err) == (2, True)
    path = bookie / "ledgers-2/limbo"
    path.write_bytes(make.limbo_file())
    assert "unsure through 41" in shown(["limbo", str(bookie)], capsys)[1]
    flip(path, 20)
    assert shown(["limbo", str(bookie)], capsys)[0] == 1


def test_filters(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = parsed(["entrylog", str(bookie), "--ledger", "7", "--entry", "9"], capsys)
    assert [one["first"] for one in found if one["type"] == "extent"] == [8]
    (entry,) = [one for one in found if one["type"] == "entry"]
    assert (entry["ledger"], entry["first"], entry["digest"]) == (7, 9, "CRC32C")
    assert entry["batch"]["records"] == 2
    assert entry["batch"]["max_timestamp"] == 1_357_000_000_009
    found = parsed(["journal", str(bookie), "--from", "16", "--to", "16", "--entries"], capsys)
    assert [one["first"] for one in found if one["type"] == "entry"] == [16]
    found = parsed(["journal", str(bookie), "--ledger", "8"], capsys)
    assert [one["type"] for one in found if one.get("ledger") == 8] == ["fence"]
    assert [one["entries"] for one in found if one["type"] == "block"] == [13, 0, 1]
    found = parsed(["index", str(bookie), "--ledger", "7", "--from", "9"], capsys)
    assert [one["first"] for one in found if one["type"] == "extent"] == [8]
    found = parsed(["state", str(bookie), "--ledger", "9"], capsys)
    assert [one["deleted"] for one in found if one["type"] == "ledger"] == [True]


def test_a_digest_that_is_not_of_the_flag_is_recognised(bookie: Path) -> None:
    found = lines("entrylog", bookie, Wish(ledger=10, entries=True))
    assert {line.fields["digest"] for line in found if line.kind == "entry"} == {"CRC32"}
    assert "ledger 10 entry 1" in found[-2].note


def test_rows_are_limited_for_a_person(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = shown(["journal", str(bookie), "--limit", "2"], capsys)
    assert code == 0
    assert "more lines; --limit 0 shows all" in err
    assert "26 entries" in err, "the sums are those of all"
    assert out.count("block") == 1


def test_a_single_file_out_of_its_folder(bookie: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(bookie / LOG_1, alone)
    assert not damage("entrylog", alone / "0000000000000001.log")
    assert [line.kind for line in lines("entrylog", alone)] == (
        ["header", "extent", *["entry"] * 8, "extent", *["entry"] * 3, "map"]
    )


# Damage


def test_a_damaged_run_is_named(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(bookie / LOG_1, 24 + 36 + 167 + 100)  # in the payload of entry 1 of ledger 7
    code, out, err = shown(["entrylog", str(bookie), "--verify"], capsys)
    assert code == 1
    assert "by their digests these are damaged: 1" in out
    assert f"{LOG_1} bytes 24–1,396: extent-checksum, ledger 7 entries 0–7" in err
    assert shown(["entrylog", str(bookie), "--verify", "--json"], capsys)[0] == 1


def test_what_a_damaged_header_hides_is_named_by_the_index(bookie: Path) -> None:
    flip(bookie / LOG_1, 24)
    assert damage("entrylog", bookie) == ["record-header 24+1372 7 0-7"]


def test_a_damaged_block_of_the_journal_is_named(bookie: Path) -> None:
    where = 24 + 44 + 200  # entry 1 of ledger 7
    flip(bookie / JOURNAL_1, where)
    assert not damage("journal", bookie), "the mark has passed it: nothing is lost"
    assert [line.kind for line in lines("journal", bookie)][1] == "stale"
    for path in bookie.glob("ledgers-*/journal.mark"):
        path.unlink()
    assert damage("journal", bookie) == ["journal 24+1780 7 1-1"]


def test_a_torn_tail_is_no_damage(bookie: Path) -> None:
    last = sorted((bookie / "journal").glob("*.journal"))[-1]
    flip(last, 100)
    assert not damage("journal", bookie)
    assert [line.kind for line in lines("journal", last)] == ["header", "torn"]
    (bookie / "journal/0000000000000003.journal").write_bytes(encode_journal_header(3))
    assert damage("journal", last), "with a newer file behind it there is no tail"


@pytest.mark.parametrize(
    ("kind", "name", "end"),
    [
        ("entrylog", LOG_1, None),
        ("entrylog", LOG_2, 1602),
        ("state", STATE, None),
        ("journal", JOURNAL_1, 3900),
        ("mark", "ledgers-2/journal.mark", None),
    ],
)
def test_every_damaged_byte_is_found(kind: str, name: str, end: int | None, bookie: Path) -> None:
    path = bookie / name
    if kind == "journal":  # where no mark says that it is safe elsewhere
        shutil.rmtree(bookie / "ledgers-1")
        shutil.rmtree(bookie / "ledgers-2")
    whole = path.read_bytes()
    assert not damage(kind, path)
    for offset in range(3, len(whole) if end is None else end, 41):
        flip(path, offset)
        found = [line for line in lines(kind, path) if line.damage]
        assert found, f"byte {offset} of {name}"
        assert any(
            one.offset <= offset < one.offset + one.length for line in found for one in line.damage
        ), f"byte {offset} of {name}: {found}"
        path.write_bytes(whole)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("entrylog", LOG_1), ("journal", JOURNAL_1), ("state", STATE), ("cookie", "journal/VERSION")],
)
def test_truncated_and_scrambled_files_end_without_an_exception(
    kind: str, name: str, bookie: Path
) -> None:
    path = bookie / name
    whole = path.read_bytes()
    rng = random.Random(5)
    for _ in range(40):
        data = bytearray(whole[: rng.randrange(len(whole) + 1)])
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(data) + 1)
            data[at : at + rng.randrange(64)] = rng.randbytes(rng.randrange(64))
        path.write_bytes(data)
        for line in lines(kind, path):
            assert json.dumps(line.as_json("p"))


def body_lines(path: Path, body: bytes) -> list[Line]:
    """Return the lines of a journal with one block of any body and fitting checksums."""
    head = encode_block_header(BlockKind.GROUP, 1, 24, 24, [body])
    path.write_bytes(encode_journal_header(1) + head + body)
    return lines("journal", path)


@pytest.mark.parametrize(
    "body",
    [
        PREFIX.pack(2**32 - 4, 0x02010000) + bytes(60),
        PREFIX.pack(0, 0x02010000) + bytes(60),
        PREFIX.pack(2**31, 0x4A010000) + bytes(60),
        PREFIX.pack(40, 0x4AFF0000) + bytes(36),
        bytes(8),
        b"x",
    ],
    ids=["negative", "empty", "long", "unknown-meta", "zeros", "short"],
)
def test_forged_records_under_a_good_checksum(body: bytes, tmp_path: Path) -> None:
    found = body_lines(tmp_path / "0000000000000001.journal", body)
    if body[4:6] != b"\x4a\xff":
        assert found[1].damage[0].kind is DamageKind.JOURNAL
    else:
        assert found[2].kind == "meta-255"


def test_forged_lengths_take_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "0000000000000001.log"
    forged = RECORD.pack(b"ERUN", 7, 0, 2**32 - 1, 2**28 + 1, 0, 0)[:-4]
    forged += crc32c(forged).to_bytes(4, "big")
    path.write_bytes(encode_file_header(1) + forged + bytes(100))
    with path.open("r+b") as file:
        file.truncate(2**28 + 1000)  # sparse: the claimed length is there
    found = lines("entrylog", path)
    assert "claims 268435457 bytes" in found[1].note
    path.write_bytes(encode_file_header(1) + encode_record(7, 0, 2**31, [b""]))
    assert "0 frames instead of" in lines("entrylog", path)[1].note


def test_a_file_full_of_damage_is_walked_in_one_pass(tmp_path: Path) -> None:
    """Each bad place between good blocks is looked up, not searched for again."""
    data = bytearray(encode_journal_header(1))
    for _ in range(4000):
        data += encode_block_header(BlockKind.GROUP, 1, len(data), len(data), [])
        data += b"bad!"
    path = tmp_path / "0000000000000001.journal"
    path.write_bytes(data)
    found = lines("journal", path)
    assert sum(line.kind == "damage" for line in found) == 3999


# Index


def test_a_damaged_index_is_an_error_of_one_line(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (bookie / "ledgers-1/index").glob("*.sst"):
        flip(path, 20)
    code, _, err = shown(["index", str(bookie)], capsys)
    assert code == 1
    assert "index" in err
    for path in (bookie / "ledgers-1/index").glob("MANIFEST*"):
        path.write_bytes(b"")
    code, _, err = shown(["index", str(bookie)], capsys)
    assert code == 1
    assert "rebuild-index" in err


# Where


def test_a_running_bookie_is_said_to_be(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lock = RealDisk().lock(str(bookie / "ledgers-1/LOCK"))
    try:
        code, _, err = shown(["entrylog", str(bookie), "--verify"], capsys)
        assert code == 0
        assert "runs this bookie" in err
    finally:
        lock.close()
    assert "runs this bookie" not in shown(["entrylog", str(bookie)], capsys)[2]


async def test_a_running_bookie_under_load_is_never_called_damaged(tmp_path: Path) -> None:
    """While it writes, flushes, rolls and trims, torn places are the most that it shows."""
    small: dict[str, Any] = {"journal_file_bytes_max": 64 * 1024, "entry_log_bytes_max": 64 * 1024}
    small |= {"journal_preallocate_bytes": 16 * 1024, "flush_interval_ms": 20}
    async with running_bookie(tmp_path, **small) as node:
        client = await RawClient.connect(node)
        looks: Counter[str] = Counter()

        def looked_often() -> bool:
            return all(looks[kind] > 2 for kind in KINDS if kind != "limbo")

        async def write() -> None:
            for first in range(0, 100_000, 20):
                client.send(adds_of(7, range(first, first + 20), b"x" * 100))
                await client.acked(20)
                if first > 4000 and looked_often():
                    return

        writer = asyncio.create_task(write())
        while not writer.done():
            for kind in KINDS:
                with contextlib.suppress(NothingToInspect):  # before its first flush
                    found = await asyncio.to_thread(lines, kind, tmp_path)
                    assert not [line for line in found if line.damage], kind
                    looks[kind] += len(found) > 0
        await writer
        client.close()
        assert looked_often(), looks


@pytest.mark.parametrize(
    ("kind", "name"), [("journal", JOURNAL_1), ("entrylog", LOG_2), ("state", STATE)]
)
def test_a_copy_may_have_another_name(kind: str, name: str, bookie: Path, tmp_path: Path) -> None:
    copy = tmp_path / "looked-at"
    shutil.copy(bookie / name, copy)
    assert not damage(kind, copy)
    copies = [line.kind for line in lines(kind, copy)]
    shutil.copy(bookie / name, tmp_path / name.rpartition("/")[2])
    assert copies == [line.kind for line in lines(kind, tmp_path / name.rpartition("/")[2])]
    wrong = tmp_path / name.rpartition("/")[2].replace("1.", "7.").replace("2.", "7.")
    shutil.copy(copy, wrong)
    assert damage(kind, wrong), "a name that says otherwise is damage"


def test_folders_that_were_moved_are_found_beside_each_other(bookie: Path) -> None:
    assert lines("mark", bookie)
    assert len(lines("mark", bookie / "ledgers-2")) == 1, "one folder of several: that one alone"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["journal", "{tmp}/none"], "does not exist"),
        (["journal", "{tmp}"], "no bookie's folder is there"),
        (["index", "{tmp}/b/journal"], "holds no index"),
        (["entrylog", "{tmp}/b/journal"], "holds no entry log"),
        (["entrylog", "{tmp}/b/journal/VERSION"], "octavo inspect cookie"),
        (["entrylog", "{tmp}/b", "--digest", "md5"], "use crc32c, crc32, hmac or dummy"),
        (["mark", "{tmp}/two"], "folders of 2 bookies (bookie-1, bookie-2)"),
    ],
)
def test_a_wrong_path_is_one_clear_line(
    arguments: list[str],
    said: str,
    bookie: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "two" in arguments[1]:
        for name in ("1", "2"):
            (tmp_path / "two" / name).mkdir(parents=True)
            cookie = (bookie / "journal/VERSION").read_text().replace("bookie-1", f"bookie-{name}")
            (tmp_path / "two" / name / "VERSION").write_text(cookie)
    if arguments[1] == "{tmp}":
        shutil.rmtree(bookie)
    code, out, err = shown([one.format(tmp=tmp_path) for one in arguments], capsys)
    assert code == 2
    assert err.startswith("error:")
    assert said in err
    assert not out


def test_spans() -> None:
    assert spans([0, 1, 2, 5, 7, 8]) == "0–2, 5, 7–8"
    assert spans(list(range(0, 40, 2)), 2) == "0, 2, …"


# Files that a running bookie writes, seals or reuses between two reads were called damaged: five
# such races, each without its timing.

OPEN_WHOLE = sorted((make.HERE / "bookie").iterdir())[-1]
MARKED = 1602
"""Where in the second log the mark ends; only zeros follow."""


@pytest.fixture
def open_bookie(tmp_path: Path) -> Path:
    shutil.copytree(OPEN_WHOLE, tmp_path / "b")
    return tmp_path / "b"


class Moving(RealDisk):
    """Changes the file just after its `reads`-th read, which saw the old bytes."""

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


def test_a_map_that_is_just_being_written(open_bookie: Path) -> None:
    log = open_bookie / "ledgers-1/0000000000000002.log"
    whole = log.read_bytes()
    log.write_bytes(whole[:MARKED] + encode_map({7: 1372, 10: 170}, MARKED) + bytes(4096))
    assert kinds(looked("entrylog", log)) == ["header", "extent", "extent", "torn"]
    log.write_bytes(whole[: MARKED - 20] + encode_map({7: 1372}, MARKED - 20) + bytes(4096))
    assert [line for line in looked("entrylog", log) if line.damage], "before the mark it is damage"


def test_a_run_that_is_just_being_written(open_bookie: Path) -> None:
    log = open_bookie / "ledgers-1/0000000000000002.log"
    frames = make.run_of(7, 16, 2).frames
    run = encode_record(7, 16, 2, [bytes(frames)])
    log.write_bytes(log.read_bytes()[:MARKED] + run + frames[:40] + bytes(4096))
    lines = looked("entrylog", log)
    assert kinds(lines) == ["header", "extent", "extent", "torn", "free"]
    assert lines[3].length == RECORD_BYTES + len(frames)


def test_a_journal_block_written_while_what_follows_is_looked_for(open_bookie: Path) -> None:
    journal = open_bookie / "journal/0000000000000001.journal"
    (open_bookie / "journal/0000000000000002.journal").unlink()
    whole = journal.read_bytes()
    reserved = whole[:3530] + bytes(len(whole) - 3530)

    def written() -> None:
        with journal.open("r+b") as file:
            file.write(whole)

    journal.write_bytes(whole[:3530] + bytes(44) + whole[3574:])
    assert [line for line in looked("journal", journal) if line.damage], "it stays so: damage"
    for read in range(1, 30):  # whichever read sees the old bytes last
        journal.write_bytes(reserved)
        kinds(looked("journal", journal, Moving(read, written)))
        if journal.read_bytes() == reserved:
            assert read > 10
            return
    pytest.fail("not all reads were tried")


def test_a_journal_file_that_becomes_the_next_one_meanwhile(open_bookie: Path) -> None:
    journal = open_bookie / "journal/0000000000000001.journal"

    def reused() -> None:
        journal.rename(open_bookie / "journal/spare")
        with (open_bookie / "journal/spare").open("r+b") as file:
            file.write(make.HERE.joinpath("journal/v1/0000000000000002.journal").read_bytes())

    assert kinds(looked("journal", journal, Moving(1, reused))) == ["header", "gone"]


# docs/inspect.md shows the commands' output. The lines of a `console` block that begin with
PAGE = make.HERE.parents[2] / "docs" / "inspect.md"
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def played(commands: list[str], folder: Path) -> str:
    newest = sorted((make.HERE / "bookie").iterdir())[-1]
    shutil.copytree(newest, folder / "b1")
    found: list[str] = []
    before = Path.cwd()
    os.chdir(folder)
    try:
        for command in commands:
            found.append(f"$ {command}")
            text = printed(command).replace(str(folder), "/var/lib/octavo")
            found += [line.rstrip() for line in text.splitlines()]
    finally:
        os.chdir(before)
    return "\n".join(found) + "\n"


def printed(command: str) -> str:
    words = shlex.split(command)
    if words[0] != "octavo":
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        return done.stdout
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run(words[1:])
    return out.getvalue() + err.getvalue()


def commands_of(session: str) -> list[str]:
    return [line[2:] for line in session.splitlines() if line.startswith("$ ")]


SESSIONS = SESSION.findall(PAGE.read_text())


@pytest.mark.parametrize("session", SESSIONS, ids=range(len(SESSIONS)))
def test_a_session_prints_what_the_page_shows(session: str, tmp_path: Path) -> None:
    assert played(commands_of(session), tmp_path) == session


def test_the_page_shows_every_kind() -> None:
    text = "".join(SESSIONS)
    for kind in ("journal", "entrylog", "index", "cookie", "mark", "state"):
        assert f"$ octavo inspect {kind} " in text


def main() -> None:
    def anew(found: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return f"```console\n{played(commands_of(found[1]), Path(folder))}```"

    PAGE.write_text(SESSION.sub(anew, PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())
