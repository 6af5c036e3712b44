"""Make a copy of a message fit into an entry, although headers were added to it. Pure.

A message may fill a whole entry, and its dead letter is longer: by the headers that say where it
comes from and, if it was compressed, by what decompression adds. A copy that does not fit loses the
least important of these headers. If it is still too long, it is stored as a large message, with its
value in pieces. So a message of any length can be copied, unless its key and its original headers
fill an entry by themselves.
"""

from __future__ import annotations

from octavo.broker.subscriptions.dead_letters import ORIGIN, RETRY
from octavo.protocol.large import Cutter
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.records import Record, build_batch

_SAY_LEAST = ("Timestamp", "Id", "Deliveries", "Partition", "Subscription", "Topic", "Offset")
"""Suffixes of the headers that may be dropped, in the order in which they are. The header that
names a retry's subscription stays: the retry is addressed by it."""
_DROPPED = tuple(
    front + word
    for word in _SAY_LEAST
    for front in (ORIGIN, RETRY)
    if front + word != RETRY + "Subscription"
)


_LENGTHS_BYTES = 2
"""The least bytes that encode the lengths of a header's name and value."""


def fitting_batch(record: Record, producer_id: int) -> bytes | None:
    """Return the copy as a batch that fits an entry; None if it cannot."""
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

    `upload`: the id of the body.
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
