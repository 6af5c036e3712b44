"""Run several coroutines at once, all or nothing.

Up to Python 3.12, a child that fails while an `asyncio.TaskGroup` exits leaves the parent marked as
cancelled: a timeout around it raises no `TimeoutError`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

T = TypeVar("T")
Item = TypeVar("Item")


async def gather_all(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all; the first error ends the others and is raised unchanged."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except (Exception, asyncio.CancelledError):
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


async def gather_each(
    items: Iterable[Item], work: Callable[[Item], Coroutine[Any, Any, T]], at_once: int
) -> list[T]:
    """Return results in order, with at most `at_once` running at a time."""
    turn = asyncio.Semaphore(at_once)

    async def one(item: Item) -> T:
        async with turn:
            return await work(item)

    return await gather_all([one(item) for item in items])
