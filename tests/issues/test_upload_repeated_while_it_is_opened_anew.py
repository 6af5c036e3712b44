"""Who repeated an upload while its partition was opened anew was told that there is no such offset.

An insertion without an answer has the partition opened anew, and the call is to be repeated. The
record says at once where the message is, but nothing of it can be read before the opening is done:
`416 offset-beyond-end`, not to be repeated, for a message that was stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from octavo.broker.types import TopicName
from octavo.metadata.store import MetadataUnavailable
from octavo.metadata.topics import PartitionRecord
from tests.cluster.test_large_messages import BODY, ONE, body_at, in_parts, plain, shown
from tests.support.cluster import Cluster, owned, running_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


async def test_an_insertion_without_an_answer_takes_nothing_away(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    await plain(cluster, "before")
    owner = cluster.brokers[await cluster.owner_of(ONE + "/partitions/0")].broker
    partition = await owned(owner, TopicName("public", "one").partition(0))
    change = partition._record.change

    async def lost(make: Callable[[PartitionRecord], PartitionRecord]) -> PartitionRecord:
        await change(make)
        monkeypatch.undo()
        raise MetadataUnavailable("the answer is lost")

    monkeypatch.setattr(partition._record, "change", lost)
    headers = {"Octavo-Upload": "film-1"}
    answer = await cluster.api.call("POST", ONE + "/large", data=in_parts(BODY), headers=headers)
    assert answer.json()["code"] == "outcome-unknown", answer
    while answer.status in (503, 504):
        answer = await cluster.api.call("POST", ONE + "/large", data=BODY, headers=headers)
    found = answer.json()
    assert found.get("duplicate"), "whoever repeats it is told to, and where it is in the end"
    await asyncio.sleep(0.2)
    assert await body_at(cluster, found["offset"]) == BODY
    assert await shown(cluster) == [(0, "before"), (found["offset"], len(BODY))]
