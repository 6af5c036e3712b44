"""Every bound of the wire and the disk formats, with its unit and its reason."""

from __future__ import annotations

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""BookKeeper's default (`nettyMaxFrameSizeBytes`), length field included; its peers close the
connection on longer frames.
"""

FRAME_OVERHEAD_BYTES = 128
"""Frame header, master key, entry header, longest digest: 4+4+20+32+20 = 80."""

ENTRY_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES
"""The longest payload that fits an add frame under any digest."""

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Key, value and headers, as `records.record_bytes` counts; fits an entry with its batch."""

BATCH_RECORDS_MAX = 1_000_000
"""Records in a compressed batch: a forged count would use up billions of offsets."""

RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of an unpacked batch: a few bytes of zstd can hide any amount."""

RECORD_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX
"""Bytes of a record in a packed batch: as many as in an unpacked batch."""

RECORD_HEADERS_MAX = 64 * 1024
"""Headers of a record: each costs three objects, and a few bytes can announce many."""

JSON_HEADERS_MAX = 1_000

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: larger numbers are micro- or nanoseconds."""

LONG_POLL_MS_MAX = 60_000
"""A forgotten poll must not hold a slot for ever."""

assert FRAME_BYTES_MAX < 2**31


def json_line_bytes_max(message_bytes_max: int) -> int:
    """Return the longest line of NDJSON, which is longer than its message: base64 adds a third."""
    return message_bytes_max * 4 // 3 + 4096
