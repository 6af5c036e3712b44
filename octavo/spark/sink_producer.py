"""A small batch through the brokers' idempotent producer, instead of by ledgers. Pure.

    tasks     give their rows back in their messages; nothing is published yet
    driver    one record batch for each partition, the rows of all tasks in the order of the tasks
              begin → publish → commit, all of the same (id, batch)        (commit.py)

Who publishes is derived from the id and the batch alone: a producer for the id, an epoch for the
batch, sequence 0. So a batch published again has the same numbers and brokers keep the first; an
older batch, of a driver that was left behind, is refused. That is sound only when the numbers stand
for the same rows: each partition gets all of its rows in one entry, or none, and a batch begins by
saying what each is to get, by a fingerprint in which the order of rows does not count; a repeat
with other rows is refused (broker/bulkload/rules.py). The order may change: what is there stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from crc32c import crc32c

from octavo.protocol.calendar import NO_TIME_MS, in_calendar, unit_hint
from octavo.protocol.records import build_batch
from octavo.spark.options import InvalidOption
from octavo.spark.sink_options import SinkOptions
from octavo.spark.sink_rows import RECORDS_MAX, Row, Rows, Target

TASK_BYTES_MAX = 4 * 2**20
"""Rows travel from the tasks through Spark's driver: more than this of a task is not small."""
PARTITIONS_MAX = 1_000
"""As many as a broker notes for a batch."""
_EPOCHS = 2**15
"""Kafka's epochs are 15 bits wide: after so many batches an id goes on as another producer."""


class Producer(NamedTuple):
    """Who publishes a batch. Its sequences begin at 0."""

    producer_id: int
    epoch: int


class NotSmall(InvalidOption):
    """The rows are more than one record batch for each partition: the producer does not do."""


def producer_of(bulk_load: str, batch: int) -> Producer:
    """The same for every attempt at the batch."""
    name = f"octavo.spark/{bulk_load}/{batch // _EPOCHS}"
    digest = hashlib.sha256(name.encode()).digest()
    return Producer(int.from_bytes(digest[:8], "big") >> 1, batch % _EPOCHS)


def together(tasks: Iterable[Mapping[Target, Rows]]) -> dict[Target, Rows]:
    """The rows of all tasks by partition, in the order of the tasks."""
    found: dict[Target, Rows] = {}
    for task in tasks:
        for target, rows in task.items():
            mine = found.setdefault(target, Rows())
            mine.rows.extend(rows.rows)
            mine.bytes += rows.bytes
    return found


def why_not_small(shares: Mapping[Target, Rows], options: SinkOptions) -> str | None:
    """What is too much for one record batch by partition; None when nothing is."""
    if len(shares) > PARTITIONS_MAX:
        return f"rows for {len(shares)} partitions; at most {PARTITIONS_MAX}"
    for target, share in shares.items():
        if share.bytes > options.batch_bytes or len(share.rows) > RECORDS_MAX:
            return (
                f"{len(share.rows)} rows with about {share.bytes} bytes for {target.topic} "
                f"partition {target.partition}; at most {RECORDS_MAX} rows and batchBytes "
                f"({options.batch_bytes})"
            )
    return None


def not_small(why: str) -> NotSmall:
    """The error of `commit=producer`."""
    return NotSmall(
        f"a batch that is published is one record batch for each partition, but there are {why}: "
        "make micro-batches smaller (maxOffsetsPerTrigger), or set commit to auto or bulk-load"
    )


def odd_time(shares: Mapping[Target, Rows]) -> int | None:
    """A time of some row that brokers refuse (decision 63): such rows go by ledgers. None: none."""
    times = (row[3] for share in shares.values() for row in share.rows)
    return next((one for one in times if one != NO_TIME_MS and not in_calendar(one)), None)


def refused(time_ms: int | None) -> InvalidOption:
    """The error of `commit=producer` for such a row."""
    return InvalidOption(
        f"a row has the time {time_ms}, which brokers refuse in what is published "
        f"({unit_hint(time_ms or 0)}): set commit to auto or bulk-load, which store the number, or "
        "write without the column timestampMillis"
    )


def fingerprint(rows: Iterable[Row]) -> str:
    """Count, bytes and a sum of checksums: the same for the same rows in any order.

    Times are not looked at: rows without one get that of their task.
    """
    count = size = total = 0
    for key, value, headers, _, _ in rows:
        check = _mixed(_mixed(0, key), value)
        for name, text in headers or ():
            check = _mixed(_mixed(check, name.encode()), text)
        count += 1
        size += len(key or b"") + len(value or b"")
        total += check
    return f"{count}-{size}-{total % 2**64:016x}"


def _mixed(check: int, text: bytes | None) -> int:
    """A length goes before its bytes, so that where one ends counts; a null has none."""
    length = b"-" if text is None else b"%d " % len(text)
    mixed: int = crc32c(text or b"", crc32c(length, check))
    return mixed


def record_batch(share: Rows, producer: Producer, options: SinkOptions) -> bytes:
    """All rows of a partition, as one entry."""
    return build_batch(
        share.rows,  # type: ignore[arg-type]
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        compression=options.compression,
    )
