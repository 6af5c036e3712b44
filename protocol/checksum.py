"""CRC-32C for what the client imports.

The library is loaded with the first checksum. Its import reads the metadata of installed packages
and costs a fifth of `from octavo import Client`. Brokers and bookies import it directly.
"""

from __future__ import annotations


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    """Return the checksum of bytes that follow those of the checksum `crc`."""
    from crc32c import crc32c as compute

    return compute(data, crc)
