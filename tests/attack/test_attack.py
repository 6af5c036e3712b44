"""The short form of `make attack`."""

from __future__ import annotations

import asyncio
import ssl
from datetime import datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509.oid import NameOID

from octavo.broker.http.routes import ROUTES
from tests.attack.campaign import chosen, run
from tests.attack.secured import campaign as secured
from tests.attack.secured.attempts_doors import OPEN
from tests.attack.secured.attempts_ports import DOWNGRADES, shaken, weakened
from tests.attack.secured.world import SECURED
from tests.attack.world import ATTEMPTS


@pytest.mark.long
@pytest.mark.timeout(600)
def test_unruly_clients_do_no_harm(tmp_path: Path) -> None:
    # `make attack` judges the canary's pace on an idle machine; this test does not.
    outcomes = run(tmp_path / "data", chosen(short=True), lambda _: None, share=0.0)
    harmed = {one.attempt.name: one.problems for one in outcomes if one.problems}
    assert not harmed, harmed


@pytest.mark.long
@pytest.mark.timeout(600)
def test_nobody_gets_in_who_does_not_belong(tmp_path: Path) -> None:
    outcomes = secured.run(tmp_path / "data", secured.chosen(short=True), lambda _: None, share=0.0)
    harmed = {one.attempt.name: one.problems for one in outcomes if one.problems}
    assert not harmed, harmed


def test_there_are_many() -> None:
    assert len(ATTEMPTS) >= 150
    assert len(SECURED) >= 150


def test_every_call_is_tried_by_each_who_has_no_right_to_it() -> None:
    for route in ROUTES:
        doors = [name for name in SECURED if name.startswith("door: ")]
        wanted = [f"door: {route.method} {route.path}, {who}" for who in ("a stranger", "alice")]
        assert (route.name in OPEN) is not all(one in doors for one in wanted), route.name


def rsa_certificate(file: Path) -> Path:
    """Return an RSA certificate with its key, so that cipher suites with RSA can be agreed on
    too."""
    key = rsa.generate_private_key(65537, 2048)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "weak")])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime(2020, 1, 1))
        .not_valid_after(datetime(2100, 1, 1))
        .sign(key, SHA256())
    )
    file.write_bytes(
        made.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file


@pytest.mark.parametrize("name", DOWNGRADES)
async def test_a_downgrade_comes_in_where_the_server_is_weak(name: str, tmp_path: Path) -> None:
    """Otherwise the attempt would prove nothing about servers that refuse it."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.set_ciphers("ALL:COMPLEMENTOFALL:@SECLEVEL=0")
    server.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    server.load_cert_chain(rsa_certificate(tmp_path / "weak.pem"))
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    listening = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0, ssl=server)
    async with listening:
        address = listening.sockets[0].getsockname()
        assert await shaken(address, weakened(client, DOWNGRADES[name])), name
