"""Plans the splits of a query on the driver: resolves offsets, checks ranges, deals out pieces.

The decisions are in splits.py (pure); this module asks the cluster for what they need.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from octavo.metadata.topics import PartitionRecord
from octavo.spark.options import EARLIEST, LATEST, Bound, InvalidOption, SourceOptions
from octavo.spark.reading import Split
from octavo.spark.splits import (
    Offsets,
    View,
    bytes_per_row,
    checked_range,
    compacted_pieces,
    lost,
    of_this_topic,
    pieces,
    shared_out,
)

if TYPE_CHECKING:
    from octavo.spark.cluster import Cluster


async def views_of(
    cluster: Cluster, wanted: Mapping[str, list[int]], *, compacted: bool = False
) -> list[View]:
    """Return these partitions as they are now; with `compacted`, with their compacted views."""
    found = []
    for topic, partitions in sorted(wanted.items()):
        incarnation = await cluster.incarnation(topic)
        for partition in partitions:
            record = await cluster.record(topic, partition, incarnation)
            view = await cluster.view_of(topic, partition, record, incarnation)
            found.append(with_compacted(view, record) if compacted else view)
    return found


def with_compacted(view: View, record: PartitionRecord) -> View:
    """Return the view with its compacted view, if any, in place of messages below the horizon."""
    compaction = record.compaction
    if compaction is None or not compaction.published_ms:
        return view
    return replace(view, compacted=compaction)


def refuse_amid_compacted(views: list[View], end: Offsets) -> None:
    """Raise `InvalidOption` if a batch query would end within a compacted view."""
    for view in views:
        horizon = view.compacted.horizon if view.compacted is not None else 0
        if end[view.name] < horizon:
            raise InvalidOption(
                f"topic {view.topic} partition {view.partition} is compacted up to offset "
                f"{horizon}: the newest messages of its keys as of {end[view.name]} are no longer "
                "known. With readCompacted=true, end after the horizon or at latest"
            )


def compacted_at_once(begin: Offsets, end: Offsets, views: list[View]) -> Offsets:
    """Return the least end of a micro-batch: it must read a compacted view as a whole."""
    found = dict.fromkeys(end, 0)
    for view in views:
        if view.compacted is not None and begin.get(view.name, 0) == 0 and view.name in end:
            found[view.name] = min(view.compacted.horizon, end[view.name])
    return found


async def range_of(
    cluster: Cluster, views: list[View], options: SourceOptions
) -> tuple[Offsets, Offsets]:
    """Return where a batch query starts and ends. Raises `InvalidOption`, `DataLost`."""
    start = await resolved(cluster, views, options.starting, options.latest_if_late)
    start = within(views, start, options)
    end = await resolved(cluster, views, options.ending, late_is_latest=True)
    _refuse_backwards(options)
    # With times, a partition may start after an end given as an offset: then it has no rows.
    return {name: min(start[name], end[name]) for name in end}, end


def within(views: list[View], start: Offsets, options: SourceOptions) -> Offsets:
    """Return `start`, with no partition after its end. Raises `DataLost` if one was, unless
    `failOnDataLoss` is false.

    Without this check, a query for offsets that the topic does not have would silently be empty.
    """
    found = dict(start)
    for view in views:
        if start[view.name] > view.end:
            lost(
                f"topic {view.topic} partition {view.partition}: reading should start at offset "
                f"{start[view.name]}, but the partition ends at {view.end}: the offset is wrong, "
                "or the topic was deleted and created again",
                fail=options.fail_on_data_loss,
            )
            found[view.name] = view.end
    return found


def _refuse_backwards(options: SourceOptions) -> None:
    """Raise `InvalidOption` if the end is before the start."""
    first, last = options.starting, options.ending
    if first.time_ms is not None and last.time_ms is not None and first.time_ms > last.time_ms:
        raise InvalidOption(
            f"option startingTimestamp ({first.time_ms}) is after endingTimestamp ({last.time_ms})"
        )
    for kind, starts, ends in (
        ("offset", first.offsets, last.offsets),
        ("timestamp", first.times_ms, last.times_ms),
    ):
        for topic, by_partition in ends.items():
            for number, end in by_partition.items():
                start = starts.get(topic, {}).get(number, end)
                if 0 <= end < start:
                    raise InvalidOption(
                        f"topic {topic} partition {number}: the starting {kind} {start} is after "
                        f"the ending {kind} {end}"
                    )


async def resolved(
    cluster: Cluster, views: list[View], bound: Bound, late_is_latest: bool
) -> Offsets:
    """Return the bound as an offset for each partition. Raises `InvalidOption`."""
    _refuse_strangers(views, bound)
    found: Offsets = {}
    for view in views:
        time_ms = bound.time_ms
        if time_ms is None:
            time_ms = bound.times_ms.get(view.topic, {}).get(view.partition)
        if time_ms is not None:
            offset = await cluster.offset_at(view, time_ms)
            if offset is None and not late_is_latest:
                raise InvalidOption(
                    f"topic {view.topic} partition {view.partition} has no message at or after "
                    f"{time_ms} ms; startingOffsetsByTimestampStrategy=latest starts at its end"
                )
        else:
            offset = bound.offsets.get(view.topic, {}).get(view.partition, bound.offset)
        if offset is None or offset == LATEST:
            offset = view.end
        elif offset == EARLIEST:
            offset = view.beginning
        found[view.name] = offset
    return found


def _refuse_strangers(views: list[View], bound: Bound) -> None:
    known = {view.name for view in views}
    for by_topic in (bound.offsets, bound.times_ms):
        for topic, by in by_topic.items():
            for partition in by:
                if (topic, partition) not in known:
                    raise InvalidOption(
                        f"an offset is given for topic {topic} partition {partition}, "
                        "which this query does not read"
                    )


async def planned(
    cluster: Cluster,
    options: SourceOptions,
    views: list[View],
    start: Offsets,
    end: Offsets,
    since: Mapping[str, str] | None = None,
    until: Mapping[str, str] | None = None,
    *,
    cut: bool = True,
) -> list[Split]:
    """Return the splits of a range, with the records needed to read them. Raises `DataLost`.

    `since` and `until`: the topics' incarnations for `start` and `end`, where known. `cut`: whether
    a ledger may be divided among several splits.

    A partition missing in `start` was added meanwhile: it is read from its first message.
    """
    wanted = []
    row_bytes: dict[int, float] = {}
    for view in views:
        first, last = of_this_topic(
            view,
            start.get(view.name, 0),
            end[view.name],
            (since or {}).get(view.topic),
            (until or {}).get(view.topic),
            fail=options.fail_on_data_loss,
        )
        if view.compacted is not None and first == 0:
            # Use the compacted view only from the very beginning. A query that has read a part
            # continues with the messages: the view leaves out messages that it has not seen yet.
            wanted += compacted_pieces(view, last)
            first = min(last, view.compacted.horizon)
        first, last = checked_range(view, first, last, fail=options.fail_on_data_loss)
        wanted += pieces(view, first, last)
        row_bytes.update(bytes_per_row(view))
    shared = shared_out(
        wanted,
        row_bytes,
        split_bytes_max=options.split_bytes_max,
        rows_max=options.rows_per_split_max,
        splits_min=options.splits_min,
        cut=cut,
    )
    splits = []
    for parts in shared or [[]]:
        records = await cluster.records_for(part.ledger_id for part in parts)
        splits.append(Split(tuple(parts), records))
    return splits
