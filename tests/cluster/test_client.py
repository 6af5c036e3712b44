"""Clients of a cluster: follows, reads of all partitions, and a cluster with mutual TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo.broker.errors import OffsetTrimmed
from octavo.broker.http.api import read as broker_read
from octavo.broker.partition.partition import Partition
from octavo.broker.types import StoredBatch
from octavo.client import every_partition, following, reading
from octavo.client.client import AsyncClient
from octavo.client.errors import (
    ApiError,
    InvalidCall,
    NotFound,
    TopicReplaced,
    Trimmed,
    Unreachable,
)
from octavo.client.sync import Client
from octavo.client.transport import Transport
from octavo.client.types import Message
from octavo.protocol import leased
from octavo.tls.contexts import Certificates
from octavo.tls.settings import TlsConfig
from tests.support.certificates import certificates, make, renew
from tests.support.cluster import Cluster, running_cluster
from tests.support.cluster import until as until_cluster
from tests.support.http_api import until

TOPIC = "/v1/topics/public/t/partitions/0"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as found:
        async with AsyncClient(found.api.url) as client:
            await client.create_topic("t")
        yield found


def urls_of(cluster: Cluster) -> list[str]:
    return [api.url for api in cluster.apis.values()]


async def publish(cluster: Cluster, first: int, count: int) -> None:
    async with AsyncClient(urls_of(cluster)) as client:
        for number in range(first, first + count):
            await client.publish("t", b"%d" % number)


class Follower:
    def __init__(self, client: AsyncClient, **how: Any) -> None:
        self.offsets: list[int] = []
        self.task = asyncio.create_task(self._run(client, how))

    async def _run(self, client: AsyncClient, how: dict[str, Any]) -> None:
        async with aclosing(client.pages("t", follow=True, **how)) as pages:
            async for page in pages:
                assert [message.value for message in page] == [b"%d" % m.offset for m in page]
                self.offsets += [message.offset for message in page]

    async def __aenter__(self) -> Follower:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


def streams_of(cluster: Cluster) -> dict[str, int]:
    return {
        name: running.server._services.streams.taken
        for name, running in cluster.brokers.items()
        if running.server is not None and not running.gone
    }


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the client's requests by calls, not by streams."""
    asked: list[str] = []
    call = Transport.call

    async def noted(self: Transport, method: str, path: str, **how: Any) -> Any:
        asked.append(f"{method} {path}")
        return await call(self, method, path, **how)

    monkeypatch.setattr(Transport, "call", noted)
    return asked


async def test_messages_come_without_calls(cluster: Cluster, calls: list[str]) -> None:
    await publish(cluster, 0, 3)
    owner = await cluster.owner_of(TOPIC)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        assert follower.offsets == [0, 1, 2]
        assert streams_of(cluster)[owner] == 1, "it goes straight to the owner"
        calls.clear()
        await publish(cluster, 3, 20)
        await until(lambda: len(follower.offsets) == 23)
        assert follower.offsets == [*range(23)]
        assert not [one for one in calls if one.startswith("GET") and "messages" in one]
    await until(lambda: sum(streams_of(cluster).values()) == 0)


async def test_it_goes_on_through_a_killed_owner(cluster: Cluster) -> None:
    await publish(cluster, 0, 3)
    owner = await cluster.owner_of(TOPIC)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: len(follower.offsets) == 3 and sum(streams_of(cluster).values()) == 1)
        running = cluster.brokers[owner]
        assert running.server is not None
        await running.vanish()
        await running.server._cut_off()
        cluster.apis.pop(owner)
        await publish(cluster, 3, 10)
        await until(lambda: len(follower.offsets) == 13, 20)
        await until(lambda: sum(streams_of(cluster).values()) == 1, 20)
        await publish(cluster, 13, 10)
        await until(lambda: len(follower.offsets) == 23, 20)
        assert follower.offsets == [*range(23)]
        assert not follower.task.done()


