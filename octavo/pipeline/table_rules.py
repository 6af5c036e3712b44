"""The rules of `octavo pipeline table`: which offsets come next, what a table says of itself. Pure.

A commit writes topic, incarnation and next offsets into its snapshot's summary: the newest such
snapshot is the exact position. Snapshots of other programs carry none.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from octavo.protocol.codes import OctavoError
from octavo.spark.splits import (
    Offsets,
    View,
    admitted,
    bytes_per_row_of,
    checked_range,
    ends_of,
)

TOPIC = "octavo.topic"
INCARNATION = "octavo.incarnation"
OFFSETS = "octavo.offsets"
"""The next offset by partition (JSON), in snapshots; in the table's properties for tables whose old
snapshots were expired.
"""
FOLLOWER = "octavo.follower"
"""A table property: the process that may commit. A later process replaces it."""
SCHEMA = "octavo.schema"
"""A table property: the JSON Schema of the messages; `""` if values are stored as bytes."""
INFERRED = "octavo.schema-inferred"
"""A table property, `true` or `false`: whether unknown fields of messages become columns."""
OBJECTS = "octavo.objects"
"""A table property, `true`: the data files are offloaded objects (offload_table.py)."""
_OFFSET_MAX = 2**63 - 1


class TableUnusable(OctavoError):
    """The message says why the table cannot take this topic's messages, and what to do."""

    name = "table-unusable"


class TopicReplaced(TableUnusable):
    name = "topic-replaced"


class TakenOver(TableUnusable):
    name = "table-taken-over"


@dataclass(frozen=True)
class Position:
    topic: str
    incarnation: str
    offsets: Mapping[int, int] = field(default_factory=dict)
    """The next offset by partition. A partition that is absent has not begun."""

    def summary(self) -> dict[str, str]:
        ordered = {str(number): self.offsets[number] for number in sorted(self.offsets)}
        return {
            TOPIC: self.topic,
            INCARNATION: self.incarnation,
            OFFSETS: json.dumps(ordered, separators=(",", ":")),
        }

    def at(self, reached: Mapping[int, int]) -> Position:
        return replace(self, offsets={**self.offsets, **reached})


def position_in(said: Mapping[str, str]) -> Position | None:
    if OFFSETS not in said:
        return None
    try:
        found = json.loads(said[OFFSETS])
        offsets = {int(number): offset for number, offset in found.items()}
    except (ValueError, AttributeError) as error:
        raise _spoilt(said[OFFSETS]) from error
    good = all(
        isinstance(offset, int) and not isinstance(offset, bool) and 0 <= offset <= _OFFSET_MAX
        for offset in offsets.values()
    )
    if not good or min(offsets, default=0) < 0:
        raise _spoilt(said[OFFSETS])
    return Position(said.get(TOPIC, ""), said.get(INCARNATION, ""), offsets)


def _spoilt(text: str) -> TableUnusable:
    return TableUnusable(
        f"the table's newest snapshot has {OFFSETS} = {text[:100]!r}, which is not an object of "
        "offsets by partition: it was changed by hand; roll the table back to the snapshot before"
    )


class Snapshot(NamedTuple):
    id: int
    parent: int | None
    time_ms: int
    summary: Mapping[str, str]


def chain_of(current: int | None, every: Iterable[Snapshot]) -> tuple[list[Snapshot], bool]:
    """Return the current snapshot and its ancestors, newest first, and whether none is missing."""
    by_id = {one.id: one for one in every}
    chain: list[Snapshot] = []
    at = current
    while at is not None:
        found = by_id.pop(at, None)
        if found is None:
            return chain, False
        chain.append(found)
        at = found.parent
    return chain, True


def resumed(
    current: int | None, every: Iterable[Snapshot], properties: Mapping[str, str]
) -> Position:
    if TOPIC not in properties:
        raise TableUnusable(
            f"the table was made by another program than octavo pipeline table (it has no property "
            f"{TOPIC}): choose another with --table NAMESPACE.NAME"
        )
    if properties.get(OBJECTS) == "true":
        raise TableUnusable(
            "the table is made of the objects of octavo pipeline offload: run that job again to "
            "bring it up to date, or choose another with --table NAMESPACE.NAME"
        )
    chain, whole = chain_of(current, every)
    for one in chain:
        position = position_in(one.summary)
        if position is not None:
            return position
    if whole:
        # The table was rolled back to before its first message, or has none yet.
        return Position(properties[TOPIC], properties.get(INCARNATION, ""))
    position = position_in(properties)
    if position is None:
        raise TableUnusable(
            "the snapshots with the table's offsets were expired, and its properties have none: "
            "choose a new table"
        )
    return position


