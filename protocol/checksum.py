"""CRC-32C for what the client imports.

The library's import costs a fifth of `from octavo import Client`, so it waits for the first use.
"""

from __future__ import annotations


def crc32c(data: bytes | bytearray | memoryview, crc: int = 0) -> int:
    from crc32c import crc32c as compute

    return compute(data, crc)
