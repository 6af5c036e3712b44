"""A change of files that was begun in a thread is waited for, also when its caller is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def finished(change: Coroutine[Any, Any, T]) -> T:
    """Return what `change` returns; a cancellation is raised when `change` has ended, not before.

    A thread that writes a file cannot be cancelled. If its caller were, the caller would give up
    its lock, or its place in a line, and the next writer would meet the first in the same file.
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
