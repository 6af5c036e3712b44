"""Looks for secrets in files, and runs commands with a test's own settings."""

from __future__ import annotations

import base64
import contextlib
import subprocess
import threading
from pathlib import Path

from tests.support.processes.standalone import OCTAVO, environment


class Watcher:
    def __init__(self, folder: Path, *canaries: bytes) -> None:
        self.folder = folder
        self.canaries = [form for one in canaries for form in (one, base64.b64encode(one)[:-4])]
        self.found: list[str] = []
        self.rounds = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def look(self) -> None:
        for path in self.folder.rglob("*"):
            with contextlib.suppress(OSError):
                if path.is_file():
                    data = path.read_bytes()
                    self.found += [str(path) for one in self.canaries if one in data]
        self.rounds += 1

    def _run(self) -> None:
        while not self._ended.is_set():
            self.look()
            self._ended.wait(0.2)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def said(*arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [*OCTAVO, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=900,
        env={**environment(), **variables},
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr
