"""The end of a process: exit codes, last messages, and the bond to its supervisor."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
from pathlib import Path

import pytest

from octavo.metadata.store import SessionExpired
from octavo.process import life as life_module
from octavo.process.life import Life, allow_open_files, run_process
from octavo.process.spec import ProcessSpec
from octavo.protocol.codes import OctavoError


@pytest.fixture
def spec(tmp_path: Path) -> ProcessSpec:
    return ProcessSpec(
        name="bookie-9",
        metadata_url="file:///m",
        log_file=str(tmp_path / "log"),
        sections={"bookie": {}},
    )


def events(spec: ProcessSpec) -> list[dict[str, object]]:
    return [json.loads(line) for line in Path(spec.log_file).read_text().splitlines()]


def pair() -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair()
    return ours, theirs.detach()


async def serve(_spec: ProcessSpec, life: Life) -> None:
    life.ready(address="here:1")
    await life.until_stopped()


def test_sigterm_is_a_good_end(spec: ProcessSpec) -> None:
    async def main(spec: ProcessSpec, life: Life) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        await serve(spec, life)

    ours, theirs = pair()
    assert run_process(main, spec, theirs) == 0
    said = json.loads(ours.recv(4096))
    assert said["event"] == "ready"
    assert said["address"] == "here:1"
    assert said["pid"] == os.getpid()
    found = events(spec)
    assert [one["event"] for one in found] == ["stopping", "stopped"]
    assert found[0]["reason"] == "SIGTERM"
    assert (found[0]["service"], found[0]["node"]) == ("bookie", "bookie-9")
    ours.close()


def test_it_stops_when_the_supervisor_is_gone(spec: ProcessSpec) -> None:
    ours, theirs = pair()

    async def main(spec: ProcessSpec, life: Life) -> None:
        asyncio.get_running_loop().call_soon(ours.close)
        await serve(spec, life)

    assert run_process(main, spec, theirs) == 0
    assert events(spec)[0]["reason"] == "the supervisor is gone"


@pytest.mark.parametrize(
    ("error", "reason", "traced"),
    [
        (OctavoError("the disk is full"), "the disk is full", False),
        (OSError(13, "Permission denied", "/x"), "[Errno 13] Permission denied: '/x'", False),
        (KeyError("x"), "KeyError: 'x'", True),
    ],
)
def test_a_failure_is_told_to_log_and_supervisor(
    spec: ProcessSpec, error: Exception, reason: str, traced: bool
) -> None:
    async def main(spec: ProcessSpec, life: Life) -> None:
        raise error

    ours, theirs = pair()
    assert run_process(main, spec, theirs) == 1
    assert json.loads(ours.recv(4096)) == {
        "event": "failed",
        "reason": reason,
        "lost_session": False,
    }
    (last,) = events(spec)
    assert (last["event"], last["reason"]) == ("process_failed", reason)
    assert ("trace" in last) == traced
    ours.close()


def test_a_lost_session_is_told_with_what_helps(spec: ProcessSpec) -> None:
    """A supervisor may start the process again; a person reads why, and which setting matters."""

    async def lose(_spec: ProcessSpec, _life: Life) -> None:
        raise SessionExpired("the session in which this call to file:///m began is over")

    ours, fd = pair()
    assert run_process(lose, spec, fd) == 1
    told = json.loads(ours.recv(4096))
    assert (told["event"], told["lost_session"]) == ("failed", True)
    assert "session_timeout_ms" in told["reason"]
    assert events(spec)[-1]["reason"] == told["reason"]


def test_a_failure_while_serving_ends_it(spec: ProcessSpec) -> None:
    stopped = []

    async def main(spec: ProcessSpec, life: Life) -> None:
        life.ready()
        asyncio.get_running_loop().call_soon(life.fail, OctavoError("fsync failed"))
        try:
            await life.until_stopped()
        finally:
            stopped.append(True)

    assert run_process(main, spec) == 1
    assert stopped
    assert events(spec)[-1]["reason"] == "fsync failed"


def test_a_stop_while_it_starts(spec: ProcessSpec) -> None:
    async def main(spec: ProcessSpec, life: Life) -> None:
        life.stop("asked")
        await asyncio.Event().wait()

    assert run_process(main, spec) == 0


def test_a_stop_that_takes_too_long(spec: ProcessSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life_module, "STOP_TIMEOUT_S", 0.05)

    async def main(spec: ProcessSpec, life: Life) -> None:
        life.ready()
        life.stop("asked")
        await asyncio.Event().wait()

    assert run_process(main, spec) == 2
    assert "did not stop within" in str(events(spec)[-1]["reason"])


def test_it_takes_what_the_system_allows() -> None:
    """A bookie kept a shell's limit of 1,024 open files, and had no descriptor left for its
    next journal file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, hard), hard))
    try:
        allow_open_files()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
