"""A metadata store of records copied earlier: a reader far from the real one needs no session.

Read only, and as old as its copy: what it says may have changed since. That is safe for what never
changes (a closed ledger's last entry) and must be expected to fail for what may (where a ledger's
fragments and a bookie's address are): then somebody reads the real store again.
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
    """Nothing ever changes."""

    def cancel(self) -> None:
        """Nothing to end."""


class FrozenStore:
    """Implements `octavo.metadata.store.MetadataStore` over `records`, a map of paths to values."""

    session_state = SessionState.CONNECTED
    session_timeout_ms = 2**31

    def __init__(self, records: Mapping[str, bytes], url: str) -> None:
        """`url` names where the records were copied from, for messages."""
        self._records = dict(records)
        self.url = url

    async def start(self) -> None:
        """Nothing to connect to."""

    async def close(self) -> None:
        """Nothing to end."""

    async def get(self, path: str) -> Record:
        """Raises `RecordNotFound`."""
        try:
            return Record(self._records[path], 0)
        except KeyError:
            raise RecordNotFound(
                f"{path} is not among the records copied from {self.url}"
            ) from None

    async def children(self, path: str) -> list[str]:
        """Those that were copied."""
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
        """Raises `MetadataUnusable`."""
        raise MetadataUnusable(f"{path}: records copied from {self.url} cannot be changed")

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        """Raises `MetadataUnusable`."""
        raise MetadataUnusable(f"{path}: records copied from {self.url} cannot be changed")

    async def changed_at(self, path: str) -> int | None:
        """A copy does not know. Raises `RecordNotFound`."""
        await self.get(path)
        return None

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        """Raises `MetadataUnusable`."""
        raise MetadataUnusable(f"{path}: records copied from {self.url} cannot be changed")

    async def sync(self) -> None:
        """A copy stays as it is."""

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        """It never fires."""
        return _NoWatch()

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        """It never fires."""
        return _NoWatch()

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        """There is none that could end."""
