"""Following a cluster's logs: the events of all processes, as they happen, in words.

Reads what was appended to each `logs/*.jsonl` since the last look; a half-written line waits for
its rest, a line that is no event (an interpreter's last words) is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

POLL_S = 0.05


class LogEvent(NamedTuple):
    """One event of one process."""

    node: str
    event: str
    ts: str
    fields: Mapping[str, Any]


class LogFollower:
    """Collects events of a folder of logs. `listeners` are called with each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[Path, tuple[int, int]] = {}
        """Of each log: which file it was (its inode), and how far that was read."""
        self.events: list[LogEvent] = []
        self.listeners: list[Callable[[LogEvent], None]] = []
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            self.look()
            await asyncio.sleep(POLL_S)

    def look(self) -> None:
        """Take what has been written since."""
        fresh: list[LogEvent] = []
        for path in sorted(self._folder.glob("*.jsonl")):
            fresh += self._read(path)
        fresh.sort(key=lambda event: event.ts)
        self.events += fresh
        for event in fresh:
            for listener in self.listeners:
                listener(event)
        if fresh:
            self._arrived.set()

    def skip(self) -> None:
        """Forget what is in the logs already (a folder used before)."""
        for path in self._folder.glob("*.jsonl"):
            found = path.stat()
            self._positions[path] = found.st_ino, found.st_size

    async def wait_for(
        self, wanted: Callable[[LogEvent], bool], timeout_s: float, *, since: int = 0
    ) -> LogEvent | None:
        """The first event from number `since` on that is `wanted`; None when none came in time."""
        place = since
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    while place < len(self.events):
                        if wanted(self.events[place]):
                            return self.events[place]
                        place += 1
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            return None

    async def stream(self) -> AsyncIterator[LogEvent]:
        """Events from now on."""
        place = len(self.events)
        while True:
            while place < len(self.events):
                yield self.events[place]
                place += 1
            self._arrived.clear()
            await self._arrived.wait()

    def _read(self, path: Path) -> list[LogEvent]:
        with path.open("rb") as source:
            inode = os.fstat(source.fileno()).st_ino
            former, start = self._positions.get(path, (inode, 0))
            data = b""
            if former != inode:  # full, and put aside since: what was not read of it stands there
                with (
                    contextlib.suppress(FileNotFoundError),
                    path.with_name(f"{path.name}.1").open("rb") as aside,
                ):
                    if os.fstat(aside.fileno()).st_ino == former:
                        aside.seek(start)
                        data = aside.read()
                start = 0
            source.seek(start)
            fresh = source.read()
        whole = fresh.rfind(b"\n") + 1
        self._positions[path] = inode, start + whole
        found: list[LogEvent] = []
        for line in (data + fresh[:whole]).splitlines():
            try:
                fields = json.loads(line)
                event = LogEvent(path.stem, fields.pop("event"), fields.pop("ts", ""), fields)
            except (ValueError, KeyError, AttributeError):
                continue
            found.append(event)
        return found
