"""`octavo.spark.lag`: what a query's progress report says about how far it is behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from octavo.spark.progress import LagUnknown, lag_of


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"endOffset": json.dumps(end), "latestOffset": json.dumps(latest)}


OURS = source(
    {"public/t": {"0": 5, "1": 9, "incarnation": "i"}},
    {"public/t": {"0": 12, "1": 9, "2": 4, "incarnation": "i"}},
)
KAFKAS = source({"t": {"0": 1}}, {"t": {"0": 9}})
FILES = source({"logOffset": 3}, None)


def test_each_partition_has_what_the_query_has_not_read() -> None:
    behind = {("public/t", 0): 7, ("public/t", 1): 0, ("public/t", 2): 4}
    assert lag_of({"sources": [OURS]}) == behind
    assert lag_of({"sources": [KAFKAS, FILES, OURS]}) == behind


def test_an_end_that_a_bookie_reports_too_early_is_no_negative_lag() -> None:
    ends = {"public/t": {"0": 4, "incarnation": "i"}}
    assert lag_of({"sources": [source({"public/t": {"0": 5}}, ends)]}) == {("public/t", 0): 0}


def test_a_query_that_has_not_begun_lacks_everything() -> None:
    ends = {"public/t": {"0": 4, "incarnation": "i"}}
    assert lag_of({"sources": [source(None, ends)]}) == {("public/t", 0): 4}


@pytest.mark.parametrize(
    ("progress", "why"),
    [
        (None, "no progress report yet"),
        ({"sources": []}, "Spark 4.2"),
        ({"sources": [KAFKAS, FILES]}, "Spark 4.2"),
        ({"sources": [source({"public/t": {"0": 5, "incarnation": "i"}}, None)]}, "Spark 4.2"),
        ({"sources": [{"endOffset": None, "latestOffset": "no JSON"}]}, "Spark 4.2"),
    ],
)
def test_what_is_not_reported_is_unknown(progress: Any, why: str) -> None:
    with pytest.raises(LagUnknown, match=why):
        lag_of(progress)
