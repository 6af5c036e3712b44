"""Waits until readers of the bookies see published messages: bookies learn the last add
confirmed with the next entry, or when the writer has been idle for a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.spark.cluster import connected
from octavo.spark.options import Selection
from octavo.spark.planning import views_of

DEADLINE_S = 60.0


@contextmanager
def seen_by_readers(service: str, topic: str, count: int) -> Iterator[None]:
    """After the block, which publishes `count` messages to the topic, wait until readers see
    them."""
    end = known_end(service, topic) + count
    yield
    deadline = time.monotonic() + DEADLINE_S
    while (known := known_end(service, topic)) < end:
        assert time.monotonic() < deadline, f"{topic}: readers see {known} messages, not {end}"
        time.sleep(0.05)


def known_end(service: str, topic: str) -> int:
    return asyncio.run(_known_end(service, topic))


async def _known_end(service: str, topic: str) -> int:
    async with connected(service) as cluster:
        wanted = await cluster.partitions(Selection(topics=(f"public/{topic}",)))
        return sum(view.end for view in await views_of(cluster, wanted))
