"""One record of the metadata that a whole cluster goes by: changed by compare-and-set, followed.

`SharedRecord` reads and changes it. `FollowedRecord` has it in the memory of a process, as fresh as
the metadata store lets it be: watched, and read again every `REREAD_S` beside that, for a watch may
be late. While the store is away what was known last holds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import structlog

from octavo.metadata.one_record import read_one, write_one
from octavo.metadata.store import (
    BadRecord,
    MetadataError,
    MetadataStore,
    RecordExists,
    RecordNotFound,
    VersionConflict,
    Watch,
)

REREAD_S = 2.0
RETRY_S = 0.2

Record = TypeVar("Record")

log = structlog.get_logger()


class SharedRecord(Generic[Record]):
    """The record at `path`, of a `kind` that is empty when it is made without arguments."""

    def __init__(self, store: MetadataStore, path: str, kind: type[Record]) -> None:
        self._store = store
        self._path = path
        self._kind = kind

    async def read(self) -> tuple[Record, int]:
        """As it stands, with its version; an empty one and −1 when there is none.

        Raises `MetadataUnavailable`, `BadRecord`.
        """
        await self._store.sync()
        record, version = await read_one(self._store, self._path, self._kind)
        return self._kind() if record is None else record, version

    async def change(self, make: Callable[[Record], Record]) -> tuple[Record, int]:
        """Set it to `make(what stands there)`; nothing is written when that is the same.

        Raises `MetadataUnavailable` (it may have been changed, look), `BadRecord`, `RecordTooLong`.
        """
        while True:
            record, version = await self.read()
            made = make(record)
            if made == record and version >= 0:
                return record, version
            with contextlib.suppress(VersionConflict, RecordExists, RecordNotFound):
                return made, await write_one(self._store, self._path, made, version)


class FollowedRecord:
    """Has `look` called whenever the record at `path` may have changed, until `close`.

    `look` reads it and keeps what it finds; `unreadable` hears of a record that makes no sense.
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
        """Look once, and follow it from now on. Raises what `look` raises."""
        self._watch = self._store.watch(self._path, self._alarm.set)
        try:
            await self._look()
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.create_task(self._follow(), name=f"follows {self._path}")

    async def close(self) -> None:
        """Follow it no more. May be called twice."""
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
