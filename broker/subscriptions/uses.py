"""When the subscriptions of a partition were used last, for those that go when nobody uses them.

    used ──▶ noted here, by a steady clock ──▶ now and then a mark in the state ledger
    nobody uses it for the topic's `subscription_expiry` ──▶ retired for a moment ──▶ deleted

One that is not durable goes after a time of its own, and has no marks: an owner counts from when it
began.
An owner knows what it has seen itself. What was before it, marks tell, dated by the time that
deletions go by (clock/deletion_clock.py); a mark is at most an hour older than the last use. Whose
marks are missing is taken for used when the owner began: it waits a full period. A mark is on its
way to the state ledger before the ack of the same call is, so what was answered is not forgotten.
Without the policy there are no marks: those that are left are taken back, for they would be old
when it is set again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import PartitionMoving
from octavo.broker.state.format import CursorState, Op, used_op

_MARKS_A_SPAN = 16
"""So many marks at most while a period goes by …"""
_MARK_EVERY_MS = 3_600_000
"""… or one in such a time, if that is sooner: the last use is no longer after its mark."""


class Uses:
    """Of one partition, while it is owned."""

    def __init__(
        self,
        now_s: Callable[[], float],
        time: Callable[[], DeletionTime | None],
        span_ms: Callable[[], int | None],
        note: Callable[[Op], None],
    ) -> None:
        """`now_s`: a steady clock. `span_ms`: the policy; None: nothing expires. `note` has an
        operation written, behind all that was before it, and does not wait."""
        self._now_s = now_s
        self._time = time
        self._span_ms = span_ms
        self._note = note
        self._began_s = now_s()
        self._used_s: dict[str, float] = {}
        self._retired_until_s: dict[str, float] = {}
        self._unmarked: set[str] = set()
        """Used when nobody knew what time it is."""

    def use(self, name: str, held: CursorState | None) -> None:
        """Somebody uses it now. `held`: what is known of it, None if it is not durable.

        Raises `PartitionMoving`: it may be about to go, ask again.
        """
        now_s = self._used_s[name] = self._now_s()
        if held is not None:
            self._mark(name, held)
        if self._retired_until_s and now_s < self._retired_until_s.get(name, 0.0):
            raise PartitionMoving(
                f"nobody has used subscription {name!r} for long, and it is about to be deleted: "
                + (
                    "it is not durable; ask again"
                    if held is None
                    else "the topic's policy subscription_expiry says so; ask again"
                )
            )

    def left(self, name: str) -> None:
        """Somebody who waited for messages does so no longer: it was in use until now."""
        self._used_s[name] = self._now_s()

    def is_unused(
        self, name: str, held: CursorState | None, span_ms: int, retire_s: float = 0.0
    ) -> bool:
        """Whether nobody has used it for so long.

        If so, nobody can for `retire_s` from now on: it may be deleted in that time. Who tries is
        told to come back, and it is in use again.
        """
        now_s = self._now_s()
        idle_ms = (now_s - self._used_s.get(name, self._began_s)) * 1000
        unused = idle_ms >= span_ms or self._is_marked_unused(name, held, span_ms)
        if retire_s:
            self._retired_until_s[name] = now_s + retire_s if unused else 0.0
        return unused

    def keep(self, cursors: Iterable[tuple[str, CursorState]]) -> None:
        """Now and then: marks that could not be made, and those that nobody needs any more."""
        gone = self._span_ms() is None
        for name, held in cursors:
            if gone and held.used_ms:
                held.used_ms = 0
                self._note(used_op(name, 0))
            elif not gone and name in self._unmarked:
                self._mark(name, held)

    def forget(self, name: str) -> None:
        """The subscription is no more."""
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
        """By what an owner before this one has left."""
        time = self._time()
        if name in self._used_s or held is None or not held.used_ms or time is None or time.doubt:
            return False
        return time.now_ms - held.used_ms >= span_ms + _MARK_EVERY_MS
