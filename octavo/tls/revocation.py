"""Check the revocation lists of `tls.crl` when they are loaded.

OpenSSL's errors do not say what is wrong with a list: this module does, and when it ends.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from octavo.tls.settings import TlsError

CRL_BYTES_MAX = 32 << 20
SOON_SHARE = 4
"""Warn in the last quarter of a list's life: some lists live for hours, others for a year."""
_ONE = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Revocations:
    ends_at: datetime | None
    soon_at: datetime | None

    def ends_soon(self, now: datetime) -> bool:
        return self.soon_at is not None and now >= self.soon_at

    @classmethod
    def read(cls, path: str, ca: str, now: datetime) -> Revocations:
        """Read the lists; `ca` is the file of trusted CAs.

        Raises `TlsError`, which says which list is wrong, and why.
        """
        from cryptography import x509  # import late: it takes megabytes, and TLS is optional

        data = _content(path, "crl")
        if len(data) > CRL_BYTES_MAX:
            raise TlsError(
                f"crl {path} is longer than {CRL_BYTES_MAX >> 20} MiB: expired certificates need "
                "not be in it; ask the CA for a shorter list"
            )
        try:
            cas = x509.load_pem_x509_certificates(_content(ca, "ca"))
        except ValueError as error:
            raise TlsError(f"ca {ca} holds no certificate in PEM form ({error})") from error
        parts = _ONE.findall(data)
        if not parts:
            raise TlsError(
                f"crl {path} holds no CRL in PEM form: it begins with -----BEGIN X509 CRL-----; "
                "`openssl crl -inform der -outform pem` converts a list in DER form"
            )
        ends: list[tuple[datetime, datetime]] = []
        for part in parts:
            try:
                found = x509.load_pem_x509_crl(part)
                issuer = found.issuer.rfc4514_string()
                begun, ended = found.last_update_utc, found.next_update_utc
                signers = [one for one in cas if one.subject == found.issuer]
                is_signed = not signers or any(
                    found.is_signature_valid(one.public_key())  # type: ignore[arg-type]
                    for one in signers
                )
            except Exception as error:  # a damaged list raises many types
                raise TlsError(f"crl {path} holds a CRL that cannot be read: {error!r}") from error
            which = f"crl {path}: the list of {issuer}"
            if not is_signed:
                raise TlsError(f"{which} is not signed by the CA of that name in {ca}")
            if ended is not None and ended <= now:
                raise TlsError(
                    f"{which} ended at {ended:%Y-%m-%d %H:%M} UTC: get a newer list from that CA. "
                    "While it has ended, no certificate of the CA is accepted"
                )
            if begun > now:
                raise TlsError(
                    f"{which} begins at {begun:%Y-%m-%d %H:%M} UTC: a clock is wrong, here or at "
                    "the CA"
                )
            if ended is not None:
                ends.append((ended, ended - (ended - begun) / SOON_SHARE))
        if not ends:
            return cls(None, None)
        return cls(min(one for one, _ in ends), min(soon for _, soon in ends))


def _content(path: str, what: str) -> bytes:
    """Read the file, up to one byte more than is allowed."""
    try:
        with Path(path).open("rb") as file:
            return file.read(CRL_BYTES_MAX + 1)
    except OSError as error:
        raise TlsError(f"{what} {path} cannot be read: {error.strerror}") from error
