"""Processes that a run next to Apache starts, each with its own log, and their end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from octavo.protocol.frames import read_request

START_S = 60


class Process:
    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self.name = name
        self._log = folder / f"{name}.log"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C"},
            )

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self, within_s: float) -> None:
        self._process.terminate()
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired as error:
            raise AssertionError(
                f"{self.name} does not end {within_s} s after SIGTERM:\n{self._log_tail()}"
            ) from error

    def wait_until_listening(self, port: int) -> None:
        self.wait_until(lambda: _connects(port), f"listen on {port}")

    def wait_until_serving(self, port: int) -> None:
        """Apache's bookie takes connections before it serves them, and hangs up on the early
        connections."""
        self.wait_until(lambda: _answers(port), f"serve on {port}")

    def wait_until(self, holds: Callable[[], bool], what: str, within_s: float = START_S) -> None:
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            code = self._process.poll()
            assert code is None, f"{self.name} ended with {code}:\n{self._log_tail()}"
            if holds():
                return
            time.sleep(0.1)
        raise AssertionError(f"{self.name} does not {what} after {within_s} s:\n{self._log_tail()}")

    def _log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]


def _connects(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def _answers(port: int) -> bool:
    with (
        contextlib.suppress(OSError),
        socket.create_connection(("127.0.0.1", port), 2) as probe,
    ):
        probe.settimeout(2)
        probe.sendall(read_request(2**40, 0))
        return bool(probe.recv(4))
    return False
