"""The client against a real cluster: every call once, and a producer across a broker's death."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal

import pytest

from octavo import AsyncClient, Client
from octavo.client.errors import ApiError, Conflict, NotFound
from tests.support.processes.standalone import Standalone, octavo, standalone, until


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("client") / "data"
    with standalone(folder, "--session-timeout-ms", "2000") as one:
        yield one


@pytest.fixture
def client(running: Standalone) -> Iterator[Client]:
    with Client(running.cluster.urls) as one:
        yield one


def test_topics(client: Client) -> None:
    made = client.create_topic("topics", partitions=2, ack_quorum=3)
    assert (str(made.name), made.partitions, made.settings["ack_quorum"]) == ("public/topics", 2, 3)
    assert client.create_topic("topics", partitions=2, ack_quorum=3).partitions == 2
    with pytest.raises(Conflict):
        client.create_topic("topics", partitions=3)
    assert "topics" in client.topics()
    assert client.update_topic("topics", partitions=3).partitions == 3
    found = client.topic("topics")
    assert [one["partition"] for one in found.stats["partitions"]] == [0, 1, 2]
    client.delete_topic("topics")
    with pytest.raises(NotFound, match="topics"):
        client.topic("topics")
    client.create_namespace("else")
    assert {"public", "else"} <= set(client.namespaces())
    with pytest.raises(ApiError, match="ensemble"):
        client.create_topic("bad", ensemble_size=1)


def test_cluster(client: Client) -> None:
    assert {one["id"] for one in client.bookies()} == {"bookie-1", "bookie-2", "bookie-3"}
    assert {one["id"] for one in client.brokers()} == {"broker-1", "broker-2"}
    assert client.cluster()


def test_values_come_back_as_they_went(client: Client) -> None:
    client.create_topic("values")
    values: list[Any] = [b"\x00\xff", "text é", {"a": [1, None, "x"]}, 17, None, b""]
    headers: dict[str, Any] = {"h": "1", "b": b"\xff"}
    first = client.publish("values", values[0], headers=headers, timestamp_ms=5)
    assert (first.partition, first.offset, first.duplicate) == (0, 0, False)
    assert first.id.count(":") == 2
    for value in values[1:]:
        client.publish("values", value, key="k")
    found = list(client.messages("values"))
    assert [one.value for one in found] == [
        b"\x00\xff", "text é".encode(), b'{"a":[1,null,"x"]}', b"17", None, b"",
    ]  # fmt: skip
    assert found[0].headers == (("h", b"1"), ("b", b"\xff"))
    assert (found[0].timestamp_ms, found[0].key, found[1].key) == (5, None, b"k")
    assert found[2].json() == {"a": [1, None, "x"]}
    consumer = client.subscribe("values", "all")
    received = consumer.receive(100)
    assert [one.value for one in received] == [one.value for one in found]
    assert received[0].headers == found[0].headers
    assert received[0].id == first.id


def test_reading_from_places(client: Client) -> None:
    client.create_topic("places")
    stamps = [datetime(2026, 1, day, tzinfo=UTC) for day in (1, 2, 3, 4)]
    with client.producer("places", batch_bytes=10) as producer:
        futures = [
            producer.send(f"d{stamp.day}", timestamp_ms=int(stamp.timestamp() * 1000))
            for stamp in stamps
        ]
    places = [future.result() for future in futures]

    def texts(start: str | int) -> list[str]:
        return [message.text() for message in client.messages("places", start=start)]

    assert texts("earliest") == ["d1", "d2", "d3", "d4"]
    assert texts(2) == ["d3", "d4"]
    assert texts(places[1].id) == ["d2", "d3", "d4"]
    assert texts("2026-01-03T00:00:00Z") == ["d3", "d4"]
    assert texts("latest") == []
    assert client.offset("places") == 4
    assert client.offset("places", at="2026-01-02T00:00:00Z") == 1
    assert [one.text() for one in client.read("places", start=1, limit=2)] == ["d2", "d3"]
    with pytest.raises(ApiError, match="4"):
        client.read("places", start=400)


def test_subscription(client: Client) -> None:
    client.create_topic("subs", partitions=2)
    client.publish_many("subs", [(f"k{n % 7}", f"{n}") for n in range(20)])
    consumer = client.subscribe("subs", "s", type="shared", ack_timeout_s=30)
    first = consumer.receive(10)
    assert 1 <= len(first) <= 10
    consumer.ack(first)
    rest = consumer.receive(100)
    consumer.nack(rest[0])
    with pytest.raises(Conflict):
        consumer.ack(rest[0])
    consumer.ack(rest[1:])
    again = consumer.receive(100, wait_s=5)
    assert [(one.offset, one.delivery_count) for one in again] == [(rest[0].offset, 2)]
    consumer.extend(again)
    consumer.ack(again)
    assert consumer.stats()["backlog"] == 0
    consumer.seek("earliest")
    everything = list(consumer.deliveries(idle_s=0.5))
    assert sorted(int(one.text()) for one in everything) == [*range(20)]
    assert consumer.stats()["backlog"] == 0
    consumer.delete()
    with pytest.raises(NotFound):
        consumer.stats()


def test_cumulative_ack(client: Client) -> None:
    client.create_topic("cumulative")
    client.publish_many("cumulative", [(None, f"{n}") for n in range(10)])
    consumer = client.subscribe("cumulative", "s")
    received = consumer.receive(10)
    consumer.ack_up_to(received[6])
    assert consumer.stats()["backlog"] == 3


async def test_following_sees_what_comes(running: Standalone) -> None:
    async with AsyncClient(running.cluster.urls) as client:
        await client.create_topic("follow")
        seen: list[str] = []

        async def follow() -> None:
            async for message in client.messages("follow", follow=True):
                seen.append(message.text())  # noqa: PERF401

        task = asyncio.create_task(follow())
        for n in range(5):
            await client.publish("follow", f"{n}")
        async with asyncio.timeout(20):
            while len(seen) < 5:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    assert seen == ["0", "1", "2", "3", "4"]


def test_a_named_producer_repeats_itself(running: Standalone, client: Client) -> None:
    client.create_topic("imports")
    url = running.cluster.urls[0]
    for count in (300, 500):
        lines = "".join(f"line {n}\n" for n in range(count))
        done = octavo(
            "publish", "imports", "--key", "k", "--producer-id", "job", "--url", url, stdin=lines
        )
        assert done.returncode == 0, done.stderr
    assert [one.text() for one in client.messages("imports")] == [f"line {n}" for n in range(500)]


@pytest.mark.long
@pytest.mark.parametrize("encoding", ["batch", "ndjson"])
def test_the_owner_dies_while_a_producer_sends(
    running: Standalone, encoding: Literal["batch", "ndjson"]
) -> None:
    """Its last requests have unknown outcomes; the next owner knows which were stored."""
    topic = f"public/owner-dies-{encoding}"

    async def run() -> tuple[list[list[str]], list[list[str]]]:
        async with AsyncClient(running.cluster.urls, attempt_s=5.0) as client:
            await client.create_topic(topic, partitions=2)
            producer = await client.producer(topic, encoding=encoding, batch_bytes=1_000)
            expected: list[list[str]] = [[], []]
            for n in range(6_000):
                await producer.send(f"{n}", partition=n % 2)
                expected[n % 2].append(f"{n}")
                if n == 2_000:
                    await producer.flush()
                    url = client.transport.owner((topic, 0))
                if n == 3_000:
                    brokers = running.cluster.of_kind("broker")
                    running.kill(next(one.name for one in brokers if one.address == url))
            await producer.close()
            found = [
                [message.text() async for message in client.messages(topic, partition=number)]
                for number in range(2)
            ]
            return expected, found

    expected, found = asyncio.run(run())
    assert found == expected
    until(lambda: len(running.pids()) == 5, "the killed broker is back")
    until(
        lambda: all(member.state == "running" for member in running.cluster.members),
        "all are ready",
    )


@pytest.mark.long
@pytest.mark.zookeeper
def test_the_same_cluster_on_zookeeper(
    zookeeper: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    url = zookeeper.new_url()  # type: ignore[attr-defined]
    folder = tmp_path_factory.mktemp("zk") / "data"
    with standalone(folder, "--metadata", url, "--session-timeout-ms", "2000") as one:
        with Client(one.cluster.urls) as client:
            client.create_topic("zk", partitions=2)
            client.publish_many("zk", [(f"k{n}", f"{n}") for n in range(100)])
            one.kill("broker-1")
            one.kill("bookie-1")
            client.publish_many("zk", [(f"k{n}", f"{n}") for n in range(100, 200)])
            received = [
                int(delivery.text())
                for delivery in client.subscribe("zk", "s").deliveries(idle_s=2.0)
            ]
        assert sorted(received) == [*range(200)]
        listed = octavo("bookies", "--metadata", url)
        assert "of 3 up" in listed.stderr
