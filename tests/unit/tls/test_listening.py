"""A port with TLS: which clients get in, which do not, and both sides' messages."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from octavo.cli.main import run
from octavo.tls import authority, contexts, revocation
from octavo.tls.authority import Authority
from octavo.tls.contexts import Certificates, client_context
from octavo.tls.listening import TlsListener, plain_http
from octavo.tls.revocation import Revocations
from octavo.tls.settings import TlsConfig, TlsError
from octavo.tls.words import CUT_OFF, why
from tests.support.certificates import certificates, config, make, make_long_ago, renew
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


def revoke(folder: Path, *names: str, days: int = 30) -> str:
    """Write the CA's list with these certificates."""
    signed_by, _ = Authority.opened(folder)
    signed_by.revoke(names, days=days)
    return str(signed_by.revoked_file)


def joined(into: Path, *files: str) -> str:
    into.write_bytes(b"".join(Path(one).read_bytes() for one in files))
    return str(into)


def of_another_day(monkeypatch: pytest.MonkeyPatch, folder: Path, days: int) -> str:
    """Return a list made this many days from now, for one day."""
    now: datetime = authority._now()
    with monkeypatch.context() as patched:
        patched.setattr(authority, "_now", lambda: now + timedelta(days=days))
        return revoke(folder, "node", days=1)


def of_client(folder: Path, name: str) -> ssl.SSLContext:
    """Return the context of a client with that certificate."""
    if not (folder / f"{name}.pem").exists():
        make(folder, name, f"{name}.clients")
    return client_context(
        ca=f"{folder}/ca.pem", certificate=f"{folder}/{name}.pem", key=f"{folder}/{name}.key"
    )


async def test_a_client_whose_certificate_is_revoked(tmp_path: Path) -> None:
    alice, mallory = of_client(tmp_path, "alice"), of_client(tmp_path, "mallory")
    held = certificates(tmp_path, mutual=True, crl=revoke(tmp_path, "mallory"))
    async with echoing(held) as listener:
        assert await say(listener.port, alice) == b"hello"
    _, told = await refused(held, mallory)
    assert told == ["its certificate was revoked by its CA (tls.crl): it needs a new one"]


async def test_a_node_whose_certificate_is_revoked_is_not_believed(tmp_path: Path) -> None:
    make(tmp_path)
    held = certificates(tmp_path, crl=revoke(tmp_path, "node"))
    assert held.client
    said, _ = await refused(certificates(tmp_path), held.client)
    assert "was revoked by its CA" in said


async def test_a_new_list_counts_for_new_connections(tmp_path: Path) -> None:
    alice, mallory = of_client(tmp_path, "alice"), of_client(tmp_path, "mallory")
    make(tmp_path, "gone")
    held = certificates(tmp_path, mutual=True, crl=revoke(tmp_path, "gone"))
    async with echoing(held) as listener:
        assert await say(listener.port, mallory) == b"hello"
        revoke(tmp_path, "mallory")
        assert held.refresh()
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await say(listener.port, mallory)
        assert await say(listener.port, alice) == b"hello"


async def test_of_a_ca_without_a_list_nobody_is_believed(tmp_path: Path) -> None:
    """A revoked client could have removed the list."""
    make(tmp_path / "other")
    crl = revoke(tmp_path / "other", "node")
    alice = of_client(tmp_path / "own", "alice")
    both = joined(tmp_path / "both.pem", f"{tmp_path}/own/ca.pem", f"{tmp_path}/other/ca.pem")
    held = certificates(tmp_path / "own", mutual=True, ca=both, crl=crl)
    _, told = await refused(held, alice)
    assert told == [
        "tls.crl is set, but has no revocation list of its CA: add that CA's list to the file"
    ]
    make(tmp_path / "own", "gone")
    lists = joined(tmp_path / "lists.crl", crl, revoke(tmp_path / "own", "gone"))
    held = certificates(tmp_path / "own", mutual=True, ca=both, crl=lists)
    async with echoing(held) as listener:
        assert await say(listener.port, alice) == b"hello"


