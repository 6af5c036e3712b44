"""A port with TLS: which clients get in, which do not, and both sides' messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from octavo.tls.contexts import Certificates, client_context
from octavo.tls.listening import TlsListener, plain_http
from octavo.tls.words import CUT_OFF, why
from tests.support.certificates import certificates, make, make_long_ago, renew
from tests.support.raw_bookie import on_both_loops, until

event_loop_policy = on_both_loops
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Echo(asyncio.Protocol):
    """Returns what comes."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


@contextlib.asynccontextmanager
async def echoing(held: Certificates) -> AsyncIterator[TlsListener]:
    listener = await TlsListener.bind("127.0.0.1", 0, held)
    await listener.serve(Echo, plain_http(held, Echo))
    try:
        yield listener
    finally:
        listener.close()
        await asyncio.gather(*listener._accepting, *listener._shaking, return_exceptions=True)


async def say(
    port: int, context: ssl.SSLContext | None, data: bytes = b"hello", **how: Any
) -> bytes:
    """Return the answer; raises the error of `open_connection` or of the read."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, **how)
        try:
            writer.write(data)
            return await reader.readuntil(data[-1:])
        finally:
            writer.close()


async def refused(held: Certificates, context: ssl.SSLContext, **how: Any) -> tuple[str, list[str]]:
    """Return why the client fails to talk to such a port, and the port's log about it."""
    async with echoing(held) as listener:
        with capture_logs() as logs:
            with pytest.raises((OSError, asyncio.IncompleteReadError)) as caught:
                await say(listener.port, context, **how)
            told = [one for one in logs if one["event"] == "tls_refused"]
            if not told:  # the other side's message may still be on its way
                with contextlib.suppress(TimeoutError):
                    await until(lambda: [o for o in logs if o["event"] == "tls_refused"], 0.5)
        told = [one for one in logs if one["event"] == "tls_refused"]
        assert all(one["peer"].startswith("127.0.0.1:") for one in told)
        return why(caught.value), [str(one["reason"]) for one in told]


async def test_who_believes_the_ca_gets_in(tmp_path: Path) -> None:
    held = certificates(tmp_path)
    async with echoing(held) as listener:
        assert await say(listener.port, held.client) == b"hello"
        assert await say(listener.port, held.client, server_hostname="localhost") == b"hello"


async def test_who_shows_a_certificate_gets_in_where_one_is_asked_for(tmp_path: Path) -> None:
    held = certificates(tmp_path, mutual=True)
    alice = make(tmp_path, "alice", "alice")
    shown = client_context(
        ca=f"{tmp_path}/ca.pem", certificate=str(alice.certificate), key=str(alice.key)
    )
    async with echoing(held) as listener:
        assert await say(listener.port, shown) == b"hello"


async def test_another_ca(tmp_path: Path) -> None:
    make(tmp_path / "other")
    here, there = await refused(
        certificates(tmp_path / "own"), client_context(ca=f"{tmp_path}/other/ca.pem")
    )
    assert "the CA of its certificate is not trusted here" in here
    assert "name the CA that signed it" in here
    # curl would say why it leaves, and asyncio's clients do not.
    assert there in ([], ["the client disconnected"])


async def test_another_name(tmp_path: Path) -> None:
    held = certificates(tmp_path)
    assert held.client
    here, _ = await refused(held, held.client, server_hostname="broker.example")
    assert "its certificate is for other names" in here
    assert "broker.example" in here
    make(tmp_path, "named", "only.example")
    named = certificates(tmp_path, "named")
    here, _ = await refused(named, held.client)
    assert "127.0.0.1" in here


