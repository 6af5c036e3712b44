"""Every bound of the wire and the disk formats, with its unit and its reason."""

from __future__ import annotations

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""BookKeeper's default frame cap (`nettyMaxFrameSizeBytes`), with the four bytes of the length
field; BookKeeper's peers close the connection on longer frames."""

FRAME_OVERHEAD_BYTES = 128
"""Room for frame header, master key, entry header and the longest digest (4+4+20+32+20 = 80)."""

ENTRY_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES
"""The longest payload that fits an add frame under any digest."""

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Key, value and headers of a message, as `records.record_bytes` counts. With its batch it fits an
entry under any digest. Brokers and clients refuse a longer message."""

BATCH_RECORDS_MAX = 1_000_000
"""Records that a compressed batch may count: a forged count would use up billions of offsets."""

RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""The unpacked length of a batch's records: a few bytes of zstd can hide any amount."""

RECORD_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX
"""A record of a packed batch, unpacked: as long as a record of an unpacked batch may be."""

RECORD_HEADERS_MAX = 64 * 1024
"""Headers of a record in a batch: each costs three objects, and a few bytes can announce many."""

JSON_HEADERS_MAX = 1_000
"""Headers of a message in JSON."""

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: a larger number is in another unit (micro- or nanoseconds)."""

LONG_POLL_MS_MAX = 60_000
"""The longest time that a request is parked: a forgotten poll must not hold a slot for ever."""

assert FRAME_BYTES_MAX < 2**31


def json_line_bytes_max(message_bytes_max: int) -> int:
    """Return the longest line of NDJSON for messages of this length: base64 is a third longer."""
    return message_bytes_max * 4 // 3 + 4096
