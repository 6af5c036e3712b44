"""Copies: which entries a bookie is to hold, how they are made, when a bookie counts as lost."""

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
from octavo.ledger.quorum import Quorum
from octavo.ledger.rereplication.copies import adopters, missing, moved, stretches, tail_of
from octavo.ledger.rereplication.copying import Copying
from octavo.ledger.rereplication.keeper import CopyKeeper, KeeperOptions
from octavo.metadata.bookies import INCARNATION, BookieInfo
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.protocol.codes import Code, DigestMismatch, OctavoError, ReadOnly
from octavo.protocol.entry import digest_for, pack_entry
from tests.support.ledger_world import new_ledger

OPEN = LedgerMetadata(
    ledger_id=7,
    ensemble_size=3,
    write_quorum=2,
    ack_quorum=2,
    fragments=(Fragment(0, ("a", "b", "c")), Fragment(10, ("a", "d", "c"))),
)


def closed_at(last: int) -> LedgerMetadata:
    return replace(OPEN, state=LedgerState.CLOSED, last_entry=last)


def infos(*names: str, **properties: str) -> dict[str, BookieInfo]:
    return {name: BookieInfo(name, name, 1, properties=properties) for name in names}


def test_of_an_open_ledger_all_but_the_last_fragment_can_be_copied() -> None:
    assert [(s.first, s.last) for s in stretches(OPEN)] == [(0, 9)]
    assert tail_of(OPEN) == ("a", "d", "c")


@pytest.mark.parametrize(
    ("last", "found"),
    [
        (12, [(0, 9), (10, 12)]),
        (9, [(0, 9), (10, 9)]),
        (4, [(0, 4), (10, 9)]),
        (-1, [(0, -1), (10, 9)]),
    ],
)
def test_of_a_closed_ledger_all_that_it_has(last: int, found: list[tuple[int, int]]) -> None:
    assert [(s.first, s.last) for s in stretches(closed_at(last))] == found
    assert tail_of(closed_at(last)) == ()


def test_missing_is_what_the_write_sets_say_less_what_is_held() -> None:
    rng = random.Random(4)
    for _ in range(2_000):
        size = rng.randint(1, 6)
        quorum = Quorum(size, rng.randint(1, size), 1)
        first = rng.randint(0, 20)
        last = first + rng.randint(0, 30)
        held = {entry_id for entry_id in range(60) if rng.random() < rng.choice((0.1, 0.9))}
        position = rng.randrange(size)
        found = missing(quorum, position, first, last, joined(held))
        listed = [entry_id for a, b in found for entry_id in range(a, b + 1)]
        assert listed == [
            entry_id
            for entry_id in range(first, last + 1)
            if position in quorum.write_set(entry_id) and entry_id not in held
        ]
        assert all(before[1] < after[0] for before, after in itertools.pairwise(found))


