"""A process that started while another one was stopped inside a metadata transaction gave up.

Found by random SIGSTOPs of a real cluster (tests/process/test_random_faults.py, seed 2000): a
broker that was stopped while it held the lock of the embedded store's file kept a bookie from
starting, with `database is locked` after a third of a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.store import MetadataUnavailable

SESSION_MS = 300
LOCKED_FOR_S = 1.0


@pytest.fixture(params=["absent", "there"])
async def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Of a store that was used before, or of none yet."""
    path = tmp_path / "metadata.db"
    if request.param == "there":
        store = EmbeddedStore(str(path))
        await store.start()
        await store.create("/before", b"")
        await store.close()
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody holds the file's write lock."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_a_start_waits_for_the_lock(path: Path) -> None:
    with locked(path) as other:
        asyncio.get_running_loop().call_later(LOCKED_FOR_S, other.execute, "ROLLBACK")
        store = EmbeddedStore(str(path), session_timeout_ms=SESSION_MS)
        await store.start()
        assert not other.in_transaction, "it could not have started before"
        await store.create("/after", b"", ephemeral=True)
        await store.close()


async def test_a_start_gives_up_in_bounded_time_and_says_what_to_look_for(path: Path) -> None:
    with locked(path):
        store = EmbeddedStore(str(path), session_timeout_ms=SESSION_MS, connect_timeout_ms=300)
        with pytest.raises(MetadataUnavailable, match=r"holds its lock|stopped") as given_up:
            async with asyncio.timeout(10):
                await store.start()
        assert "locked" in str(given_up.value)
