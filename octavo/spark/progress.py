"""How far a streaming query is behind its topics, from Spark's own progress reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from octavo.protocol.codes import OctavoError
from octavo.spark.options import INCARNATION
from octavo.spark.splits import Name, from_json


class LagUnknown(OctavoError):
    """Spark has not reported how far the query is. The message says why."""

    name = "lag-unknown"


def lag_of(progress: Any) -> dict[Name, int]:
    """Return what a progress report says: see `octavo.spark.lag`.

    Spark reports after each micro-batch, or every 10 s without data. A partition that the query has
    not begun counts from offset 0.
    """
    if progress is None:
        raise LagUnknown("the query has made no progress report yet: ask again later")
    found: dict[Name, int] = {}
    known = False
    for source in progress["sources"]:
        end = _offsets(source["latestOffset"])
        if end is None or not any(INCARNATION in by_partition for by_partition in end.values()):
            continue  # another source's
        known = True
        reached = _offsets(source["endOffset"]) or {}
        for name, offset in from_json(end).items():
            found[name] = max(0, offset - from_json(reached).get(name, 0))
    if not known:
        raise LagUnknown(
            "the last progress report has no latestOffset of an octavo source: this needs Spark "
            "4.2 or newer"
        )
    return found


def _offsets(told: str | None) -> Mapping[str, Any] | None:
    """Return the offsets by topic that a report has as JSON text, if it has any."""
    try:
        found = json.loads(told or "null")
    except ValueError:
        return None
    good = isinstance(found, dict) and all(isinstance(one, dict) for one in found.values())
    return found if good else None
