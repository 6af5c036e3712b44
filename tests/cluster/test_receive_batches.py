"""`receive` in stored record batches: the result, the exceptions, and acks by ranges."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo.client.client import AsyncClient
from octavo.client.types import Delivery, decode_deliveries
from octavo.protocol.leased import LEASED_HEADER, Leased
from octavo.protocol.records import Record, build_batch
from tests.support.cluster import Cluster, running_cluster

BATCHES = "application/vnd.kafka.recordbatch.v2"
EITHER = {"Accept": f"{BATCHES}, application/json"}
SUB = "/v1/topics/public/t/subscriptions/s"
ODD = [
    Record(b"k", b"null", [("h", b"\xff"), ("h", None)], 5),
    Record(None, None, (), 6),
    Record(b"", b"", (), 7),
    Record(b"\xff", b'"hello"', [("", b"")], 8),
]


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        async with AsyncClient(found.api.url) as client:
            await client.create_topic("t")
            await client.subscribe("t", "s", type="shared", ack_timeout_s=600)
        yield found


async def fill(cluster: Cluster, *batches: list[Record]) -> None:
    for batch in batches:
        answer = await cluster.api.post("/v1/topics/public/t/messages", build_batch(batch), BATCHES)
        assert answer.status == 200, answer


async def receive(
    cluster: Cluster, most: int, broker: int = 0, **headers: str
) -> tuple[Leased | None, list[Delivery]]:
    answer = await [*cluster.apis.values()][broker].post(
        f"{SUB}/receive?max={most}", headers=headers or EITHER
    )
    assert answer.status in (200, 204), answer
    found, _ = decode_deliveries(answer.headers, answer.body)
    return (Leased.of(answer.headers) if LEASED_HEADER in answer.headers else None), found


async def ack(cluster: Cluster, **body: Any) -> Any:
    answer = await cluster.api.post(f"{SUB}/ack", json.dumps(body).encode(), "application/json")
    return answer.status, answer.json()


def numbered(count: int) -> list[Record]:
    return [Record(None, b"%d" % number, (), 1) for number in range(count)]


@pytest.mark.parametrize("broker", [0, 1])
async def test_the_same_messages_as_in_json(cluster: Cluster, broker: int) -> None:
    await fill(cluster, ODD, numbered(10))
    leased, found = await receive(cluster, 14, broker)
    assert leased is not None
    assert leased.runs == [(0, 14, 1)]
    assert (await ack(cluster, nack=[f"0-0:14-{leased.lease}"]))[0] == 200
    in_json, again = await receive(cluster, 14, broker, Accept="application/json")
    assert in_json is None
    assert len(found) == 14
    for one, other in zip(found, again, strict=True):
        assert one.delivery_count == 1
        assert other.delivery_count == 2
        assert one.ack_id.rsplit("-", 1)[0] == other.ack_id.rsplit("-", 1)[0]
        for field in ("partition", "offset", "id", "key", "value", "headers", "timestamp_ms"):
            assert getattr(one, field) == getattr(other, field), field


async def test_a_part_of_a_batch_and_deliveries_again(cluster: Cluster) -> None:
    await fill(cluster, numbered(10), numbered(10))
    leased, found = await receive(cluster, 12)
    assert leased is not None
    assert [one.offset for one in found] == [*range(12)]
    told = await ack(cluster, ack_ids=[f"0-0:4-{leased.lease}"], nack=[f"0-8:10-{leased.lease}"])
    assert told == (200, {"acked": 4})
    leased, found = await receive(cluster, 100)
    assert leased is not None
    assert leased.runs == [(8, 10, 2), (12, 20, 1)]
    assert [one.offset for one in found] == [8, 9, *range(12, 20)]
    assert [one.delivery_count for one in found] == [2, 2, *[1] * 8]
    assert found[0].id.rsplit(":", 1)[1] == "8"
    assert found[-1].value == b"9"


async def test_few_messages_of_a_large_batch_come_alone(cluster: Cluster) -> None:
    await fill(cluster, numbered(100))
    leased, found = await receive(cluster, 3)
    assert leased is None
    assert [one.offset for one in found] == [0, 1, 2]
    leased, found = await receive(cluster, 90)
    assert leased is not None
    assert [one.offset for one in found] == [*range(3, 93)]


@pytest.mark.parametrize("broker", [0, 1])
async def test_one_by_one_they_come_as_the_caller_would_have_them(
    cluster: Cluster, broker: int
) -> None:
    """Batches would have more than was asked for: then the next accepted type is used."""
    await fill(cluster, numbered(100))
    for also, given in (("application/x-ndjson",) * 2, ("image/png", "application/json")):
        answer = await [*cluster.apis.values()][broker].post(
            f"{SUB}/receive?max=2", headers={"Accept": f"{BATCHES}, {also}"}
        )
        assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (200, given)


async def test_ranges_of_which_some_have_no_lease(cluster: Cluster) -> None:
    await fill(cluster, numbered(10))
    leased, _ = await receive(cluster, 10)
    assert leased is not None
    assert (await ack(cluster, nack=[f"0-3:5-{leased.lease}"]))[0] == 200
    status, told = await ack(cluster, ack_ids=[f"0-0:10-{leased.lease}"])
    assert (status, told["code"], told["stale"]) == (409, "stale-lease", [f"0-3:5-{leased.lease}"])
    assert (await ack(cluster, ack_ids=[f"0-5:10-{leased.lease}"]))[0] == 200
    _, found = await receive(cluster, 10)
    assert [one.offset for one in found] == [3, 4]


@pytest.mark.parametrize("ack_id", ["0-5:5-1-1", "0-5:3-1-1", "0-:3-1-1", "0-1:2:3-1-1"])
async def test_ranges_that_are_none(cluster: Cluster, ack_id: str) -> None:
    status, told = await ack(cluster, ack_ids=[ack_id])
    assert (status, told["code"]) == (400, "invalid-ack-id")


async def test_several_partitions_have_no_batches_together(cluster: Cluster) -> None:
    async with AsyncClient(cluster.api.url) as client:
        await client.create_topic("u", partitions=2)
        await client.subscribe("u", "s")
    path = "/v1/topics/public/u/subscriptions/s/receive"
    assert (await cluster.api.post(path, headers={"Accept": BATCHES})).status == 406
    assert (await cluster.api.post(path, headers=EITHER)).status == 204


@pytest.mark.parametrize("kind", ["exclusive", "shared"])
async def test_a_quick_loop_takes_batches_of_all_partitions(cluster: Cluster, kind: Any) -> None:
    async with AsyncClient(cluster.api.url) as client:
        await client.create_topic("v", partitions=3)
        await client.publish_many("v", [(f"k{n % 50}", f"{n}") for n in range(5_000)])
        mine = await client.subscribe("v", "s", type=kind)
        seen = [one async for one in mine.deliveries(idle_s=0.3)]
        assert sorted(int(one.text()) for one in seen) == [*range(5_000)]
        for partition in range(3):
            of = [one.offset for one in seen if one.partition == partition]
            assert of == sorted(of)
        stats = await mine.stats()
        assert (stats["backlog"], stats["leased"]) == (0, 0)
