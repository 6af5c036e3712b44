"""A CA and node certificates for development: `octavo certs` and `octavo standalone` use it.

    folder/ca.pem, ca.key        made once, then reused
    folder/NAME.pem, NAME.key    a certificate with its names and addresses, signed by this CA
    folder/ca.crl                revoked certificates, if there are any

Files have mode 0600. The CA's key is in the same folder: not for data that must be kept safe.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from octavo.tls.settings import TlsError

CA_DAYS = 3650
CLOCKS_APART = timedelta(hours=1)
"""How long before its creation a certificate is valid: other machines' clocks may be behind."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_DNS = re.compile(
    r"(\*\.)?([A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?)(\.[A-Za-z0-9_-]{1,63})*"
)


class Made(NamedTuple):
    name: str
    certificate: Path
    key: Path
    names: tuple[str, ...]
    ends_at: datetime


class Authority:
    def __init__(
        self, folder: Path, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey
    ) -> None:
        self._folder = folder
        self._certificate = certificate
        self._key = key

    @property
    def file(self) -> Path:
        return self._folder / "ca.pem"

    @property
    def revoked_file(self) -> Path:
        return self._folder / "ca.crl"

    @classmethod
    def opened(cls, folder: Path) -> tuple[Authority, bool]:
        """Return the CA of a folder, and whether it was made just now. Raises `TlsError`."""
        certificate, key = folder / "ca.pem", folder / "ca.key"
        if certificate.exists() != key.exists():
            lost, there = (key, certificate) if certificate.exists() else (certificate, key)
            raise TlsError(f"{there} exists but {lost} does not: restore it, or use another folder")
        if certificate.exists():
            return cls(folder, *_read(certificate, key)), False
        with _telling(folder):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return cls(folder, *_make_ca(certificate, key)), True

    def issue(self, name: str, names: Sequence[str], *, days: int) -> Made:
        if not _NAME.fullmatch(name) or name == "ca":
            raise TlsError(
                f"{name!r} cannot name a certificate's files: use letters, digits, - _ and ., "
                "at most 64, and not ca"
            )
        found = [_general_name(one) for one in dict.fromkeys(names)]
        if not found:
            raise TlsError("a certificate needs at least a name or an address")
        certificate, key = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        for path in (certificate, key):
            if path.exists():
                raise TlsError(
                    f"{path} exists already, and is not overwritten: remove "
                    f"{name}.pem and {name}.key first, or give another --name"
                )
        made = ec.generate_private_key(ec.SECP256R1())
        ends_at = min(_now() + timedelta(days=days), self._certificate.not_valid_after_utc)
        signed = (
            _builder(_subject(name), self._certificate.subject, made.public_key(), ends_at)
            .add_extension(x509.SubjectAlternativeName(found), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage(
                    [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
                ),
                critical=False,
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        _write(key, _key_bytes(made))
        _write(certificate, signed.public_bytes(serialization.Encoding.PEM))
        return Made(name, certificate, key, tuple(names), signed.not_valid_after_utc)

    def revoke(self, names: Sequence[str], *, days: int) -> int:
        """Add the certificates of these names to the list, valid for `days`; return their number.

        Raises `TlsError`.
        """
        with _telling(self.revoked_file):
            builder = (
                x509.CertificateRevocationListBuilder()
                .issuer_name(self._certificate.subject)
                .last_update(_now() - CLOCKS_APART)
                .next_update(_now() + timedelta(days=days))
            )
            known: dict[int, x509.RevokedCertificate] = {}
            if self.revoked_file.exists():
                try:
                    before = x509.load_pem_x509_crl(self.revoked_file.read_bytes())
                    known = {one.serial_number: one for one in before}
                except ValueError as error:
                    raise TlsError(f"{self.revoked_file} is not a PEM CRL: {error}") from error
            for name in names:
                path = self._folder / f"{name}.pem"
                if not _NAME.fullmatch(name) or name == "ca":
                    raise TlsError(f"{name!r} is not the name of a certificate made here")
                try:
                    serial = x509.load_pem_x509_certificate(path.read_bytes()).serial_number
                except ValueError as error:
                    raise TlsError(f"{path} holds no certificate in PEM form: {error}") from error
                revoked = x509.RevokedCertificateBuilder().serial_number(serial)
                known.setdefault(serial, revoked.revocation_date(_now()).build())
            for one in known.values():
                builder = builder.add_revoked_certificate(one)
            signed = builder.sign(self._key, hashes.SHA256())
            # Replace the old list in a single step: a node must never read half a list.
            fresh = self.revoked_file.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            _write(fresh, signed.public_bytes(serialization.Encoding.PEM))
            fresh.replace(self.revoked_file)
        return len(known)


def own_names() -> list[str]:
    found = ["localhost", "127.0.0.1", "::1"]
    host = socket.gethostname()
    if _DNS.fullmatch(host):
        found.append(host)
    return list(dict.fromkeys(found))


def _make_ca(certificate: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    made = ec.generate_private_key(ec.SECP256R1())
    # The number tells this CA from others of the same name, made before or elsewhere.
    subject = _subject(f"Octavo development CA {x509.random_serial_number() % 10**8:08d}")
    signed = (
        _builder(subject, subject, made.public_key(), _now() + timedelta(days=CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(made.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                key_cert_sign=True,
                crl_sign=True,
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(made, hashes.SHA256())
    )
    _write(key, _key_bytes(made))
    _write(certificate, signed.public_bytes(serialization.Encoding.PEM))
    return signed, made


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    ends_at: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - CLOCKS_APART)
        .not_valid_after(ends_at)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        pass
    if not _DNS.fullmatch(name) or len(name) > 253:
        raise TlsError(
            f"{name!r} is neither a host name nor an IP address: write it as in a client's URL, "
            "without http:// and port"
        )
    return x509.DNSName(name)


def _read(certificate: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    with _telling(certificate.parent):
        try:
            found = x509.load_pem_x509_certificate(certificate.read_bytes())
            private = serialization.load_pem_private_key(key.read_bytes(), None)
        except (ValueError, TypeError) as error:
            raise TlsError(
                f"{certificate} and {key} are not a CA made by `octavo certs`: {error}"
            ) from error
    if not isinstance(private, ec.EllipticCurvePrivateKey) or (
        private.public_key() != found.public_key()
    ):
        raise TlsError(f"{key} is not the key of {certificate}: use another folder")
    return found, private


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _write(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read. Raises `TlsError`, also if it exists."""
    with _telling(path):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(content)


@contextlib.contextmanager
def _telling(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TlsError(f"{error.filename or path}: {error.strerror}") from error


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
