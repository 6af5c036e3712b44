"""Reads from several bookies: conclusions, patience, digests."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.ledger.errors import BookieUnavailable, ReadFailed
from octavo.ledger.options import LedgerOptions
from octavo.ledger.quorum import quorum_of
from octavo.ledger.read.entry_verifier import verifier_for
from octavo.ledger.read.reader import LedgerReader
from octavo.ledger.read.speculative_read import AllFailed, Answer, SpeculativeRead
from octavo.metadata.ledgers import LedgerState
from octavo.protocol.codes import DigestMismatch, NoSuchEntry, NoSuchLedger, OctavoError
from octavo.protocol.entry import DigestType, digest_for, pack_entry, unpack_entry
from octavo.protocol.extension import Op
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
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


# Replicas are asked one after another: at once after a failure, in parallel to a slow one.
PATIENCE_S = 2.0


class Replicas:
    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, Answer[str]] = {}

    def ask(self, replica: str, answer: Answer[str]) -> None:
        self.asked.append(replica)
        self.answers[replica] = answer

    def fails(self, replica: str) -> None:
        self.answers[replica](BookieUnavailable(replica, "down"), None)

    def gives(self, replica: str) -> None:
        self.answers[replica](None, f"of {replica}")

    async def race(self, names: str) -> asyncio.Task[tuple[str, str]]:
        race = asyncio.create_task(SpeculativeRead([*names], self.ask, PATIENCE_S).run())
        await asyncio.sleep(0.0)
        return race


def told(story: Callable[[Replicas], Awaitable[None]]) -> None:
    loop = SimLoop(1, trace=Trace())
    try:
        loop.run_until_complete(story(Replicas()))
        assert loop.errors == []
    finally:
        loop.close()


def test_behind_the_last_nobody_is_asked_when_patience_ends() -> None:
    """The patience belonged to the failed replica, and ended with it."""

    async def story(replicas: Replicas) -> None:
        race = await replicas.race("ab")
        replicas.fails("a")
        assert replicas.asked == ["a", "b"]
        await asyncio.sleep(3 * PATIENCE_S)
        replicas.gives("b")
        assert await race == ("b", "of b")

    told(story)


def test_who_was_handed_the_question_has_a_patience_of_its_own() -> None:
    async def story(replicas: Replicas) -> None:
        race = await replicas.race("abc")
        await asyncio.sleep(PATIENCE_S / 2)
        replicas.fails("a")
        await asyncio.sleep(0.9 * PATIENCE_S)
        assert replicas.asked == ["a", "b"]
        await asyncio.sleep(0.2 * PATIENCE_S)
        assert replicas.asked == ["a", "b", "c"]
        replicas.gives("b")
        assert await race == ("b", "of b")

    told(story)


def test_a_slow_one_gets_company_and_may_still_win() -> None:
    async def story(replicas: Replicas) -> None:
        race = await replicas.race("abc")
        await asyncio.sleep(5 * PATIENCE_S)
        assert replicas.asked == ["a", "b", "c"]
        replicas.fails("b")
        replicas.gives("a")
        replicas.gives("c")
        assert await race == ("a", "of a")

    told(story)


def test_it_has_failed_when_all_have() -> None:
    async def story(replicas: Replicas) -> None:
        race = await replicas.race("ab")
        await asyncio.sleep(2 * PATIENCE_S)
        replicas.fails("b")
        await asyncio.sleep(PATIENCE_S)
        assert not race.done()
        replicas.fails("a")
        with pytest.raises(AllFailed) as failed:
            await race
        assert set(failed.value.answers) == {"a", "b"}

    told(story)


# The fast way to open an entry returns and refuses the same as the general one.
@pytest.mark.parametrize("digest_type", list(DigestType))
@pytest.mark.parametrize("payload", [b"", b"x", b"y" * 1000])
def test_same_as_the_general_way(digest_type: DigestType, payload: bytes) -> None:
    metadata = replace(new_ledger(), digest_type=digest_type, password=b"pw")
    digest = digest_for(digest_type, b"pw")
    data = pack_entry(digest, 7, 3, 2, 999, payload)
    opened = verifier_for(metadata)
    assert opened(3, data) == unpack_entry(digest, 7, 3, data)
    assert opened(-1, data) == opened(3, data), "the last-entry read takes any"
    assert type(opened(3, data).payload) is bytes
    bad = [data[:20], pack_entry(digest, 8, 3, 2, 999, payload)]
    if digest_type is not DigestType.DUMMY:
        bad += [data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :] for i in range(len(data[:60]))]
        bad.append(data + b"more")
    for wrong in bad:
        with pytest.raises(DigestMismatch):
            opened(3, wrong)
    with pytest.raises(DigestMismatch):
        opened(4, data)