async def test_it_goes_on_when_a_broker_stops(cluster: Cluster) -> None:
    await publish(cluster, 0, 1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await cluster.stop_broker(await cluster.owner_of(TOPIC))
        await publish(cluster, 1, 5)
        await until(lambda: len(follower.offsets) == 6, 20)
        assert follower.offsets == [*range(6)]


@pytest.mark.parametrize("start", ["latest", 2])
async def test_from_where_it_is_told(cluster: Cluster, start: str | int) -> None:
    await publish(cluster, 0, 4)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client, start=start) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await publish(cluster, 4, 2)
        first = 4 if start == "latest" else 2
        await until(lambda: follower.offsets[-1:] == [5])
        assert follower.offsets == [*range(first, 6)]


async def test_nothing_for_long(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_read, "LIVES_S", 0.1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await until(lambda: sum(streams_of(cluster).values()) == 0)
        monkeypatch.setattr(broker_read, "LIVES_S", 20.0)
        await publish(cluster, 0, 1)
        await until(lambda: sum(streams_of(cluster).values()) == 1)
        await publish(cluster, 1, 2)
        await until(lambda: follower.offsets == [0, 1, 2])


async def test_where_there_are_too_many_streams(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("small", streams_max=1)
        async with AsyncClient(cluster.api.url) as client:
            await client.create_topic("t")
            async with Follower(client) as one, Follower(client) as two:
                await until(lambda: sum(streams_of(cluster).values()) == 1)
                await publish(cluster, 0, 10)
                await until(lambda: len(one.offsets) == len(two.offsets) == 10)
                assert one.offsets == two.offsets == [*range(10)]


async def test_a_slow_reader_misses_nothing(tmp_path: Path) -> None:
    """Its stream is not read and cut off at last; the reader continues all the same."""
    size, count = 200_000, 150
    async with running_cluster(tmp_path) as cluster:
        await cluster.start_broker("impatient", stall_timeout_ms=300)
        async with AsyncClient(cluster.api.url) as client:
            await client.create_topic("t")
            offsets: list[int] = []
            found: Any = client.messages("t", follow=True)
            async with aclosing(found) as messages:
                first = asyncio.ensure_future(anext(messages))
                await until(lambda: sum(streams_of(cluster).values()) == 1)
                async with client.producer("t") as producer:
                    for number in range(count):
                        await producer.send(b"%d " % number + b"x" * size)
                offsets.append((await first).offset)
                server = cluster.brokers["impatient"].server
                assert server is not None
                await until(lambda: sum(streams_of(cluster).values()) == 0, 20)
                async for message in messages:
                    assert (message.value or b"").startswith(b"%d " % message.offset)
                    offsets.append(message.offset)
                    if len(offsets) == count:
                        break
            assert offsets == [*range(count)]


async def test_a_deleted_topic(cluster: Cluster) -> None:
    await publish(cluster, 0, 1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1 and follower.offsets == [0])
        await client.delete_topic("t")
        with pytest.raises(NotFound, match="topic"):
            await asyncio.wait_for(asyncio.shield(follower.task), 20)


async def test_a_topic_made_anew(cluster: Cluster) -> None:
    await publish(cluster, 0, 3)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1 and len(follower.offsets) == 3)
        async with AsyncClient(urls_of(cluster)) as other:
            await other.delete_topic("t")
            await other.create_topic("t")
            await publish(cluster, 0, 5)
        with pytest.raises((NotFound, TopicReplaced)):
            await asyncio.wait_for(asyncio.shield(follower.task), 20)
        assert follower.offsets == [0, 1, 2]


async def test_an_offset_ahead(cluster: Cluster) -> None:
    await publish(cluster, 0, 1)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client, start=7) as follower:
        with pytest.raises(ApiError, match="7") as caught:
            await asyncio.wait_for(asyncio.shield(follower.task), 20)
        assert caught.value.code == "offset-beyond-end"


