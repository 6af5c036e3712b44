"""A whole cluster with mutual TLS works through a death and through new certificates."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path

import aiohttp
import pytest

from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, Unreachable
from octavo.tls.contexts import Certificates
from octavo.tls.settings import TlsConfig
from tests.support.certificates import certificates, make, renew
from tests.support.cluster import Cluster, running_cluster, until

TOPIC = "/v1/topics/public/t"


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "certs", mutual=True)


@pytest.fixture
async def cluster(tmp_path: Path, held: Certificates) -> AsyncIterator[Cluster]:
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


async def test_all_that_is_published_is_received(cluster: Cluster) -> None:
    assert all(api.url.startswith("https://127.0.0.1:") for api in cluster.apis.values())
    async with client_of(cluster) as client:
        for number in range(40):
            await client.publish("t", {"n": number}, partition=number % 4)
        subscription = await client.subscribe("t", "s", type="shared")
        async with contextlib.aclosing(subscription.deliveries(idle_s=1)) as deliveries:
            found = [delivery.json()["n"] async for delivery in deliveries]
    assert sorted(found) == list(range(40))


async def test_any_broker_passes_calls_on_and_single_messages_go_the_short_way(
    cluster: Cluster,
) -> None:
    headers = {"Content-Type": "text/plain"}
    for api in cluster.apis.values():
        for partition in range(4):
            for number in range(5):
                path = f"{TOPIC}/partitions/{partition}/messages"
                answer = await api.post(path, b"m%d" % number, headers=headers)
                assert answer.status == 200, answer
                assert answer.headers["Octavo-Owner"].startswith("https://")
    async with client_of(cluster) as client:
        read = [m.value for n in range(4) async for m in client.messages("t", partition=n)]
    assert len(read) == 40


async def test_streams_of_a_subscription(cluster: Cluster, held: Certificates) -> None:
    async with client_of(cluster) as client:
        await client.subscribe("t", "s", type="shared")
        await client.subscribe("t", "w", type="shared")
        for number in range(4):
            await client.publish("t", {"n": number}, partition=number)
    assert held.client
    connector = aiohttp.TCPConnector(ssl=held.client)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.timeout(20):
        url = f"{cluster.api.url}{TOPIC}/subscriptions"
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
    cluster: Cluster, held: Certificates
) -> None:
    offsets: list[int] = []

    async def follow() -> None:
        async with (
            client_of(cluster) as client,
            aclosing(client.pages("t", partition=0, follow=True)) as pages,
        ):
            async for page in pages:
                offsets.extend(message.offset for message in page)

    following = asyncio.create_task(follow())
    try:
        async with client_of(cluster, "bob") as client:
            for _ in range(5):
                await client.publish("t", b"before", partition=0)
            await until(lambda: len(offsets) == 5, "the stream is there")
            before = held.server
            renew(cluster.folder / "certs")
            assert held.refresh()
            assert held.server is not before
            for _ in range(5):
                await client.publish("t", b"renewed", partition=0)
            await until(lambda: len(offsets) == 10, "the open stream goes on")
            owner = await cluster.owner_of(f"{TOPIC}/partitions/0")
            await cluster.brokers[owner].vanish()
            cluster.apis.pop(owner)
            for _ in range(5):
                await client.publish("t", b"after", partition=0)
            await until(lambda: len(offsets) == 15, "it goes on at the next owner", 30)
        assert offsets == list(range(15))
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def test_who_does_not_belong_is_told_why(cluster: Cluster, tmp_path: Path) -> None:
    [url, *_] = [api.url for api in cluster.apis.values()]
    ca = str(cluster.folder / "certs" / "ca.pem")
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
