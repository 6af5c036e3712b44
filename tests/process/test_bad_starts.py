"""`octavo bookie` and `octavo broker` that cannot start: one clear reason, exit code 1, no
trace. The folder stays as it was."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.standalone import OCTAVO, environment, octavo

UNREACHABLE = "zk://127.0.0.1:9/octavo"
GIVE_UP_S = 30.0


def refused(*arguments: str) -> str:
    started = time.monotonic()
    found = octavo(*arguments, timeout_s=GIVE_UP_S + 10)
    assert found.returncode == 1, found.stderr
    assert time.monotonic() - started < GIVE_UP_S
    assert "Traceback" not in found.stderr
    assert found.stdout == ""
    events = [json.loads(line) for line in found.stderr.splitlines() if line.startswith("{")]
    errors = [event for event in events if event["level"] == "error"]
    assert [event["event"] for event in errors] == ["process_failed"], found.stderr
    assert "trace" not in errors[0]
    return str(errors[0]["reason"])


@contextlib.contextmanager
def running(ready: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*OCTAVO, *arguments], stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stderr is not None
    try:
        assert any(json.loads(line)["event"] == ready for line in process.stderr), "it ended"
        yield process
        process.send_signal(signal.SIGTERM)
        assert process.wait(40) == 0
    finally:
        process.kill()
        process.wait(10)
        process.stderr.close()


@pytest.fixture
def metadata(tmp_path: Path) -> str:
    return f"file://{tmp_path}/m.db"


def bookie(folder: Path, metadata: str, *more: str) -> list[str]:
    return ["bookie", "--data", str(folder), "--metadata", metadata, "--port", "0", *more]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["bookie", "broker"])
def test_metadata_unreachable(tmp_path: Path, kind: str) -> None:
    folder = ["--data", str(tmp_path / "b")] if kind == "bookie" else []
    reason = refused(kind, *folder, "--metadata", UNREACHABLE, "--port", "0")
    assert "127.0.0.1:9" in reason
    assert "refused" in reason


@pytest.mark.parametrize("kind", ["bookie", "broker"])
def test_metadata_that_is_no_database(tmp_path: Path, kind: str) -> None:
    (tmp_path / "m.db").write_bytes(b"poetry" * 1000)
    folder = ["--data", str(tmp_path / "b")] if kind == "bookie" else []
    reason = refused(kind, *folder, "--metadata", f"file://{tmp_path}/m.db", "--port", "0")
    assert f"{tmp_path}/m.db" in reason


@pytest.mark.parametrize("kind", ["bookie", "broker"])
def test_port_in_use(tmp_path: Path, metadata: str, kind: str) -> None:
    folder = ["--data", str(tmp_path / "b")] if kind == "bookie" else []
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        reason = refused(kind, *folder, "--metadata", metadata, "--port", port)
    assert port in reason
    assert "in use" in reason


@pytest.mark.long
def test_folder_of_another_bookie(tmp_path: Path, metadata: str) -> None:
    folder = tmp_path / "b"
    with running("bookie_ready", *bookie(folder, metadata, "--bookie-id", "one")):
        pass
    stolen = refused(*bookie(folder, metadata, "--bookie-id", "two"))
    assert "'one'" in stolen or "bookie one" in stolen, stolen
    assert "two" in stolen
    elsewhere = refused(*bookie(folder, f"file://{tmp_path}/other.db", "--bookie-id", "one"))
    assert str(folder) in elsewhere
    wiped = refused(*bookie(tmp_path / "empty", metadata, "--bookie-id", "one"))
    assert "one" in wiped
    with running("bookie_ready", *bookie(folder, metadata, "--bookie-id", "one")):
        pass


def test_folder_in_use_by_a_living_bookie(tmp_path: Path, metadata: str) -> None:
    arguments = bookie(tmp_path / "b", metadata, "--bookie-id", "one")
    with running("bookie_ready", *arguments) as process:
        reason = refused(*arguments)
        assert f"held by process {process.pid}" in reason


def test_folder_not_writable(tmp_path: Path, metadata: str) -> None:
    (tmp_path / "file").touch()
    reason = refused(*bookie(tmp_path / "file" / "below", metadata))
    assert str(tmp_path / "file" / "below") in reason
    assert "write" in reason
    if os.geteuid():
        (tmp_path / "locked").mkdir(mode=0o500)
        assert "Permission denied" in refused(*bookie(tmp_path / "locked" / "b", metadata))


@pytest.mark.parametrize(
    "arguments",
    [
        ("-O", "-m", "octavo.cli.main", "bookie"),
        ("-OO", "-m", "octavo.process.broker", "spec.json", "0"),
        ("-O", "-m", "octavo.cli.main", "topic", "list"),
    ],
    ids=["bookie", "process", "command"],
)
def test_nothing_serves_without_assertions(arguments: tuple[str, ...]) -> None:
    found = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 1
    assert found.stdout == ""
    (line,) = found.stderr.splitlines()
    assert "without assertions" in line
    assert "PYTHONOPTIMIZE" in line


def test_a_program_that_imports_the_client_runs_without_assertions() -> None:
    """`import octavo` ended another program's process."""
    work = (
        "import octavo\n"
        "from octavo import Client, InvalidCall\n"
        "try:\n"
        "    with Client('http://127.0.0.1:9', retry_s=0) as client:\n"
        "        client.publish('t', {'a': float('nan')})\n"
        "except octavo.ClientError as error:\n"
        "    print(error.name)\n"
    )
    found = subprocess.run(
        [sys.executable, "-O", "-c", work], capture_output=True, text=True, timeout=60, check=False
    )
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.split() == ["unreachable"]
