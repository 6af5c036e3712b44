"""A process whose loop hangs in a library is killed, and no process outlives its supervisor. A
JSON Schema held a broker in a library that keeps the interpreter lock, where no thread of the
process could end it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.processes.standalone import until

PROGRAM = """
import asyncio, re, sys
from octavo.process import life, outside_watch
from octavo.process.spec import ProcessSpec

outside_watch.STANDS_STILL_S = 3

async def hang(spec, life):
    life.ready()
    print("ready", flush=True)
    if sys.argv[1] == "hang":
        re.match("(a+)+$", "a" * 60 + "!")  # of C, and it keeps the interpreter
    await life.until_stopped()

control = int(sys.argv[2]) if len(sys.argv) > 2 else None
sys.exit(life.run_process(hang, ProcessSpec(name="x", metadata_url=""), control))
"""


@contextmanager
def process(*arguments: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as said:
        one = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    try:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n", log.read_text()
        yield one
    finally:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


def is_gone(one: psutil.Process) -> bool:
    try:
        return one.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_loop_that_hangs_in_a_library_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process("hang", log=log) as hung:
        watch = psutil.Process(hung.pid).children()
        assert len(watch) == 1
        assert hung.wait(60) in (-signal.SIGABRT, -signal.SIGKILL)
        until(lambda: is_gone(watch[0]), "the watching process is gone")
    said = log.read_text()
    assert "stands still" in said
    assert "re/__init__.py" in said, "the log says where it stood"


def test_a_stopped_process_is_left_alone(tmp_path: Path) -> None:
    with process("serve", log=tmp_path / "log") as one:
        one.send_signal(signal.SIGSTOP)
        time.sleep(5)
        one.send_signal(signal.SIGCONT)
        one.send_signal(signal.SIGTERM)
        assert one.wait(30) == 0, (tmp_path / "log").read_text()


def test_the_watching_process_ends_with_its_parent(tmp_path: Path) -> None:
    with process("serve", log=tmp_path / "log") as one:
        [watch] = psutil.Process(one.pid).children()
        one.kill()
        until(lambda: is_gone(watch), "the watching process is gone")


@pytest.mark.parametrize(("mode", "gone_s"), [("serve", 30.0), ("hang", 60.0)])
def test_no_process_outlives_its_supervisor(mode: str, gone_s: float, tmp_path: Path) -> None:
    """Also where another process holds the supervisor's end of the socket open."""
    supervisor = textwrap.dedent(
        f"""
        import os, socket, subprocess, sys, time
        ours, theirs = socket.socketpair()
        os.set_inheritable(ours.fileno(), True)
        keeper = subprocess.Popen(["sleep", "300"], close_fds=False)
        child = subprocess.Popen(
            [sys.executable, "-c", {PROGRAM!r}, {mode!r}, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, start_new_session=True,
        )
        assert child.stdout.readline() == b"ready\\n"
        print(child.pid, keeper.pid, flush=True)
        time.sleep(300)
        """
    )
    with subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        child, keeper = (psutil.Process(int(pid)) for pid in one.stdout.readline().split())
        os.kill(one.pid, signal.SIGKILL)
        try:
            until(lambda: is_gone(child), "the process is gone", gone_s)
        finally:
            keeper.kill()
            if not is_gone(child):
                child.kill()
