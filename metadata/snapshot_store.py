"""A read-only metadata store of records copied earlier, for readers without a session.

Safe for facts that never change (a closed ledger's last entry). Others may be outdated: when a read
fails, another process reads the real store.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.metadata.store import (
    ANY_VERSION,
    MetadataUnusable,
    Record,
    RecordNotFound,
    SessionState,
    Watch,
)


class _NoWatch:
    def cancel(self) -> None: ...


class SnapshotStore:
    """`records` maps paths to values."""

    session_state = SessionState.CONNECTED
    session_timeout_ms = 2**31

    def __init__(self, records: Mapping[str, bytes], url: str) -> None:
        """Serve a copy of records; `url` names where they were copied from."""
        self._records = dict(records)
        self.url = url

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def get(self, path: str) -> Record:
        try:
            return Record(self._records[path], 0)
        except KeyError:
            raise RecordNotFound(
                f"{path} is not among the records copied from {self.url}"
            ) from None

    async def children(self, path: str) -> list[str]:
        prefix = path.rstrip("/") + "/"
        below = (one[len(prefix) :] for one in self._records if one.startswith(prefix))
        return sorted({name.partition("/")[0] for name in below})

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        beside: str | None = None,
    ) -> str:
        raise MetadataUnusable(f"{path}: records copied from {self.url} cannot be changed")

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        raise MetadataUnusable(f"{path}: records copied from {self.url} cannot be changed")

    async def changed_at(self, path: str) -> int | None:
        await self.get(path)
        return None

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        raise MetadataUnusable(f"{path}: records copied from {self.url} cannot be changed")

    async def sync(self) -> None: ...

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        return _NoWatch()

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        return _NoWatch()

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        """Ignore the listener: there is no session that could end."""
