"""Unpack a batch without blocking the event loop: small batches at once, others in steps.

A thread decompresses, without the interpreter lock. Walking over records is Python code, which in a
thread would hold the lock for five milliseconds at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from octavo.protocol.batch import ATTRIBUTE_COMPRESSION, HEADER_BYTES, BatchHeader, InvalidBatch
from octavo.protocol.compression import Compression, unpack
from octavo.protocol.entry import Buffer
from octavo.protocol.limits import RECORDS_BYTES_MAX
from octavo.protocol.windows import BatchWindows, packing_of

SMALL_BYTES = 256 * 1024
"""A batch up to this size takes at most a millisecond on the loop."""

TURN_WINDOWS = 16

Opening = Callable[[Buffer], AbstractAsyncContextManager[BatchWindows]]
"""Opens a batch for a `with` block. Raises the errors of `open_batch`."""


async def open_batch(batch: Buffer) -> BatchWindows:
    """Open a batch, which must hold as many records as it says, and nothing else.

    Raises `InvalidBatch`, also above `RECORDS_BYTES_MAX`, and `UnsupportedCompression`.
    """
    header, kind = packing_of(batch)
    data = bytes(batch)
    if kind is Compression.NONE:
        return await walked(BatchWindows(header, data, HEADER_BYTES))
    packed = data[HEADER_BYTES:]
    records = unpacked_if_small(kind, packed)
    if records is None:
        records = await unpacked(kind, packed)
    return await walked(BatchWindows(header, records))


@asynccontextmanager
async def opening(batch: Buffer) -> AsyncGenerator[BatchWindows]:
    yield await open_batch(batch)


def unpacked_if_small(kind: Compression, packed: bytes) -> bytes | None:
    """Unpack the records; None if they are large or damaged: `unpacked` then says which."""
    if len(packed) > SMALL_BYTES:
        return None
    try:
        return unpack(kind, packed, SMALL_BYTES)
    except InvalidBatch:
        return None  # damaged, or larger than small: lz4 and zstd do not tell which


async def unpacked(kind: Compression, packed: bytes) -> bytes:
    """Decompress in a thread. Raises `InvalidBatch`."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, unpack, kind, packed, RECORDS_BYTES_MAX)


async def walked(found: BatchWindows) -> BatchWindows:
    """Walk over all records in turns, so that other tasks run. Raises `InvalidBatch`."""
    while found.step():  # noqa: ASYNC110
        await asyncio.sleep(0)
    return found


def is_large(header: BatchHeader) -> bool:
    packed = header.attributes & ATTRIBUTE_COMPRESSION
    return bool(packed) or header.total_bytes > SMALL_BYTES
