"""Opening a batch without holding up the loop: small ones at once, others in steps and aside.

What is unpacked by a library runs in a thread, which lets the loop go on. What Python does itself,
walking over records, is cut into steps of less than a millisecond on the loop: in a thread it would
take the interpreter from the loop for five milliseconds at every turn.
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
"""What unpacks to no more is unpacked on the loop: a millisecond or less."""

TURN_WINDOWS = 16
"""After taking so many windows apart others get their turn on the loop."""

Opening = Callable[[Buffer], AbstractAsyncContextManager[BatchWindows]]
"""Gives a batch, opened, for as long as the block lasts. Raises what `open_batch` raises."""


async def open_batch(batch: Buffer) -> BatchWindows:
    """One whole batch, walked over: it holds as many records as it says, and nothing else.

    Raises `InvalidBatch` when it does not, or would unpack to more than `RECORDS_BYTES_MAX`, and
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
    """`open_batch` as an `Opening`, for whoever has one batch at a time."""
    yield await open_batch(batch)


def unpacked_if_small(kind: Compression, packed: bytes) -> bytes | None:
    """The records that `packed` holds, when that takes no time; None when they are to be
    `unpacked`, which also says what is wrong with them.
    """
    if len(packed) > SMALL_BYTES:
        return None
    try:
        return unpack(kind, packed, SMALL_BYTES)
    except InvalidBatch:
        return None  # damaged, or longer than that: lz4 and zstd do not tell


async def unpacked(kind: Compression, packed: bytes) -> bytes:
    """The records that `packed` holds, by way of a thread. Raises `InvalidBatch`."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, unpack, kind, packed, RECORDS_BYTES_MAX)


async def walked(found: BatchWindows) -> BatchWindows:
    """The same, walked over to its end, with turns for others. Raises `InvalidBatch`."""
    while found.step():  # noqa: ASYNC110
        await asyncio.sleep(0)
    return found


def is_large(header: BatchHeader) -> bool:
    """Whether opening it may take more memory and time than anything small on the loop does."""
    packed = header.attributes & ATTRIBUTE_COMPRESSION
    return bool(packed) or header.total_bytes > SMALL_BYTES
