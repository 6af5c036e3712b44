"""One child process of a standalone cluster: start it, hear that it is ready, end it.

The child holds one end of a socket pair: its one line says `ready` or why it failed, and its own
end of file tells it that the supervisor died (process/life.py). Standard output and error go to
the same log as its events, so the last words of an interpreter are there too. A child runs in a
session of its own: Ctrl-C in a terminal reaches the supervisor only, which stops all in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import IO, Any

from octavo.log_files import put_aside
from octavo.process.spec import ProcessSpec
from octavo.protocol.codes import OctavoError, Scope

READY_TIMEOUT_S = 60.0
"""A replay after kill −9 of a large journal takes time; more than this is not a start."""
KILL_AFTER_S = 45.0
"""Longer than a process grants itself to stop (life.STOP_TIMEOUT_S)."""


class ChildFailed(OctavoError):
    """A child that could not start. The message carries its own reason and its log."""

    name = "child-failed"
    scope = Scope.PROCESS


class Child:
    """A bookie or broker process. `module` is the main that it runs."""

    def __init__(self, kind: str, spec: ProcessSpec, folder: Path) -> None:
        self.kind = kind
        self.name = spec.name
        self.log_path = folder / "logs" / f"{spec.name}.jsonl"
        self.spec = dataclasses.replace(spec, log_file=str(self.log_path))
        self._spec_path = folder / "conf" / f"{spec.name}.json"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """Of the running process; 0 when there is none."""
        return self._process.pid if self._process and self._process.returncode is None else 0

    @property
    def exit_text(self) -> str:
        """How the last process ended, in words."""
        code = self._process.returncode if self._process else None
        if code is None:
            return "still running"
        if code >= 0:
            return f"exit code {code}"
        with contextlib.suppress(ValueError):
            return f"killed by {signal.Signals(-code).name}"
        return f"killed by signal {-code}"

    @property
    def command(self) -> list[str]:
        """What is run; the spec's path and the control socket's number follow."""
        return [sys.executable, "-m", f"octavo.process.{self.kind}"]

    @property
    def environment(self) -> dict[str, str]:
        """Ours without settings: the child was told everything in its spec."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OCTAVO_")}
        return {**kept, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "2"}

    async def start(self) -> dict[str, Any]:
        """Start and wait until ready; return its facts. Raises `ChildFailed`."""
        self._spec_path.parent.mkdir(parents=True, exist_ok=True)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self.spec.write(self._spec_path)
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._open_log() as log:
                self._process = await asyncio.create_subprocess_exec(
                    *self.command,
                    str(self._spec_path),
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env=self.environment,
                )
        except BaseException:
            ours.close()
            raise
        return await self._until_ready(ours)

    async def wait(self) -> None:
        """Return when the process has ended."""
        assert self._process is not None
        await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, wait, and kill −9 if it does not end."""
        if not self.pid:
            return
        self.signal(signal.SIGTERM)
        self.signal(signal.SIGCONT)  # a stopped process cannot end
        try:
            async with asyncio.timeout(KILL_AFTER_S):
                await self.wait()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process is gone."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _open_log(self) -> IO[bytes]:
        """The log, to be continued: for the last words of one that does not come to open it.

        A full one is put aside here too: such words alone must not fill the disk.
        """
        path = self.log_path
        if path.exists() and path.stat().st_size > self.spec.log_bytes_max:
            put_aside(path, self.spec.log_files_max)
        return open(path, "ab")

    async def _until_ready(self, ours: socket.socket) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(sock=ours)
        self._control = writer  # held open: its end of file would stop the child
        try:
            async with asyncio.timeout(READY_TIMEOUT_S):
                line = await reader.readline()
        except TimeoutError:
            self.signal(signal.SIGKILL)
            line = b""
        said: dict[str, Any] = json.loads(line) if line.endswith(b"\n") else {}
        if said.get("event") == "ready":
            return said
        await self.wait()
        reason = said.get("reason") or f"{self.exit_text} before it was ready"
        raise ChildFailed(f"{self.name} did not start: {reason} (log: {self.log_path})")


def is_child(pid: int) -> bool:
    """Whether `pid` is a living process of ours (and no other that got its number)."""
    try:
        return b"octavo.process." in Path(f"/proc/{pid}/cmdline").read_bytes() if pid else False
    except OSError:
        return False
