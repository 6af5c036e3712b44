"""A read ended with a KeyError when its ledger was let go while another reader was being closed.

With as many ledgers open as may be, opening one more closes the one that was not used longest, and
waits for that; whoever dropped the new one meanwhile (its ledger was closed, or offloaded, or the
partition given up) took it out of the table, where it was then looked for. A reader that was being
opened while all were closed stayed open for ever. Found by a property test.
"""

from __future__ import annotations

import asyncio

from octavo.broker.log.reader import OpenReaders


class Reader:
    def __init__(self) -> None:
        self.may_close = asyncio.Event()
        self.is_closed = False

    async def close(self) -> None:
        await self.may_close.wait()
        self.is_closed = True


async def test_it_may_be_dropped_meanwhile() -> None:
    readers = OpenReaders[Reader](1)
    old, new = Reader(), Reader()

    async def opened() -> Reader:
        return old if readers.get(1) is None else new

    await readers.get_or_open(1, opened)
    opening = asyncio.create_task(readers.get_or_open(2, opened))
    await asyncio.sleep(0)
    new.may_close.set()
    await readers.drop(2, new)
    old.may_close.set()
    assert await opening is new
    assert (old.is_closed, new.is_closed) == (True, True)


async def test_one_that_is_opened_too_late_is_closed() -> None:
    readers = OpenReaders[Reader](1)
    late, go_on = Reader(), asyncio.Event()
    late.may_close.set()

    async def opened() -> Reader:
        await go_on.wait()
        return late

    opening = asyncio.create_task(readers.get_or_open(1, opened))
    await asyncio.sleep(0)
    await readers.close()
    go_on.set()
    assert await opening is late
    assert late.is_closed
