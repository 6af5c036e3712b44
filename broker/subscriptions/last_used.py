"""When the subscriptions of a partition were last used, so that unused subscriptions can expire.

Uses since the take-over are in memory, by a steady clock. Earlier uses of durable subscriptions are
known by marks in the state ledger, dated by the clock for deletions, and at most an hour old. A
mark is written before the ack of the same call, so answered uses are not forgotten. A subscription
without a mark counts as used at the take-over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import PartitionMoving
from octavo.broker.state.format import CursorState, Op, used_op

_MARKS_A_SPAN = 16
"""Renew a mark after this share, a sixteenth, of the expiry period …"""
_MARK_EVERY_MS = 3_600_000
"""… or after this time, if it is shorter."""


class LastUsed:
    def __init__(
        self,
        now_s: Callable[[], float],
        time: Callable[[], DeletionTime | None],
        span_ms: Callable[[], int | None],
        note: Callable[[Op], None],
    ) -> None:
        """Note last uses; `span_ms` is the policy, and None means that nothing expires."""
        self._now_s = now_s
        self._time = time
        self._span_ms = span_ms
        self._note = note
        self._began_s = now_s()
        self._used_s: dict[str, float] = {}
        self._retired_until_s: dict[str, float] = {}
        self._unmarked: set[str] = set()
        """Used while the date was not known."""

    def use(self, name: str, held: CursorState | None) -> None:
        """Note a use. Raises `PartitionMoving` if the subscription is about to be deleted."""
        now_s = self._used_s[name] = self._now_s()
        if held is not None:
            self._mark(name, held)
        if self._retired_until_s and now_s < self._retired_until_s.get(name, 0.0):
            raise PartitionMoving(
                f"subscription {name!r} was not used for long, and is about to be deleted: "
                + (
                    "it is not durable; ask again"
                    if held is None
                    else "the topic's policy subscription_expiry says so; ask again"
                )
            )

    def left(self, name: str) -> None:
        """Note that a caller stopped waiting: it used the subscription until now."""
        self._used_s[name] = self._now_s()

    def is_unused(
        self, name: str, held: CursorState | None, span_ms: int, retire_s: float = 0.0
    ) -> bool:
        """Return whether the subscription was unused for `span_ms`.

        If so, refuses uses for the next `retire_s`, in which it may be deleted; a refused call may
        be retried and counts as a use.
        """
        now_s = self._now_s()
        idle_ms = (now_s - self._used_s.get(name, self._began_s)) * 1000
        unused = idle_ms >= span_ms or self._is_marked_unused(name, held, span_ms)
        if retire_s:
            self._retired_until_s[name] = now_s + retire_s if unused else 0.0
        return unused

    def keep(self, cursors: Iterable[tuple[str, CursorState]]) -> None:
        gone = self._span_ms() is None
        for name, held in cursors:
            if gone and held.used_ms:
                held.used_ms = 0
                self._note(used_op(name, 0))
            elif not gone and name in self._unmarked:
                self._mark(name, held)

    def forget(self, name: str) -> None:
        self._used_s.pop(name, None)
        self._retired_until_s.pop(name, None)
        self._unmarked.discard(name)

    def _mark(self, name: str, held: CursorState) -> None:
        span_ms = self._span_ms()
        if span_ms is None:
            return
        time = self._time()
        if time is None:
            self._unmarked.add(name)
            return
        self._unmarked.discard(name)
        if time.date_ms - held.used_ms >= min(span_ms // _MARKS_A_SPAN, _MARK_EVERY_MS):
            held.used_ms = time.date_ms
            self._note(used_op(name, held.used_ms))

    def _is_marked_unused(self, name: str, held: CursorState | None, span_ms: int) -> bool:
        time = self._time()
        if name in self._used_s or held is None or not held.used_ms or time is None or time.doubt:
            return False
        return time.now_ms - held.used_ms >= span_ms + _MARK_EVERY_MS
