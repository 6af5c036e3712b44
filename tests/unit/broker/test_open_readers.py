"""Every opened reader is closed once, and not while it is in use."""

from __future__ import annotations

import asyncio
import random

import pytest

from octavo.broker.log.reader import OpenReaders

READERS_MAX = 3
TASKS = 6


class Reader:
    def __init__(self, every: list[Reader]) -> None:
        self.closed = 0
        every.append(self)

    async def close(self) -> None:
        await asyncio.sleep(0)
        self.closed += 1


@pytest.mark.parametrize("seed", range(30))
async def test_many_at_once_open_use_and_drop(seed: int) -> None:
    rng = random.Random(seed)
    every: list[Reader] = []
    readers = OpenReaders[Reader](READERS_MAX)

    async def opened() -> Reader:
        for _ in range(rng.randint(0, 3)):
            await asyncio.sleep(0)
        return Reader(every)

    async def use() -> None:
        for _ in range(8):
            ledger_id = rng.randint(1, 5)
            reader = await readers.get_or_open(ledger_id, opened)
            await asyncio.sleep(0)
            if rng.random() < 0.3:
                await readers.drop(ledger_id, reader)

    await asyncio.gather(*(use() for _ in range(TASKS)))
    assert sum(not one.closed for one in every) <= READERS_MAX, f"seed {seed}: some are forgotten"
    await readers.close()
    assert all(one.closed for one in every), f"seed {seed}: some were never closed"


@pytest.mark.parametrize("seed", range(10))
async def test_what_is_being_opened_while_all_are_closed(seed: int) -> None:
    rng = random.Random(seed)
    every: list[Reader] = []
    readers = OpenReaders[Reader](READERS_MAX)

    async def opened() -> Reader:
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(0)
        return Reader(every)

    opening = [asyncio.create_task(readers.get_or_open(n % 4, opened)) for n in range(8)]
    for _ in range(rng.randint(0, 4)):
        await asyncio.sleep(0)
    await readers.close()
    await asyncio.gather(*opening)
    assert all(one.closed for one in every), f"seed {seed}"
