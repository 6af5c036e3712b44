"""Following a cluster's logs: the events of all processes, as they happen, in words.

Reads what was appended to each `logs/*.jsonl` since the last look; a half-written line waits for
its rest, a line that is no event (an interpreter's last words) is passed over.
"""

from __future__ import annotations

import asyncio
import json
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
        self._positions: dict[Path, int] = {}
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
            self._positions[path] = path.stat().st_size

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
        start = self._positions.get(path, 0)
        with path.open("rb") as source:
            source.seek(start)
            data = source.read()
        whole = data.rfind(b"\n") + 1
        self._positions[path] = start + whole
        found: list[LogEvent] = []
        for line in data[:whole].splitlines():
            try:
                fields = json.loads(line)
                event = LogEvent(path.stem, fields.pop("event"), fields.pop("ts", ""), fields)
            except (ValueError, KeyError, AttributeError):
                continue
            found.append(event)
        return found
