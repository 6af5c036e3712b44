"""A broker on its own thread, for programs that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from octavo.broker.types import TopicName
from tests.support.memory_cluster import Running, running


class BrokerThread:
    def __init__(self) -> None:
        self.url = ""
        self._cluster: Running | None = None
        self._stored: list[bytes | None] | None = None
        self._loop = asyncio.new_event_loop()
        self._over = self._loop.create_future()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def values(self) -> list[bytes | None]:
        """Return the values of all messages of all topics, also after `stop`."""
        if self._stored is not None:
            return self._stored
        return asyncio.run_coroutine_threadsafe(self._values(), self._loop).result(20)

    async def _values(self) -> list[bytes | None]:
        assert self._cluster is not None
        topics = self._cluster.brokers["b0"].topics
        return [
            record.value
            for topic in await self._cluster.topics()
            for number in range((await topics.get(TopicName("public", topic))).settings.partitions)
            for _, record in (await self._cluster.records(topic, number)).values()
        ]

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self._stored = self.values()
        self._loop.call_soon_threadsafe(self._over.set_result, None)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with running() as one:
            self.url, self._cluster = one.api.url, one
            self._ready.set()
            await self._over


@contextmanager
def broker_thread() -> Iterator[BrokerThread]:
    found = BrokerThread()
    try:
        yield found
    finally:
        found.stop()
