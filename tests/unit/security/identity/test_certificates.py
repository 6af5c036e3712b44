"""The identity in a certificate, by each setting; and revocation lists."""

from __future__ import annotations

import pytest
from cryptography.x509.oid import NameOID
from hypothesis import example, given
from hypothesis import strategies as st

from octavo.security.identity.certificates import identity_of, parse_revoked
from octavo.security.principal import Unauthenticated
from octavo.security.settings import SecurityError
from tests.support.identities import NOW_S, certificate, revocation_list

NONE: frozenset[int] = frozenset()
DER = certificate()
ORGANIZATION = (NameOID.ORGANIZATION_NAME, "Acme, Inc")


def name(der: bytes, kind: str = "cn") -> str:
    return identity_of(der, kind, NONE).name


def test_each_setting_names_the_owner_by_another_part():
    der = certificate(ORGANIZATION, cn="bob", uris=("spiffe://acme/ns/a/sa/b",))
    assert name(der, "cn") == "user:bob"
    assert name(der, "dn") == "user:CN=bob,O=Acme\\,%20Inc"
    assert name(der, "uri") == "user:spiffe://acme/ns/a/sa/b"
    found = identity_of(der, "cn", NONE)
    assert (found.source, found.expires_at_s) == ("certificate", NOW_S + 86_400)


@pytest.mark.parametrize(
    ("cn", "safe"),
    [("Ann Lee", "Ann%20Lee"), ("Ann%20Lee", "Ann%2520Lee"), ("José", "José"), ("a\nb", "a%0Ab")],
)
def test_no_two_names_are_the_same_principal(cn, safe):
    assert name(certificate(cn=cn)) == f"user:{safe}"


@pytest.mark.parametrize(
    ("kind", "der"),
    [
        ("cn", certificate(ORGANIZATION, cn=None)),
        ("cn", certificate((NameOID.COMMON_NAME, "admin"), cn="bob")),
        ("cn", certificate(cn="*")),
        ("uri", certificate()),
        ("uri", certificate(uris=("https://acme/a",))),
        ("uri", certificate(uris=("spiffe://acme/a", "spiffe://acme/b"))),
        ("dn", certificate(*[(NameOID.ORGANIZATIONAL_UNIT_NAME, "x" * 60)] * 5)),
    ],
    ids=("no-cn", "two-cns", "any", "no-uri", "https", "two-uris", "long"),  # keys are drawn
)
def test_a_certificate_that_names_nobody_or_several(kind, der):
    with pytest.raises(Unauthenticated, match="certificate"):
        name(der, kind)


@given(st.binary(max_size=60))
def test_whatever_is_no_certificate_is_refused_in_words(data):
    with pytest.raises(Unauthenticated, match="cannot be read"):
        name(data)


@example(at=14, by=128)  # its serial number is negative
@given(st.integers(0, len(DER) - 1), st.integers(1, 255))
def test_a_damaged_certificate_is_read_or_refused_in_words(at, by):
    der = bytearray(DER)
    der[at] ^= by
    for kind in ("cn", "dn", "uri"):
        try:
            name(bytes(der), kind)
        except Unauthenticated:
            pass


def test_revoked_serial_numbers():
    assert parse_revoked(b"") == NONE
    assert parse_revoked(b"# none\n\n") == NONE
    assert parse_revoked(b"07\n0xff # stolen\n0A:0B\n") == {7, 255, 0x0A0B}
    assert parse_revoked(revocation_list(5, 7)) == {5, 7}
    with pytest.raises(Unauthenticated, match="revoked"):
        identity_of(certificate(serial=7), "cn", frozenset({7}))


@pytest.mark.parametrize("data", [b"serial=07", b"0x", b":", b"07 08", b"\xff", b"f" * 60,
                                  b"-----BEGIN X509 CRL-----\nx"])  # fmt: skip
def test_a_list_that_is_none_is_refused(data):
    with pytest.raises(SecurityError):
        parse_revoked(data)
