"""Follow a cluster's logs: the events of all processes as they happen.

Lines that are not events, such as an interpreter's last words, are ignored.
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
    node: str
    event: str
    ts: str
    fields: Mapping[str, Any]


class LogFollower:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[Path, tuple[int, int]] = {}
        """By log: the file's inode, and the position up to which it was read."""
        self.events: list[LogEvent] = []
        self.listeners: list[Callable[[LogEvent], None]] = []
        self._arrived = asyncio.Event()

    async def run(self) -> None:
        while True:
            self.look()
            await asyncio.sleep(POLL_S)

    def look(self) -> None:
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
        for path in self._folder.glob("*.jsonl"):
            found = path.stat()
            self._positions[path] = found.st_ino, found.st_size

    async def wait_for(
        self, wanted: Callable[[LogEvent], bool], timeout_s: float, *, since: int = 0
    ) -> LogEvent | None:
        """Return the first event from number `since` on that is `wanted`, or None in time."""
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
            if former != inode:  # rotated: the unread rest is in the renamed file
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
