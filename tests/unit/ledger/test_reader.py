"""A reader's conclusions from some bookies' answers: never more than they said."""

from __future__ import annotations

import asyncio
import itertools
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.ledger.errors import BookieUnavailable, ReadFailed
from octavo.ledger.options import LedgerOptions
from octavo.ledger.quorum import quorum_of
from octavo.ledger.read.reader import LedgerReader
from octavo.ledger.read.speculative_read import AllFailed
from octavo.metadata.ledgers import LedgerState
from octavo.protocol.codes import NoSuchEntry, NoSuchLedger, OctavoError
from octavo.protocol.entry import digest_for, pack_entry
from octavo.protocol.extension import Op
from tests.support.ledger_world import new_ledger

DENIALS: tuple[OctavoError, ...] = (NoSuchEntry("none"), NoSuchLedger("none"))
SILENCE: OctavoError = BookieUnavailable("x", "down")


def reader_of(**changes: Any) -> LedgerReader:
    client: Any = SimpleNamespace(
        options=LedgerOptions(),
        rng=random.Random(1),
        records=SimpleNamespace(watch=lambda *_: SimpleNamespace(cancel=lambda: None)),
    )
    return LedgerReader(client, replace(new_ledger(), **changes), 0)


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
async def test_a_refresh_hears_enough_that_nobody_was_told_of_a_later_entry(
    order: tuple[int, ...],
) -> None:
    """It returns the LAC that an ack quorum knows, whichever answers first; one answer may be
    old."""
    reader = reader_of()
    quorum = quorum_of(reader.metadata)
    known = dict(zip("abc", (-1, 4, 4), strict=True))
    answers = {bookie: asyncio.get_running_loop().create_future() for bookie in "abc"}
    reader._ask_lac = answers.__getitem__  # type: ignore[assignment]
    refresh = asyncio.create_task(reader.refresh())
    heard: set[int] = set()
    for position in order:
        for _ in range(5):
            await asyncio.sleep(0)
        assert refresh.done() is quorum.covers(heard)
        if not refresh.done():
            answers["abc"[position]].set_result(known["abc"[position]])
            heard.add(position)
    assert await refresh == 4
    assert len(heard) == quorum.denials


async def test_a_refresh_waits_for_all_when_some_cannot_tell() -> None:
    reader = reader_of()
    answers = {bookie: asyncio.get_running_loop().create_future() for bookie in "abc"}
    reader._ask_lac = answers.__getitem__  # type: ignore[assignment]
    refresh = asyncio.create_task(reader.refresh())
    answers["a"].set_exception(SILENCE)
    answers["b"].set_exception(SILENCE)
    for _ in range(5):
        await asyncio.sleep(0)
    assert not refresh.done()
    answers["c"].set_result(2)
    assert await refresh == 2


async def test_the_entry_that_a_long_poll_brings_is_the_next_one() -> None:
    """Several entries may have been confirmed at once. It is read from no bookie then."""
    reader = reader_of()
    metadata = reader.metadata
    digest = digest_for(metadata.digest_type, metadata.password)
    following = pack_entry(digest, metadata.ledger_id, 4, 3, 7, b"content")
    client: Any = reader._client
    client.bookies = SimpleNamespace(get=lambda _: SimpleNamespace(is_ours=True))

    async def answer(_: str, op: Op, body: dict[str, Any], **how: Any) -> dict[str, Any]:
        assert (op, body["after"], body["entry"]) == (Op.WAIT_LAC, 3, True)
        return {"lac": 9, "entry": following}

    client.request = answer
    assert await reader.wait_for(3, 10) == 9
    assert reader.damaged_replicas == 0
    (entry,) = await reader.read(4, 4)
    assert (entry.entry_id, entry.payload) == (4, b"content")


@pytest.mark.parametrize("said", [*itertools.product((*DENIALS, SILENCE), repeat=3)])
async def test_an_entry_is_absent_only_when_the_whole_write_set_says_so(
    said: tuple[OctavoError, ...],
) -> None:
    reader = reader_of(state=LedgerState.CLOSED, last_entry=9, length=90)
    failed = AllFailed(dict(zip("abc", said, strict=True)))
    verdict = reader._verdict(3, failed)
    expected = ReadFailed if SILENCE in said else NoSuchEntry
    assert type(verdict) is expected
