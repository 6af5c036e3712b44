"""`make sim-digest`: equal for equal stories, different as soon as one differs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.__main__ import run_chunk
from tests.sim.digest import ALL, digests
from tests.sim.run import SeedResult

TOLD = SeedResult(
    seed=7,
    trace_hash="0011223344556677",
    steps=900,
    virtual_s=1.25,
    failure=None,
    faults=Counter(kill=2, cut=1),
    probes=Counter({"writer.Ended": 3}),
    wall_s=0.5,
    profile="ledger",
)
OTHER = replace(TOLD, seed=8, profile="topic")


@pytest.mark.parametrize(
    "change",
    [
        {"trace_hash": "0011223344556678"},
        {"steps": 901},
        {"virtual_s": 1.2500001},
        {"failure": "S1 an acknowledged entry is lost"},
        {"faults": Counter(kill=2)},
        {"probes": Counter({"writer.Ended": 4})},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_is_told_otherwise_shows_in_its_profile_and_in_all(change: dict[str, Any]) -> None:
    before, after = digests([TOLD, OTHER]), digests([replace(TOLD, **change), OTHER])
    assert [name for name in before if before[name] != after[name]] == ["ledger", ALL]


def test_what_depends_on_the_machine_or_names_a_file_does_not_show() -> None:
    failed = replace(TOLD, failure="unhandled: bookie/journal/journal.py line 7")
    moved = replace(failed, failure="unhandled: elsewhere.py line 9", events=["one"], wall_s=9.0)
    counted_otherwise = replace(TOLD, faults=Counter(cut=1, kill=2))
    assert digests([failed]) == digests([moved])
    assert digests([TOLD]) == digests([counted_otherwise])


def test_two_runs_of_the_same_seeds_agree() -> None:
    job = ([3, 4], None, "ledger")
    assert digests(run_chunk(job)) == digests(run_chunk(job))
    assert digests(run_chunk(job)) != digests(run_chunk(([3, 5], None, "ledger")))
