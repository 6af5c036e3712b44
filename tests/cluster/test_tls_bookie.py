"""A bookie's port with certificates: TLS at once or after START_TLS, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.bookie.node import BookieNode
from octavo.ledger.errors import BookieUnavailable
from octavo.protocol import v3
from octavo.protocol.codes import Code
from octavo.tls.contexts import Certificates
from tests.support.certificates import certificates, make, renew
from tests.support.cluster import add_many, payload_of, running_cluster
from tests.support.raw_bookie import RawClient, add_of, on_both_loops, running_bookie, until
from tests.support.v3_frames import V3Client, add_frame, request_frame

event_loop_policy = on_both_loops
START_TLS = request_frame(v3.Op.START_TLS, 1, "startTLSRequest")
OK = v3.STATUS[Code.OK]


@pytest.fixture
def held(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "certs", handshake_timeout_ms=2_000)


@pytest.fixture
async def node(tmp_path: Path, held: Certificates) -> AsyncIterator[BookieNode]:
    async with running_bookie(tmp_path, tls=held, admin_port=0) as running:
        yield running


async def secured(node: BookieNode, held: Certificates) -> tuple[Any, asyncio.StreamWriter]:
    client = V3Client(*await asyncio.open_connection("127.0.0.1", node.port))
    client.send(START_TLS)
    assert (await client.answer()).status == OK
    await client.writer.start_tls(held.client, server_hostname="127.0.0.1")  # type: ignore[arg-type]
    return client.reader, client.writer


async def test_tls_from_the_first_byte(node: BookieNode, held: Certificates) -> None:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", node.port, ssl=held.client))
    assert await client.add(add_of(1, 0)) is Code.OK
    assert isinstance(await client.read(1, 0), bytes)
    client.close()


async def test_start_tls_of_a_client_that_speaks_v3(node: BookieNode, held: Certificates) -> None:
    client = V3Client(*await secured(node, held))
    assert await client.add(1, 0) == OK
    assert (await client.read(1, 0)).status == OK
    again = await client.ask(v3.Op.START_TLS, "startTLSRequest")
    assert again.status == v3.STATUS[Code.BAD_REQUEST], "it is there already"
    client.close()


async def test_start_tls_of_a_client_that_speaks_v2(node: BookieNode, held: Certificates) -> None:
    client = RawClient(*await secured(node, held))
    for entry in range(20):
        assert await client.add(add_of(1, entry, b"x" * 50_000)) is Code.OK
    assert isinstance(await client.read(1, 19), bytes)
    client.close()


async def test_frames_right_behind_the_handshake(node: BookieNode, held: Certificates) -> None:
    for _ in range(10):
        client = RawClient(*await secured(node, held))
        client.send(add_of(2, 0) + add_of(2, 1))
        assert await client.acked(2)
        client.close()


@pytest.mark.parametrize(
    ("data", "answered"),
    [
        (add_of(1, 0), False),
        (add_frame(1, 0), True),
        (START_TLS + add_frame(1, 0), True),
        (request_frame(v3.Op.AUTH, 1, "authRequest", authPluginName="x", payload=b""), True),
        (b"GET / HTTP/1.1\r\n\r\n", False),
        (b"\0\0\0\0", False),
    ],
    ids=["v2 add", "v3 add", "behind START_TLS", "auth", "http", "empty"],
)
async def test_nothing_else_is_taken_in_the_clear(
    node: BookieNode, held: Certificates, data: bytes, answered: bool
) -> None:
    with capture_logs() as logs:
        client = V3Client(*await asyncio.open_connection("127.0.0.1", node.port))
        client.send(data)
        if answered:
            assert (await client.answer()).status == v3.STATUS[Code.UNAUTHORIZED]
        assert await client.is_closed()
        client.close()
    assert [one["event"] for one in logs] == ["tls_refused"]
    inside = RawClient(*await secured(node, held))
    assert not isinstance(await inside.read(1, 0), bytes), "nothing was stored"
    inside.close()


async def test_who_asks_for_start_tls_and_says_no_more_is_cut_off(node: BookieNode) -> None:
    for data in (START_TLS[:5], START_TLS):
        client = V3Client(*await asyncio.open_connection("127.0.0.1", node.port))
        client.send(data)
        if data is START_TLS:
            await client.answer()
        assert await client.is_closed()
        client.close()


async def test_both_are_taken_during_a_change_over(tmp_path: Path) -> None:
    held = certificates(tmp_path / "certs", plain_allowed=True)
    async with running_bookie(tmp_path, tls=held) as node:
        plain = RawClient(*await asyncio.open_connection("127.0.0.1", node.port))
        plain.send(b"".join(add_of(1, entry, b"x" * 100_000) for entry in range(30)))
        assert await plain.acked(30)
        inside = RawClient(*await secured(node, held))
        assert isinstance(await inside.read(1, 29), bytes)
        for client in (plain, inside):
            client.close()


@pytest.mark.parametrize("start_tls", [False, True], ids=["tls", "start_tls"])
async def test_a_ledger_is_written_and_read(tmp_path: Path, start_tls: bool) -> None:
    held = certificates(tmp_path / "certs", mutual=True, start_tls=start_tls)
    async with running_cluster(tmp_path, tls=held) as cluster:
        client = await cluster.client()
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await add_many(writer, 300, size=20_000)
        renew(tmp_path / "certs")
        assert held.refresh()
        await cluster.stop_bookie("b3")
        await add_many(writer, 10)
        await cluster.start_bookie("b3")
        await writer.close()
        reader = await (await cluster.client(2)).open(writer.ledger_id)
        entries = await reader.read(0, 299)
        assert [bytes(one.payload) for one in entries] == [
            payload_of(n, 20_000) for n in range(300)
        ]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("another ca", "the CA of its certificate is not trusted here"),
        ("no certificate", "give certificate and key"),
        ("plain bookie", "does that port speak TLS?"),
        ("plain bookie, START_TLS", "does not support START_TLS"),
    ],
)
async def test_why_a_bookie_cannot_be_reached_is_said(tmp_path: Path, how: str, said: str) -> None:
    plain = how.startswith("plain")
    server = None if plain else certificates(tmp_path / "certs", mutual=True)
    folder = tmp_path / "other" if how == "another ca" else tmp_path / "certs"
    make(folder, "client")
    client = certificates(folder, "client", start_tls=how.endswith("START_TLS"))
    if how == "no certificate":
        client = Certificates(type(client.config)(ca=f"{folder}/ca.pem"))
    async with running_cluster(tmp_path, bookies=1, tls=server) as cluster:
        cluster.tls = client
        ledgers = await cluster.client()
        with pytest.raises(BookieUnavailable) as caught:
            await ledgers.bookies.get("b1").connected()
        assert said in str(caught.value)


async def test_tls_at_a_port_without_is_told(tmp_path: Path, held: Certificates) -> None:
    async with running_bookie(tmp_path) as node:
        with capture_logs() as logs:
            with pytest.raises(ConnectionResetError):
                await asyncio.open_connection("127.0.0.1", node.port, ssl=held.client)
            await until(lambda: [one for one in logs if one["event"] == "connection_refused"])
    [told] = [one for one in logs if one["event"] == "connection_refused"]
    assert "this is TLS, and this port has none" in told["reason"]


async def test_the_admin_port_speaks_it_too(node: BookieNode, held: Certificates) -> None:
    for context, expected in ((held.client, b"200 OK"), (None, b"tls-required")):
        reader, writer = await asyncio.open_connection("127.0.0.1", node.admin.port, ssl=context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        async with asyncio.timeout(10):
            assert expected in await reader.read()
        writer.close()
