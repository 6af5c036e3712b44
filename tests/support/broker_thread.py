"""A broker on its own thread, for programs that have no event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.fake_broker import FakeCluster, running


class BrokerThread:
    """The thread is a daemon, so a program may end with it."""

    def __init__(self) -> None:
        self.url = ""
        self._cluster: FakeCluster | None = None
        self._loop = asyncio.new_event_loop()
        self._over = self._loop.create_future()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._ready.wait(20)

    def values(self) -> list[bytes | None]:
        assert self._cluster is not None
        return [
            record.value
            for partition in self._cluster.partitions.values()
            for _, record in partition.all_records().values()
        ]

    def stop(self) -> None:
        if self._loop.is_closed():
            return
        self._loop.call_soon_threadsafe(self._over.set_result, None)
        self._thread.join(10)

    def _run(self) -> None:
        self._loop.run_until_complete(self._serve())
        self._loop.close()

    async def _serve(self) -> None:
        async with running() as one:
            self.url, self._cluster = one.api.url, one.cluster
            self._ready.set()
            await self._over


@contextmanager
def broker_thread() -> Iterator[BrokerThread]:
    found = BrokerThread()
    try:
        yield found
    finally:
        found.stop()
