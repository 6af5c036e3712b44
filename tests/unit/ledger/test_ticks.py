"""The ticks of thousands of ledgers do not stop the loop."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from octavo.ledger import client as client_module
from octavo.ledger.client import LedgerClient

AT_ONCE, LEDGERS = 10, 35


class Ticking:
    """A ledger that counts the turn of the loop in which it was ticked."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number

    def tick(self, now: float) -> bool:
        self.world.ticked.append((self.world.turn, self.number))
        if self.number == 0:  # the ledger behind it ends meanwhile
            self.world.client.stop_ticking(self.world.all[-1])
        return False

    def fail(self, error: Exception) -> None:
        raise error


class World:
    def __init__(self) -> None:
        store: Any = SimpleNamespace(on_session=lambda _: None)
        self.client = LedgerClient(store, rng=random.Random(1))
        self.turn = 0
        self.ticked: list[tuple[int, int]] = []
        self.all: list[Any] = [Ticking(self, number) for number in range(LEDGERS)]

    async def count_turns(self) -> None:
        while True:
            self.turn += 1
            await asyncio.sleep(0)


async def test_some_ledgers_are_ticked_in_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of 1,000 partitions announced the ends of 2,000 ledgers in one turn of 74 ms."""
    monkeypatch.setattr(client_module, "_TICK_S", 0.001)
    monkeypatch.setattr(client_module, "_TICKED_AT_ONCE", AT_ONCE)
    world = World()
    counting = asyncio.ensure_future(world.count_turns())
    for one in world.all:
        world.client.keep_ticking(one)
    while world.client._ticking:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    counting.cancel()
    assert [number for _, number in world.ticked] == [*range(LEDGERS - 1)], "not what has ended"
    assert max(Counter(turn for turn, _ in world.ticked).values()) <= AT_ONCE
