"""Python's client continues past a stored batch with damaged records, which older brokers stored
unseen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.broker.types import TopicName
from octavo.client.client import AsyncClient
from octavo.protocol.batch import HEADER_BYTES, read_header, sealed
from octavo.protocol.odd_records import ERROR_HEADER
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, owned, running_cluster
from tests.support.damaged_batches import ALL, ALONE, AT, KINDS, damaged

TOPIC = TopicName.parse("public/t").partition(0)
FEW = [*ALONE[:2], *(name for name in ALL if name not in ALONE)]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def fill(cluster: Cluster, client: AsyncClient, kind: int) -> dict[int, bytes | None]:
    await client.create_topic("t")
    await client.subscribe("t", "s", start="earliest")
    await client.publish("t", b"first")
    wanted: dict[int, bytes | None] = {0: b"first"}
    (running,) = cluster.brokers.values()
    partition = await owned(running.broker, TOPIC)
    for name in FEW:
        batch = damaged(name, kind)
        published = await partition.publish(batch)
        first, count = published.first_offset, published.last_offset - published.first_offset + 1
        for index in range(count):
            is_sound = name in ALONE and index != AT
            wanted[first + index] = b"v%d" % index if is_sound else None
        wanted[first + count] = name.encode()
        await client.publish("t", name.encode())
    return wanted


@pytest.mark.parametrize("kind", KINDS)
async def test_it_goes_on_behind_each_kind_of_damage(cluster: Cluster, kind: int) -> None:
    async with AsyncClient(cluster.api.url) as client:
        wanted = await fill(cluster, client, kind)
        for messages in (
            await client.read("t"),
            [one async for one in client.messages("t")],
            [one for offset in wanted for one in await client.read("t", start=offset, limit=1)],
        ):
            assert {one.offset: one.value for one in messages} == wanted
            for one in messages:
                names = [name for name, _ in one.headers]
                assert names == ([ERROR_HEADER] if wanted[one.offset] is None else [])
        subscription = client.subscription("t", "s")
        got: dict[int, bytes | None] = {}
        while len(got) < len(wanted):
            deliveries = await subscription.receive(100, wait_s=2)
            assert deliveries
            got |= {one.offset: one.value for one in deliveries}
            await subscription.ack(deliveries)
        assert got == wanted
        assert await subscription.lag() == {0: 0}


async def test_what_cannot_be_unpacked_is_marked_too(cluster: Cluster) -> None:
    async with AsyncClient(cluster.api.url) as client:
        await client.create_topic("t")
        packed = bytearray(build_batch([Record(None, b"x" * 500)] * 3, compression=4))
        del packed[70:]
        body = bytes(packed[HEADER_BYTES:])
        head = read_header(bytes(packed))._replace(batch_length=HEADER_BYTES - 12 + len(body))
        await client.publish("t", b"before")
        (running,) = cluster.brokers.values()
        partition = await owned(running.broker, TOPIC)
        await partition.publish(sealed(head, body))
        await client.publish("t", b"behind")
        found = await client.read("t")
        assert [one.value for one in found] == [b"before", None, None, None, b"behind"]
