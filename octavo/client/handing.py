"""What a loop over deliveries holds, and when it must speak for it. Pure.

    received → held → in hand (the loop's body has it) → done, to be acked → acked

All that is held or in hand is leased to us for `lease_s` from when it was received or last
extended; it is extended when a third of that is over. What is done is acked within a sixth, or a
second. So much is asked for as was processed in a quarter of a lease at the pace of the last
messages: a consumer that dies keeps no more than that from the others. Times are seconds of any
steady clock, handed in by the caller.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from octavo.client.types import Delivery

FIRST_MAX = 50
"""Messages asked for before the pace is known."""
ACK_S = 1.0
"""What is done is acked this much later at the latest, with all that is done by then."""
HELD_SHARE = 4
EXTEND_SHARE = 3
ACK_SHARE = 6


class Due(NamedTuple):
    """One call to make: what is done, and what is still needed."""

    acks: list[str]
    extend: list[str]


class Handing:
    """The held messages of one loop. With `auto_ack` off, who gets one answers for it."""

    def __init__(self, lease_s: float, batch: int, *, auto_ack: bool) -> None:
        self._lease_s = lease_s
        self._batch = batch
        self._auto_ack = auto_ack
        self._held: deque[Delivery] = deque()
        self._in_hand: Delivery | None = None
        self._done: list[str] = []
        self._done_since_s = 0.0
        self._leased_s = 0.0
        """Since when the oldest lease runs."""
        self._handed_s = 0.0
        self._pace_s: float | None = None
        """How long a message takes, an average over the latest ones."""

    @property
    def is_empty(self) -> bool:
        """Whether more must be received."""
        return not self._held

    def want(self) -> int:
        """How many messages to ask for."""
        if self._pace_s is None:
            return min(FIRST_MAX, self._batch)
        fitting = self._lease_s / HELD_SHARE / max(self._pace_s, 1e-6)
        return max(1, min(self._batch, int(fitting)))

    def took(self, received: Sequence[Delivery], now_s: float) -> None:
        """These were received; nothing was held."""
        self._held.extend(received)
        self._leased_s = now_s

    def hand(self, now_s: float) -> Delivery:
        """The next one, for the loop's body."""
        self._in_hand = self._held.popleft()
        self._handed_s = now_s
        return self._in_hand

    def came_back(self, now_s: float) -> None:
        """The body came for more: what it had in hand is done."""
        if self._in_hand is None:
            return
        took_s = max(0.0, now_s - self._handed_s)
        self._pace_s = took_s if self._pace_s is None else 0.9 * self._pace_s + 0.1 * took_s
        if self._auto_ack:
            if not self._done:
                self._done_since_s = now_s
            self._done.append(self._in_hand.ack_id)
        self._in_hand = None

    def is_due(self, now_s: float) -> bool:
        """Whether `due` has to be sent by now."""
        if self._done:
            late_s = min(ACK_S, self._lease_s / ACK_SHARE)
            if len(self._done) >= self._batch or now_s - self._done_since_s >= late_s:
                return True
        return bool(self._needed()) and now_s - self._leased_s >= self._lease_s / EXTEND_SHARE

    def due(self, now_s: float) -> Due:
        """What to send; `sent` or `not_sent` says how it went."""
        extend: list[str] = []
        if now_s - self._leased_s >= self._lease_s / EXTEND_SHARE / 2:
            extend = self._needed()
            self._leased_s = now_s
        acks, self._done = self._done, []
        return Due(acks, extend)

    def not_sent(self, due: Due) -> None:
        """Nobody knows whether it arrived: it has to be sent again."""
        self._done = due.acks + self._done

    def stale(self, ack_ids: Iterable[str]) -> None:
        """The leases of these have ended: others get them, so the body must not."""
        gone = frozenset(ack_ids)
        self._held = deque(one for one in self._held if one.ack_id not in gone)

    def rest(self) -> list[str]:
        """What was received and is not done, for others; it is held no more."""
        left = self._needed()
        self._held.clear()
        self._in_hand = None
        return left

    def _needed(self) -> list[str]:
        held = [one.ack_id for one in self._held]
        if self._auto_ack and self._in_hand is not None:
            held.append(self._in_hand.ack_id)
        return held