async def test_trimmed_while_it_follows(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    await publish(cluster, 0, 2)
    async with AsyncClient(urls_of(cluster)) as client, Follower(client) as follower:
        await until(lambda: sum(streams_of(cluster).values()) == 1 and len(follower.offsets) == 2)

        async def trimmed(*_: Any, **__: Any) -> Any:
            raise OffsetTrimmed("gone", 9)

        monkeypatch.setattr(Partition, "read", trimmed)
        await publish(cluster, 2, 1)
        with pytest.raises(Trimmed) as caught:
            await asyncio.wait_for(asyncio.shield(follower.task), 20)
        assert caught.value.earliest == 9


async def test_the_synchronous_client(cluster: Cluster) -> None:
    await publish(cluster, 0, 2)
    offsets: list[int] = []
    url = cluster.api.url

    def run() -> None:
        with Client(url) as client:
            for message in client.messages("t", follow=True):
                offsets.append(message.offset)
                if message.offset == 4:
                    break

    thread = threading.Thread(target=run)
    thread.start()
    await until(lambda: len(offsets) == 2 and sum(streams_of(cluster).values()) == 1)
    began = time.monotonic()
    await publish(cluster, 2, 3)
    await until(lambda: len(offsets) == 5)
    assert time.monotonic() - began < 5
    await asyncio.to_thread(thread.join)
    assert offsets == [*range(5)]
    await until(lambda: sum(streams_of(cluster).values()) == 0)


LATE = "2100-01-01T00:00:00Z"


@pytest.fixture
async def client(two: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient([api.url for api in two.apis.values()]) as found:
        await found.create_topic("four", partitions=4)
        await found.create_topic("one")
        yield found


async def publish_parts(
    client: AsyncClient, topic: str, first: int, count: int, parts: int = 4
) -> None:
    for number in range(first, first + count):
        await client.publish(topic, b"%d" % number, partition=number % parts)


def values(messages: list[Message]) -> list[int]:
    return [int(message.value or b"") for message in messages]


async def test_all_partitions_one_after_the_other(client: AsyncClient) -> None:
    await publish_parts(client, "four", 0, 12)
    in_order = [0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11]
    assert values([one async for one in client.messages("four")]) == in_order
    assert values(await client.read("four")) == in_order
    assert values(await client.read("four", limit=5)) == in_order[:5]
    assert values([one async for one in client.messages("four", partition=2)]) == [2, 6, 10]
    assert values(await client.read("four", partition=2, start=1)) == [6, 10]
    assert await client.read("four", start="latest") == []
    assert await client.read("four", start=LATE) == []
    assert values(await client.read("four", start="1970-01-01T00:00:00Z")) == in_order


@pytest.mark.parametrize("start", [0, 3, "0", "1:0:0"])
async def test_a_place_in_one_partition_needs_the_partition(
    client: AsyncClient, start: str | int
) -> None:
    await publish_parts(client, "four", 0, 4)
    told = r"public/four has 4 partitions, and .*say which partition, 0 to 3"
    with pytest.raises(InvalidCall, match=told):
        await client.read("four", start=start)
    for follow in (False, True):
        with pytest.raises(InvalidCall, match=told):
            await anext(client.messages("four", start=start, follow=follow))
    with pytest.raises(InvalidCall, match=told):
        await client.truncate_topic("four", start)
    with pytest.raises(InvalidCall, match=told):
        await client.offset("four", at="latest")
    with pytest.raises(InvalidCall, match=told):
        await anext(client.body("four", 0))
    for wrong in (-1, True, "0"):
        with pytest.raises(InvalidCall, match="a partition must be a number"):
            await client.read("four", partition=wrong)  # type: ignore[arg-type]


async def test_one_partition_need_not_be_named(client: AsyncClient) -> None:
    await publish_parts(client, "one", 0, 5, parts=1)
    assert values(await client.read("one", start=3)) == [3, 4]
    assert values([one async for one in client.messages("one", start=2)]) == [2, 3, 4]
    assert await client.offset("one") == 5
    assert b"".join([piece async for piece in client.body("one", 4)]) == b"4"
    with pytest.raises(NotFound):
        await client.read("none")


async def test_a_read_of_all_waits_for_the_first_of_any(client: AsyncClient) -> None:
    waiting = asyncio.create_task(client.read("four", wait_s=50))
    await asyncio.sleep(0)
    await client.publish("four", b"3", partition=3)
    assert values(await waiting) == [3]
    assert await client.read("four", start="latest", wait_s=0.05) == []


async def test_all_are_followed_also_those_that_are_added(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(every_partition, "LOOK_AGAIN_S", 0.05)
    await publish_parts(client, "four", 0, 8)
    found: list[Message] = []

    async def until(count: int, messages: AsyncIterator[Message]) -> None:
        while len(found) < count:
            found.append(await anext(messages))

    async with aclosing(client.messages("four", follow=True)) as messages, asyncio.timeout(60):
        await until(8, messages)
        assert sorted(values(found)) == [*range(8)]
        await publish_parts(client, "four", 8, 4)
        await until(12, messages)
        await client.update_topic("four", partitions=5)
        async with AsyncClient(client.transport.urls) as other:
            await other.publish("four", b"12", partition=4)
        await until(13, messages)
    assert found[-1].partition == 4
    for number in range(4):
        of_one = values([one for one in found if one.partition == number])
        assert of_one == sorted(of_one), "each partition is in order"
    names = {task.get_name() for task in asyncio.all_tasks()}
    assert not any("follow partition" in name or "look for" in name for name in names)


async def test_latest_is_one_moment_for_all(client: AsyncClient) -> None:
    """A message that is published between two reads is in the second, whatever its partition."""
    await publish_parts(client, "four", 0, 4)
    async with aclosing(client.messages("four", start="latest", follow=True)) as messages:
        first = asyncio.create_task(anext(messages))
        await asyncio.sleep(0)
        while not first.done():
            await client.publish("four", b"100", partition=1)
            await asyncio.sleep(0.01)
        assert (await first).value == b"100"


async def test_a_follower_hears_that_its_topic_is_gone(client: AsyncClient) -> None:
    await publish_parts(client, "four", 0, 1)
    async with aclosing(client.messages("four", follow=True)) as messages, asyncio.timeout(60):
        await anext(messages)
        await client.delete_topic("four")
        with pytest.raises(NotFound):
            await anext(messages)


async def test_every_message_has_its_id(client: AsyncClient, two: Cluster) -> None:
    subscription = await client.subscribe("one", "s")
    await client.publish_many("one", [(None, b"%d" % number) for number in range(5)])
    read = await client.read("one")
    received = [one async for one in subscription.deliveries(idle_s=0.5)]
    assert [one.id for one in read] == [one.id for one in received]
    assert all(part.isdigit() for one in read for part in one.id.split(":"))
    assert len({one.id for one in read}) == 5
    for message in read:
        assert await client.offset("one", at=message.id) == message.offset
    async with aclosing(client.messages("one", follow=True)) as messages, asyncio.timeout(60):
        followed = [await anext(messages) for _ in range(5)]
        for number in range(5, 12):
            await client.publish("one", b"%d" % number)
            followed.append(await anext(messages))
    assert [one.id for one in followed] == [one.id for one in await client.read("one")]
    for api in two.apis.values():
        async with AsyncClient(api.url) as other:
            assert [one.id for one in await other.read("one")] == [one.id for one in followed]


async def test_entries_that_no_header_holds_come_in_more_answers(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer ends where clients would refuse its header as too long."""
    for number in range(9):
        await client.publish("one", b"%d" % number)
    entries = broker_read._entries

    def of_ledgers_of_their_own(batches: list[StoredBatch]) -> list[tuple[int, int]]:
        return [(entry, 0) for _, entry in entries(batches)]

    monkeypatch.setattr(broker_read, "_entries", of_ledgers_of_their_own)
    monkeypatch.setattr(leased, "ENTRY_RUNS_MAX", 4)
    calls = 0
    read = reading.read_messages

    async def counted(*args: object, **kwargs: object) -> object:
        nonlocal calls
        calls += 1
        return await read(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(following, "read_messages", counted)
    found = [one async for one in client.messages("one")]
    assert values(found) == [*range(9)]
    assert [one.id for one in found] == [f"{number}:0:0" for number in range(9)]
    assert calls == 4, "4, 4 and 1 messages, and the end"


TOPIC_CLUSTER = "/v1/topics/public/t"


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "certs", mutual=True)


@pytest.fixture
async def cluster_cluster(tmp_path: Path, held: Certificates) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2, tls=held) as found:
        async with client_of(found) as client:
            await client.create_topic("t", partitions=4)
        yield found


def client_of(cluster: Cluster, name: str = "alice") -> AsyncClient:
    folder = cluster.folder / "certs"
    if not (folder / f"{name}.pem").exists():
        make(folder, name, f"{name}.clients")
    return AsyncClient(
        [api.url for api in cluster.apis.values()],
        ca_file=f"{folder}/ca.pem",
        certificate=f"{folder}/{name}.pem",
        key=f"{folder}/{name}.key",
        attempt_s=5,
    )


async def test_all_that_is_published_is_received(cluster_cluster: Cluster) -> None:
    assert all(api.url.startswith("https://127.0.0.1:") for api in cluster_cluster.apis.values())
    async with client_of(cluster_cluster) as client:
        for number in range(40):
            await client.publish("t", {"n": number}, partition=number % 4)
        subscription = await client.subscribe("t", "s", type="shared")
        async with contextlib.aclosing(subscription.deliveries(idle_s=1)) as deliveries:
            found = [delivery.json()["n"] async for delivery in deliveries]
    assert sorted(found) == list(range(40))


async def test_any_broker_passes_calls_on_and_single_messages_go_the_short_way(
    cluster_cluster: Cluster,
) -> None:
    headers = {"Content-Type": "text/plain"}
    for api in cluster_cluster.apis.values():
        for partition in range(4):
            for number in range(5):
                path = f"{TOPIC_CLUSTER}/partitions/{partition}/messages"
                answer = await api.post(path, b"m%d" % number, headers=headers)
                assert answer.status == 200, answer
                assert answer.headers["Octavo-Owner"].startswith("https://")
    async with client_of(cluster_cluster) as client:
        read = [m.value for n in range(4) async for m in client.messages("t", partition=n)]
    assert len(read) == 40


async def test_streams_of_a_subscription(cluster_cluster: Cluster, held: Certificates) -> None:
    async with client_of(cluster_cluster) as client:
        await client.subscribe("t", "s", type="shared")
        await client.subscribe("t", "w", type="shared")
        for number in range(4):
            await client.publish("t", {"n": number}, partition=number)
    assert held.client
    connector = aiohttp.TCPConnector(ssl=held.client)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.timeout(20):
        url = f"{cluster_cluster.api.url}{TOPIC_CLUSTER}/subscriptions"
        async with session.get(f"{url}/s/stream", headers={"Accept": "text/event-stream"}) as found:
            text = b""
            while text.count(b"ack_id") < 4:
                text += await found.content.readany()
        got = 0
        async with session.ws_connect(f"{url}/w/stream") as socket:
            while got < 4:
                got += json.dumps(await socket.receive_json()).count('"ack_id"')


@pytest.mark.long
async def test_a_stream_goes_on_through_new_certificates_and_the_death_of_its_owner(
    cluster_cluster: Cluster, held: Certificates
) -> None:
    offsets: list[int] = []

    async def follow() -> None:
        async with (
            client_of(cluster_cluster) as client,
            aclosing(client.pages("t", partition=0, follow=True)) as pages,
        ):
            async for page in pages:
                offsets.extend(message.offset for message in page)

    following = asyncio.create_task(follow())
    try:
        async with client_of(cluster_cluster, "bob") as client:
            for _ in range(5):
                await client.publish("t", b"before", partition=0)
            await until_cluster(lambda: len(offsets) == 5, "the stream is there")
            before = held.server
            renew(cluster_cluster.folder / "certs")
            assert held.refresh()
            assert held.server is not before
            for _ in range(5):
                await client.publish("t", b"renewed", partition=0)
            await until_cluster(lambda: len(offsets) == 10, "the open stream goes on")
            owner = await cluster_cluster.owner_of(f"{TOPIC_CLUSTER}/partitions/0")
            await cluster_cluster.brokers[owner].vanish()
            cluster_cluster.apis.pop(owner)
            for _ in range(5):
                await client.publish("t", b"after", partition=0)
            await until_cluster(lambda: len(offsets) == 15, "it goes on at the next owner", 30)
        assert offsets == list(range(15))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_who_does_not_belong_is_told_why(cluster_cluster: Cluster, tmp_path: Path) -> None:
    [url, *_] = [api.url for api in cluster_cluster.apis.values()]
    ca = str(cluster_cluster.folder / "certs" / "ca.pem")
    async with AsyncClient(url, ca_file=ca, retry_s=0) as client:
        with pytest.raises(Unreachable, match="give certificate and key"):
            await client.cluster()
    make(tmp_path / "other")
    async with AsyncClient(url, ca_file=f"{tmp_path}/other/ca.pem", retry_s=60) as client:
        began = asyncio.get_running_loop().time()
        with pytest.raises(Unreachable, match="the CA of its certificate is not trusted here"):
            await client.cluster()
        assert asyncio.get_running_loop().time() - began < 30, "time alone would not help"
    async with AsyncClient(url.replace("https", "http"), retry_s=60) as client:
        with pytest.raises(ApiError, match="use https://") as caught:
            await client.cluster()
        assert caught.value.code == "tls-required"


async def test_https_at_a_broker_without(tmp_path: Path) -> None:
    make(tmp_path)
    async with running_cluster(tmp_path / "plain", bookies=1, brokers=1) as cluster:
        url = cluster.api.url.replace("http", "https")
        async with AsyncClient(url, ca_file=f"{tmp_path}/ca.pem", retry_s=0) as client:
            with pytest.raises(Unreachable, match="is this a port without TLS"):
                await client.cluster()


async def test_a_cluster_is_changed_over_while_it_runs(tmp_path: Path) -> None:
    """In the order of docs/security.md: bookies, brokers that trust, brokers with TLS."""
    folder = tmp_path / "certs"
    both = certificates(folder, plain_allowed=True)
    believing = Certificates(TlsConfig(ca=f"{folder}/ca.pem", plain_allowed=True))
    async with running_cluster(tmp_path, tls=both) as cluster:
        for name, tls in (("plain", None), ("believing", believing), ("secured", both)):
            cluster.tls = tls
            await cluster.start_broker(name)
        await cluster.stop_broker("plain")
        urls = [api.url for api in cluster.apis.values()]
        assert [url.partition(":")[0] for url in urls] == ["http", "https"]
        urls += [urls[1].replace("https", "http")]
        for number, url in enumerate(urls):
            async with AsyncClient(url, ca_file=f"{folder}/ca.pem") as client:
                if not number:
                    await client.create_topic("t", partitions=4)
                for partition in range(4):
                    await client.publish("t", b"m", partition=partition)
        read = [m for n in range(4) async for m in client_at(urls[1], folder, n)]
        assert len(read) == 12


async def client_at(url: str, folder: Path, partition: int) -> AsyncIterator[bytes]:
    async with AsyncClient(url, ca_file=f"{folder}/ca.pem") as client:
        async for message in client.messages("t", partition=partition):
            yield message.value or b""
