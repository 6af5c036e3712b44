"""When a batch was appended to its partition, told where its checksum does not look. Pure.

Of a topic with `message_time: append` the owner writes the time at which it appends a batch into
`partition_leader_epoch`, which lies outside the checksum: 31 bits, so milliseconds modulo
`SPAN_MS`, a bit less than 25 days. A time that is known to lie less than that before makes it
whole: at rest the one that the partition's record has for the ledger (`PartitionLedger.appended`),
on the wire the time of the batch before, and of the first one a header's. Spec:
docs/formats/record_batch.md.

A batch that has such a time is shown as Kafka shows one of `LogAppendTime`: attribute bit 3 is set
and all timestamps are that time (`shown`). So whoever reads header or records needs to know
nothing of this. What is stored, and what is served as it is stored, stays as its producer made it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.protocol.batch import HEADER, HEADER_BYTES, BatchHeader, InvalidBatch
from octavo.protocol.entry import Buffer

APPEND_TIME_HEADER = "Octavo-Append-Time"
"""Beside batches as they are stored: `Times`."""
SPAN_MS = 2**31 - 1
"""A stamp names one moment of so many milliseconds."""
ROLL_AFTER_MS = SPAN_MS // 2
"""After so long a ledger of append times is followed by another, also an empty one."""
ATTRIBUTE_APPEND_TIME = 0x08


def stamp_of(time_ms: int) -> int:
    """What stands in `partition_leader_epoch`: from 1 on; 0 and −1 are no time."""
    return time_ms % SPAN_MS + 1


def time_of(stamp: int, since_ms: int) -> int:
    """The time of this stamp that is not before `since_ms`, and less than `SPAN_MS` behind it."""
    return since_ms + (stamp - 1 - since_ms) % SPAN_MS


def stamped(header: BatchHeader, time_ms: int) -> BatchHeader:
    """The header of a batch that was appended then, as it is shown."""
    return header._replace(
        partition_leader_epoch=stamp_of(time_ms),
        attributes=header.attributes | ATTRIBUTE_APPEND_TIME,
        first_timestamp=time_ms,
        max_timestamp=time_ms,
    )


class Appended(NamedTuple):
    """What the partition's record says of one ledger's append times.

    `since_ms`: none of its batches was appended before. `together`: all were then, for the ledger
    joined the partition whole.
    """

    since_ms: int
    together: bool = False

    def shown(self, header: BatchHeader) -> BatchHeader:
        """A stored header as it is shown."""
        if self.together:
            return stamped(header, self.since_ms)
        if header.partition_leader_epoch <= 0:  # of a broker that did not know of this
            return header
        return stamped(header, time_of(header.partition_leader_epoch, self.since_ms))


def shown(header: BatchHeader, appended: Appended | None) -> BatchHeader:
    """A stored header as it is shown, of a ledger with append times or without."""
    if appended is not None:
        return appended.shown(header)
    return header._replace(partition_leader_epoch=0) if header.partition_leader_epoch else header


def readable(header: BatchHeader, batch: Buffer) -> Buffer:
    """The batch for whoever takes its records apart: with its header as it is shown.

    Its checksum does not hold then: nobody looks at it any more.
    """
    if header.partition_leader_epoch <= 0:
        return batch
    return HEADER.pack(*header) + bytes(memoryview(batch)[HEADER_BYTES:])


class Times:
    """Follows the batches of an answer, in the order of their offsets, and tells their times.

    As a header it is `offset=milliseconds`: batches from that offset on were not appended before.
    Each then has the first time of its stamp that is not before the one before it. Another pair
    says so where that would be wrong: a batch was appended `SPAN_MS` or more after the one before.
    """

    def __init__(self, told: str = "") -> None:
        """`told`: the header. Raises `InvalidBatch` where it makes no sense."""
        self._told = [_pair(one) for one in told.split(",")] if told else []
        self._last_ms: int | None = None

    def shown(self, header: BatchHeader) -> BatchHeader:
        """The next batch's header, as it was served, as it is shown.

        Raises `InvalidBatch` when it has a stamp, and nobody has said what that is to be read by.
        """
        if header.partition_leader_epoch <= 0:
            return header
        while self._told and self._told[0][0] <= header.base_offset:
            self._last_ms = self._told.pop(0)[1]
        if self._last_ms is None:
            raise InvalidBatch(
                f"the batch at offset {header.base_offset} has an append time, and no header "
                f"{APPEND_TIME_HEADER} says of which days"
            )
        self._last_ms = time_of(header.partition_leader_epoch, self._last_ms)
        return stamped(header, self._last_ms)

    def tell(self, shown: Iterable[BatchHeader]) -> str:
        """What is to be told with the next batches, whose headers are as they are shown.

        Their offsets are those that they are served with. "" when nothing is.
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
