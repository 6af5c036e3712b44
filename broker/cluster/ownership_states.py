"""The states of a partition at one broker, and the state that follows each event. Pure.

`TABLE` is the whole rule: if it has no row for a state and an event, the event cannot happen then.

    given by its owner    AWAY ── PREPARE ─▶ PREPARED ── CLAIM ─▶ CLAIMING
    claimed               AWAY ── CLAIM ─▶ CLAIMING ── OPENED ─▶ SERVING      TAKEN: AWAY
    lost                  CLAIMING, SERVING, OFFERED ── LOST ─▶ RELEASING ── RELEASED ─▶ AWAY
    closed                SERVING ── CLOSE ─▶ CLOSING ── CLOSED ─▶ RELEASING ── RELEASED ─▶ AWAY
    handed on             SERVING ── OFFER ─▶ OFFERED ── YIELD ─▶ YIELDING ── CLOSED ─▶ HANDED
                          HANDED ── RELEASED ─▶ FREED ── SETTLED ─▶ AWAY      TAKE_BACK: CLAIMING

In `RELEASING` and `HANDED` no claim is possible: the release would delete it. Two brokers that both
believe they are the owner are kept apart by fencing, not by these states.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping


class State(enum.Enum):
    AWAY = "away"
    PREPARED = "prepared"
    """The owner is about to hand the partition to this broker, which has made ledgers."""
    CLAIMING = "claiming"
    """This broker tries to claim and open the partition."""
    SERVING = "serving"
    OFFERED = "offered"
    """The partition is open here while its successor prepares."""
    YIELDING = "yielding"
    """The partition is being closed for its successor."""
    CLOSING = "closing"
    """The partition is being closed for an unload, or because this broker stops."""
    HANDED = "handed"
    """The partition is closed; its record is being released for the successor."""
    FREED = "freed"
    """The partition is closed; its record is released for the successor."""
    RELEASING = "releasing"
    """The partition is closed; its record is being released for the preferred broker."""


class Event(enum.Enum):
    PREPARE = "its owner says that it will hand it to this broker"
    EXPIRE = "its owner did not hand it to this broker in time"
    CLAIM = "this broker should serve it"
    TAKEN = "the claim of another broker stands"
    OPENED = "it is open"
    LOST = "the session is over, or its ledger is fenced, or its topic is deleted"
    OFFER = "another broker should have it, and is asked to prepare"
    DECLINED = "that broker refuses it"
    YIELD = "that broker is prepared for it"
    CLOSE = "it is closed without a successor"
    CLOSED = "no work is pending in it any more"
    SETTLED = "the successor serves it, or this broker stops"
    TAKE_BACK = "no broker has claimed it in time"
    RELEASE = "a failed release may have left a record of this broker"
    RELEASED = "its release is over, with or without success"


S, E = State, Event
TABLE: Mapping[tuple[State, Event], State] = {
    (S.AWAY, E.PREPARE): S.PREPARED,
    (S.AWAY, E.CLAIM): S.CLAIMING,
    (S.AWAY, E.RELEASE): S.RELEASING,
    (S.PREPARED, E.PREPARE): S.PREPARED,
    (S.PREPARED, E.EXPIRE): S.AWAY,
    (S.PREPARED, E.CLAIM): S.CLAIMING,
    (S.CLAIMING, E.OPENED): S.SERVING,
    (S.CLAIMING, E.TAKEN): S.AWAY,
    (S.CLAIMING, E.LOST): S.RELEASING,
    (S.CLAIMING, E.CLOSED): S.RELEASING,
    (S.SERVING, E.LOST): S.RELEASING,
    (S.SERVING, E.OFFER): S.OFFERED,
    (S.SERVING, E.CLOSE): S.CLOSING,
    (S.OFFERED, E.LOST): S.RELEASING,
    (S.OFFERED, E.DECLINED): S.SERVING,
    (S.OFFERED, E.YIELD): S.YIELDING,
    (S.OFFERED, E.CLOSE): S.CLOSING,
    (S.YIELDING, E.CLOSED): S.HANDED,
    (S.CLOSING, E.CLOSED): S.RELEASING,
    (S.HANDED, E.RELEASED): S.FREED,
    (S.HANDED, E.SETTLED): S.RELEASING,
    (S.HANDED, E.TAKE_BACK): S.RELEASING,  # a claim now would be deleted by the release
    (S.FREED, E.SETTLED): S.AWAY,
    (S.FREED, E.TAKE_BACK): S.CLAIMING,
    (S.FREED, E.RELEASE): S.HANDED,
    (S.RELEASING, E.RELEASED): S.AWAY,
}

HERE = frozenset((S.CLAIMING, S.SERVING, S.OFFERED, S.YIELDING, S.CLOSING))
"""The partition is open here or being opened."""
ON_ITS_WAY = frozenset((S.OFFERED, S.YIELDING, S.HANDED, S.FREED))
"""The partition is being handed over."""
_RELEASES = frozenset((S.HANDED, S.RELEASING))


def after(state: State, event: Event) -> State:
    try:
        return TABLE[state, event]
    except KeyError:
        raise AssertionError(f"a partition that is {state.value}: {event.value}") from None


def may(state: State, event: Event) -> bool:
    return (state, event) in TABLE


def begins_release(before: State, then: State) -> bool:
    return then in _RELEASES and before not in _RELEASES


class Route(enum.Enum):
    HERE = "to this broker, which serves the partition or is opening it"
    SUCCESSOR = "to the broker that will have it next"
    OWNER = "to the broker that the record names"
    PREFERRED = "to the broker that is preferred for it, which then claims it"
    CLAIM = "to this broker, which claims it now"
    WAIT = "nowhere yet: ask again in a moment"


WAITS: Mapping[State, str] = {
    S.PREPARED: "is about to be given to this broker",
    S.HANDED: "is being handed on by this broker",
    S.FREED: "is being handed on by this broker",
    S.RELEASING: "is being released by this broker",
}


def known_route(state: State, *, has_successor: bool) -> Route | None:
    """Return where a call goes by this broker's own state; None: read the owner's record first."""
    if state in HERE:
        return Route.HERE
    if has_successor:
        return Route.SUCCESSOR
    return Route.WAIT if state is S.PREPARED else None


def route(
    state: State,
    owner: str | None,
    own: str,
    preferred: Callable[[], str],
    *,
    is_forwarded: bool,
    is_left: bool,
    is_stopping: bool,
) -> Route:
    """Return where a call goes, given the owner that the record names.

    `is_forwarded`: the sender takes this broker for the owner. Then claim whatever the preference,
    so that two brokers do not send a call back and forth. `is_left`: a live broker just released
    the record for a successor.
    """
    if owner is not None and owner != own:
        return Route.OWNER
    if is_stopping or state in WAITS:
        return Route.WAIT
    # A record of ours that is not being released is left from a failed release; no other broker can
    # open the partition while our session lives.
    if owner is None and not is_forwarded:
        if preferred() != own:
            return Route.PREFERRED
        if is_left:
            return Route.WAIT
    return Route.CLAIM
