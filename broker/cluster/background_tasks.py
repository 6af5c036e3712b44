"""Run a broker's periodic work in the background, each piece independently of the others.

A piece is a chore and its object, for example trimming one partition. A piece that hangs delays no
other; a piece that fails, even by a bug, is logged and retried after a pause that doubles.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Iterable
from typing import Any, NamedTuple

import structlog

from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError

_log = structlog.get_logger()
PAUSE_S_MAX = 60.0
_SAID_EVERY_S = 600.0
"""How often a piece that keeps failing is logged."""


class _Failing(NamedTuple):
    pauses: Backoff
    pause_s: float
    not_before_s: float
    said_s: float


class BackgroundTasks:
    def __init__(
        self,
        pause_ms: int,
        spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._pause_s = pause_ms / 1000
        self._spawn = spawn
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[tuple[str, Hashable], asyncio.Task[None]] = {}
        self._failing: dict[tuple[str, Hashable], _Failing] = {}
        self.failures: Counter[str] = Counter()

    def begin(
        self, chore: str, of: Hashable, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Begin a piece, unless it is running or waits after a failure."""
        piece = (chore, of)
        if piece not in self._under_way and self._may_run(piece):
            self._under_way[piece] = self._spawn(self._do(piece, work))

    def has_failed(self, chore: str, of: Hashable) -> bool:
        return (chore, of) in self._failing

    def _may_run(self, piece: tuple[str, Hashable]) -> bool:
        failing = self._failing.get(piece)
        return failing is None or self._loop.time() >= failing.not_before_s

    def keep_only(self, chore: str, of: Iterable[Hashable]) -> None:
        if any(name == chore for name, _ in self._failing):
            kept = set(of)
            self._failing = {
                piece: failing
                for piece, failing in self._failing.items()
                if piece[0] != chore or piece[1] in kept
            }

    async def close(self) -> None:
        tasks = tuple(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _do(
        self, piece: tuple[str, Hashable], work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        try:
            await work()
        except Exception as error:
            self._failed(piece, error)
        else:
            self._failing.pop(piece, None)
        finally:
            del self._under_way[piece]

    def _failed(self, piece: tuple[str, Hashable], error: Exception) -> None:
        chore, of = piece
        self.failures[chore] += 1
        now_s, before = self._loop.time(), self._failing.get(piece)
        pauses = Backoff(self._pause_s, PAUSE_S_MAX, None) if before is None else before.pauses
        pause_s, said_s = pauses.next_s(), now_s
        if (
            before is not None
            and pause_s == before.pause_s
            and now_s - before.said_s < _SAID_EVERY_S
        ):
            said_s = before.said_s
        self._failing[piece] = _Failing(pauses, pause_s, now_s + pause_s, said_s)
        if said_s == now_s:
            _log.warning(
                "chore_failed",
                chore=chore,
                of=str(of),
                reason=str(error) or repr(error),
                again_in_ms=round(pause_s * 1000),
                exc_info=None if isinstance(error, OctavoError) else error,
            )
