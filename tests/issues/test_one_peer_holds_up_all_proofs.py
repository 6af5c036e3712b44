"""A hundred large packed batches of one peer were proved before the one of another: 10 s, and 429.

They are proved one at a time, and stood in one line, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from octavo.broker.errors import Overloaded
from octavo.broker.operations import batch_proofs
from octavo.broker.operations.batch_proofs import BatchProofs
from octavo.ledger.read.open_batch import unpacked_if_small
from octavo.protocol.batch import HEADER_BYTES, read_header
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record, build_batch

LARGE = build_batch([Record(None, bytes(300 * 1024))], compression=Compression.ZSTD)
HEADER = read_header(LARGE)


class Door:
    """Proves large batches, and notes whose turn it was."""

    def __init__(self) -> None:
        self.turns: list[str] = []
        self.open = asyncio.Event()
        """Until then nobody's turn ends."""
        self._inside = 0
        self._proofs = BatchProofs()

    async def prove(self, peer: str) -> None:
        async def hold(size: int) -> None:
            self._inside += 1 if size else -1
            assert self._inside <= 1
            if size:
                self.turns.append(peer)
                await self.open.wait()

        await self._proofs.prove(HEADER, LARGE, peer, hold)

    def sends(self, peer: str, count: int = 1) -> list[asyncio.Task[None]]:
        return [asyncio.create_task(self.prove(peer)) for _ in range(count)]


async def waiting() -> None:
    """Whoever was begun stands in line."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_they_are_large() -> None:
    assert unpacked_if_small(Compression.ZSTD, LARGE[HEADER_BYTES:]) is None


async def test_peers_take_turns() -> None:
    door = Door()
    sent = door.sends("greedy", 20)
    await waiting()
    sent += door.sends("modest", 2) + door.sends("other", 1)
    await waiting()
    door.open.set()
    await asyncio.gather(*sent)
    assert door.turns[:6] == ["greedy", "greedy", "modest", "other", "greedy", "modest"]
    assert door.turns[6:] == ["greedy"] * 17


async def test_who_has_too_many_waiting_is_told_so_at_once_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batch_proofs, "WAITING_MAX", 2)
    door = Door()
    sent = door.sends("greedy", 3)
    await waiting()
    with pytest.raises(Overloaded, match="2 large packed batches from greedy"):
        await door.prove("greedy")
    sent += door.sends("modest", 2)
    await waiting()
    door.open.set()
    await asyncio.gather(*sent)
    assert door.turns.count("modest") == 2


async def test_nobody_waits_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_proofs, "TURN_WAIT_S", 0.05)
    door = Door()
    first = door.sends("first")
    await waiting()
    with pytest.raises(Overloaded, match=r"waited 0\.05 s"):
        await door.prove("second")
    door.open.set()
    await asyncio.gather(*first)
    await door.prove("second")
    assert door.turns == ["first", "second"]


@pytest.mark.parametrize("seed", range(20))
async def test_whoever_gives_up_when_the_turn_goes_on(seed: int) -> None:
    rng = random.Random(seed)
    door = Door()
    door.open.set()
    sent: list[asyncio.Task[None]] = []
    for _ in range(40):
        sent += door.sends(rng.choice("abc"))
        if rng.random() < 0.5:
            await asyncio.sleep(0)
        if rng.random() < 0.5:
            rng.choice(sent).cancel()
    async with asyncio.timeout(30):
        await asyncio.gather(*sent, return_exceptions=True)
        await door.prove("d")
    assert all(one.cancelled() or one.exception() is None for one in sent)
    assert sum(not one.cancelled() for one in sent) < len(door.turns)
