"""M8: brokers claim a partition, hand it on, unload it, take it back, and lose sessions."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from octavo.broker.cluster import ownership_states
from octavo.broker.cluster.ownership_states import Event, Route, State, route
from tests.model import claim_nodes
from tests.model.claim_nodes import Broker, Record, all_served, check
from tests.model.model import Defect, Model
from tests.model.world import World


def claim_world(*, hands: str = "", closes: str = "", expiring: str = "", faults: int = 0) -> World:
    """Make two brokers; the named brokers hand the partition on, unload it, or may lose their
    session."""
    brokers = [
        Broker(name, other, hands=hands.count(name), closes=closes.count(name))
        for name, other in ("pq", "qp")
    ]
    return World([Record("pq", expiring), *brokers], check, faults=faults, ended=all_served)


def table_with(
    rows: Mapping[tuple[State, Event], State],
    waits: frozenset[State] = frozenset(ownership_states.WAITS),
) -> AbstractContextManager[object]:
    """Plant other rows in the table, and states in which no call has to wait."""
    rest = {state: why for state, why in ownership_states.WAITS.items() if state in waits}
    return patch.multiple(ownership_states, TABLE={**ownership_states.TABLE, **rows}, WAITS=rest)


RELEASED_LATE = {
    (State.CLAIMING, Event.RELEASED): State.CLAIMING,
    (State.SERVING, Event.RELEASED): State.SERVING,
}
AMID_RELEASE = Defect(
    "a broker claims the record that it is releasing",
    "claim: ",
    depth=22,
    plant=lambda: table_with(
        {(State.RELEASING, Event.CLAIM): State.CLAIMING, **RELEASED_LATE},
        frozenset(ownership_states.WAITS) - {State.RELEASING},
    ),
    world=lambda: claim_world(closes="p"),
)
TAKES_BACK_EARLY = Defect(
    "a broker takes a partition back before it has released the record",
    "claim: ",
    depth=22,
    plant=lambda: table_with(
        {(State.HANDED, Event.TAKE_BACK): State.CLAIMING, **RELEASED_LATE},
    ),
    world=lambda: claim_world(hands="p"),
)
STAYS = Defect(
    "a broker whose claim came too late goes on claiming",
    "liveness: ",
    depth=10,
    plant=lambda: table_with({(State.CLAIMING, Event.TAKEN): State.CLAIMING}),
    world=claim_world,
)


def sends_on(*args: Any, is_forwarded: bool, **rest: Any) -> Route:
    return route(*args, is_forwarded=False, **rest)


def overlooks_leftover(state: State, owner: str | None, own: str, *args: Any, **rest: Any) -> Route:
    return route(state, None if owner == own else owner, own, *args, **rest)


SENDS_ON = Defect(
    "a call that another broker sent is sent on by preference, to and fro",
    "liveness: ",
    depth=0,
    plant=lambda: patch.object(claim_nodes, "route", sends_on),
    world=claim_world,
)
LEFTOVER = Defect(
    "a broker does not serve what its own record, left by a failed release, says that it serves",
    "liveness: ",
    depth=17,
    plant=lambda: patch.object(claim_nodes, "route", overlooks_leftover),
    world=lambda: claim_world(closes="p", faults=1),
)

MODEL = Model(
    name="M8",
    about="brokers claim a partition, hand it on, unload it and take it back, by the claim table",
    bounds="2 brokers that each take the other for the preferred one; 1 hand-over, 1 unload",
    world=lambda: claim_world(hands="p", closes="p"),
    states=37_718,
    depth=57,
    ci=True,
    defects=(AMID_RELEASE, TAKES_BACK_EARLY, STAYS, SENDS_ON, LEFTOVER),
)

SESSIONS = Model(
    name="M8-sessions",
    about="the same while a session ends, or a release fails",
    bounds="2 brokers; 1 hand-over; 1 fault",
    world=lambda: claim_world(hands="p", expiring="p", faults=1),
    states=99_164,
    depth=48,
    defects=(AMID_RELEASE, STAYS),
)

BOTH = Model(
    name="M8-both",
    about="both brokers hand the partition on, also to and fro",
    bounds="2 brokers; 1 hand-over each",
    world=lambda: claim_world(hands="pq"),
    states=240_594,
    depth=59,
    defects=(TAKES_BACK_EARLY, SENDS_ON),
)
