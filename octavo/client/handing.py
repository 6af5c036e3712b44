"""Decide when a loop over deliveries acks and extends its messages. Pure.

    received → held → with the loop's body → done → acked

A lease is extended after a third of `lease_s`; finished messages are acked within a sixth of it, or
a second. The loop requests the messages that the body can process in a quarter of a lease, so that
a consumer that dies withholds few from others. Times are seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from octavo.client.types import Delivery

FIRST_MAX = 50
"""Messages asked for before the pace is known."""
AHEAD_S = 0.2
"""If a body takes less for a hand, the client fetches the next hand in advance."""
ACK_S = 1.0
"""Finished messages are acked within this time, together."""
HELD_SHARE = 4
EXTEND_SHARE = 3
ACK_SHARE = 6
_PACE_KEPT = 0.9
"""How much the average pace keeps of its earlier value at each finished message."""


class Due(NamedTuple):
    acks: list[str]
    extend: list[str]


class Hand:
    __slots__ = ("deliveries", "ended", "gone", "taken")

    def __init__(self, deliveries: Sequence[Delivery] = ()) -> None:
        self.deliveries = deliveries
        self.taken = 0
        """How many messages the body has taken: all but the last are done."""
        self.gone: frozenset[str] = frozenset()
        """Ack ids whose leases have ended: other consumers get these messages, so the body must
        not.
        """
        self.ended: BaseException | None = None

    def __iter__(self) -> Iterator[Delivery]:
        for number, delivery in enumerate(self.deliveries[self.taken :], self.taken + 1):
            if self.ended is not None:
                raise self.ended
            self.taken = number
            if self.gone and delivery.ack_id in self.gone:
                continue
            yield delivery
        self.taken = len(self.deliveries) + 1


class Handing:
    """The messages that a loop holds. With `auto_ack` off, the caller acks them."""

    def __init__(self, lease_s: float, batch: int, *, auto_ack: bool) -> None:
        self._lease_s = lease_s
        self._batch = batch
        self._auto_ack = auto_ack
        self._hand = Hand()
        self._noticed = 0
        self._noticed_s = 0.0
        self._ahead: list[Delivery] = []
        self._done: list[str] = []
        self._done_since_s = 0.0
        self._leased_s = 0.0
        self._pace_s: float | None = None

    @property
    def is_quick(self) -> bool:
        given = len(self._hand.deliveries)
        if self._pace_s is None or given < FIRST_MAX:
            return False
        return given * self._pace_s < min(AHEAD_S, self._lease_s / HELD_SHARE)

    def want(self) -> int:
        if self._pace_s is None:
            return min(FIRST_MAX, self._batch)
        fitting = self._lease_s / HELD_SHARE / max(self._pace_s, 1e-6)
        return max(1, min(self._batch, int(fitting)))

    def took(self, received: Sequence[Delivery], now_s: float) -> None:
        if not self._needed():
            self._leased_s = now_s
        self._ahead += received

    def hand(self, now_s: float) -> Hand | None:
        """Return the next hand; the body has finished the last. None: receive more first."""
        self.notice(now_s)
        if not self._ahead:
            return None
        self._hand, self._ahead = Hand(self._ahead), []
        self._noticed, self._noticed_s = 0, now_s
        return self._hand

    def notice(self, now_s: float) -> None:
        done = max(0, self._hand.taken - 1)
        count = done - self._noticed
        if count <= 0:
            return
        took_s = max(0.0, now_s - self._noticed_s) / count
        kept = 0.0 if self._pace_s is None else _PACE_KEPT**count
        self._pace_s = kept * (self._pace_s or 0.0) + (1.0 - kept) * took_s
        if self._auto_ack:
            if not self._done:
                self._done_since_s = now_s
            of, gone = self._hand.deliveries[self._noticed : done], self._hand.gone
            self._done += [one.ack_id for one in of if one.ack_id not in gone]
        self._noticed, self._noticed_s = done, now_s

    def is_due(self, now_s: float) -> bool:
        self.notice(now_s)
        if self._done:
            late_s = min(ACK_S, self._lease_s / ACK_SHARE)
            if len(self._done) >= self._batch or now_s - self._done_since_s >= late_s:
                return True
        return now_s - self._leased_s >= self._lease_s / EXTEND_SHARE and bool(self._needed())

    def due(self, now_s: float) -> Due:
        """Return the acks and extensions to send; if that fails, call `not_sent`."""
        self.notice(now_s)
        extend: list[str] = []
        if now_s - self._leased_s >= self._lease_s / EXTEND_SHARE / 2:
            extend = self._needed()
            self._leased_s = now_s
        acks, self._done = self._done, []
        return Due(acks, extend)

    def not_sent(self, due: Due) -> None:
        self._done = due.acks + self._done

    def stale(self, ack_ids: Iterable[str]) -> None:
        gone = frozenset(ack_ids)
        self._hand.gone |= gone
        self._ahead = [one for one in self._ahead if one.ack_id not in gone]

    def rest(self, why: BaseException) -> tuple[list[str], list[str]]:
        """End the hand; return unfinished ack ids: begun by the body, and never seen by it."""
        self._hand.ended = why
        left, taken = self._needed(), self._hand.taken
        begun = [one.ack_id for one in self._hand.deliveries[max(0, taken - 1) : taken]]
        self._hand, self._ahead, self._noticed = Hand(), [], 0
        return [one for one in left if one in begun], [one for one in left if one not in begun]

    def fail(self, error: BaseException) -> None:
        self._hand.ended = error

    def _needed(self) -> list[str]:
        taken = self._hand.taken
        begin = max(0, taken - 1) if self._auto_ack else taken
        held, gone = self._hand.deliveries[begin:], self._hand.gone
        return [one.ack_id for one in (*held, *self._ahead) if one.ack_id not in gone]
