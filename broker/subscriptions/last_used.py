"""When the subscriptions of a partition were last used, so that unused subscriptions can expire.

    use ──▶ noted here, by a steady clock ──▶ from time to time a mark in the state ledger
    unused for the topic's `subscription_expiry` ──▶ retired for a moment ──▶ deleted

Non-durable subscriptions expire after a separate time and have no marks: each owner counts from the
take-over on. For durable subscriptions an owner knows the uses since its take-over; marks tell of
earlier uses, dated by the clock for deletions (clock/deletion_clock.py). A mark is at most an hour
older than the last use. A subscription without a mark counts as used at the take-over. A mark is
written to the state ledger before the ack of the same call, so answered uses are not forgotten.
Without the policy all marks are removed, because they would be outdated when it is set again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import PartitionMoving
from octavo.broker.state.format import CursorState, Op, used_op

_MARKS_A_SPAN = 16
"""A mark is renewed after this part (a sixteenth) of the expiry period …"""
_MARK_EVERY_MS = 3_600_000
"""… or after this time, if that is shorter: the last use is at most this long after its mark."""


class LastUsed:
    """The last uses of the subscriptions of an owned partition."""

    def __init__(
        self,
        now_s: Callable[[], float],
        time: Callable[[], DeletionTime | None],
        span_ms: Callable[[], int | None],
        note: Callable[[Op], None],
    ) -> None:
        """`now_s`: a steady clock. `span_ms`: the policy; None: nothing expires. `note` queues an
        operation for the state ledger, in order, without waiting."""
        self._now_s = now_s
        self._time = time
        self._span_ms = span_ms
        self._note = note
        self._began_s = now_s()
        self._used_s: dict[str, float] = {}
        self._retired_until_s: dict[str, float] = {}
        self._unmarked: set[str] = set()
        """Subscriptions used while the date was not known."""

    def use(self, name: str, held: CursorState | None) -> None:
        """Note a use now. `held`: the subscription's state, None if it is not durable.

        Raises `PartitionMoving` if the subscription is about to be deleted: call again.
        """
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
        """Note that a caller stopped waiting for messages: it was in use until now."""
        self._used_s[name] = self._now_s()

    def is_unused(
        self, name: str, held: CursorState | None, span_ms: int, retire_s: float = 0.0
    ) -> bool:
        """Whether the subscription was not used for `span_ms`.

        If so, uses are refused for the next `retire_s`, because it may be deleted in that time. A
        refused caller gets a retryable error, and the subscription counts as used again.
        """
        now_s = self._now_s()
        idle_ms = (now_s - self._used_s.get(name, self._began_s)) * 1000
        unused = idle_ms >= span_ms or self._is_marked_unused(name, held, span_ms)
        if retire_s:
            self._retired_until_s[name] = now_s + retire_s if unused else 0.0
        return unused

    def keep(self, cursors: Iterable[tuple[str, CursorState]]) -> None:
        """Make marks that could not be made before, and remove marks that are not needed."""
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
        """Decide by the mark that an earlier owner has left."""
        time = self._time()
        if name in self._used_s or held is None or not held.used_ms or time is None or time.doubt:
            return False
        return time.now_ms - held.used_ms >= span_ms + _MARK_EVERY_MS
