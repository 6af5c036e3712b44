"""Wait for a change of files that was begun in a thread, even if its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(change: Coroutine[Any, Any, T]) -> T:
    """Await `change`; a cancellation is raised only after it has ended.

    A thread that writes cannot be cancelled: if its caller ended and released its lock, the next
    writer would write the same file at the same time.
    """
    task = asyncio.ensure_future(change)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:  # cancelled twice; the thread still writes
                continue
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error from None
        raise
