"""A standalone cluster of real processes: start it by the command, kill any part of it.
Processes that are alive at the end of a test are killed by their ids in cluster.json."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from octavo.standalone.child import is_child
from octavo.standalone.cluster_file import ClusterFile, NoCluster, read_cluster

READY_TIMEOUT_S = 40.0
OCTAVO = [sys.executable, "-m", "octavo.cli.main"]


def environment() -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("OCTAVO_")}
    return {**kept, "COLUMNS": "200"}


def octavo(
    *arguments: str, stdin: str | None = None, timeout_s: float = 180
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OCTAVO, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env=environment(),
        check=False,
    )


def until(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        time.sleep(0.02)


class Standalone:
    def __init__(self, folder: Path, *arguments: str, command: Sequence[str] = OCTAVO) -> None:
        """`command` replaces `octavo`."""
        self.folder = folder
        self._command = command
        self._arguments = arguments
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> dict[str, object]:
        self.process = subprocess.Popen(
            [
                *self._command,
                "standalone",
                "--data",
                str(self.folder),
                "--port-base",
                "0",
                "--json",
                *self._arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=environment(),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            assert self.process.stderr is not None
            raise AssertionError(f"standalone did not start: {self.process.stderr.read()}")
        found: dict[str, object] = json.loads(line)
        return found

    @property
    def cluster(self) -> ClusterFile:
        return read_cluster(self.folder)

    def pids(self) -> dict[str, int]:
        members = self.cluster.members
        return {member.name: member.pid for member in members if is_child(member.pid)}

    def kill(self, name: str) -> int:
        pid = self.pids()[name]
        os.kill(pid, signal.SIGKILL)
        return pid

    def kill_everything(self) -> None:
        assert self.process is not None
        pids = [self.process.pid, *self.pids().values()]
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        self._close_pipes()
        until(lambda: not self.pids(), "all children are gone")

    def stop(self) -> str:
        assert self.process is not None
        self.process.terminate()
        _, said = self.process.communicate(timeout=60)
        return said

    def clean_up(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self._close_pipes()
        with contextlib.suppress(NoCluster):
            for pid in self.pids().values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _close_pipes(self) -> None:
        assert self.process is not None
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def standalone(folder: Path, *arguments: str) -> Iterator[Standalone]:
    """Run a cluster, and remove every trace of it at the end."""
    one = Standalone(folder, *arguments)
    try:
        one.start()
        yield one
    finally:
        one.clean_up()
