"""Cancel a coroutine at each place where it waits. A test that cancels "somewhere" misses an
await that stands between a change and its undoing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

TURNS = 20


class _Stepped:
    def __init__(self, work: Coroutine[Any, Any, object], step: int, *, late: bool) -> None:
        self._work = work
        self._step = step
        self._late = late
        self.reached = False

    def __await__(self) -> Generator[Any, Any, object]:
        inner = self._work.__await__()
        task = asyncio.current_task()
        assert task is not None
        count, error = 0, None
        while True:
            try:
                waits_for: Any = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as end:
                return end.value
            count, error = count + 1, None
            if count == self._step:
                self.reached = True
                if self._late and waits_for is not None:
                    waits_for.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield waits_for
            except BaseException as raised:  # a cancellation, or the exception of a future
                error = raised


async def cancelled_at(
    work: Callable[[], Coroutine[Any, Any, object]],
    step: int,
    *,
    late: bool,
    meanwhile: Callable[[], None] = lambda: None,
) -> bool:
    """Run `work` and cancel it at its step-th wait: while it waits (`early`), or when the
    awaited event has come. Return whether it waited that many times. `meanwhile` is called
    once it waits, and completes the event."""
    stepped = _Stepped(work(), step, late=late)

    async def run() -> object:
        return await stepped

    task = asyncio.ensure_future(run())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    meanwhile()
    await asyncio.wait((task,))
    if not task.cancelled():
        task.exception()
    return stepped.reached
