"""When a bookie counts as lost, and an open ledger as abandoned: a bookie that came back was
not lost, so patience starts again. Counted from the first absence, the next short one would
fence a living writer."""

from __future__ import annotations

import random
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.ledger.rereplication.keeper import CopyKeeper, KeeperOptions
from octavo.metadata.bookies import INCARNATION, BookieInfo
from octavo.metadata.ledgers import Fragment, LedgerMetadata

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
        """Return whether the ledger was recovered."""
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
