"""Small models are searched whole, and every planted bug is found. If the number of states
differs from the model's, the protocol has changed: see what changed, then write the new number
down."""

from __future__ import annotations

import pytest

from tests.model.catalog import MODELS
from tests.model.explorer import explore, walk
from tests.model.ledger_worlds import ledger_world
from tests.model.model import Defect, Model, alone

pytestmark = pytest.mark.timeout(900)
SLOW = {"M1", "M7"}
"""They take up to half a minute of a core: in the long run. The bugs planted in them are found
in every run."""
SEARCHED = [
    pytest.param(model, id=model.name, marks=[pytest.mark.long] * (model.name in SLOW))
    for model in MODELS.values()
    if model.ci
]
PLANTED = [
    pytest.param(model, defect, id=f"{model.name}: {defect.name}")
    for model in MODELS.values()
    for defect in model.defects
    if not defect.slow
]


@pytest.mark.parametrize("model", SEARCHED)
def test_nothing_is_wrong_in_any_state(model: Model) -> None:
    found = model.search()
    assert found.failure is None, str(found)
    assert found.complete
    assert (found.states, found.depth) == (model.states, model.depth), "the protocol has changed"


@pytest.mark.parametrize(("model", "defect"), PLANTED)
def test_a_planted_bug_is_found_by_the_shortest_story(model: Model, defect: Defect) -> None:
    found = model.hunt(defect)
    assert found.failure is not None, f"not found in {found.states} states"
    assert found.failure.startswith(defect.says), str(found)
    assert len(found.story) == defect.depth, str(found)


def test_every_model_has_planted_bugs() -> None:
    for model in MODELS.values():
        assert model.defects, model.name


@pytest.mark.long
def test_names_make_no_difference() -> None:
    with alone():
        whole = ledger_world((2, 2, 1), "ab", recoverers=2)
        like = ledger_world((2, 2, 1), "ab", recoverers=2, alike=["ab", ["r0", "r1"]])
        found, fewer = explore(whole), explore(like)
    assert found.failure is None
    assert fewer.failure is None
    assert found.depth == fewer.depth
    assert found.states / 4 < fewer.states < found.states / 3


@pytest.mark.long
def test_random_ways_through_what_is_too_large_to_visit() -> None:
    """Two recoverers, two entries in flight, a spare bookie, two faults."""
    with alone():
        world = ledger_world(
            (3, 3, 2), "abcd", recoverers=2, entries=2, in_flight=2,
            faults=2, loses=True, crashes=True, closes=True,
        )  # fmt: skip
        found = walk(world, 150)
    assert found.failure is None, str(found)
    assert found.states > 5_000
