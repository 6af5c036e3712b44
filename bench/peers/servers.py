"""Child processes: servers that run to the end, and clients whose end is awaited.

Each leads its own process group, so that Ctrl-C reaches only the program, which then ends them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

from bench.peers.contract import ROOT, Cluster
from bench.peers.figures import Failed
from octavo.standalone.ports import free_port

NODES = (1, 2, 3)

START_S = 180
_LAST_WORDS = 1_500
_TRIES = 100


class Server:
    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        _kill_group(self._process)

    def wait_until(self, holds: Callable[[], bool], what: str) -> None:
        """Raises `Failed` with the log's end at `START_S`, or its death."""
        deadline = time.monotonic() + START_S
        while not holds():
            code = self._process.poll()
            if code is not None:
                raise Failed(f"{self.name} ended with {code}:\n{self._last_words()}")
            if time.monotonic() > deadline:
                raise Failed(f"{self.name}: no {what} after {START_S} s:\n{self._last_words()}")
            time.sleep(0.1)

    def wait_until_listening(self, port: int) -> None:
        self.wait_until(lambda: _connects(port), f"listener on port {port}")

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-_LAST_WORDS:].strip()


class ThreeServers(Cluster):
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ports = {node: free_port() for node in NODES}
        self._servers: list[Server] = []

    @abstractmethod
    def _all_serve(self) -> bool: ...

    def _start(self, commands: Mapping[int, list[str]]) -> None:
        for node, command in commands.items():
            self._servers.append(Server(f"{self.name}-{node}", command, self._folder))
        for server, port in zip(self._servers, self._ports.values(), strict=True):
            server.wait_until_listening(port)
        self._servers[0].wait_until(self._all_serve, "cluster of three")

    def stop(self) -> None:
        for server in self._servers:
            server.kill()

    def pids(self) -> list[int]:
        return [server.pid for server in self._servers]


def run(command: list[str], timeout_s: float, folder: Path = ROOT) -> str:
    """Return standard output. Raises `Failed` with the last line of its errors, or after
    `timeout_s`.
    """
    code, said, complaints = finish(command, timeout_s, folder)
    if code:
        words = (complaints.strip() or said.strip() or "nothing said").rpartition("\n")[2]
        raise Failed(f"ended with {code}: {words[:500]}")
    return said


def finish(command: list[str], timeout_s: float, folder: Path) -> tuple[int, str, str]:
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=folder,
        start_new_session=True,
    )
    try:
        said, complaints = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        raise Failed(f"not done after {timeout_s:.0f} s") from None
    finally:
        _kill_group(process)
    return process.returncode, said, complaints


def free_ports_in_a_row(count: int) -> int:
    for _ in range(_TRIES):
        first = free_port()
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(first, first + count):
                probe = probes.enter_context(socket.socket())
                probe.bind(("127.0.0.1", port))
            return first
    raise Failed(f"found no {count} free neighbouring ports")


def _kill_group(process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
