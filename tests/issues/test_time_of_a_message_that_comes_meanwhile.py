"""A message that came while its time was looked up was passed over.

Where all messages are older, a time begins at the end. The end was asked for after the search, so
what had come meanwhile lay before it: who began there never saw it. Found by the simulator (seed
1801001 of `topic`), for a compacted read, which searches an open ledger behind its horizon.
"""

from __future__ import annotations

from typing import Any

import pytest

from octavo.broker.log.reader import LogReader
from tests.support.cluster import Cluster, batch, make_topic, owned


async def test_the_end_is_that_of_before_the_search(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = (await cluster.start("A")).broker
    partition = await owned(broker, await make_topic(broker))
    await partition.publish(batch(tag="new", time_ms=9_000))
    await partition.publish(batch(tag="old", time_ms=1_000))
    search = LogReader.offset_at

    async def slow(self: LogReader, *args: Any) -> int | None:
        found = await search(self, *args)
        await partition.publish(batch(tag="meanwhile", time_ms=8_000))
        return found

    monkeypatch.setattr(LogReader, "offset_at", slow)
    assert await partition._log.offset_at(5_000, least=1) == 2
    monkeypatch.undo()
    assert await partition._log.offset_at(5_000, least=1) == 2, "where it is"
