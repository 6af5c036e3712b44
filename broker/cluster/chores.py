"""What a broker does again and again, each piece apart from every other.

A piece is a chore and what it concerns: trimming one partition, sweeping bulk loads. One that is
still under way is not begun again, and one that hangs holds up nobody else. An error, a bug as
well, is counted and logged, and the piece is tried again after a pause that doubles. What goes on
failing is logged now and then.
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
"""What goes on failing is logged so often, once its pauses have grown."""


class _Failing(NamedTuple):
    """A piece that failed last time."""

    pauses: Backoff
    pause_s: float
    """The one under way."""
    not_before_s: float
    said_s: float
    """When it was logged last."""


class Chores:
    """All pieces of one broker. `pause_ms` is the first pause after a failure."""

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
        """By chore, since the start."""

    def begin(
        self, chore: str, of: Hashable, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        """Do it in the background, unless it is under way or failed a moment ago."""
        piece = (chore, of)
        if piece not in self._under_way and self._may_run(piece):
            self._under_way[piece] = self._spawn(self._do(piece, work))

    def has_failed(self, chore: str, of: Hashable) -> bool:
        """Whether it failed last time."""
        return (chore, of) in self._failing

    def _may_run(self, piece: tuple[str, Hashable]) -> bool:
        failing = self._failing.get(piece)
        return failing is None or self._loop.time() >= failing.not_before_s

    def keep_only(self, chore: str, of: Iterable[Hashable]) -> None:
        """What failed of anything else is forgotten: it is no longer ours."""
        if any(name == chore for name, _ in self._failing):
            kept = set(of)
            self._failing = {
                piece: failing
                for piece, failing in self._failing.items()
                if piece[0] != chore or piece[1] in kept
            }

    async def close(self) -> None:
        """Break off what is under way."""
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
