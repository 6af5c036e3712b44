"""`CREATE TABLE … USING octavo OPTIONS (…)` failed on options that Spark itself had added.

Of a table Spark hands over each option twice, once with `option.` before it, and its properties
besides. Ours are told apart now, and a mistyped one is still named, with what was meant. Found from
outside; only temporary views had been tried.
"""

from __future__ import annotations

import pytest

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from octavo.spark.options import InvalidOption, source_options
from octavo.spark.sink_options import sink_options

SEEN = {"provider": "octavo", "owner": "root", "team.name": "x", "location": "file:/w/t"}
"""Beside the options; seen with Spark 4.3."""


def table(**options: str) -> dict[str, str]:
    lower = {name.lower(): value for name, value in options.items()}
    return {**SEEN, **lower, **{f"option.{name}": value for name, value in lower.items()}}


def test_what_spark_adds_is_passed_over() -> None:
    given = table(service="http://x", subscribe="a", startingOffsets="latest")
    found = source_options(given, streaming=False)
    assert (found.selection.topics, found.starting.offset) == (("public/a",), -1)
    plain = {"service": "http://x", "subscribe": "a", "path": "/w", "serialization.format": "1"}
    assert source_options(plain, streaming=False).selection.topics == ("public/a",)


def test_a_table_is_read_and_written() -> None:
    given = table(service="http://x", subscribe="a", topic="b", startingOffsets="latest")
    assert source_options(given, streaming=False).selection.topics == ("public/a",)
    assert sink_options(given, streaming=False).topic == "public/b"
    for read in (source_options, sink_options):
        with pytest.raises(InvalidOption, match="unknown option"):
            read({"service": "http://x", "subscribe": "a", "topic": "b"}, streaming=False)


def test_one_query_goes_before_its_table() -> None:
    given = {**table(service="http://x", subscribe="a"), "subscribe": "b"}
    assert source_options(given, streaming=False).selection.topics == ("public/b",)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (table(service="http://x", subscribe="a", startingOfsets="0"), "meant: startingOffsets?"),
        ({**table(service="http://x", subscribe="a"), "startingofsets": "0"}, "startingofsets"),
        ({"service": "http://x", "subscribe": "a", "owner": "me"}, "unknown option owner;"),
        ({"service": "http://x", "subscribe": "a", "option.": "1"}, "unknown option ;"),
        ({"service": "http://x", "kafka.bootstrap.servers": "h"}, "kafka.bootstrap.servers"),
        (SEEN | {"subscribe": "a"}, "unknown option location, owner, provider, team.name"),
        ({}, "use CREATE TEMPORARY VIEW"),
    ],
)
def test_what_is_not_ours_nor_sparks_is_named(given: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        source_options(given, streaming=False)
    assert said in str(refused.value)
