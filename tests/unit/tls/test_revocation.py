"""Revoked certificates get in nowhere; and faults of a list are reported."""

from __future__ import annotations

import asyncio
import json
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from octavo.cli.main import run
from octavo.tls import authority, contexts, revocation
from octavo.tls.authority import Authority
from octavo.tls.contexts import Certificates, client_context
from octavo.tls.revocation import Revocations
from octavo.tls.settings import TlsConfig, TlsError
from tests.support.certificates import certificates, config, make, renew
from tests.support.raw_bookie import on_both_loops
from tests.unit.tls.test_listening import echoing, refused, say

event_loop_policy = on_both_loops


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
