"""The claim table: from each state a way leads back, and no claim is possible during a release."""

from __future__ import annotations

import pytest

from octavo.broker.cluster.ownership_states import (
    HERE,
    ON_ITS_WAY,
    TABLE,
    WAITS,
    Event,
    Route,
    State,
    after,
    begins_release,
    known_route,
    may,
    route,
)

OWN, OTHER = "k1", "k2"


def reached_from(state: State) -> set[State]:
    found, todo = {state}, [state]
    while todo:
        at = todo.pop()
        for (before, _), then in TABLE.items():
            if before is at and then not in found:
                found.add(then)
                todo.append(then)
    return found


def test_each_state_is_reached_and_left_again() -> None:
    assert reached_from(State.AWAY) == set(State)
    assert all(State.AWAY in reached_from(state) for state in State)


def test_each_event_happens_somewhere() -> None:
    assert {event for _, event in TABLE} == set(Event)


def test_an_event_that_cannot_happen_is_a_bug_that_names_both() -> None:
    with pytest.raises(AssertionError, match="away: it is open"):
        after(State.AWAY, Event.OPENED)


def test_a_claim_begins_only_where_no_release_is_under_way() -> None:
    """The second half of the release would delete the record that the claim has made."""
    for (before, event), then in TABLE.items():
        if begins_release(before, then):
            released = after(then, Event.RELEASED)
            assert released not in HERE, (before, event)
        if then is State.CLAIMING:
            assert not may(before, Event.RELEASED), (before, event)


def test_a_partition_that_was_here_is_released_on_every_way_but_one() -> None:
    """The exception: another broker's claim is in force, so the record is not ours."""
    left = {
        (before, event): then
        for (before, event), then in TABLE.items()
        if before in HERE and then not in HERE
    }
    assert {pair for pair, then in left.items() if not begins_release(pair[0], then)} == {
        (State.CLAIMING, Event.TAKEN)
    }


def test_what_is_on_its_way_is_not_claimed_by_a_call() -> None:
    for state in ON_ITS_WAY - HERE:
        assert not may(state, Event.CLAIM)
        assert state in WAITS


def routed(state: State, owner: str | None = None, preferred: str = OTHER, **how: bool) -> Route:
    flags = {"is_forwarded": False, "is_left": False, "is_stopping": False} | how
    known = known_route(state, has_successor=False)
    return known or route(state, owner, OWN, lambda: preferred, **flags)


@pytest.mark.parametrize("state", list(State))
def test_a_route_never_claims_what_may_not_be_claimed(state: State) -> None:
    for owner in (None, OWN, OTHER):
        for preferred in (OWN, OTHER):
            for forwarded in (False, True):
                to = routed(state, owner, preferred, is_forwarded=forwarded)
                assert to is not Route.CLAIM or may(state, Event.CLAIM)
                assert (to is Route.HERE) == (state in HERE)


@pytest.mark.parametrize(
    ("to", "how"),
    [
        (Route.PREFERRED, {}),
        (Route.OWNER, {"owner": OTHER, "is_forwarded": True}),
        (Route.OWNER, {"owner": OTHER, "is_stopping": True}),
        (Route.CLAIM, {"is_forwarded": True}),
        (Route.CLAIM, {"preferred": OWN}),
        (Route.CLAIM, {"owner": OWN}),
        (Route.WAIT, {"preferred": OWN, "is_left": True}),
        (Route.CLAIM, {"preferred": OWN, "is_left": True, "is_forwarded": True}),
        (Route.WAIT, {"is_forwarded": True, "is_stopping": True}),
    ],
)
def test_where_a_call_goes_of_a_partition_that_is_away(to: Route, how: dict[str, object]) -> None:
    assert routed(State.AWAY, **how) is to  # type: ignore[arg-type]


def test_a_successor_that_knows_the_end_is_asked_at_once() -> None:
    assert known_route(State.HANDED, has_successor=True) is Route.SUCCESSOR
    assert known_route(State.HANDED, has_successor=False) is None
    assert routed(State.HANDED) is Route.WAIT
    assert routed(State.PREPARED) is Route.WAIT
