"""When the LAC of a ledger moved, a bookie stood still for as long as the square of its long-polls.

Each reader that was let go copied the list of those still parked on the ledger: 4,096 of them, the
default bound, copied eight million items, and nothing else ran meanwhile; and they come back to
wait for the next entry. Found by reading the engine.
"""

from __future__ import annotations

import asyncio

from octavo.bookie.ledgers.control import LacWatches

PARKED = 4096


class Counted(dict[asyncio.Future[int], int]):
    """Who is parked, counting how often anything goes through all of it."""

    walks = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        Counted.walks += 1
        return super().__iter__()

    def items(self):  # type: ignore[no-untyped-def]
        Counted.walks += 1
        return super().items()


async def test_one_walk_lets_all_of_them_go() -> None:
    watches = LacWatches()
    watches._parked[1] = Counted()
    futures = [watches.park(1, 4) for _ in range(PARKED)]
    watches.moved(1, 5)
    assert await asyncio.gather(*futures) == [5] * PARKED
    await asyncio.sleep(0)
    assert len(watches) == 0
    assert Counted.walks == 1
