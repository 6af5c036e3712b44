"""Pages of messages for those who follow a partition: fetched once, written once for each kind."""

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
"""Partition, incarnation of its topic, offset, whether batches are wanted as stored, and for whom:
the owner may refuse one reader what it gives another."""


class Page:
    """Messages that follow each other, or the batches in which they are stored.

    `next_offset` follows the last one; `owner_url` is who served the partition. `append_time`: what
    the batches' append times are read by, "" when they have none. `entries`: ledger and entry of
    each batch, none where a broker of before did not tell them.
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
        """Nothing came."""
        return not self.messages and not self.batches

    @property
    def placed(self) -> bytes:
        """The batches, each behind its ledger and its entry; made once for all readers."""
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
        """The bytes for a reader of this kind; made once for all of them."""
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
    """The pages that are being fetched for all streams of a broker, each once."""

    def __init__(self) -> None:
        self._fetching: dict[Place, asyncio.Task[Page]] = {}

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"fetching": len(self._fetching)}

    async def at(self, place: Place, fetch: Callable[[], Awaitable[Page]]) -> Page:
        """The page at (partition, incarnation, offset): what `fetch` gives, or who came before."""
        task = self._fetching.get(place)
        if task is None:
            task = asyncio.ensure_future(fetch())
            self._fetching[place] = task
            task.add_done_callback(lambda ended: self._over(place, ended))
        return await asyncio.shield(task)

    def _over(self, place: Place, task: asyncio.Task[Page]) -> None:
        del self._fetching[place]
        if not task.cancelled():
            task.exception()  # those who wait for it have it; perhaps all of them have left