def joined(entries: set[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for entry_id in sorted(entries):
        if runs and runs[-1][1] == entry_id - 1:
            runs[-1] = (runs[-1][0], entry_id)
        else:
            runs.append((entry_id, entry_id))
    return runs


def test_everybody_finds_the_same_adopter_and_it_is_nobody_who_holds_a_copy() -> None:
    there = infos("a", "c", "d", "e", "f")
    fragment = OPEN.fragments[0]
    found = adopters(closed_at(20), fragment.bookies, 0, {"b"}, there)
    shuffled = dict(reversed(there.items()))
    assert adopters(closed_at(20), fragment.bookies, 0, {"b"}, shuffled) == found
    assert set(found) == {1}
    assert found[1] in {"d", "e", "f"}


def test_the_copies_of_one_bookie_spread_over_all_others() -> None:
    there = infos("a", "c", "d", "e", "f")
    chosen = {
        adopters(replace(OPEN, ledger_id=n), ("a", "b", "c"), 0, {"b"}, there)[1] for n in range(50)
    }
    assert chosen == {"d", "e", "f"}


def test_two_lost_bookies_of_one_ensemble_get_two_adopters() -> None:
    found = adopters(closed_at(20), ("a", "b", "c"), 0, {"a", "b"}, infos("c", "d", "e"))
    assert set(found) == {0, 1}
    assert set(found.values()) == {"d", "e"}


def test_with_nobody_left_nobody_adopts() -> None:
    assert adopters(closed_at(20), ("a", "b", "c"), 0, {"b"}, infos("a", "c")) == {}
    read_only = {"d": BookieInfo("d", "d", 1, read_only=True)}
    assert adopters(closed_at(20), ("a", "b", "c"), 0, {"b"}, read_only) == {}


def test_a_rack_that_the_others_do_not_share_is_preferred() -> None:
    there = infos("a", "c", "d", rack="/r1") | infos("e", rack="/r2")
    for ledger_id in range(20):
        ledger = replace(OPEN, ledger_id=ledger_id)
        assert adopters(ledger, ("a", "b", "c"), 0, {"b"}, there) == {1: "e"}


def test_the_record_changes_in_one_place() -> None:
    ledger = closed_at(20)
    found = moved(ledger, ledger.fragments[0], 1, "e")
    assert found is not None
    assert found.fragments == (Fragment(0, ("a", "e", "c")), ledger.fragments[1])
    assert replace(found, fragments=ledger.fragments) == ledger


def test_a_fragment_that_is_not_as_it_was_is_left_alone() -> None:
    ledger = closed_at(20)
    assert moved(ledger, Fragment(0, ("x", "b", "c")), 1, "e") is None
    assert moved(ledger, ledger.fragments[0], 1, "a") is None, "it has a copy already"


# Copying from one bookie to another: all valid entries, and no invented ones.
TO = "c"
METADATA = new_ledger()
DIGEST = digest_for(METADATA.digest_type, METADATA.password)


def entry(entry_id: int) -> bytes:
    return pack_entry(DIGEST, METADATA.ledger_id, entry_id, entry_id - 1, 9, b"%d" % entry_id)


def damaged(entry_id: int) -> bytes:
    return entry(entry_id)[:-1] + b"?"


class Connection:
    def __init__(self, held: dict[int, bytes]) -> None:
        self.held = held
        self.took: list[bytes] = []
        self.refuses = 0
        self.refuses_with = Code.TOO_MANY_REQUESTS
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


# When a bookie counts as lost, and an open ledger as abandoned: a bookie that came back was
ME, MEMBERS = "d", ("a", "b", "c")
LOST_S, OPEN_S = 3.0, 5.0


class World:
    """Bookies that come and go, one open ledger, and the keeper of a bookie outside that ledger."""

    def __init__(self) -> None:
        self.now = 100.0
        self.there = {ME, *MEMBERS}
        self.recovered = 0
        self.ledger = LedgerMetadata(
            ledger_id=1,
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            fragments=(Fragment(0, MEMBERS),),
        )
        own: Any = SimpleNamespace(bookie_id=ME, is_unsure=lambda _: False)
        options = KeeperOptions(lost_bookie_s=LOST_S, open_ledger_s=OPEN_S)
        self.client: Any = SimpleNamespace(bookies=SimpleNamespace(), recover=self.recover)
        self.publish()
        client: Any = self.client
        self.keeper = CopyKeeper(client, own, options)
        loop: Any = SimpleNamespace(time=lambda: self.now)
        self.keeper._loop = loop
        self.keeper._bookies_changed()

    def publish(self) -> None:
        self.client.bookies.available = {
            name: BookieInfo(name, name, 1, properties={INCARNATION: "i"})
            for name in sorted(self.there)
        }

    async def recover(self, _: int, *, password: bytes) -> LedgerMetadata:
        self.recovered += 1
        return self.ledger

    def change(self, name: str) -> None:
        self.there ^= {name}
        self.publish()
        self.keeper._bookies_changed()

    async def look(self) -> bool:
        before = self.recovered
        self.keeper._note_absent(MEMBERS)
        await self.keeper._close_if_abandoned(self.ledger)
        return self.recovered > before


@pytest.mark.parametrize(
    ("fragments", "patience_s"),
    [
        ((Fragment(0, (ME, "b", "c")),), 10 * OPEN_S),
        ((Fragment(0, (ME, "b", "c")), Fragment(9, MEMBERS)), 10 * OPEN_S),
        ((Fragment(0, MEMBERS),), None),
    ],
)
async def test_an_open_ledger_that_keeps_this_bookie_in_limbo_is_closed(
    world: World, fragments: tuple[Fragment, ...], patience_s: float | None
) -> None:
    """Named by an older fragment, the bookie waited hours for a roll-over; named by the
    newest, the ledger was taken from a living writer."""
    world.ledger = replace(world.ledger, fragments=fragments)
    own: Any = SimpleNamespace(bookie_id=ME, is_unsure=lambda _: True)
    world.keeper._own = own
    assert not await world.look()
    world.now += (patience_s or 100 * OPEN_S) - 0.1
    assert not await world.look()
    world.now += 0.1
    assert await world.look() == (patience_s is not None)


@pytest.fixture
async def world() -> World:
    return World()


@pytest.mark.parametrize("seed", range(40))
async def test_patience_is_counted_from_the_last_time(seed: int, world: World) -> None:
    rng = random.Random(seed)
    gone_since: dict[str, float] = {}
    waited_since: float | None = None
    for _ in range(80):
        action = rng.choice(("change", "look", "look", "wait"))
        if action == "wait":
            world.now += rng.choice((0.5, 1.0, 2.0, 4.0))
        elif action == "change":
            name = rng.choice(MEMBERS)
            if name in gone_since:
                del gone_since[name]
            elif not gone_since:
                gone_since[name] = world.now
            else:
                continue
            world.change(name)
        else:
            lost = {name for name, since in gone_since.items() if world.now - since >= LOST_S}
            waited_since = (waited_since or world.now) if lost else None
            abandoned = waited_since is not None and world.now - waited_since >= OPEN_S
            assert await world.look() == abandoned
            assert world.keeper._lost() == lost
