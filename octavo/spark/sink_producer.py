"""Commit a small batch through the brokers' idempotent producer instead of by ledgers. Pure.

    tasks     return their rows in their messages; nothing is published yet
    driver    makes a record batch for each partition, with the rows in the order of the tasks
              begin → publish → commit, all for the same (id, batch)        (commit.py)

The producer id comes from the id, the epoch from the batch, the sequence is 0: so brokers keep the
first of repeats, and refuse a driver that was left behind. The same numbers must mean the same
rows. So a partition gets all of its rows in a single entry or none, and a batch first announces a
fingerprint of each partition's rows, which ignores their order; a repeat with other rows is refused
(broker/bulkload/rules.py).
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
"""The most that a task sends through Spark's driver."""
PARTITIONS_MAX = 1_000
"""The most partitions that a broker records for a batch."""
_EPOCHS = 2**15
"""Kafka's epochs have 15 bits: after this many batches an id continues as another producer."""


class Producer(NamedTuple):
    """A producer id and epoch, whose sequences begin at 0."""

    producer_id: int
    epoch: int


class NotSmall(InvalidOption):
    pass


def producer_of(bulk_load: str, batch: int) -> Producer:
    name = f"octavo.spark/{bulk_load}/{batch // _EPOCHS}"
    digest = hashlib.sha256(name.encode()).digest()
    return Producer(int.from_bytes(digest[:8], "big") >> 1, batch % _EPOCHS)


def together(tasks: Iterable[Mapping[Target, Rows]]) -> dict[Target, Rows]:
    found: dict[Target, Rows] = {}
    for task in tasks:
        for target, rows in task.items():
            mine = found.setdefault(target, Rows())
            mine.rows.extend(rows.rows)
            mine.bytes += rows.bytes
    return found


def why_not_small(shares: Mapping[Target, Rows], options: SinkOptions) -> str | None:
    """Return why the rows do not fit one record batch per partition; None if they do."""
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
    return NotSmall(
        f"commit=producer publishes a single record batch for each partition, but there are {why}: "
        "make micro-batches smaller (maxOffsetsPerTrigger), or set commit to auto or bulk-load"
    )


def odd_time(shares: Mapping[Target, Rows]) -> int | None:
    """Return a time that brokers refuse (decision 63), or None: such rows need ledgers."""
    times = (row[3] for share in shares.values() for row in share.rows)
    return next((one for one in times if one != NO_TIME_MS and not in_calendar(one)), None)


def refused(time_ms: int | None) -> InvalidOption:
    return InvalidOption(
        f"a row has the time {time_ms}, which brokers refuse in published messages "
        f"({unit_hint(time_ms or 0)}): set commit to auto or bulk-load, which store the number, or "
        "write without the column timestampMillis"
    )


def fingerprint(rows: Iterable[Row]) -> str:
    """Return count, bytes and a sum of checksums: the same for the same rows in any order.

    Times are left out: rows without a time get their task's time.
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
    """Mix in the length, then the bytes, so that boundaries count; a null has no length."""
    length = b"-" if text is None else b"%d " % len(text)
    mixed: int = crc32c(text or b"", crc32c(length, check))
    return mixed


def record_batch(share: Rows, producer: Producer, options: SinkOptions) -> bytes:
    return build_batch(
        share.rows,  # type: ignore[arg-type]
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        base_sequence=0,
        compression=options.compression,
    )
