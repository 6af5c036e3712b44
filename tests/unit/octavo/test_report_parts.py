"""The figures and the page of `report`, without Spark."""

from __future__ import annotations

import re

import pytest

from octavo.metadata.topics import PartitionLedger, PartitionRecord, TopicSettings

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pyarrow", reason="needs octavo[spark]")

from octavo.pipeline.report import expired_links, stored_of
from octavo.pipeline.report_page import by_topic, page

pytest.importorskip("matplotlib", reason="needs octavo[spark]")


def test_what_retention_may_remove() -> None:
    links = tuple(
        PartitionLedger(number, 10 * number, 10, 100, 0, 1000 * number, disorder_ms=0)
        for number in range(3)
    )
    record = PartitionRecord(ledgers=(*links, PartitionLedger(3, 30)))
    for settings, count in (
        (TopicSettings(), 0),
        (TopicSettings(retention_ms=4000), 2),
        (TopicSettings(retention_bytes=150), 1),
    ):
        assert expired_links(record, settings, 5500) == list(links[:count])
    found = stored_of("t", [record], TopicSettings(retention_ms=4000, write_quorum=2), 5500)
    assert (found.bytes, found.bytes_all_copies) == (300, 600)
    assert (found.expired_ledgers, found.expired_bytes) == (2, 200)


def test_the_page_needs_nothing_else_and_escapes_names() -> None:
    whole = {
        "made_ms": 0,
        "messages": 3,
        "stored": [],
        "volume": [{"topic": "a<b>$x$", "day": "2024-01-01", "messages": 3, "bytes": 9}],
        "sizes": [{"topic": "a<b>$x$", "bytes_min": 2048, "messages": 3}],
        "hot_keys": [{"topic": "a<b>$x$", "key": "_<k>", "messages": 3, "bytes": 9, "rank": 1}],
    }
    text = page(whole)
    assert text.count("<svg") == 4
    seen = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)  # matplotlib notes what it draws
    assert "a<b>" not in seen
    assert "a&lt;b&gt;$x$" in text
    assert "<script" not in text


def test_small_topics_are_drawn_as_one() -> None:
    rows = [{"topic": f"t{n}", "day": n % 2, "messages": n} for n in range(1, 14)]
    places, found = by_topic(rows, "day", "messages")
    assert places == [0, 1]
    assert len(found) == 11
    assert found["all others"] == [2, 1 + 3]
    assert sum(map(sum, found.values())) == sum(range(14))