async def test_expired(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_long_ago(monkeypatch, tmp_path, "old")
    held = certificates(tmp_path, "old")
    assert held.client
    here, _ = await refused(held, held.client)
    assert "has expired" in here


async def test_no_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    held = certificates(tmp_path, mutual=True)
    _, there = await refused(held, client_context(ca=f"{tmp_path}/ca.pem"))
    [said] = there
    assert "it shows no certificate" in said
    assert "tls.mutual" in said
    assert "certificate and key" in CUT_OFF


async def test_a_certificate_of_another_ca_and_an_expired_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = certificates(tmp_path, mutual=True)
    stranger = make(tmp_path / "other", "stranger", "stranger")
    old = make_long_ago(monkeypatch, tmp_path, "old")
    for made, word in ((stranger, "is not trusted here"), (old, "has expired")):
        shown = client_context(
            ca=f"{tmp_path}/ca.pem", certificate=str(made.certificate), key=str(made.key)
        )
        _, there = await refused(held, shown)
        [said] = there
        assert word in said


async def test_only_tls_1_3_where_that_is_said(tmp_path: Path) -> None:
    held = certificates(tmp_path, minimum_version="1.3")
    old = client_context(ca=f"{tmp_path}/ca.pem")
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    _, there = await refused(held, old)
    [said] = there
    assert "no TLS version that is allowed" in said


async def test_http_without_tls_is_told_to_use_https(tmp_path: Path) -> None:
    held = certificates(tmp_path)
    async with echoing(held) as listener:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(REQUEST)
            async with asyncio.timeout(10):
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
        assert head.startswith(b"HTTP/1.1 400 ")
        assert json.loads(body)["code"] == "tls-required"
        assert "https://" in json.loads(body)["detail"]
        assert [one["event"] for one in logs] == ["tls_refused"]
        assert await say(listener.port, held.client) == b"hello"


async def test_both_are_taken_during_a_change_over(tmp_path: Path) -> None:
    held = certificates(tmp_path, plain_allowed=True)
    async with echoing(held) as listener:
        assert await say(listener.port, held.client) == b"hello"
        assert await say(listener.port, None) == b"hello"


async def test_new_files_are_for_new_connections(tmp_path: Path) -> None:
    held = certificates(tmp_path)
    assert held.client
    async with echoing(held) as listener:
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, ssl=held.client)
        first = writer.get_extra_info("ssl_object").getpeercert()["serialNumber"]
        renew(tmp_path)
        assert held.refresh()
        other, writer2 = await asyncio.open_connection("127.0.0.1", listener.port, ssl=held.client)
        assert writer2.get_extra_info("ssl_object").getpeercert()["serialNumber"] != first
        for one, out in ((reader, writer), (other, writer2)):
            out.write(b"still")
            assert await one.readexactly(5) == b"still"
            out.close()


async def test_who_says_nothing_and_who_stops_half_way_are_cut_off(tmp_path: Path) -> None:
    held = certificates(tmp_path, handshake_timeout_ms=200)
    async with echoing(held) as listener:
        for data in (b"", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(data)
            async with asyncio.timeout(5):
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        await until(lambda: not listener._shaking)


async def test_many_that_say_nothing_keep_nobody_out(tmp_path: Path) -> None:
    held = certificates(tmp_path, handshakes_max=4)
    async with echoing(held) as listener:
        silent = [await asyncio.open_connection("127.0.0.1", listener.port) for _ in range(12)]
        await until(lambda: len(listener._shaking) == 4)
        with capture_logs() as logs:
            assert await say(listener.port, held.client) == b"hello"
        assert "handshakes_pushed_out" in {one["event"] for one in logs}
        assert len(listener._shaking) <= 4
        for _, writer in silent:
            writer.close()


async def test_a_port_in_use_is_no_port(tmp_path: Path) -> None:
    held = certificates(tmp_path)
    async with echoing(held) as listener:
        with pytest.raises(OSError, match="in use"):
            await TlsListener.bind("127.0.0.1", listener.port, held)


async def test_garbage_behind_the_first_byte_of_tls_ends_that_connection_alone(
    tmp_path: Path,
) -> None:
    held = certificates(tmp_path)
    async with echoing(held) as listener:
        with capture_logs() as logs:
            reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
            writer.write(b"\x16" + b"garbage" * 100)
            async with asyncio.timeout(10):
                with contextlib.suppress(ConnectionResetError):
                    await reader.read()
            writer.close()
            await until(lambda: not listener._shaking)
        assert [one["event"] for one in logs] == ["tls_refused"]
        assert await say(listener.port, held.client) == b"hello"
