"""From a dispatched batch to the messages that a consumer gets: what is stored is read and opened.

Only what is wanted of a batch is taken apart, and no more than some megabytes go into one answer:
a few bytes in a packed batch may unpack to as many messages of any length as a receive may ask for.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from octavo.broker.log.open_batches import ReadableBatch
from octavo.broker.subscriptions.dispatch import DispatchedBatch
from octavo.broker.types import Delivery, MessageId, PartitionName, StoredBatch
from octavo.protocol.records import record_bytes

_READ_BYTES = 1024 * 1024
_GIVEN_BYTES_MAX = 4 * 1024 * 1024
"""Keys, values and headers in one answer, unless one message alone has more: as JSON they may take
six times as much."""


class DeliveringLog(Protocol):
    """What reading messages for a subscription needs of its partition."""

    name: PartitionName

    @property
    def lease_epoch(self) -> int:
        """Counts the take-overs, elsewhere in each incarnation of the topic."""

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        """Batches from the one that contains `offset`."""

    def readable(self, batch: StoredBatch) -> AbstractAsyncContextManager[ReadableBatch]:
        """The batch, opened, for as long as the block lasts."""


async def delivered(log: DeliveringLog, found: DispatchedBatch) -> list[Delivery]:
    """The dispatched messages in order: at least one, and as many as there is room for."""
    offsets = found.offsets
    deliveries: list[Delivery] = []
    room = _GIVEN_BYTES_MAX
    while (at := len(deliveries)) < len(offsets) and room >= 0:
        wanted = offsets[-1] - offsets[at] + 1
        batches = await log.read(offsets[at], bytes_max=_READ_BYTES, count_max=wanted)
        for batch in batches:
            if offsets[len(deliveries)] >= batch.next_offset:
                continue  # redeliveries lie far apart: only what is wanted is opened
            room = await _take(log, found, batch, deliveries, room)
            if len(deliveries) == len(offsets) or room < 0:
                break
    return deliveries


async def _take(
    log: DeliveringLog,
    found: DispatchedBatch,
    batch: StoredBatch,
    deliveries: list[Delivery],
    room: int,
) -> int:
    """Add the messages that are of this batch; the room that is left."""
    front, back = f"{log.name.partition}-", f"-{log.lease_epoch}-{found.number}"
    base, ledger_id, entry_id = batch.base_offset, batch.ledger_id, batch.entry_id
    offsets, counts, end = found.offsets, found.counts, batch.next_offset
    async with log.readable(batch) as records:
        for at in range(len(deliveries), len(offsets)):
            offset = offsets[at]
            if offset >= end:
                break
            index = offset - base
            if not records.holds(index):
                await records.turn_to(index)
            record = records[index]
            room -= record_bytes(record.key, record.value, record.headers)
            if deliveries and room < 0:
                break
            deliveries.append(
                Delivery(
                    f"{front}{offset}{back}",
                    offset,
                    MessageId(ledger_id, entry_id, index),
                    record,
                    counts.get(offset, 1),
                )
            )
    return room
