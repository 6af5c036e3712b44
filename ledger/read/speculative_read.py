"""Ask replicas one after another, and the next early when one is slow.

The first good answer wins; the slow replica may still win.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from octavo.protocol.codes import OctavoError

T = TypeVar("T")
Answer = Callable[[OctavoError | None, T | None], None]
Ask = Callable[[str, Answer[T]], None]


class AllFailed(Exception):
    """`answers` has each replica's reason."""

    def __init__(self, answers: dict[str, OctavoError]) -> None:
        super().__init__("all replicas failed")
        self.answers = answers


class SpeculativeRead(Generic[T]):
    def __init__(self, replicas: Sequence[str], ask: Ask[T], patience_s: float) -> None:
        assert replicas
        self._replicas = replicas
        self._ask = ask
        self._patience_s = patience_s
        self._loop = asyncio.get_running_loop()
        self._answers: dict[str, OctavoError] = {}
        self._asked = 0
        self._timer: asyncio.TimerHandle | None = None
        self._result: asyncio.Future[tuple[str, T]] = self._loop.create_future()

    async def run(self) -> tuple[str, T]:
        """Return (replica, answer). Raises `AllFailed`."""
        self._ask_next()
        try:
            return await self._result
        finally:
            self._cancel_timer()

    def _ask_next(self) -> None:
        self._cancel_timer()
        replica = self._replicas[self._asked]
        self._asked += 1
        if self._asked < len(self._replicas):
            self._timer = self._loop.call_later(self._patience_s, self._ask_next)

        def answered(error: OctavoError | None, found: T | None) -> None:
            if self._result.done():
                return
            if error is None:
                assert found is not None
                self._result.set_result((replica, found))
                return
            self._answers[replica] = error
            if self._asked < len(self._replicas):
                self._ask_next()
            elif len(self._answers) == len(self._replicas):
                self._result.set_exception(AllFailed(self._answers))

        self._ask(replica, answered)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