def check_topic(position: Position, topic: str, incarnation: str) -> None:
    if position.topic != topic:
        raise TableUnusable(
            f"the table holds topic {position.topic}, not {topic}: choose another with --table "
            "NAMESPACE.NAME"
        )
    if position.incarnation != incarnation:
        how = "deleted and created again" if incarnation else "deleted"
        raise TopicReplaced(
            f"topic {topic} was {how} since this table began. The table keeps the messages of the "
            "earlier topic and gets no others; choose another with --table NAMESPACE.NAME"
        )


class Range(NamedTuple):
    """Offsets of a partition, from `start` to before `end`."""

    view: View
    start: int
    end: int


class Plan(NamedTuple):
    ranges: tuple[Range, ...]
    behind: int
    """The messages that the table does not have yet, before this commit."""
    is_full: bool
    """More is left than a commit holds, so do not wait with the commit after it."""


def next_ranges(
    position: Position, views: Sequence[View], *, rows_max: int, bytes_max: int, fail: bool
) -> Plan:
    starts: Offsets = {}
    ends = ends_of(views)
    for view in views:
        start = position.offsets.get(view.partition, view.earliest)
        starts[view.name], _ = checked_range(view, start, view.end, fail=fail)
    row_bytes = {view.name: bytes_per_row_of(view) for view in views}
    reached = admitted(starts, ends, row_bytes, rows_max=rows_max, bytes_max=bytes_max)
    ranges = tuple(
        Range(view, starts[view.name], reached[view.name])
        for view in views
        if reached[view.name] > starts[view.name]
    )
    behind = sum(ends[name] - starts[name] for name in ends)
    return Plan(ranges, behind, any(reached[name] < ends[name] for name in ends))


class DataFile(NamedTuple):
    path: str
    day: Any
    bytes: int
    rows: int


@dataclass(frozen=True)
class Upkeep:
    """How a table is kept small. Times in milliseconds."""

    merge_files_min: int = 10
    merge_bytes_max: int = 64 * 2**20
    merge_rows_max: int = 1_000_000
    keep_ms: int = 3_600_000
    keep_min: int = 10


_TIER = 8
"""Files are of about the same size between the same powers of this number: a byte is written again
once for each power.
"""


def to_join(files: Iterable[DataFile], keep: Upkeep) -> list[list[DataFile]]:
    tiers: dict[tuple[str, int], list[DataFile]] = {}
    for one in files:
        if one.bytes < keep.merge_bytes_max and one.rows < keep.merge_rows_max:
            tier, size = 0, one.bytes // 4096
            while size:
                tier, size = tier + 1, size // _TIER
            tiers.setdefault((repr(one.day), tier), []).append(one)
    groups: list[list[DataFile]] = []
    for name in sorted(tiers):
        group: list[DataFile] = []
        size = rows = 0
        for one in sorted(tiers[name]):
            full = size + one.bytes > keep.merge_bytes_max or rows + one.rows > keep.merge_rows_max
            if full and len(group) > 1:
                groups.append(group)
                group, size, rows = [], 0, 0
            group.append(one)
            size, rows = size + one.bytes, rows + one.rows
        if len(group) >= keep.merge_files_min:
            groups.append(group)
    return groups


def to_expire(
    current: int | None, every: Sequence[Snapshot], protected: Iterable[int], now_ms: int,
    keep: Upkeep,
) -> list[Snapshot]:  # fmt: skip
    """Return the snapshots to expire, oldest first.

    Only ancestors of the current snapshot, none that follows a `protected` snapshot (of a branch or
    tag): so files that only expired snapshots name can be deleted.
    """
    chain, _ = chain_of(current, every)
    kept = set(protected)
    found: list[Snapshot] = []
    for one in reversed(chain[keep.keep_min :]):
        if one.id in kept or now_ms - one.time_ms < keep.keep_ms:
            break
        found.append(one)
    return found
