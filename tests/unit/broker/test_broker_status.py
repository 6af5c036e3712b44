"""A broker announces its status in each session, whichever write a session's end interrupts.

A session that ended while the record was written took the record with it, and the broker believed
that it was there: the others counted a drained broker as one that takes partitions.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.cluster.broker_status import BrokerStatus, BrokerStatuses, decode_status
from octavo.metadata.store import (
    MetadataUnavailable,
    RecordExists,
    RecordNotFound,
    SessionState,
    VersionConflict,
)
from octavo.metadata.topics import standing_path

ME = b"registered"
PATH = standing_path("a")
DRAINING = BrokerStatus(draining=True)


class Store:
    """One ephemeral record; the session ends, or an error comes, during a call."""

    def __init__(self) -> None:
        self.record: tuple[bytes, int] | None = None
        self.session: Any = None
        self.calls = 0
        self.ends_at = -1
        """The session ends after this call, before its answer is looked at."""
        self.fails: list[Exception] = []

    def on_session(self, session: Any) -> None:
        self.session = session

    def expire(self) -> None:
        self.record = None
        self.session(SessionState.EXPIRED)
        self.session(SessionState.CONNECTED)

    async def _called(self) -> None:
        await asyncio.sleep(0)
        if self.fails:
            raise self.fails.pop(0)

    def _done(self) -> None:
        self.calls += 1
        if self.calls == self.ends_at:
            self.expire()

    async def create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        await self._called()
        assert (path, ephemeral) == (PATH, True)
        if self.record is not None:
            raise RecordExists(path)
        self.record = value, 0
        self._done()

    async def put(self, path: str, value: bytes, version: int) -> int:
        await self._called()
        if self.record is None:
            raise RecordNotFound(path)
        if self.record[1] != version:
            raise VersionConflict(path)
        self.record = value, version + 1
        self._done()
        return version + 1

    async def get(self, path: str) -> Any:
        await self._called()
        if self.record is None:
            raise RecordNotFound(path)
        found = SimpleNamespace(value=self.record[0], version=self.record[1])
        self._done()
        return found

    async def delete(self, path: str) -> None:
        await self._called()
        if self.record is None:
            raise RecordNotFound(path)
        self.record = None
        self._done()

    @property
    def said(self) -> BrokerStatus | None:
        return None if self.record is None else decode_status(self.record[0], ME)


def standings(store: Store) -> BrokerStatuses:
    any_store: Any = store
    found = BrokerStatuses(any_store, lambda: None, asyncio.ensure_future)
    found.start("a", ME)
    return found


@pytest.mark.parametrize("ends_at", range(1, 8))
async def test_a_session_that_ends_amid_any_call(ends_at: int) -> None:
    """The registry announces again in the next session, as it does after every alarm."""
    store = Store()
    own = standings(store)
    for standing in (BrokerStatus(partitions=1), BrokerStatus(partitions=2), DRAINING):
        store.ends_at = ends_at
        await own.tell(standing)
        await own.tell_again()
        assert store.said == standing
    calls = store.calls
    await own.tell_again()
    assert store.calls == calls, "it is told"


async def test_what_could_not_be_written_counts_as_not_told() -> None:
    """Another writer's record came in between each time; after the last try it is still
    unannounced."""
    store = Store()
    own = standings(store)
    store.record = b"of a former process", 0
    real = store.delete

    async def nothing_goes(path: str) -> None:
        raise RecordNotFound(path)

    store.delete = nothing_goes  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable, match="status"):
        await own.tell(DRAINING)
    store.delete = real  # type: ignore[method-assign]
    await own.tell_again()
    assert store.said == DRAINING


async def test_an_error_amid_it_leaves_it_untold() -> None:
    store = Store()
    own = standings(store)
    store.fails = [MetadataUnavailable("no answer came in time")]
    with pytest.raises(MetadataUnavailable):
        await own.tell(DRAINING)
    await own.tell_again()
    assert store.said == DRAINING
