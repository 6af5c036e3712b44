"""Which offsets a query reads, and how they are shared out over tasks. Pure.

A partition is a row of ledgers with dense offsets (`View`). A query's range of offsets is cut into
`Piece`s, each within one ledger, and these are packed into splits of a bounded size. A piece is
named by offsets alone, so the same range always gives the same rows, whoever reads it and whenever.
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

Name = tuple[str, int]
"""A partition: topic (`namespace/topic`) and number."""
Offsets = dict[Name, int]
"""The next offset of each."""
Incarnations = dict[str, str]
"""By topic: which topic of that name the offsets are of."""
_INCARNATION = "incarnation"
"""Its key among the partitions of a topic, in the offsets that Spark keeps."""

_MESSAGE_BYTES_GUESS = 256
"""Of a message in an open ledger, whose size nobody has written down yet."""
_COST_BYTES = 64 * 1024
"""What opening a ledger costs, as if it were so much longer: else thousands made one split."""


class DataLost(OctavoError):
    """Offsets that a query needs are gone. With `failOnDataLoss=false` they are passed over."""

    name = "data-lost"


class Span(NamedTuple):
    """One ledger's share of a partition: offsets `base` to `end` (not in it), `bytes` of payload.

    `offload` is the copy to read instead of the bookies'.

    `bytes` is 0 while the ledger is open, `newest_ms` −1: nobody has written them down yet.
    `disorder_ms`: as in `PartitionLedger`. `cut`: of a fork, whose ledger goes on behind `end`.
    `hidden`: so many offsets from `base` on are pieces of a large message, and no rows.
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
    """Its append times, if it has some."""

    @property
    def shown(self) -> int:
        """The first offset that is a row."""
        return self.base + self.hidden


@dataclass(frozen=True)
class View:
    """A partition as it was seen at one moment."""

    topic: str
    partition: int
    spans: tuple[Span, ...]
    trimmed_to: int = 0
    compacted: CompactionRecord | None = None
    """The view to read in place of all below its horizon; None: the messages themselves."""
    incarnation: str = ""
    """Of the topic; "" when there is no such topic."""

    @property
    def name(self) -> Name:
        """Topic and number."""
        return self.topic, self.partition

    @property
    def earliest(self) -> int:
        """The first offset that is left."""
        return partition_start(self.spans[0].base if self.spans else None, self.trimmed_to)

    @property
    def beginning(self) -> int:
        """Where a query that reads all of it begins: a compacted view may have older messages."""
        return self.earliest if self.compacted is None else 0

    @property
    def end(self) -> int:
        """One past the last confirmed message."""
        end = partition_end(self.spans[-1].end if self.spans else None, self.trimmed_to)
        # What was compacted was confirmed, whatever the bookies tell of the open ledger now.
        return end if self.compacted is None else max(end, self.compacted.horizon)


class Piece(NamedTuple):
    """Offsets `start` to `end` (not in it) of one ledger, whose first offset is `base`.

    `offload` is the copy to read instead of the bookies'.
    """

    topic: str
    partition: int
    ledger_id: int
    base: int
    start: int
    end: int
    offload: OffloadRecord | None = None
    compacted: bool = False
    """Of a compacted view: only some of these offsets are there."""
    incarnation: str = ""
    """Of the topic."""
    appended: Appended | None = None
    """The ledger's append times, if it has some."""


def copy_to_read(offload: OffloadRecord | None, read_from: str) -> OffloadRecord | None:
    """Which copy of a closed ledger to read; None: the bookies'.

    `auto` takes the bookies' as long as they have it, `offload` the object as soon as it is whole.
    """
    wanted = is_readable(offload) if read_from == "offload" else is_only_copy(offload)
    return offload if wanted and read_from != "bookies" else None


def ends_of(views: Iterable[View]) -> Offsets:
    """Where each ends."""
    return {view.name: view.end for view in views}


def incarnations_of(views: Iterable[View]) -> Incarnations:
    """By topic, of those that there are."""
    return {view.topic: view.incarnation for view in views if view.incarnation}


