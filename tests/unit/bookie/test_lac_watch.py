"""Parked readers end when the LAC has passed their own, and not before."""

from __future__ import annotations

import asyncio
import random

import pytest

from octavo.bookie.ledgers.control import LacWatches


@pytest.mark.parametrize("seed", range(20))
async def test_a_reader_ends_at_the_first_lac_above_its_own(seed: int) -> None:
    rng = random.Random(seed)
    watches = LacWatches()
    parked: list[tuple[int, int, asyncio.Future[int]]] = []
    lacs = {1: -1, 2: -1}
    for _ in range(60):
        ledger_id = rng.choice((1, 2))
        if rng.random() < 0.5:
            after = lacs[ledger_id] + rng.randint(0, 3)
            parked.append((ledger_id, after, watches.park(ledger_id, after)))
        elif rng.random() < 0.2 and parked:
            parked.pop(rng.randrange(len(parked)))[2].cancel()
        else:
            lacs[ledger_id] += rng.randint(1, 2)
            watches.moved(ledger_id, lacs[ledger_id])
        await asyncio.sleep(0)
        for its, after, future in parked:
            assert future.done() == (lacs[its] > after)
            assert not future.done() or after < future.result() <= lacs[its]
        assert len(watches) == sum(not future.done() for _, _, future in parked)
    watches.wake(1, 99)
    await asyncio.sleep(0)
    for its, _, future in parked:
        assert future.done() or its == 2
    assert len(watches) == sum(not future.done() for _, _, future in parked)
    watches.cancel_all()
    await asyncio.sleep(0)
    assert not len(watches)
