"""The lists of what CAs have revoked, as `tls.crl` names them: checked when they are read.

OpenSSL looks into them at each handshake, and says no more than that it did not like one. So what
is wrong with a list, of which CA, and when it ends, is found out here, beforehand.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from octavo.tls.settings import TlsError

CRL_BYTES_MAX = 32 << 20
SOON_SHARE = 4
"""A list is told of in the last fourth of its life: some live for hours, others for a year."""
_ONE = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Revocations:
    """The lists of one file, as far as they have to be looked after."""

    ends_at: datetime | None
    """When the first of them ends; None when none does."""
    soon_at: datetime | None
    """From when on that is soon."""

    def ends_soon(self, now: datetime) -> bool:
        """Whether it is time to bring a newer one."""
        return self.soon_at is not None and now >= self.soon_at

    @classmethod
    def read(cls, path: str, ca: str, now: datetime) -> Revocations:
        """The lists of the file `path`, in PEM form; `ca`: the file of the CAs that are believed.

        Raises `TlsError`: which list it is, what is wrong with it, and what would do.
        """
        from cryptography import x509  # megabytes, for those who use TLS

        data = _content(path, "crl")
        if len(data) > CRL_BYTES_MAX:
            raise TlsError(
                f"crl {path} is longer than {CRL_BYTES_MAX >> 20} MiB: a CA takes certificates "
                "out of its list that have expired"
            )
        try:
            cas = x509.load_pem_x509_certificates(_content(ca, "ca"))
        except ValueError as error:
            raise TlsError(f"ca {ca} holds no certificate in PEM form ({error})") from error
        parts = _ONE.findall(data)
        if not parts:
            raise TlsError(
                f"crl {path} holds no CRL in PEM form: it begins with -----BEGIN X509 CRL-----, "
                "and `openssl crl -inform der -outform pem` makes one of the other form"
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
            except Exception as error:  # of a damaged one the library raises many things
                raise TlsError(f"crl {path} holds a CRL that cannot be read: {error!r}") from error
            which = f"crl {path}: the list of {issuer}"
            if not is_signed:
                raise TlsError(f"{which} is not signed by that CA, as {ca} has it")
            if ended is not None and ended <= now:
                raise TlsError(
                    f"{which} ended at {ended:%Y-%m-%d %H:%M} UTC: get a newer one of that CA. "
                    "With one that has ended no certificate of the CA is believed"
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
    """As much of it as is looked at."""
    try:
        with Path(path).open("rb") as file:
            return file.read(CRL_BYTES_MAX + 1)
    except OSError as error:
        raise TlsError(f"{what} {path} cannot be read: {error.strerror}") from error