def to_json(offsets: Offsets, incarnations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """As Spark keeps them: Kafka's shape, and always in the same order, for it compares text."""
    found: dict[str, dict[str, int | str]] = {}
    for topic, partition in sorted(offsets):
        found.setdefault(topic, {})[str(partition)] = offsets[topic, partition]
    for topic, by_partition in found.items():
        if incarnation := (incarnations or {}).get(topic):
            by_partition[_INCARNATION] = incarnation
    return found


def from_json(found: Mapping[str, Any]) -> Offsets:
    """The offsets of what `to_json` made."""
    return {
        (topic, int(partition)): offset
        for topic, by_partition in found.items()
        for partition, offset in by_partition.items()
        if partition != _INCARNATION
    }


def incarnations_in(found: Mapping[str, Any]) -> Incarnations:
    """Those of what `to_json` made; offsets that older versions have kept say none."""
    return {topic: by[_INCARNATION] for topic, by in found.items() if _INCARNATION in by}


def begun_anew(
    views: Iterable[View], start: Offsets, of: Mapping[str, str], *, fail: bool
) -> Offsets:
    """`start` without what is of topics that were deleted since, and made again.

    Those are read from their first message. Raises `DataLost` when `fail`.
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
    """The part of a range that is of the topic that stands there now. Raises `DataLost`.

    `since` and `until` are the incarnations that its ends are of; None: nobody wrote it down.
    """
    if until and until != view.incarnation:
        _replaced(view, f"offsets up to {end} were of the one before it", fail=fail)
        return 0, 0
    if since and since != view.incarnation:
        _replaced(view, f"offset {start} was of the one before it", fail=fail)
        return 0, end
    return start, end


def _replaced(view: View, what: str, *, fail: bool) -> None:
    how = "deleted, and another one was made" if view.incarnation else "deleted"
    lost(
        f"topic {view.topic} partition {view.partition}: the topic that this query reads was "
        f"{how}; {what}",
        fail=fail,
    )


def checked_range(view: View, start: int, end: int, *, fail: bool) -> tuple[int, int]:
    """The range as far as it is left. Raises `DataLost` when it is not whole and `fail`."""
    where = f"topic {view.topic} partition {view.partition}"
    if end > view.end:
        lost(
            f"{where}: offsets {max(start, view.end)} to {end - 1} are not there; it ends at "
            f"{view.end}: the topic was deleted" + (" and made again" if view.end else ""),
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
    """Raises `DataLost` when `fail`."""
    if fail:
        raise DataLost(f"{what}. Set failOnDataLoss=false to go on without them")


def pieces(view: View, start: int, end: int) -> list[Piece]:
    """The range, ledger by ledger. It must lie within the view."""
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
    """What of the compacted view lies below `end`, ledger by ledger."""
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
    """By ledger: the mean payload of an offset; of an open one a guess from those before it."""
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
    """Of the whole partition."""
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
    """The pieces cut, if that is allowed, and packed into splits, in order. `row_bytes` is by
    ledger."""
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
    """How far to read at once: each partition gets its part of both bounds by its backlog.

    At least one row of some partition, so that a query always goes on.
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
    for key in sorted(end):  # what rounding down has left
        if spare > 0 and reached[key] < end[key]:
            reached[key] += 1
            spare -= 1
    return reached


class Minimum:
    """When a micro-batch is worth it: as Kafka's `minOffsetsPerTrigger` and `maxTriggerDelay`.

    It waits until there are so many rows, but not longer than the delay after the one before. The
    first of a run does not wait.
    """

    def __init__(self, rows: int | None, delay_ms: int) -> None:
        self._rows = rows or 0
        self._delay_ms = delay_ms
        self._last_ms = -math.inf

    def is_met(self, rows: int, now_ms: float) -> bool:
        """Whether these rows are to be read now; if so, the time until the next begins."""
        met = rows >= self._rows or now_ms - self._last_ms >= self._delay_ms
        if met:
            self._last_ms = now_ms
        return met
