"""Unpack a batch without blocking the event loop: small batches at once, others in steps.

Decompression runs in a thread: the library releases the interpreter lock. Walking over records is
Python code, so it runs on the loop in steps of less than a millisecond: in a thread it would hold
the interpreter lock for five milliseconds at a time.
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
"""A batch that unpacks to at most this is unpacked on the loop: a millisecond or less."""

TURN_WINDOWS = 16
"""After this many windows let other tasks of the loop run."""

Opening = Callable[[Buffer], AbstractAsyncContextManager[BatchWindows]]
"""Opens a batch for the duration of a `with` block. Raises the errors of `open_batch`."""


async def open_batch(batch: Buffer) -> BatchWindows:
    """Unpack a whole batch and check that it holds as many records as it says, and nothing else.

    Raises `InvalidBatch` if it does not, or would unpack to more than `RECORDS_BYTES_MAX`, and
    `UnsupportedCompression`.
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
    """`open_batch` as an `Opening`, for callers that open one batch at a time."""
    yield await open_batch(batch)


def unpacked_if_small(kind: Compression, packed: bytes) -> bytes | None:
    """Decompress if the result is small; else return None, and the caller uses `unpacked`.

    None also for damaged data: `unpacked` then says what is wrong.
    """
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
    """Walk over all records, letting other tasks run. Raises `InvalidBatch`."""
    while found.step():  # noqa: ASYNC110
        await asyncio.sleep(0)
    return found


def is_large(header: BatchHeader) -> bool:
    """Whether unpacking may take much memory or time: it is compressed, or large."""
    packed = header.attributes & ATTRIBUTE_COMPRESSION
    return bool(packed) or header.total_bytes > SMALL_BYTES
