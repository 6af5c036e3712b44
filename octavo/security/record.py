"""One metadata record that a whole cluster shares: changed by compare-and-set, and followed.

A follower sets a watch, and also looks every `REREAD_S`, because a watch may be late.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from octavo.metadata.one_record import ABSENT, write_one
from octavo.metadata.store import (
    BadRecord,
    MetadataError,
    MetadataStore,
    RecordExists,
    RecordNotFound,
    VersionConflict,
    Watch,
)
from octavo.metadata.topic_records import decode_record

REREAD_S = 2.0
RETRY_S = 0.2

Record = TypeVar("Record")

log = structlog.get_logger()


class SharedRecord(Generic[Record]):
    """The record at `path`. `kind()` makes an empty record."""

    def __init__(self, store: MetadataStore, path: str, kind: type[Record]) -> None:
        self._store = store
        self._path = path
        self._kind = kind
        self._last: tuple[bytes, Record] | None = None
        """Unchanged bytes are not decoded again."""

    async def read(self) -> tuple[Record, int]:
        """Return the record and its version; an empty record and −1 if there is none.

        Raises `MetadataUnavailable`, `BadRecord`.
        """
        await self._store.sync()
        try:
            value, version = await self._store.get(self._path)
        except RecordNotFound:
            return self._kind(), ABSENT
        if self._last is None or self._last[0] != value:
            self._last = (value, decode_record(self._kind, self._path, value))
        return self._last[1], version

    async def change(self, make: Callable[[Record], Record]) -> tuple[Record, int]:
        """Replace the record by `make(record)`; nothing is written if that changes nothing.

        Raises `MetadataUnavailable` (read again: the change may have been made), `BadRecord`,
        `RecordTooLong`.
        """
        while True:
            record, version = await self.read()
            made = make(record)
            if made == record and version >= 0:
                return record, version
            with contextlib.suppress(VersionConflict, RecordExists, RecordNotFound):
                return made, await write_one(self._store, self._path, made, version)


class FollowedRecord:
    """Calls `look`, which reads the record, whenever it may have changed, until `close`.

    If `look` raises `BadRecord`, `unreadable` is called. While the metadata store is away, the
    caller keeps what it read last.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        look: Callable[[], Awaitable[None]],
        unreadable: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._path = path
        self._look = look
        self._unreadable = unreadable
        self._alarm = asyncio.Event()
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None
        self._told: str | None = None

    async def start(self) -> None:
        self._watch = self._store.watch(self._path, self._alarm.set)
        try:
            await self._look()
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._follow(), name=f"follows {self._path}")

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _follow(self) -> None:
        pause_s = REREAD_S
        while True:
            try:
                async with asyncio.timeout(pause_s):
                    await self._alarm.wait()
            except TimeoutError:
                pass
            self._alarm.clear()
            pause_s = REREAD_S
            try:
                await self._look()
            except BadRecord as error:
                if self._is_news(error):
                    log.warning("record_unreadable", path=self._path, reason=str(error))
                self._unreadable()
            except MetadataError as error:
                if self._is_news(error):
                    log.warning("record_not_read", path=self._path, reason=str(error))
                pause_s = RETRY_S
            else:
                self._told = None

    def _is_news(self, error: MetadataError) -> bool:
        before, self._told = self._told, error.name
        return before != error.name
