"""Pages of messages for readers that follow a partition: fetched once, written once per format."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec import Raw

from octavo.broker.types import PartitionName
from octavo.protocol.batch import read_header
from octavo.protocol.leased import ENTRY
from octavo.security.principal import Identity

EVENTS = "text/event-stream"
Place = tuple[PartitionName, str, int, bool, Identity]
"""Partition, incarnation of its topic, offset, whether batches are wanted as stored, and the
reader: the owner may refuse one reader what it gives to another."""


class Page:
    """Consecutive messages, or the batches in which they are stored.

    `next_offset` follows the last message; `owner_url` is the broker that served them.
    `append_time`: how to read the batches' append times, "" when they have none. `entries`: ledger
    and entry of each batch; empty if an older broker did not send them.
    """

    __slots__ = (
        *("_placed", "_written", "append_time", "batches", "entries", "messages", "next_offset"),
        "owner_url",
    )

    def __init__(
        self,
        messages: list[Raw],
        next_offset: int,
        batches: bytes = b"",
        append_time: str = "",
        entries: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.messages = messages
        self.next_offset = next_offset
        self.batches = batches
        self.append_time = append_time
        self.entries = entries
        self.owner_url = ""
        self._placed = b""
        self._written: dict[str, bytes] = {}

    @property
    def is_empty(self) -> bool:
        """Whether the page has no messages."""
        return not self.messages and not self.batches

    @property
    def placed(self) -> bytes:
        """The batches, each after its ledger and its entry; made once for all readers."""
        if not self._placed:
            parts: list[bytes] = []
            start = 0
            for ledger, entry in self.entries:
                end = start + read_header(self.batches, start).total_bytes
                parts += (ENTRY.pack(ledger, entry), self.batches[start:end])
                start = end
            self._placed = b"".join(parts)
        return self._placed

    def written(self, kind: str) -> bytes:
        """Return the bytes in this format; made once for all readers."""
        if self.batches:
            return self.batches
        found = self._written.get(kind)
        if found is None:
            found = self._written[kind] = self._write(kind)
        return found

    def _write(self, kind: str) -> bytes:
        if kind != EVENTS:
            return b"".join([bytes(message) + b"\n" for message in self.messages])
        first = self.next_offset - len(self.messages)
        return (
            b"".join(
                [
                    b"id: %d\ndata: %b\n\n" % (offset, bytes(message))
                    for offset, message in enumerate(self.messages, first)
                ]
            )
            or b": nothing new\n\n"
        )


class Pages:
    """Fetch pages for all streams of a broker, each page once at a time."""

    def __init__(self) -> None:
        self._fetching: dict[Place, asyncio.Task[Page]] = {}

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"fetching": len(self._fetching)}

    def close(self) -> None:
        """Fetch no more: the broker stops."""
        for task in tuple(self._fetching.values()):
            task.cancel()

    async def at(self, place: Place, fetch: Callable[[], Awaitable[Page]]) -> Page:
        """Return the page at this place, by `fetch` or by a fetch that is under way."""
        task = self._fetching.get(place)
        if task is None:
            task = asyncio.ensure_future(fetch())
            self._fetching[place] = task
            task.add_done_callback(lambda ended: self._over(place, ended))
        return await asyncio.shield(task)

    def _over(self, place: Place, task: asyncio.Task[Page]) -> None:
        del self._fetching[place]
        if not task.cancelled():
            task.exception()  # marks the error as seen: all readers may have left
