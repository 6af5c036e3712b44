"""A drained bookie stayed "down" for ever: no command took it out of the list."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.cli.main import run
from octavo.ledger.rereplication.forgetting import BookieStillNeeded, BookieUnknown, forget_bookie
from octavo.metadata.bookies import BookieInfo, BookieRegistry, Cookie
from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.ledger_record import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import MetadataUnavailable, RecordNotFound
from octavo.protocol.entry import DigestType

GONE = "b4"
COOKIE = Cookie(GONE, "/j", ("/l",), "cluster", ("/i",), "one")


def ledger(*ensembles: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=-1,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=tuple(Fragment(10 * n, one) for n, one in enumerate(ensembles)),
        state=LedgerState.OPEN,
        digest_type=DigestType.CRC32C,
    )


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(str(tmp_path / "metadata.db"))
    await store.start()
    await BookieRegistry(store).write_cookie(COOKIE)
    yield store
    await store.close()


async def forget(store: EmbeddedStore, bookie_id: str = GONE) -> None:
    await forget_bookie(BookieRegistry(store), LedgerStore(store, rng=random.Random(1)), bookie_id)


async def test_one_that_nothing_names_is_forgotten(store: EmbeddedStore) -> None:
    registry, ledgers = BookieRegistry(store), LedgerStore(store, rng=random.Random(1))
    await ledgers.create(ledger(("b1", "b2", "b3")))
    assert GONE in await registry.known()
    await forget(store)
    assert await registry.known() == set()
    with pytest.raises(BookieUnknown, match="there is no bookie 'b4'"):
        await forget(store)


async def test_not_while_a_ledger_names_it_in_any_fragment(store: EmbeddedStore) -> None:
    ledgers = LedgerStore(store, rng=random.Random(1))
    made, version = await ledgers.create(ledger(("b1", "b2", GONE), ("b1", "b2", "b3")))
    with pytest.raises(
        BookieStillNeeded, match=f"1 ledgers still name bookie b4: {made.ledger_id}"
    ):
        await forget(store)
    await ledgers.delete(made.ledger_id, version)
    await forget(store)


async def test_not_while_it_is_up(store: EmbeddedStore) -> None:
    registry = BookieRegistry(store)
    await registry.register(BookieInfo(GONE, "h", 1))
    with pytest.raises(BookieStillNeeded, match="is up"):
        await forget(store)
    await registry.unregister(GONE)
    await forget(store)


async def test_one_that_starts_this_very_moment_keeps_its_cookie(store: EmbeddedStore) -> None:
    registry = BookieRegistry(store)
    delete = registry.delete_cookie

    async def delete_as_it_starts(bookie_id: str, version: int) -> None:
        await delete(bookie_id, version)
        await BookieRegistry(store).register(BookieInfo(GONE, "h", 1))

    registry.delete_cookie = delete_as_it_starts  # type: ignore[method-assign]
    with pytest.raises(BookieStillNeeded, match="is up"):
        await forget_bookie(registry, LedgerStore(store, rng=random.Random(1)), GONE)
    assert (await registry.read_cookie(GONE))[0] == COOKIE


async def test_a_ledger_that_cannot_be_read_is_not_taken_for_none(store: EmbeddedStore) -> None:
    ledgers = LedgerStore(store, rng=random.Random(1))
    await ledgers.create(ledger(("b1", "b2", "b3")))

    async def unread(ledger_id: int) -> tuple[LedgerMetadata, int]:
        raise MetadataUnavailable("no answer")

    ledgers.read = unread  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        await forget_bookie(BookieRegistry(store), ledgers, GONE)
    assert (await BookieRegistry(store).read_cookie(GONE))[0] == COOKIE


async def test_the_command(
    store: EmbeddedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path / 'metadata.db'}"
    arguments = ["bookie", "forget", GONE, "--metadata", url]
    assert await asyncio.to_thread(run, arguments) == 0
    assert "forgot b4" in capsys.readouterr().err
    with pytest.raises(RecordNotFound):
        await BookieRegistry(store).read_cookie(GONE)
    assert await asyncio.to_thread(run, arguments) == 1
    assert "there is no bookie 'b4'" in capsys.readouterr().err
