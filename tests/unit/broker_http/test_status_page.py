"""The page at `/` shows bookies that are down or read-only, with a warning."""

from __future__ import annotations

from typing import Any

from octavo.broker.http.overview import page


def figures(bookies: list[dict[str, Any]], down: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "broker_id": "k1",
        "metadata": {"url": "zk://x", "session": "connected"},
        "stale": None,
        "bookies": bookies,
        "bookies_down": down,
        "brokers": [],
        "brokers_gone": [],
        "topics": [],
    }


def bookie(name: str, because: str = "") -> dict[str, Any]:
    properties = {"read_only_because": because} if because else {}
    shown = {"id": name, "host": "h", "port": 1, "properties": properties}
    return {**shown, "read_only": bool(because)}


def test_no_warning_where_all_is_well() -> None:
    assert "Warning" not in page(figures([bookie("b1")], []), [], 0, "http://k1", 5_000)


def test_what_is_down_or_read_only_is_shown_with_its_reason() -> None:
    down: list[dict[str, Any]] = [
        {"id": "b<2", "host": "h", "port": 2, "missing_since": 1_000},
        {"id": "b3", "host": None, "port": None, "missing_since": 5_000},
    ]
    said = page(figures([bookie("b1", "disk full: 7 bytes")], down), [], 0, "http://k1", 5_000)
    assert "Warning. Down: b&lt;2, b3." in said
    assert "b<2" not in said
    assert "down, missed for 4 s" in said
    assert "Warning. Read-only: b1." in said
    assert "read-only: disk full: 7 bytes" in said
    assert "No bookie takes adds: nothing can be published." in said


def test_names_in_a_warning_are_bounded() -> None:
    down: list[dict[str, Any]] = [
        {"id": f"b{n}", "host": "h", "port": 2, "missing_since": 0} for n in range(300)
    ]
    assert "and 290 more." in page(figures([bookie("b1")], down), [], 0, "http://k1", 0)


def test_a_broker_that_is_gone_is_shown_for_a_while() -> None:
    """It vanished from the page without a warning."""
    gone = {"id": "k<2", "url": "http://k2", "missing_since": 1_000}
    shown = {**figures([bookie("b1")], []), "brokers_gone": [gone]}
    said = page(shown, [], 0, "http://k1", 5_000)
    assert "No longer registered: broker k&lt;2." in said
    assert "gone, missed for 4 s" in said
