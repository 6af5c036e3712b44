"""`octavo bookie …`: sizes of folders, answers of a running bookie, refusals in one line."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import run
from tests.fixtures.formats import make
from tests.support.raw_bookie import running_bookie

WHOLE = sorted((make.HERE / "bookie").iterdir())[-1]


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OCTAVO_ADMIN_URL", raising=False)


@pytest.fixture
def bookie(tmp_path: Path) -> Path:
    shutil.copytree(WHOLE, tmp_path / "b")
    return tmp_path / "b"


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run(["bookie", *arguments])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, " ".join(out.split()), " ".join(err.split())


def test_sizes_from_folders(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(["sizes", str(bookie)], capsys)
    assert code == 0
    assert out.startswith("ledger bytes entries logs live bytes 7 2,672 16 2 2,744")
    assert "3 ledgers, 3,082 bytes in entry logs" in err
    assert run(["bookie", "sizes", str(bookie), "--json", "--limit", "1"]) == 0
    (one,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert one == {
        "ledger_id": 7,
        "stored_bytes": 2672,
        "logs": 2,
        "entries": 16,
        "live_bytes": 2744,
    }


def test_sizes_of_logs_that_lost_their_map_and_index(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = bookie / "ledgers-1/0000000000000001.log"
    log.write_bytes(log.read_bytes()[:-60])
    shutil.rmtree(bookie / "ledgers-1/index")
    _, out, _ = said(["sizes", str(bookie)], capsys)
    assert out.startswith("ledger bytes entries logs live bytes 7 2,672 0 2 0")


# Check and rebuild


def test_a_whole_bookie_is_said_to_be_whole(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said(["check", str(bookie)], capsys)
    assert (code, out) == (0, "")
    assert "no damage found" in err
    assert "3 ledgers · 4 runs" in err
    assert "21 entries in 4 records of the index · 3 journal blocks after the mark" in err


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 0xFF
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "offset", "named"),
    [
        ("ledgers-1/0000000000000001.log", 327, "extent-checksum"),
        ("ledgers-1/0000000000000001.state", 60, "state"),
        ("journal/0000000000000001.journal", 3640, "journal"),
        ("ledgers-2/journal.mark", 20, "mark"),
        ("ledgers-2/VERSION", 0, "file-header"),
    ],
)
def test_damage_anywhere_is_exit_code_1(
    name: str, offset: int, named: str, bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(bookie / name, offset)
    code = run(["bookie", "check", str(bookie), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert (code, found["ok"]) == (1, False)
    assert (named, str(bookie / name)) in [(one["kind"], one["path"]) for one in found["damage"]]
    code, out, err = said(["check", str(bookie)], capsys)
    assert code == 1
    assert named in out
    assert "damaged place" in err


def test_a_missing_index_is_made_anew(bookie: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(bookie / "ledgers-1/index")
    code, _, err = said(["check", str(bookie)], capsys)
    assert code == 0, "the next start makes it"
    assert "A start rebuilds the index" in err
    code, _, err = said(["rebuild-index", str(bookie)], capsys)
    assert code == 0
    assert "4 runs of 2 entry logs indexed, up to byte 1,602 of log 2" in err
    assert said(["check", str(bookie)], capsys)[0] == 0
    code, out, _ = said(["rebuild-index", str(bookie), "--json"], capsys)
    assert json.loads(out) == {"runs": 4, "logs": 2, "covered": [2, 1602]}


def test_an_index_that_cannot_be_whole_is_not_made(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(bookie / "ledgers-1/0000000000000001.log", 24)
    before = sorted(path.name for path in (bookie / "ledgers-1/index").iterdir())
    code, _, err = said(["rebuild-index", str(bookie)], capsys)
    assert code == 1
    assert "damaged" in err
    assert sorted(path.name for path in (bookie / "ledgers-1/index").iterdir()) == before


@pytest.mark.parametrize("command", ["check", "rebuild-index"])
async def test_who_holds_the_folders_is_named(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_bookie(tmp_path):
        code, _, err = await asyncio.to_thread(said, [command, str(tmp_path)], capsys)
        assert code == 1
        assert f"held by process {os.getpid()}" in err
    code, _, err = await asyncio.to_thread(said, [command, str(tmp_path)], capsys)
    assert code == 0, err


def test_a_folder_that_is_not_mounted_is_named(
    bookie: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in (bookie / "journal/VERSION", bookie / "ledgers-1/VERSION"):
        text = path.read_text().replace("/var/lib/octavo/b1", str(bookie))
        path.write_text(text)
    shutil.rmtree(bookie / "ledgers-2")
    code, _, err = said(["rebuild-index", str(bookie)], capsys)
    assert code == 2
    assert "ledgers-2, which the cookie names, is not there" in err


# A running bookie


async def test_a_running_bookie_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running_bookie(tmp_path, admin_port=0) as node:
        url = f"http://127.0.0.1:{node.admin.port}"

        async def ask(*arguments: str) -> tuple[int, str, str]:
            return await asyncio.to_thread(said, [*arguments, "--url", url], capsys)

        assert (await ask("sizes"))[::2] == (0, "0 ledgers, 0 bytes in entry logs")
        code, _, err = await ask("gc")
        assert code == 0
        assert err == "no round since the start; --start begins one"
        code, _, err = await ask("gc", "--start")
        assert code == 0, err
        code, _, err = await ask("damage")
        assert (code, err) == (0, "no damage found")
        code, out, _ = await ask("scrub")
        assert code == 0
        assert out
        code, _, err = await ask("gc", "--json")
        assert code == 0


ANSWERS: dict[str, Any] = {
    "/gc": {
        "running": True,
        "rounds": 3,
        "quarantined_ledgers": 1,
        "log_count": 2,
        "last_rounds": [{"metadata_error": "the store is away"}],
        "total": {"logs_removed": 4, "reclaimed_bytes": 5000, "copied_bytes": 60},
        "logs": [
            {
                "log_id": 9,
                "bytes": 1000,
                "live_bytes": 900,
                "live_ratio": 0.9,
                "action": "keep",
                "reason": "mostly live",
            }
        ],
    },
    "/damage": {
        "damage": [
            {
                "kind": "extent-checksum",
                "path": "/l/1.log",
                "offset": 24,
                "length": 100,
                "ledger_id": 7,
                "first": 3,
                "last": 9,
            }
        ]
    },
    "/ledgers": "no json",
}


@pytest.fixture
def canned() -> Iterator[str]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = ANSWERS[self.path.partition("?")[0]]
            body = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_gc_says_per_log_why_it_is_kept(canned: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(["gc", "--url", canned], capsys)
    assert code == 0
    assert "9 1,000 900 90% keep mostly live" in out
    assert "2 logs · 3 rounds, one under way · 4 logs removed, 5,000 bytes given back" in err
    assert "could not prove any ledger gone: the store is away" in err


def test_damage_is_exit_code_1(canned: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = said(["damage", "--url", canned], capsys)
    assert code == 1
    assert "extent-checksum /l/1.log 24 100 7 3–9" in out
    assert err == "1 damaged place"
    assert said(["damage", "--url", canned, "--json"], capsys)[0] == 1


def test_an_answer_that_is_none(canned: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(["sizes", "--url", canned], capsys)
    assert code == 1
    assert "is that its admin_port?" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gc"], "which bookie? name its admin port"),
        (["gc", "--url", "127.0.0.1:9"], "no answer from http://127.0.0.1:9"),
        (["gc", "--url", "ftp://x"], "write http://host:port"),
        (["gc", "--url", "http://["], "no answer from"),
        (["sizes", "/nowhere/at/all"], "is not a folder"),
        (["sizes", "{tmp}"], "no bookie's folder is there"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = said([one.format(tmp=tmp_path) for one in arguments], capsys)
    assert code == (1 if message.startswith("no answer") else 2)
    assert message in err
    assert err.startswith("error:")
    assert not out


async def test_an_unknown_path_says_what_there_is(tmp_path: Path) -> None:
    from octavo.cli.admin_port import AdminRefused, ask

    async with running_bookie(tmp_path, admin_port=0) as node:
        with pytest.raises(AdminRefused, match="GET /ledgers"):
            await asyncio.to_thread(ask, f"127.0.0.1:{node.admin.port}", "/nothing")
