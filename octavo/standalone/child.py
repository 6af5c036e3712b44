"""A child process of a standalone cluster: start it, wait until it is ready, end it.

It has its own session: Ctrl-C reaches only the supervisor, which stops the children in order.
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
"""Long, because after kill −9 a bookie replays its journal."""
KILL_AFTER_S = 45.0
"""Longer than a process's own bound for stopping (life.STOP_TIMEOUT_S)."""


class ChildFailed(OctavoError):
    name = "child-failed"
    scope = Scope.PROCESS
    lost_session = False
    """Whether it lost its metadata session while it started: a new start may succeed."""


class Child:
    def __init__(self, kind: str, spec: ProcessSpec, folder: Path) -> None:
        self.kind = kind
        self.name = spec.name
        self.log_path = folder / "logs" / f"{spec.name}.jsonl"
        self.spec = dataclasses.replace(spec, log_file=str(self.log_path))
        self._spec_path = folder / "conf" / f"{spec.name}.json"
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        return self._process.pid if self._process and self._process.returncode is None else 0

    @property
    def exit_text(self) -> str:
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
        return [sys.executable, "-m", f"octavo.process.{self.kind}"]

    @property
    def environment(self) -> dict[str, str]:
        """Return our environment without settings, as the spec has all of them."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("OCTAVO_")}
        return {**kept, "PYTHONUNBUFFERED": "1", "MALLOC_ARENA_MAX": "2"}

    async def start(self) -> dict[str, Any]:
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
        assert self._process is not None
        await self._process.wait()

    async def stop(self) -> None:
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
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _open_log(self) -> IO[bytes]:
        """Open the log for a child that fails before it opens its log. Rotates a full log."""
        path = self.log_path
        if path.exists() and path.stat().st_size > self.spec.log_bytes_max:
            put_aside(path, self.spec.log_files_max)
        return open(path, "ab")

    async def _until_ready(self, ours: socket.socket) -> dict[str, Any]:
        reader, writer = await asyncio.open_connection(sock=ours)
        self._control = writer  # keep it open: closing it would stop the child
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
        failed = ChildFailed(f"{self.name} did not start: {reason} (log: {self.log_path})")
        failed.lost_session = bool(said.get("lost_session"))
        raise failed


def is_child(pid: int) -> bool:
    """Whether `pid` is a live process of a cluster, and not another process with its number."""
    try:
        return b"octavo.process." in Path(f"/proc/{pid}/cmdline").read_bytes() if pid else False
    except OSError:
        return False
