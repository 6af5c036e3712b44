"""Which splits a query has: offsets resolved, ranges checked, pieces shared out. On the driver.

What is decided is in splits.py, pure; here it is asked of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping

from octavo.spark.cluster import Cluster
from octavo.spark.options import EARLIEST, LATEST, Bound, InvalidOption, SourceOptions
from octavo.spark.reading import Split
from octavo.spark.splits import (
    Offsets,
    View,
    bytes_per_row,
    checked_range,
    pieces,
    shared_out,
)


async def views_of(cluster: Cluster, wanted: Mapping[str, list[int]]) -> list[View]:
    """All these partitions as they are now."""
    return [
        await cluster.view(topic, partition)
        for topic, partitions in sorted(wanted.items())
        for partition in partitions
    ]


async def resolved(
    cluster: Cluster, views: list[View], bound: Bound, late_is_latest: bool
) -> Offsets:
    """A bound as an offset for each partition. Raises `InvalidOption`."""
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
                    f"topic {view.topic} partition {view.partition} has no message as new as "
                    f"{time_ms} ms; startingOffsetsByTimestampStrategy=latest begins at its end"
                )
        else:
            offset = bound.offsets.get(view.topic, {}).get(view.partition, bound.offset)
        if offset is None or offset == LATEST:
            offset = view.end
        elif offset == EARLIEST:
            offset = view.earliest
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
    cluster: Cluster, options: SourceOptions, views: list[View], start: Offsets, end: Offsets
) -> list[Split]:
    """The splits of a range, with the records that reading them takes. Raises `DataLost`.

    A partition that `start` does not name was added meanwhile: it is read from its first message.
    """
    wanted = []
    row_bytes: dict[int, float] = {}
    for view in views:
        first, last = checked_range(
            view, start.get(view.name, 0), end[view.name], fail=options.fail_on_data_loss
        )
        wanted += pieces(view, first, last)
        row_bytes.update(bytes_per_row(view))
    shared = shared_out(
        wanted,
        row_bytes,
        split_bytes_max=options.split_bytes_max,
        rows_max=options.rows_per_split_max,
        splits_min=options.splits_min,
    )
    splits = []
    for parts in shared or [[]]:
        records = await cluster.records_for(part.ledger_id for part in parts)
        splits.append(Split(tuple(parts), records))
    return splits
