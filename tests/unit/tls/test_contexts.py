"""TLS settings, the files behind them, and the effect of changed files."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from structlog.testing import capture_logs

from octavo.cli.main import run
from octavo.client.client import AsyncClient
from octavo.client.errors import InvalidCall
from octavo.tls.authority import Authority
from octavo.tls.contexts import Certificates, certificates_of, kept_fresh
from octavo.tls.settings import TlsConfig, TlsError
from tests.support.certificates import certificates, config, make, make_long_ago, renew
from tests.support.cluster import until


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"certificate": "a.pem"}, "give key too"),
        ({"key": "a.key", "ca": "ca.pem"}, "give certificate too"),
        ({"certificate": "a.pem", "key": "a.key"}, "give ca too"),
        ({"mutual": True}, "give certificate, key and ca"),
        ({"minimum_version": "1.1"}, "use 1.2 or 1.3"),
        ({"handshakes_max": 0}, "use 1 or more"),
        ({"reload_ms": 0}, "use 1 or more"),
    ],
)
def test_settings_that_make_no_sense(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TlsError, match=said):
        TlsConfig(**given)


def test_nothing_said_is_no_tls() -> None:
    assert certificates_of(TlsConfig()) is None


def broken(folder: Path, what: str) -> TlsConfig:
    good = config(folder)
    other = make(folder, "other")
    if what == "missing":
        return replace(good, certificate=f"{folder}/nowhere.pem")
    if what == "other key":
        return replace(good, key=str(other.key))
    if what == "no PEM":
        other.certificate.write_text("hello")
        return replace(good, certificate=str(other.certificate), key=str(other.key))
    if what == "passphrase":
        key = serialization.load_pem_private_key(other.key.read_bytes(), None)
        other.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
        return replace(good, certificate=str(other.certificate), key=str(other.key))
    (folder / "empty.pem").write_text("")
    return replace(good, ca=f"{folder}/empty.pem")


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("missing", "nowhere.pem cannot be read: No such file"),
        ("other key", "does not belong to certificate"),
        ("no PEM", "must be in PEM form"),
        ("passphrase", "the key has a passphrase"),
        ("ca", "empty.pem holds no certificate"),
    ],
)
def test_files_that_cannot_be_used_are_named(what: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TlsError, match=re.escape(said)):
        Certificates(broken(tmp_path, what))


def test_a_node_that_believes_and_shows_nothing_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path)
    monkeypatch.setenv("OCTAVO_TLS_CA", f"{tmp_path}/ca.pem")
    metadata = f"file://{tmp_path}/metadata.db"
    assert run(["broker", "--metadata", metadata, "--port", "0"]) == 2
    assert "a node needs certificate and key too" in capsys.readouterr().err


async def test_a_client_names_what_is_wrong_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidCall, match="cannot be read"):
        AsyncClient("https://127.0.0.1:1", ca_file=f"{tmp_path}/nowhere.pem")
    monkeypatch.setenv("OCTAVO_TLS_CA", f"{tmp_path}/nowhere.pem")
    with pytest.raises(InvalidCall, match="cannot be read"):
        AsyncClient("https://127.0.0.1:1")
    monkeypatch.setenv("OCTAVO_TLS_CA", str(make(tmp_path).certificate.parent / "ca.pem"))
    await AsyncClient("https://127.0.0.1:1").close()


def test_changed_files_are_taken_and_unusable_ones_are_not(tmp_path: Path) -> None:
    held = certificates(tmp_path)
    before = held.server, held.client
    assert not held.refresh()
    assert (held.server, held.client) == before
    key = (tmp_path / "node.key").read_bytes()
    (tmp_path / "node.key").write_bytes(key[:20])
    with capture_logs() as logs:
        assert not held.refresh()
        assert not held.refresh()
    assert [one["event"] for one in logs] == ["certificates_not_loaded"], "told once"
    assert (held.server, held.client) == before
    (tmp_path / "node.key").write_bytes(key)
    with capture_logs() as logs:
        assert held.refresh()
    assert [one["event"] for one in logs] == ["certificates_loaded"]
    assert held.server is not before[0]
    assert held.client is not before[1]


async def test_files_are_looked_at_by_themselves(tmp_path: Path) -> None:
    held = certificates(tmp_path, reload_ms=10)
    before = held.server
    async with kept_fresh(held):
        renew(tmp_path)
        await until(lambda: held.server is not before, "the new certificate is loaded")
    assert not [one for one in asyncio.all_tasks() if one.get_name() == "certificates"]


def test_a_certificate_that_ends_is_told_once_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_long_ago(monkeypatch, tmp_path, "old")
    held = certificates(tmp_path, "old")
    with capture_logs() as logs:
        held.refresh()
        held.refresh()
    assert [(one["event"], one["expired"]) for one in logs] == [("certificate_ends", True)]
    with capture_logs() as logs:
        certificates(tmp_path).refresh()
    assert not logs, "it has 30 days"


def names_of(path: Path) -> list[str]:
    found = x509.load_pem_x509_certificate(path.read_bytes())
    san = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(one.value) for one in san]


def test_one_command_makes_all_that_a_node_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "certs"
    assert run(["certs", "--dir", str(folder), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["ca_is_new"]
    assert {"localhost", "127.0.0.1", "::1"} <= set(said["names"])
    assert names_of(Path(said["certificate"])) == said["names"]
    assert {path.name for path in folder.iterdir()} == {"ca.pem", "ca.key", "node.pem", "node.key"}
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}
    made = Certificates(config(folder, mutual=True))
    assert made.server
    assert made.server.verify_mode is ssl.CERT_REQUIRED
    assert made.client
    assert made.client.check_hostname
    for context in (made.server, made.client):
        assert context.minimum_version is ssl.TLSVersion.TLSv1_2


def test_a_second_node_has_the_same_ca(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["certs", "--dir", str(tmp_path), "--name", "b1", "b1.example", "10.0.0.7"]) == 0
    ca = (tmp_path / "ca.pem").read_bytes()
    assert run(["certs", "--dir", str(tmp_path), "--name", "b2", "*.b2.example"]) == 0
    assert (tmp_path / "ca.pem").read_bytes() == ca
    assert names_of(tmp_path / "b1.pem") == ["b1.example", "10.0.0.7"]
    assert names_of(tmp_path / "b2.pem") == ["*.b2.example"]
    assert "b2.pem" in capsys.readouterr().out


def test_nothing_is_written_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert run(["certs", "--dir", str(tmp_path)]) == 2
    assert "is not overwritten" in capsys.readouterr().err
    (tmp_path / "node.pem").unlink()
    assert run(["certs", "--dir", str(tmp_path)]) == 2, "its key is there still"
    del before["node.pem"]
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["https://node.example"], "neither a host name nor an IP address"),
        (["node.example:8080"], "neither a host name nor an IP address"),
        ([""], "neither a host name nor an IP address"),
        (["--name", "../ca"], "cannot name a certificate's files"),
        (["--name", "ca"], "cannot name a certificate's files"),
    ],
)
def test_what_is_no_name_is_refused(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["certs", "--dir", str(tmp_path / "certs"), *arguments]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "certs" / "node.key").exists()


def test_half_a_ca_and_another_key_are_told(tmp_path: Path) -> None:
    make(tmp_path / "one")
    make(tmp_path / "two")
    key = tmp_path / "one" / "ca.key"
    key.write_bytes((tmp_path / "two" / "ca.key").read_bytes())
    with pytest.raises(TlsError, match="is not the key of"):
        Authority.opened(tmp_path / "one")
    key.write_text("nonsense")
    with pytest.raises(TlsError, match="not a CA made by"):
        Authority.opened(tmp_path / "one")
    key.unlink()
    with pytest.raises(TlsError, match=r"ca\.pem exists but .*ca\.key does not"):
        Authority.opened(tmp_path / "one")


def test_a_folder_that_cannot_be_made_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(["certs", "--dir", str(tmp_path / "file" / "certs")]) == 2
    assert "Not a directory" in capsys.readouterr().err
