"""What a loop over deliveries holds, and when it must speak for it. Pure.

    received → held → in hand (the loop's body has it) → done, to be acked → acked

What one call received is a `Hand`: the body works through it, on whichever thread it runs, and
says no more than how far it is. All that is held or in hand is leased to us for `lease_s` from when
it was received or last extended; it is extended when a third of that is over. What is done is acked
within a sixth, or a second. So much is asked for as was processed in a quarter of a lease at the
pace of the last messages: a consumer that dies keeps no more than that from the others. Only a body
that will be through in no time has the next hand fetched meanwhile. Times are seconds of any steady
clock, handed in by the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from octavo.client.types import Delivery

FIRST_MAX = 50
"""Messages asked for before the pace is known."""
AHEAD_S = 0.2
"""A hand that is worked through in less is not waited for before the next one is asked for."""
ACK_S = 1.0
"""What is done is acked this much later at the latest, with all that is done by then."""
HELD_SHARE = 4
EXTEND_SHARE = 3
ACK_SHARE = 6
_PACE_KEPT = 0.9
"""Of the pace so far, with each further message."""


class Due(NamedTuple):
    """One call to make: what is done, and what is still needed."""

    acks: list[str]
    extend: list[str]


class Hand:
    """Messages for the loop's body. It may go through them on a thread of its own."""

    __slots__ = ("deliveries", "ended", "gone", "taken")

    def __init__(self, deliveries: Sequence[Delivery] = ()) -> None:
        self.deliveries = deliveries
        self.taken = 0
        """So many the body has asked for: all before the last of them are done."""
        self.gone: frozenset[str] = frozenset()
        """Ack ids whose leases have ended: others get these, so the body must not."""
        self.ended: BaseException | None = None
        """Why the body gets no more."""

    def __iter__(self) -> Iterator[Delivery]:
        """Each once. Raises `ended`."""
        for number, delivery in enumerate(self.deliveries[self.taken :], self.taken + 1):
            if self.ended is not None:
                raise self.ended
            self.taken = number
            if self.gone and delivery.ack_id in self.gone:
                continue
            yield delivery
        self.taken = len(self.deliveries) + 1


class Handing:
    """The held messages of one loop. With `auto_ack` off, who gets one answers for it."""

    def __init__(self, lease_s: float, batch: int, *, auto_ack: bool) -> None:
        self._lease_s = lease_s
        self._batch = batch
        self._auto_ack = auto_ack
        self._hand = Hand()
        self._noticed = 0
        """So many of the hand are known to be done."""
        self._noticed_s = 0.0
        self._ahead: list[Delivery] = []
        """What was received while the body works through its hand."""
        self._done: list[str] = []
        self._done_since_s = 0.0
        self._leased_s = 0.0
        """Since when the oldest lease runs."""
        self._pace_s: float | None = None
        """How long a message takes, an average over the latest ones."""

    @property
    def is_quick(self) -> bool:
        """Whether the body is through so soon that the next messages should be under way."""
        given = len(self._hand.deliveries)
        if self._pace_s is None or given < FIRST_MAX:
            return False
        return given * self._pace_s < min(AHEAD_S, self._lease_s / HELD_SHARE)

    def want(self) -> int:
        """How many messages to ask for."""
        if self._pace_s is None:
            return min(FIRST_MAX, self._batch)
        fitting = self._lease_s / HELD_SHARE / max(self._pace_s, 1e-6)
        return max(1, min(self._batch, int(fitting)))

    def took(self, received: Sequence[Delivery], now_s: float) -> None:
        """These were received, for the next hand."""
        if not self._needed():
            self._leased_s = now_s
        self._ahead += received

    def hand(self, now_s: float) -> Hand | None:
        """The next one, for the loop's body, which is through with the last; None: receive more."""
        self.notice(now_s)
        if not self._ahead:
            return None
        self._hand, self._ahead = Hand(self._ahead), []
        self._noticed, self._noticed_s = 0, now_s
        return self._hand

    def notice(self, now_s: float) -> None:
        """See how far the body is."""
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
        """Whether `due` has to be sent by now."""
        self.notice(now_s)
        if self._done:
            late_s = min(ACK_S, self._lease_s / ACK_SHARE)
            if len(self._done) >= self._batch or now_s - self._done_since_s >= late_s:
                return True
        return now_s - self._leased_s >= self._lease_s / EXTEND_SHARE and bool(self._needed())

    def due(self, now_s: float) -> Due:
        """What to send; `sent` or `not_sent` says how it went."""
        self.notice(now_s)
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
        self._hand.gone |= gone
        self._ahead = [one for one in self._ahead if one.ack_id not in gone]

    def rest(self, why: BaseException) -> tuple[list[str], list[str]]:
        """What was received and is not done, for others: what the body has begun, and what it has
        not seen. It gets no more of it."""
        self._hand.ended = why
        left, taken = self._needed(), self._hand.taken
        begun = [one.ack_id for one in self._hand.deliveries[max(0, taken - 1) : taken]]
        self._hand, self._ahead, self._noticed = Hand(), [], 0
        return [one for one in left if one in begun], [one for one in left if one not in begun]

    def fail(self, error: BaseException) -> None:
        """The body hears of it as soon as it asks for a message."""
        self._hand.ended = error

    def _needed(self) -> list[str]:
        taken = self._hand.taken
        begin = max(0, taken - 1) if self._auto_ack else taken
        held, gone = self._hand.deliveries[begin:], self._hand.gone
        return [one.ack_id for one in (*held, *self._ahead) if one.ack_id not in gone]
