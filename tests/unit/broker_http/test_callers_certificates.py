"""A certificate of the cluster's CA identifies its caller, and no other caller."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from octavo.tls.contexts import client_context
from tests.support.certificates import certificates, make
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.memory_cluster import Running, running

MESSAGES = "/v1/topics/public/one/messages"


@pytest.fixture
async def secured(tmp_path: Path) -> AsyncIterator[tuple[Running, FakeAuthority]]:
    """Two brokers with mutual TLS; the first owns the topic."""
    held = certificates(tmp_path, mutual=True)
    authority, authenticator = FakeAuthority(), FakeAuthenticator()
    for name in ("alice", "bob"):
        made = make(tmp_path, name, f"{name}.clients")
        found = x509.load_pem_x509_certificate(made.certificate.read_bytes())
        authenticator.certificates[found.public_bytes(Encoding.DER)] = name
    node = x509.load_pem_x509_certificate((tmp_path / "node.pem").read_bytes())
    authenticator.certificates[node.public_bytes(Encoding.DER)] = "node"
    async with running(2, authority=authority, authenticator=authenticator, tls=held) as one:
        async with connected(tmp_path, "alice") as session:
            url = one.servers[0].url + "/v1/topics/public/one"
            assert (await session.put(url)).status == 201
        await one.move("public/one", "b0")
        authority.secure(
            "allow user:alice produce topic:public/one", "allow user:bob consume topic:public/one"
        )
        yield one, authority


def connected(folder: Path, name: str) -> aiohttp.ClientSession:
    context: ssl.SSLContext = client_context(
        ca=f"{folder}/ca.pem", certificate=f"{folder}/{name}.pem", key=f"{folder}/{name}.key"
    )
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))


@pytest.mark.parametrize("broker", [0, 1], ids=["owner", "another"])
async def test_a_certificate_says_who_asks(
    secured: tuple[Running, FakeAuthority], tmp_path: Path, broker: int
) -> None:
    one, _ = secured
    url = one.servers[broker].url + MESSAGES
    async with connected(tmp_path, "alice") as alice, connected(tmp_path, "bob") as bob:
        for _ in range(3):  # from the second on by a known head
            assert (await alice.post(url, data=b"x")).status == 200
            assert (await bob.post(url, data=b"x")).status == 403
            assert (await bob.get(url)).status == 200
            assert (await alice.get(url)).status == 403
        # A header wins over it, and a bad header is refused despite a good certificate.
        assert (await bob.post(url, data=b"x", headers=as_user("alice"))).status == 200
        assert (await alice.post(url, data=b"x", headers=as_user("bad"))).status == 401
    assert one.next_offset("public/one") == 4


async def test_a_nodes_certificate_is_no_node_for_it(
    secured: tuple[Running, FakeAuthority], tmp_path: Path
) -> None:
    """It identifies an ordinary caller: nodes prove that they have the cluster's secret."""
    one, _ = secured
    async with connected(tmp_path, "node") as node:
        for server in one.servers:
            answer = await node.post(server.url + MESSAGES, data=b"x")
            assert answer.status == 403
            assert "user:node may not produce" in (await answer.json(content_type=None))["detail"]
