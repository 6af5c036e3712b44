"""The form in which a copy of a message fits an entry, though headers were added to it. Pure.

A message may be as long as an entry, and its dead letter is longer: by the headers that say where
it comes from, and, if it came packed, by what unpacking adds. A copy that does not fit goes without
the headers that say least. A copy that is still too long goes as a large message does, its value in
pieces. So no length keeps a message from being copied, unless its key and its own headers fill an
entry by themselves.
"""

from __future__ import annotations

from octavo.broker.subscriptions.dead_letters import ORIGIN, RETRY
from octavo.protocol.large import Cutter
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_batch

_SAY_LEAST = ("Timestamp", "Id", "Deliveries", "Partition", "Subscription", "Topic", "Offset")
"""How the headers end that a copy can do without, in the order in which they go. A retry is
addressed by the subscription that its header names, so that one stays."""
_DROPPED = tuple(
    front + word
    for word in _SAY_LEAST
    for front in (ORIGIN, RETRY)
    if front + word != RETRY + "Subscription"
)


_LENGTHS_BYTES = 2
"""The least that the lengths of a header's name and value take."""


def fitting_batch(record: Record, producer_id: int) -> bytes | None:
    """Return the copy as a batch that fits an entry; None where none does."""
    batch = _built(record, producer_id)
    too_many = len(batch) - ENTRY_PAYLOAD_BYTES_MAX
    if too_many <= 0:
        return batch
    left = record.headers
    for name in _DROPPED:
        for header in [one for one in left if one[0] == name]:
            left = [one for one in left if one is not header]
            too_many -= len(name) + len(header[1] or b"") + _LENGTHS_BYTES
        if too_many <= 0:
            break
    batch = _built(record._replace(headers=left), producer_id)
    return batch if len(batch) <= ENTRY_PAYLOAD_BYTES_MAX else None


def as_large(record: Record, upload: str) -> tuple[Record, bytes] | None:
    """Return the copy as a large message, and its body; None for a copy without a value.

    `upload`: what the body is called.
    """
    if not record.value:
        return None
    cutter = Cutter(upload, len(record.value))
    for _ in cutter.feed(record.value):
        pass
    cutter.rest()
    headers = (*record.headers, cutter.body().header())
    return record._replace(value=b"", headers=headers), record.value


def _built(record: Record, producer_id: int) -> bytes:
    return build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
