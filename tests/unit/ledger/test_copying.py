"""Copying from one bookie to another: all valid entries, and no invented ones."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.ledger.errors import BookieUnavailable, ReadFailed
from octavo.ledger.options import LedgerOptions
from octavo.ledger.rereplication.copying import Copying
from octavo.protocol.codes import Code, DigestMismatch, OctavoError, ReadOnly
from octavo.protocol.entry import digest_for, pack_entry
from tests.support.ledger_world import new_ledger

TO = "c"
METADATA = new_ledger()
DIGEST = digest_for(METADATA.digest_type, METADATA.password)


def entry(entry_id: int) -> bytes:
    return pack_entry(DIGEST, METADATA.ledger_id, entry_id, entry_id - 1, 9, b"%d" % entry_id)


def damaged(entry_id: int) -> bytes:
    return entry(entry_id)[:-1] + b"?"


class Connection:
    """A connection to one bookie: its entries, and what it took."""

    def __init__(self, held: dict[int, bytes]) -> None:
        self.held = held
        self.took: list[bytes] = []
        self.refuses = 0
        self.refuses_with = Code.TOO_MANY_REQUESTS
        """The answer to this many adds at first."""
        self.error: OctavoError | None = None
        self.asked: list[tuple[int, int]] = []

    def batch_read(self, _: int, first: int, count: int, __: int, done: Any) -> None:
        self.asked.append((first, count))
        if self.error is not None:
            done(self.error, [])
            return
        found: list[bytes] = []
        while first in self.held and len(found) < count:
            found.append(self.held[first])
            first += 1
        done(None, found)

    def attach(self, _: int, sink: Any) -> None:
        self.sink = sink

    def detach(self, _: int, sink: Any) -> None:
        assert sink is self.sink

    def send_adds(self, parts: list[bytes], size: int) -> None:
        assert size == sum(map(len, parts))
        for data in parts[1::2]:
            entry_id = int.from_bytes(data[8:16], "big")
            if self.refuses:
                self.refuses -= 1
                answer: tuple[Any, ...] = (
                    self.sink.add_refused,
                    TO,
                    self.refuses_with,
                    entry_id,
                    entry_id,
                )
            else:
                self.took.append(data)
                answer = (self.sink.added, TO, entry_id, entry_id)
            asyncio.get_running_loop().call_soon(answer[0], *answer[1:])


def copying_between(**held: dict[int, bytes]) -> tuple[Copying, dict[str, Connection]]:
    """Copy to `TO` from the other named bookies."""
    connections = {name: Connection(held.get(name, {})) for name in "abc"}

    async def connected() -> Connection:
        return connections[TO]

    client: Any = SimpleNamespace(
        options=LedgerOptions(),
        bookies=SimpleNamespace(
            available=[*"abc"], get=lambda *_: SimpleNamespace(connected=connected)
        ),
        with_connection=lambda name, send, _: send(connections[name]),
    )
    return Copying(client, METADATA, TO), connections


async def test_a_copy_that_does_not_hold_is_taken_from_another() -> None:
    """Later entries of the same answer are asked for again: only a good beginning counts."""
    good = {n: entry(n) for n in range(5)}
    copying, there = copying_between(a={**good, 2: damaged(2)}, b=good)
    await copying.copy(METADATA.fragments[0], (0, 4), 0.0)
    assert there[TO].took == [*good.values()]
    assert (copying.entries, copying.bytes) == (5, sum(map(len, good.values())))


async def test_what_nobody_holds_soundly_ends_it() -> None:
    good = {n: entry(n) for n in range(3)}
    bad = {**good, 1: damaged(1)}
    copying, there = copying_between(a=bad, b=bad)
    with pytest.raises(ReadFailed):
        await copying.copy(METADATA.fragments[0], (0, 2), 0.0)
    assert there[TO].took == [entry(0)]


async def test_what_was_refused_is_sent_again_and_nothing_else() -> None:
    good = {n: entry(n) for n in range(4)}
    copying, there = copying_between(a=good, b=good)
    there[TO].refuses = 2
    await copying.copy(METADATA.fragments[0], (0, 3), 0.0)
    assert sorted(there[TO].took) == [*good.values()]


async def test_a_copy_that_was_not_stored_is_none() -> None:
    good = {n: entry(n) for n in range(4)}
    copying, there = copying_between(a=good, b=good)
    there[TO].refuses, there[TO].refuses_with = 1, Code.READ_ONLY
    with pytest.raises(ReadOnly):
        await copying.copy(METADATA.fragments[0], (0, 3), 0.0)
    assert (copying.entries, copying.bytes) == (0, 0)


async def test_what_it_serves_soundly_itself_is_told_in_whole_stretches() -> None:
    held = {n: entry(n) for n in range(9)}
    copying, _ = copying_between(c={**held, 3: damaged(3), 4: damaged(4), 7: damaged(7)})
    assert await copying.sound((0, 9)) == [(0, 2), (5, 6), (8, 8)]


async def test_a_bookie_that_does_not_answer_is_not_without_its_copies() -> None:
    copying, there = copying_between()
    there[TO].error = BookieUnavailable(TO, "down")
    with pytest.raises(BookieUnavailable):
        await copying.sound((0, 9))
    there[TO].error = DigestMismatch("bad")
    assert await copying.sound((0, 2)) == []
