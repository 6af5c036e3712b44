"""After one interruption a producer with a backlog sent every batch twice, and one after another.

The batches on the way behind the interrupted one are refused as gaps, and each waits until it is
the first of the window. When the first one was stored, a new batch was sent at once, behind those
that wait: a gap again, so it waited too, and so on, for as long as there was a backlog. After a
partition of five seconds a cluster took twice as long as that to drain what had gathered. Found by
a test with network namespaces, whose clients were cut off together with the owner.
"""

from __future__ import annotations

import pytest

from octavo.client import partition_queue
from octavo.client.client import AsyncClient
from tests.support.fake_service import FakeBroker

BATCHES = 80


async def test_a_backlog_goes_out_at_full_width_after_an_interruption(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_queue, "MERGED_BYTES_MAX", 1)  # as a backlog of long batches
    broker = FakeBroker(partitions=1)
    await broker.start()
    faults = iter(["503"])
    broker.fault = lambda: next(faults, "late")
    try:
        async with AsyncClient(broker.url) as client:
            producer = await client.producer("t", window=4, linger_ms=0, batch_bytes=150)
            texts = [f"{number:0100}" for number in range(BATCHES)]
            receipts = [await producer.send(text) for text in texts]
            positions = [await receipt for receipt in receipts]
            await producer.close()
    finally:
        await broker.stop()
    assert [position.offset for position in positions] == list(range(BATCHES))
    sent = sum(method == "POST" for method, _ in broker.requests)
    assert sent < BATCHES * 1.5, f"{sent} requests for {BATCHES} batches"
