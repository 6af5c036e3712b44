"""The answer to a request for a connection between brokers; no other call proves a broker."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from typing import Any

import pytest

from octavo.broker.operations import links
from octavo.broker.operations.frames import Frame, Kind, Seals, encode, keys_of
from octavo.broker.operations.kinds import Publish, encode_request
from octavo.broker.operations.remote import hello_of
from octavo.broker.operations.upgrade import (
    NONCE_HEADER,
    PROOF_HEADER,
    PROTOCOL,
    Upgrade,
    headers_of,
)
from octavo.broker.types import TopicName
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import ANONYMOUS
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.former_proofs import former_headers
from tests.support.http_api import until
from tests.support.memory_cluster import CALL_KEY, Running, running

ONE = "/v1/topics/public/one"
NAME = TopicName("public", "one").partition(0)
BATCH = build_batch([Record(None, b"stolen")])


def asked(target: str = "b0", **changes: str) -> Upgrade:
    """Return the request of broker b7, which is not there, for a connection."""
    return Upgrade("b7", target, secrets.token_hex(16))._replace(**changes)


class Peer:
    """A client that speaks as a broker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def to(cls, one: Running, headers: Mapping[str, str]) -> Peer:
        peer = cls(*await asyncio.open_connection("127.0.0.1", int(one.api.url.rpartition(":")[2])))
        lines = [f"{name}: {value}" for name, value in headers.items()]
        head = ["GET /v1/operations HTTP/1.1", "Host: x", "Connection: Upgrade", *lines, "", ""]
        peer.writer.write("\r\n".join(head).encode("utf-8", "surrogateescape"))
        return peer

    async def answer(self) -> tuple[int, dict[str, str]]:
        """Return the status and the headers, in lower case."""
        async with asyncio.timeout(30):
            head = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        named = (line.partition(": ") for line in lines if line)
        return int(first.split()[1]), {name.lower(): value for name, _, value in named}

    async def ended(self) -> bytes:
        """Return all that comes until the broker ends the connection."""
        try:
            async with asyncio.timeout(30):
                return await self.reader.read()
        except ConnectionError:
            return b""
        finally:
            self.writer.close()


async def refused(one: Running, headers: Mapping[str, str]) -> tuple[int, str]:
    """Return status and code of a refusal, after which the connection ends."""
    peer = await Peer.to(one, headers)
    status, named = await peer.answer()
    assert named["connection"] == "close"
    body = await peer.ended()
    return status, body.partition(b'"code":"')[2].partition(b'"')[0].decode()


async def test_a_broker_that_proves_itself_gets_its_connection(one: Running) -> None:
    peer = await Peer.to(one, headers_of(asked(), CALL_KEY))
    status, named = await peer.answer()
    assert (status, named["upgrade"]) == (101, PROTOCOL)
    peer.writer.close()


async def test_without_its_proof_there_is_none(one: Running) -> None:
    right = headers_of(asked(), CALL_KEY)
    for forged in (
        {}, {"Upgrade": PROTOCOL}, {"Upgrade": "websocket"},
        {**right, PROOF_HEADER: "0" * 64}, {**right, PROOF_HEADER: "\udcff"},
        {**right, NONCE_HEADER: "f" * 32}, headers_of(asked(), b"another key"),
        former_headers(CALL_KEY, "b7", "b0", "GET", "/v1/operations"),
    ):  # fmt: skip
        assert await refused(one, forged) == (403, "brokers-only"), forged


async def test_a_broker_of_another_version_hears_of_it(one: Running) -> None:
    """Whether or not it can prove anything that this version understands."""
    for sent in (
        headers_of(asked(protocol="octavo-operations/9"), CALL_KEY),
        {"Upgrade": "octavo-operations/4", **former_headers(CALL_KEY, "b7", "b0", "GET", "/")},
    ):
        peer = await Peer.to(one, sent)
        status, named = await peer.answer()
        assert (status, named["upgrade"]) == (426, PROTOCOL)
        await peer.ended()


async def test_a_connection_for_another_broker_is_refused(one: Running) -> None:
    """Another broker may have had this address before."""
    peer = await Peer.to(one, headers_of(asked("b9"), CALL_KEY))
    status, _ = await peer.answer()
    assert status == 503
    peer.writer.close()


async def test_a_recorded_request_is_refused(one: Running) -> None:
    recorded = headers_of(asked(), CALL_KEY)
    first = await Peer.to(one, recorded)
    assert (await first.answer())[0] == 101
    for _ in range(3):
        assert await refused(one, recorded) == (403, "brokers-only")
    first.writer.close()
    await until(lambda: not one.servers[0]._services.door._open)  # type: ignore[attr-defined]
    assert await refused(one, recorded) == (403, "brokers-only")


async def test_a_recorded_connection_asks_a_restarted_broker_for_nothing() -> None:
    """It knows no nonces; but its own nonce is another one, so no recorded frame fits."""
    upgrade = asked()
    sends = Seals(keys_of(CALL_KEY, "b7", "b0", (upgrade.nonce, "0" * 32)).asking, first_only=False)
    payload = encode_request(ANONYMOUS, "", Publish(NAME, [BATCH]))
    recorded = encode(Frame(Kind.HELLO, 0, hello_of("b7")), sends)
    recorded += encode(Frame(Kind.ASK, 1, payload, len(payload), 1000, 10_000), sends)
    async with running(1) as one:
        await one.api.put(ONE)
        peer = await Peer.to(one, headers_of(upgrade, CALL_KEY))
        assert (await peer.answer())[0] == 101
        peer.writer.write(recorded)
        await peer.ended()
        assert not await one.batches("public/one")


async def test_a_peer_that_sends_no_frame_loses_its_connection(
    one: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(links, "HELLO_TIMEOUT_S", 0.1)
    peer = await Peer.to(one, headers_of(asked(), CALL_KEY))
    assert (await peer.answer())[0] == 101
    await peer.ended()


async def test_a_reserved_place_is_for_a_broker_with_its_proof() -> None:
    async with running(1, connections_max=1, connections_reserved=2) as one:
        await one.api.get("/healthz")  # this connection takes the only ordinary place
        assert await refused(one, {"Upgrade": PROTOCOL}) == (403, "brokers-only")
        peer = await Peer.to(one, headers_of(asked(), CALL_KEY))
        assert (await peer.answer())[0] == 101
        peer.writer.close()


async def test_a_call_with_a_former_proof_is_an_ordinary_clients_call() -> None:
    """The broker checks the client's own credential, and sends the message to the owner."""
    authority = FakeAuthority()
    async with running(2, authority=authority, authenticator=FakeAuthenticator()) as two:
        await two.api.put(ONE)
        owner = await two.owner("public/one")
        at = next(
            number for number, server in enumerate(two.servers)
            if server._services.broker.broker_id != owner
        )  # fmt: skip
        path = f"{ONE}/messages"
        sent = former_headers(CALL_KEY, owner, f"b{at}", "POST", path, "user:root")
        headers: dict[str, Any] = {**sent, "Content-Type": "text/plain"}
        answer = await two.apis[at].post(path, b"x", headers=headers)
        assert answer.status == 200, "a believer says that it is not the owner"
        authority.secure("allow user:root all *")
        for who, status in (({}, 401), (as_user("mallory"), 403), (as_user("root"), 200)):
            answer = await two.apis[at].post(path, b"x", headers={**headers, **who})
            assert answer.status == status, (who, answer)
