"""Decide which offsets a query reads, and how they are divided among tasks. Pure.

A partition is a list of ledgers with dense offsets (`View`). A range is cut into `Piece`s, each
within a single ledger, which are packed into splits of bounded size. A piece is defined by offsets
alone, so the same range always gives the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from octavo.metadata.offloads import is_only_copy, is_readable
from octavo.metadata.topic_records import partition_end, partition_start
from octavo.metadata.topics import CompactionRecord, OffloadRecord
from octavo.protocol.append_time import Appended
from octavo.protocol.codes import OctavoError
from octavo.spark.options import INCARNATION

Name = tuple[str, int]
"""Topic (`namespace/topic`) and number."""
Offsets = dict[Name, int]
"""The next offset of each partition."""
Incarnations = dict[str, str]
"""The incarnation of each topic that the offsets belong to."""

_MESSAGE_BYTES_GUESS = 256
"""A message's bytes in an open ledger, whose size is not recorded yet."""
_COST_BYTES = 64 * 1024
"""The cost of opening a ledger, as extra bytes: else a split could get thousands of them."""


class DataLost(OctavoError):
    """Offsets that a query needs are gone. With `failOnDataLoss=false` they are skipped."""

    name = "data-lost"


class EndsBeforeStart(OctavoError):
    """A micro-batch would end before its start: the next batch would read the rows between
    again.
    """

    name = "ends-before-start"


class Span(NamedTuple):
    """A ledger's share of a partition: offsets from `base` to before `end`; `bytes` of payload.

    `offload`: the copy to read instead of the bookies'. While the ledger is open, `bytes` is 0 and
    `newest_ms` −1. `cut`: a fork's ledger, which has more entries after `end`. `hidden`: the number
    of offsets from `base` on that are pieces of a large message, and not rows.
    """

    ledger_id: int
    base: int
    end: int
    bytes: int
    newest_ms: int
    offload: OffloadRecord | None = None
    disorder_ms: int = -1
    cut: bool = False
    hidden: int = 0
    appended: Appended | None = None

    @property
    def shown(self) -> int:
        """Return the first offset that is a row."""
        return self.base + self.hidden


@dataclass(frozen=True)
class View:
    """A partition at a moment."""

    topic: str
    partition: int
    spans: tuple[Span, ...]
    trimmed_to: int = 0
    compacted: CompactionRecord | None = None
    """The view to read in place of messages below its horizon; None: read the messages."""
    incarnation: str = ""
    """"" if the topic does not exist."""

    @property
    def name(self) -> Name:
        return self.topic, self.partition

    @property
    def earliest(self) -> int:
        """Return the first offset that is not trimmed."""
        return partition_start(self.spans[0].base if self.spans else None, self.trimmed_to)

    @property
    def beginning(self) -> int:
        """Return the start of a full read: a compacted view may have older messages."""
        return self.earliest if self.compacted is None else 0

    @property
    def end(self) -> int:
        """Return the offset after the last confirmed message."""
        end = partition_end(self.spans[-1].end if self.spans else None, self.trimmed_to)
        # Compacted messages were confirmed, even if the bookies now report an earlier end.
        return end if self.compacted is None else max(end, self.compacted.horizon)


class Piece(NamedTuple):
    """Offsets of a ledger, from `start` to before `end`. The ledger's first offset is `base`."""

    topic: str
    partition: int
    ledger_id: int
    base: int
    start: int
    end: int
    offload: OffloadRecord | None = None
    compacted: bool = False
    """The ledger is of a compacted view: only some of these offsets are there."""
    incarnation: str = ""
    appended: Appended | None = None


def copy_to_read(offload: OffloadRecord | None, read_from: str) -> OffloadRecord | None:
    """Return the copy of a closed ledger to read; None: read from the bookies.

    `auto` reads from the bookies while they have the ledger; `offload` reads the object once it is
    whole.
    """
    wanted = is_readable(offload) if read_from == "offload" else is_only_copy(offload)
    return offload if wanted and read_from != "bookies" else None


def ends_of(views: Iterable[View]) -> Offsets:
    return {view.name: view.end for view in views}


def covers(views: Iterable[View], end: Offsets) -> bool:
    """Return whether the views are of just these partitions, and none ends before its offset."""
    ends = ends_of(views)
    return ends.keys() == end.keys() and all(ends[name] >= end[name] for name in end)


def incarnations_of(views: Iterable[View]) -> Incarnations:
    return {view.topic: view.incarnation for view in views if view.incarnation}


