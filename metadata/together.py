"""Several things at once, all or nothing.

Not `asyncio.TaskGroup`: up to Python 3.12, when a child fails while the group is being left, the
parent stays marked as cancelled, and a timeout around it is no `TimeoutError` any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


async def all_of(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Their results in order. The first error ends the others and is raised as it is."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except (Exception, asyncio.CancelledError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def each_of(
    items: Iterable[Item], work: Callable[[Item], Coroutine[Any, Any, T]], at_once: int
) -> list[T]:
    """What `work` gives for each of them, in order; no more than `at_once` are under way."""
    turn = asyncio.Semaphore(at_once)

    async def one(item: Item) -> T:
        async with turn:
            return await work(item)

    return await all_of([one(item) for item in items])
