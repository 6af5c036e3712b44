"""Store a batch's append time outside its checksum, and read it back. Pure.

In a topic with `message_time: append` the owner writes the time at which it appends a batch into
`partition_leader_epoch`, which the batch's checksum does not cover. It has 31 bits, so it holds
milliseconds modulo `SPAN_MS`, slightly less than 25 days. To restore the full time, a reader needs
an earlier time that is less than `SPAN_MS` older. At rest this is the time in the partition's
record of the ledger (`PartitionLedger.appended`). On the wire it is the time of the previous batch,
and for the first batch a header. Spec: docs/formats/record_batch.md.

Readers see such a batch as Kafka shows a batch with `LogAppendTime`: attribute bit 3 is set and all
timestamps are that time (`shown`). So code that reads header or records needs to know nothing about
this. The stored bytes stay as the producer made them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.protocol.batch import HEADER, HEADER_BYTES, BatchHeader, InvalidBatch
from octavo.protocol.entry import Buffer

APPEND_TIME_HEADER = "Octavo-Append-Time"
"""The HTTP header that is sent with stored batches: `Times`."""
SPAN_MS = 2**31 - 1
"""A stamp is unique within this time."""
ROLL_AFTER_MS = SPAN_MS // 2
"""After this time a ledger with append times is rolled over, even if it is empty."""
ATTRIBUTE_APPEND_TIME = 0x08


def stamp_of(time_ms: int) -> int:
    """Return the value of `partition_leader_epoch`, from 1 on; 0 and −1 mean no time."""
    return time_ms % SPAN_MS + 1


def time_of(stamp: int, since_ms: int) -> int:
    """Return the first time with this stamp at or after `since_ms`."""
    return since_ms + (stamp - 1 - since_ms) % SPAN_MS


def stamped(header: BatchHeader, time_ms: int) -> BatchHeader:
    """Return the header to show for a batch that was appended at `time_ms`."""
    return header._replace(
        partition_leader_epoch=stamp_of(time_ms),
        attributes=header.attributes | ATTRIBUTE_APPEND_TIME,
        first_timestamp=time_ms,
        max_timestamp=time_ms,
    )


class Appended(NamedTuple):
    """The append times of a ledger, as its partition's record describes them.

    `since_ms`: all its batches were appended at or after that time. `together`: all were appended
    exactly then, because the ledger joined the partition whole.
    """

    since_ms: int
    together: bool = False

    def shown(self, header: BatchHeader) -> BatchHeader:
        """Return the header to show for a stored header."""
        if self.together:
            return stamped(header, self.since_ms)
        if header.partition_leader_epoch <= 0:  # written by a broker without this feature
            return header
        return stamped(header, time_of(header.partition_leader_epoch, self.since_ms))


def shown(header: BatchHeader, appended: Appended | None) -> BatchHeader:
    """Return the header to show for a stored header, with or without append times."""
    if appended is not None:
        return appended.shown(header)
    return header._replace(partition_leader_epoch=0) if header.partition_leader_epoch else header


def readable(header: BatchHeader, batch: Buffer) -> Buffer:
    """Return the batch with the header to show, for code that reads its records.

    Its checksum no longer matches; it was checked before.
    """
    if header.partition_leader_epoch <= 0:
        return batch
    return HEADER.pack(*header) + bytes(memoryview(batch)[HEADER_BYTES:])


class Times:
    """Restores the append times of the batches of an answer, in the order of their offsets.

    The HTTP header is `offset=milliseconds`: batches from that offset on were not appended before
    that time. Each batch then has the first time with its stamp at or after the previous batch's
    time. Where that time would be wrong, because a batch was appended `SPAN_MS` or more after the
    previous batch, the header has another pair.
    """

    def __init__(self, told: str = "") -> None:
        """`told` is the HTTP header. Raises `InvalidBatch` for an invalid header."""
        self._told = [_pair(one) for one in told.split(",")] if told else []
        self._last_ms: int | None = None

    def shown(self, header: BatchHeader) -> BatchHeader:
        """Return the header to show for the next batch.

        Raises `InvalidBatch` when it has a stamp and no HTTP header says which time it belongs to.
        """
        if header.partition_leader_epoch <= 0:
            return header
        while self._told and self._told[0][0] <= header.base_offset:
            self._last_ms = self._told.pop(0)[1]
        if self._last_ms is None:
            raise InvalidBatch(
                f"the batch at offset {header.base_offset} has an append time, but no header "
                f"{APPEND_TIME_HEADER} says in which days"
            )
        self._last_ms = time_of(header.partition_leader_epoch, self._last_ms)
        return stamped(header, self._last_ms)

    def tell(self, shown: Iterable[BatchHeader]) -> str:
        """Return the HTTP header for the next batches, given the headers to show; "" for none.

        The header's offsets are those that the batches have in the answer.
        """
        found = []
        for header in shown:
            if header.partition_leader_epoch <= 0:
                continue
            time_ms = header.max_timestamp
            if self._last_ms is None or not 0 <= time_ms - self._last_ms < SPAN_MS:
                found.append(f"{header.base_offset}={time_ms}")
            self._last_ms = time_ms
        return ",".join(found)


def _pair(text: str) -> tuple[int, int]:
    offset, _, time_ms = text.partition("=")
    try:
        return int(offset), int(time_ms)
    except ValueError:
        raise InvalidBatch(f"{APPEND_TIME_HEADER}: {text!r} is not offset=milliseconds") from None