def to_json(offsets: Offsets, incarnations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the offsets as Spark keeps them: in Kafka's format, sorted, as Spark compares text."""
    found: dict[str, dict[str, int | str]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    for topic, by_partition in found.items():
        if incarnation := (incarnations or {}).get(topic):
            by_partition[INCARNATION] = incarnation
    return found


def from_json(found: Mapping[str, Any]) -> Offsets:
    return {
        (topic, int(partition)): offset
        for topic, by_partition in found.items()
        for partition, offset in by_partition.items()
        if partition != INCARNATION
    }


def incarnations_in(found: Mapping[str, Any]) -> Incarnations:
    """Return the incarnations in the result of `to_json`; older versions stored none."""
    return {topic: by[INCARNATION] for topic, by in found.items() if INCARNATION in by}


def never_backwards(start: Mapping[str, Any], end: Mapping[str, Any]) -> None:
    """Raise `EndsBeforeStart` if a partition of the same topic ends before its start."""
    first, last = from_json(start), from_json(end)
    since, until = incarnations_in(start), incarnations_in(end)
    for (topic, partition), to in sorted(last.items()):
        at = first.get((topic, partition), 0)
        if to < at and since.get(topic) == until.get(topic):
            raise EndsBeforeStart(
                f"topic {topic} partition {partition}: this micro-batch would end at offset {to}, "
                f"before its start {at}: when the query began again, the bookies that answered did "
                "not know the newest messages, and this Spark does not tell a source where the "
                "query is. The batch has written nothing: delete the newest file in the "
                "checkpoint's folder offsets, and start the query again"
            )


def later(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the later offset of each partition; `other` says which topics these are."""
    before, found = from_json(one), from_json(other)
    of, now = incarnations_in(one), incarnations_in(other)
    for topic, partition in found:
        if of.get(topic) == now.get(topic):
            name = topic, partition
            found[name] = max(found[name], before.get(name, 0))
    return to_json(found, now)


def begun_anew(
    views: Iterable[View], start: Offsets, of: Mapping[str, str], *, fail: bool
) -> Offsets:
    """Return `start` without topics that were deleted and created again since, which are read
    whole.

    Raises `DataLost` when `fail`.
    """
    found = dict(start)
    for view in views:
        known = of.get(view.topic)
        if known and view.incarnation and known != view.incarnation:
            _replaced(view, f"it was at offset {start.get(view.name, 0)}", fail=fail)
            found.pop(view.name, None)
    return found


def of_this_topic(
    view: View, start: int, end: int, since: str | None, until: str | None, *, fail: bool
) -> tuple[int, int]:
    """Return the part of a range that belongs to the topic as it is now. Raises `DataLost`.

    `since` and `until`: the incarnations for start and end; None: not recorded.
    """
    if until and until != view.incarnation:
        _replaced(view, f"offsets up to {end} were of the earlier topic", fail=fail)
        return 0, 0
    if since and since != view.incarnation:
        _replaced(view, f"offset {start} was of the earlier topic", fail=fail)
        return 0, end
    return start, end


def _replaced(view: View, what: str, *, fail: bool) -> None:
    how = "deleted and created again" if view.incarnation else "deleted"
    lost(
        f"topic {view.topic} partition {view.partition}: the topic that this query reads was "
        f"{how}; {what}",
        fail=fail,
    )


def checked_range(view: View, start: int, end: int, *, fail: bool) -> tuple[int, int]:
    """Return the part of the range that is there. Raises `DataLost` when `fail` and a part is
    missing.
    """
    where = f"topic {view.topic} partition {view.partition}"
    if end > view.end:
        lost(
            f"{where}: offsets {max(start, view.end)} to {end - 1} do not exist; it ends at "
            f"{view.end}: the topic was deleted" + (" and created again" if view.end else ""),
            fail=fail,
        )
        end = view.end
    if start < view.earliest < end or start < end <= view.earliest:
        last = min(view.earliest, end) - 1
        lost(
            f"{where}: offsets {start} to {last} were trimmed by retention; "
            f"the earliest is {view.earliest}",
            fail=fail,
        )
        start = view.earliest
    return min(start, end), end


def lost(what: str, *, fail: bool) -> None:
    if fail:
        raise DataLost(f"{what}. Set failOnDataLoss=false to continue without them")


def pieces(view: View, start: int, end: int) -> list[Piece]:
    assert view.earliest <= start <= end <= view.end or start == end
    return [
        Piece(
            view.topic, view.partition, span.ledger_id, span.base, first, last, span.offload,
            incarnation=view.incarnation, appended=span.appended,
        )
        for span in view.spans
        if (first := max(span.shown, start)) < (last := min(span.end, end))
    ]  # fmt: skip


def compacted_pieces(view: View, end: int) -> list[Piece]:
    assert view.compacted is not None
    return [
        Piece(
            view.topic, view.partition, one.ledger_id, one.first_offset, one.first_offset,
            min(one.last_offset + 1, end), compacted=True, incarnation=view.incarnation,
        )
        for one in view.compacted.ledgers
        if one.first_offset < end
    ]  # fmt: skip


def bytes_per_row(view: View) -> dict[int, float]:
    """Return each ledger's mean payload per offset; for an open ledger, the mean of all others."""
    known = [span for span in view.spans if span.bytes]
    rows = sum(span.end - span.base for span in known)
    guess = sum(span.bytes for span in known) / rows if rows else _MESSAGE_BYTES_GUESS
    found = {
        span.ledger_id: span.bytes / (span.end - span.base) if span.bytes else guess
        for span in view.spans
    }
    for one in view.compacted.ledgers if view.compacted is not None else ():
        found[one.ledger_id] = one.bytes / (one.last_offset + 1 - one.first_offset)
    return found


def bytes_per_row_of(view: View) -> float:
    by_ledger = bytes_per_row(view)
    rows = view.end - view.earliest
    total = sum((span.end - span.base) * by_ledger[span.ledger_id] for span in view.spans)
    return total / rows if rows else 1.0


def shared_out(
    wanted: Iterable[Piece],
    row_bytes: Mapping[int, float],
    *,
    split_bytes_max: int,
    rows_max: int | None = None,
    splits_min: int | None = None,
    cut: bool = True,
) -> list[list[Piece]]:
    """Pack the pieces into splits, in order, and cut pieces if `cut` allows it.

    `row_bytes`: each ledger's mean payload per offset.
    """
    every = list(wanted)
    total = sum((one.end - one.start) * row_bytes[one.ledger_id] for one in every)
    target = float(split_bytes_max)
    if splits_min:
        target = min(target, max(1.0, total / splits_min))
    splits: list[list[Piece]] = []
    split: list[Piece] = []
    filled, rows = 0.0, 0
    for whole in every:
        size = max(1e-9, row_bytes[whole.ledger_id])
        start = whole.start
        while start < whole.end:
            room = int((target - filled) / size)
            if rows_max is not None:
                room = min(room, rows_max - rows)
            if room < 1 and split:
                splits.append(split)
                split, filled, rows = [], 0.0, 0
                continue
            end = min(whole.end, start + max(1, room)) if cut else whole.end
            split.append(whole._replace(start=start, end=end))
            filled += (end - start) * size + _COST_BYTES * (start == whole.start)
            rows += end - start
            start = end
    if split:
        splits.append(split)
    return splits


def admitted(
    start: Offsets,
    end: Offsets,
    row_bytes: Mapping[Name, float],
    *,
    rows_max: int | None,
    bytes_max: int | None,
) -> Offsets:
    """Return how far to read at once: both limits are shared among partitions by backlog.

    At least one row is read from some partition, so that a query always makes progress.
    """
    backlog = {key: max(0, end[key] - start[key]) for key in end}
    total = sum(backlog.values())
    size = sum(backlog[key] * row_bytes[key] for key in end)
    share = 1.0
    if rows_max is not None and total > rows_max:
        share = rows_max / total
    if bytes_max is not None and size * share > bytes_max:
        share = bytes_max / size
    if share >= 1.0:
        return dict(end)
    reached = {key: start[key] + int(backlog[key] * share) for key in end}
    spare = max(1, int(total * share)) - sum(reached[key] - start[key] for key in end)
    for key in sorted(end):  # distribute the remainder of the rounding
        if spare > 0 and reached[key] < end[key]:
            reached[key] += 1
            spare -= 1
    return reached


class Minimum:
    """Kafka's `minOffsetsPerTrigger` and `maxTriggerDelay`: when to start a micro-batch.

    The first batch of a run does not wait.
    """

    def __init__(self, rows: int | None, delay_ms: int) -> None:
        self._rows = rows or 0
        self._delay_ms = delay_ms
        self._last_ms = -math.inf

    def is_met(self, rows: int, now_ms: float) -> bool:
        """Return whether to read now; if so, start the delay for the next batch."""
        met = rows >= self._rows or now_ms - self._last_ms >= self._delay_ms
        if met:
            self._last_ms = now_ms
        return met
