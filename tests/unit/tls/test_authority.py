"""`octavo certs`: its files, their permissions, and what is refused."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from octavo.cli.main import run
from octavo.tls.authority import Authority
from octavo.tls.contexts import Certificates
from octavo.tls.settings import TlsError
from tests.support.certificates import config, make


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
