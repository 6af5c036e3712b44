"""Large messages through the Python clients and the commands."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c
from typer.testing import CliRunner

from octavo.cli.main import app
from octavo.cli.options import BadOption
from octavo.client.client import AsyncClient
from octavo.client.errors import ApiError, InvalidCall, NotFound
from octavo.client.sync import Client
from octavo.client.transport import Transport
from tests.cluster.test_large_messages import BODY, ONE, in_parts
from tests.support.cluster import Cluster, running_cluster

TOPIC = "public/one"
OCTAVO = str(Path(sys.executable).with_name("octavo"))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path / "cluster", brokers=2) as found:
        assert (await found.api.put(ONE)).status == 201
        yield found


def urls(cluster: Cluster) -> list[str]:
    return [api.url for api in cluster.apis.values()]


@pytest.fixture
async def client(cluster: Cluster) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(urls(cluster)) as found:
        yield found


async def body_at(client: AsyncClient, message: Any) -> bytes:
    return b"".join([piece async for piece in client.body(TOPIC, message)])


async def test_what_is_published_comes_back(client: AsyncClient, tmp_path: Path) -> None:
    file = tmp_path / "film"
    file.write_bytes(BODY)
    at = await client.publish_large(TOPIC, file, key="k", headers={"kind": "film"})
    (message,) = await client.read(TOPIC)
    assert (message.offset, message.key, message.value) == (at.offset, b"k", b"")
    assert ("kind", b"film") in message.headers
    assert message.large is not None
    assert (message.large.size, message.large.crc32c) == (len(BODY), f"{crc32c(BODY):08x}")
    assert await body_at(client, message) == BODY
    await client.publish(TOPIC, b"small")
    assert await body_at(client, at.offset + 1) == b"small"
    (last,) = await client.read(TOPIC, start=at.offset + 1)
    assert last.large is None
    with pytest.raises(NotFound):
        await body_at(client, at.offset + 2)


async def test_a_consumer_is_given_it_once_and_reads_its_body(client: AsyncClient) -> None:
    consumer = await client.subscribe(TOPIC, "s", type="shared", start="earliest")
    await client.publish_large(TOPIC, BODY)
    await client.publish(TOPIC, b"small")
    given = []
    async for delivery in consumer.deliveries(idle_s=3.0):
        given.append(delivery)
        if delivery.large is not None:
            assert await body_at(client, delivery) == BODY
        if len(given) == 2:
            break
    assert [one.value for one in given] == [b"", b"small"]


async def test_an_upload_whose_answer_is_lost_is_stored_once(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, lost = Transport._once, list[str]()

    async def forgetful(self: Transport, *how: Any) -> Any:
        answer = await once(self, *how)
        if how[2].endswith("/large") and not lost:
            lost.append(how[2])
            raise ConnectionResetError("the answer is lost")
        return answer

    monkeypatch.setattr(Transport, "_once", forgetful)
    at = await client.publish_large(TOPIC, BODY)
    assert lost
    assert at.duplicate
    assert [one.offset for one in await client.read(TOPIC)] == [at.offset]
    assert await body_at(client, at.offset) == BODY


REFUSED: list[dict[str, Any]] = [
    {"key": b"\xff"},
    {"key": " k"},
    {"headers": {"Kind": "film"}},
    {"headers": {"a b": "film"}},
    {"headers": {"kind": b"\xff"}},
    {"headers": {"kind": None}},
    {"headers": [("kind", "a"), ("kind", "b")]},
]


@pytest.mark.parametrize("how", REFUSED, ids=str)
async def test_what_http_cannot_carry_is_refused_before_anything_is_sent(
    client: AsyncClient, how: dict[str, Any]
) -> None:
    with pytest.raises(InvalidCall, match="large message"):
        await client.publish_large(TOPIC, b"x", **how)
    assert await client.read(TOPIC) == []


async def test_a_topic_that_takes_none_says_so(client: AsyncClient) -> None:
    await client.create_topic("public/compacted", compaction={})
    with pytest.raises(ApiError, match="is compacted"):
        await client.publish_large("public/compacted", BODY)


async def test_the_client_without_asyncio_does_the_same(cluster: Cluster, tmp_path: Path) -> None:
    def use() -> bytes:
        with Client(urls(cluster)) as client:
            at = client.publish_large(TOPIC, BODY, upload="film-1")
            again = client.publish_large(TOPIC, BODY, upload="film-1")
            assert (again.offset, again.duplicate) == (at.offset, True)
            (message,) = client.messages(TOPIC)
            return b"".join(client.body(TOPIC, message))

    assert await asyncio.to_thread(use) == BODY


async def test_the_commands_write_what_they_were_given(cluster: Cluster, tmp_path: Path) -> None:
    film, folder = tmp_path / "film", tmp_path / "films"
    film.write_bytes(BODY)
    folder.mkdir()

    async def run(*words: str) -> str:
        ran = await asyncio.create_subprocess_exec(
            OCTAVO, *words, "--url", urls(cluster)[0], stdout=PIPE, stderr=STDOUT
        )
        said, _ = await ran.communicate()
        assert ran.returncode == 0, said
        return said.decode()

    said = await run("publish", TOPIC, "--large", str(film), "--key", "k", "--json")
    offset = json.loads(said)["last"]["offset"]
    await run("publish", TOPIC, "small")
    shown = await run("consume", TOPIC, "-s", "copies", "--output-dir", str(folder))
    assert "small" in shown
    (saved,) = folder.iterdir()
    assert saved.name == f"0-{offset}"
    assert saved.read_bytes() == BODY


@pytest.mark.parametrize(
    "words",
    [
        ("publish", "one", "x", "--large", "film"),
        ("publish", "one", "--large", "/no/such/file"),
        ("consume", "one", "--output-dir", "/no/such/folder"),
        ("consume", "a-*", "-s", "s", "--output-dir", "/tmp"),
    ],
)
def test_commands_say_what_does_not_go_together(words: tuple[str, ...]) -> None:
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, BadOption), found


async def test_the_body_of_an_upload_is_what_the_file_was(cluster: Cluster) -> None:
    answer = await cluster.api.call("PUT", ONE + "/large", data=in_parts(BODY))
    async with AsyncClient(urls(cluster)) as client:
        assert await body_at(client, answer.json()["offset"]) == BODY
