"""Store a batch's append time outside its checksum, and read it back. Pure.

With `message_time: append`, the owner writes the time into `partition_leader_epoch`, which the
checksum does not cover. Its 31 bits hold milliseconds modulo `SPAN_MS`, almost 25 days; an earlier
time at most `SPAN_MS` older restores the rest. Readers see such a batch as Kafka shows
`LogAppendTime` (`shown`). Spec: docs/formats/record_batch.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.protocol.batch import HEADER, HEADER_BYTES, BatchHeader, InvalidBatch
from octavo.protocol.entry import Buffer

APPEND_TIME_HEADER = "Octavo-Append-Time"
SPAN_MS = 2**31 - 1
ROLL_AFTER_MS = SPAN_MS // 2
"""After this time a ledger with append times is rolled over, even if empty."""
ATTRIBUTE_APPEND_TIME = 0x08


def stamp_of(time_ms: int) -> int:
    """Return a stamp from 1 on; 0 and −1 mean no time."""
    return time_ms % SPAN_MS + 1


def time_of(stamp: int, since_ms: int) -> int:
    return since_ms + (stamp - 1 - since_ms) % SPAN_MS


def stamped(header: BatchHeader, time_ms: int) -> BatchHeader:
    return header._replace(
        partition_leader_epoch=stamp_of(time_ms),
        attributes=header.attributes | ATTRIBUTE_APPEND_TIME,
        first_timestamp=time_ms,
        max_timestamp=time_ms,
    )


class Appended(NamedTuple):
    """`since_ms`: no batch was appended earlier.

    `together`: all were appended exactly then, because the ledger joined the partition whole.
    """

    since_ms: int
    together: bool = False

    def shown(self, header: BatchHeader) -> BatchHeader:
        if self.together:
            return stamped(header, self.since_ms)
        if header.partition_leader_epoch <= 0:
            return header
        return stamped(header, time_of(header.partition_leader_epoch, self.since_ms))


def shown(header: BatchHeader, appended: Appended | None) -> BatchHeader:
    if appended is not None:
        return appended.shown(header)
    return header._replace(partition_leader_epoch=0) if header.partition_leader_epoch else header


def readable(header: BatchHeader, batch: Buffer) -> Buffer:
    """Return the batch with the header to show, and a stale checksum."""
    if header.partition_leader_epoch <= 0:
        return batch
    return HEADER.pack(*header) + bytes(memoryview(batch)[HEADER_BYTES:])


class Times:
    """Restores the append times of an answer's batches, in the order of their offsets.

    The HTTP header has pairs `offset=milliseconds`: batches from that offset on were appended at or
    after that time. Each batch gets the first time with its stamp since the previous batch. A batch
    that came `SPAN_MS` or more later needs another pair.
    """

    def __init__(self, told: str = "") -> None:
        """Take the HTTP header `told`. Raises `InvalidBatch`."""
        self._told = [_pair(one) for one in told.split(",")] if told else []
        self._last_ms: int | None = None

    def shown(self, header: BatchHeader) -> BatchHeader:
        """Return the header with its append time. Raises `InvalidBatch` without HTTP header."""
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
        """Return the HTTP header for these headers' batches; "" for none.

        The offsets are those in the answer.
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