async def test_a_list_that_ends_while_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client is trusted any more, and the log and the refused client learn why."""
    alice = of_client(tmp_path, "alice")
    make(tmp_path)
    past = of_another_day(monkeypatch, tmp_path, -3)
    with monkeypatch.context() as patched:
        patched.setattr(revocation.Revocations, "read", lambda *_: Revocations(None, None))
        held = certificates(tmp_path, mutual=True, crl=past)
    _, told = await refused(held, alice)
    assert told == [
        "its CA's revocation list has ended, so no certificate of that CA is accepted here: "
        "put a newer list into tls.crl"
    ]


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (-3, r"the list of CN=Octavo development CA \d+ ended at .* UTC: get a newer list"),
        (3, r"begins at .* UTC: a clock is wrong"),
    ],
)
def test_a_list_that_is_not_of_now_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, said: str
) -> None:
    make(tmp_path)
    crl = of_another_day(monkeypatch, tmp_path, days)
    with pytest.raises(TlsError, match=said):
        certificates(tmp_path, crl=crl)


def test_a_list_that_ended_does_not_take_the_place_of_a_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    held = certificates(tmp_path, crl=revoke(tmp_path, "node"))
    before = held.server, held.client
    of_another_day(monkeypatch, tmp_path, -3)
    with capture_logs() as logs:
        assert not held.refresh()
    assert (held.server, held.client) == before
    assert [one["event"] for one in logs] == ["certificates_not_loaded"]
    assert "get a newer list" in logs[0]["reason"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no CRL in PEM form"),
        (b"hello", "holds no CRL in PEM form"),
        (
            b"-----BEGIN X509 CRL-----\naGVsbG8=\n-----END X509 CRL-----\n",
            "holds a CRL that cannot be read",
        ),
    ],
)
def test_what_is_no_list_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    make(tmp_path)
    (tmp_path / "x.crl").write_bytes(content)
    with pytest.raises(TlsError, match=f"crl {tmp_path}/x.crl {said}"):
        certificates(tmp_path, crl=f"{tmp_path}/x.crl")


def test_a_list_that_is_missing_or_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    with pytest.raises(TlsError, match=r"crl .*/nowhere.crl cannot be read"):
        certificates(tmp_path, crl=f"{tmp_path}/nowhere.crl")
    crl = revoke(tmp_path, "node")
    monkeypatch.setattr(revocation, "CRL_BYTES_MAX", 100)
    with pytest.raises(TlsError, match="is longer than"):
        certificates(tmp_path, crl=crl)


def test_a_list_that_another_signed_in_the_name_of_the_ca(tmp_path: Path) -> None:
    """It would let in what the CA has revoked."""
    make(tmp_path / "own")
    own = (tmp_path / "own" / "ca.pem").read_bytes()
    ca = x509.load_pem_x509_certificate(own)
    make(tmp_path / "forger")
    forger, _ = Authority.opened(tmp_path / "forger")
    forger._certificate = ca
    forger.revoke([], days=1)
    with pytest.raises(TlsError, match="is not signed by the CA"):
        certificates(tmp_path / "own", crl=str(forger.revoked_file))


def test_a_list_without_the_cas_that_it_is_about() -> None:
    with pytest.raises(TlsError, match="give ca too"):
        TlsConfig(crl="x.crl")


def test_the_end_of_a_list_is_told_beforehand_and_when_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path)
    held = Certificates(config(tmp_path, crl=revoke(tmp_path, "node", days=8)))
    now = datetime.now(UTC)

    def told(hours: float) -> list[bool]:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
                return now + timedelta(hours=hours)

        monkeypatch.setattr(contexts, "datetime", Clock)
        with capture_logs() as logs:
            assert not held.refresh()
        return [bool(one["expired"]) for one in logs if one["event"] == "crl_ends"]

    assert told(5 * 24) == []
    assert told(6.5 * 24) == [False]
    assert told(6.6 * 24) == [], "once a day"
    assert told(7.6 * 24) == [False]
    assert told(8.1 * 24) == [True], "at once"
    assert told(8.2 * 24) == []
    monkeypatch.undo()
    revoke(tmp_path, "node", days=30)
    assert held.refresh()
    assert told(8.3 * 24) == []


def test_certs_revokes_and_keeps_what_was_revoked_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        make(tmp_path, name)
    assert run(["certs", "--dir", str(tmp_path), "--revoke", "a", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "crl": f"{tmp_path}/ca.crl",
        "revoked": 1,
        "days": 365,
    }
    renew(tmp_path, "a")
    assert run(["certs", "--dir", str(tmp_path), "--revoke", "a", "--revoke", "b"]) == 0
    assert "3 revoked" in capsys.readouterr().out
    assert run(["certs", "--dir", str(tmp_path), "--revoke", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["revoked"] == 3, "renewed, with no one more"
    assert (tmp_path / "ca.crl").stat().st_mode & 0o777 == 0o600
    config(tmp_path, "a")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--revoke", "nobody"], "nobody.pem: No such file"),
        (["--revoke", "../a"], "not the name of a certificate"),
        (["--revoke", "ca"], "not the name of a certificate"),
        (["--revoke", "a", "a.example"], "--revoke makes no certificate"),
        (["--revoke", "a", "--dir", "nowhere"], "holds no CA: name the CA's folder"),
    ],
)
def test_what_cannot_be_revoked(
    tmp_path: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, "a")
    assert run(["certs", "--dir", str(tmp_path), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "ca.crl").exists()
