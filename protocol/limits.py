"""Every bound of the wire and the disk formats, with its unit and its reason."""

from __future__ import annotations

FRAME_BYTES_MAX = 5 * 1024 * 1024
"""BookKeeper's default frame cap (`nettyMaxFrameSizeBytes`), the four bytes of the length field
included; its peers hang up on longer ones."""

FRAME_OVERHEAD_BYTES = 128
"""Room for frame header, master key, entry header and the longest digest (4+4+20+32+20 = 80)."""

ENTRY_PAYLOAD_BYTES_MAX = FRAME_BYTES_MAX - FRAME_OVERHEAD_BYTES
"""The longest payload that fits one add frame under any digest."""

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Key, value and headers of one message, as `records.record_bytes` counts: with its batch around it
it fits an entry under any digest. Brokers and clients refuse a longer one."""

BATCH_RECORDS_MAX = 1_000_000
"""Records one compressed batch may count: a forged count would burn offsets by the billion."""

RECORDS_BYTES_MAX = 64 * 1024 * 1024
"""What the records of one batch may unpack to: a few bytes of zstd can hide any amount."""

RECORD_BYTES_MAX = ENTRY_PAYLOAD_BYTES_MAX
"""One record of a packed batch, unpacked: what one of a batch that is not packed may have."""

RECORD_HEADERS_MAX = 64 * 1024
"""Headers of one record in a batch: each costs three objects, and a few bytes may announce many."""

JSON_HEADERS_MAX = 1_000
"""Headers of one message in JSON."""

TIMESTAMP_MS_MAX = 253_402_300_799_999
"""The end of the year 9999: a larger one is a unit mistaken (micro- or nanoseconds)."""

LONG_POLL_MS_MAX = 60_000
"""No request is parked longer: a forgotten poller must not hold a slot for ever."""

assert FRAME_BYTES_MAX < 2**31


def json_line_bytes_max(message_bytes_max: int) -> int:
    """The longest line of NDJSON for messages of a length: base64 is a third longer."""
    return message_bytes_max * 4 // 3 + 4096
