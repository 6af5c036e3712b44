"""Name the user of a client's certificate, and tell whether the certificate was revoked.

The TLS handshake has verified it. Characters that a principal cannot hold are %-encoded, so that
different subjects never become the same principal.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from cryptography import x509
from cryptography.x509.oid import NameOID

from octavo.security.principal import (
    NAME_CHARS_MAX,
    Identity,
    Standing,
    Unauthenticated,
    is_principal_name,
)
from octavo.security.settings import SecurityError

REVOKED_MAX = 1_000_000
CERTIFICATE_MARK = "certificate:"
"""Begins a `Standing.mark`; the serial number follows."""
_SERIAL = re.compile(r"(?:0x)?([0-9a-fA-F:]{1,59})")
_UNFIT = re.compile(r"[^!-$&-~\xa1-\ud7ff]")


def identity_of(der: bytes, principal: str, revoked: frozenset[int]) -> Identity:
    try:
        certificate = x509.load_der_x509_certificate(der)
        if certificate.serial_number in revoked:
            raise Unauthenticated("the certificate was revoked")
        name = _NAMES[principal](certificate)
        ends_at_s = certificate.not_valid_after_utc.timestamp()
        mark = f"{CERTIFICATE_MARK}{_digits(certificate.serial_number)}"
    except Unauthenticated:
        raise
    except Exception as error:  # a damaged certificate raises many types, even KeyError
        raise Unauthenticated("the certificate cannot be read") from error
    if not is_principal_name(name):
        raise Unauthenticated(
            f"the certificate's {principal} is longer than {NAME_CHARS_MAX} characters, or empty"
        )
    return Identity(
        f"user:{name}", source="certificate", expires_at_s=ends_at_s, standing=Standing(mark=mark)
    )


def parse_revoked(data: bytes) -> frozenset[int]:
    """Parse a CRL in PEM form, or serial numbers in hex, one a line. Raises `SecurityError`.

    The CRL's signature is not checked: the file is trusted.
    """
    if b"-----BEGIN" in data:
        try:
            crl = x509.load_pem_x509_crl(data)
            return frozenset(one.serial_number for one in crl)
        except Exception as error:
            raise SecurityError(f"this is not a CRL in PEM form: {error!r}") from error
    found = set()
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _SERIAL.fullmatch(text)
        if match is None or not match[1].strip(":"):
            raise SecurityError(
                f"line {number} is not a serial number in hex, as `openssl x509 -serial` shows it"
            )
        found.add(int(match[1].replace(":", ""), 16))
        if len(found) > REVOKED_MAX:
            raise SecurityError(
                f"more than {REVOKED_MAX} serial numbers: remove expired certificates"
            )
    return frozenset(found)


def _common_name(certificate: x509.Certificate) -> str:
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1:
        raise Unauthenticated(f"the certificate has {len(names)} common names: it needs one")
    return _safe(names[0].value)


def _subject(certificate: x509.Certificate) -> str:
    return _safe(certificate.subject.rfc4514_string())


def _uri(certificate: x509.Certificate) -> str:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    if len(uris) != 1 or not uris[0].startswith("spiffe://"):
        raise Unauthenticated("the certificate has no single URI spiffe://…")
    return _safe(uris[0])


_NAMES = {"cn": _common_name, "dn": _subject, "uri": _uri}


def _safe(text: str | bytes) -> str:
    return _UNFIT.sub(lambda found: quote(found[0], safe=""), str(text))


def _digits(serial: int) -> str:
    return serial.to_bytes((serial.bit_length() + 7) // 8 or 1).hex()
