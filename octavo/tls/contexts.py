"""Make every `ssl.SSLContext` from `TlsConfig`, and again when the files change.

If the files cannot be used (half written, another certificate's key), the old contexts stay in use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from octavo.tls.revocation import Revocations
from octavo.tls.settings import TlsConfig, TlsError

log = structlog.get_logger()

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""For TLS 1.2: only ciphers with forward secrecy and authentication. All of TLS 1.3's have both."""
SOON = timedelta(days=14)
"""Warn this long before the certificate expires."""
TOLD_EVERY = timedelta(days=1)
"""Repeat the warning about a certificate this often."""

_Seen = tuple[tuple[int, int, int] | None, ...]


class Certificates:
    def __init__(self, config: TlsConfig) -> None:
        """Load the certificates. Raises `TlsError`, which names the file and the problem."""
        self.config = config
        self._seen = self._look()
        self._revoked = self._revocations()
        self.server, self.client = self._made()
        self._ends_at = self._end()
        self._told_at: datetime | None = None
        self._told_of_list: datetime | None = None
        self._failed: str | None = None

    @property
    def ends_at(self) -> datetime | None:
        return self._ends_at

    def refresh(self) -> bool:
        """Return whether the files had changed and were loaded."""
        seen = self._look()
        self._tell_of_end()
        if seen == self._seen:
            return False
        try:
            revoked, made, ends_at = self._revocations(), self._made(), self._end()
        except TlsError as error:
            if str(error) != self._failed:
                self._failed = str(error)
                log.warning("certificates_not_loaded", reason=str(error))
            return False
        (self.server, self.client), self._ends_at, self._revoked = made, ends_at, revoked
        self._seen, self._failed, self._told_at, self._told_of_list = seen, None, None, None
        log.info("certificates_loaded", ends_at=str(self._ends_at))
        self._tell_of_end()
        return True

    async def keep_fresh(self) -> None:
        while True:
            try:
                await asyncio.to_thread(self.refresh)
            except Exception as error:  # the old certificates stay in use
                log.error("certificates_not_loaded", reason=repr(error), exc_info=error)
            await asyncio.sleep(self.config.reload_ms / 1000)

    def _made(self) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        config = self.config
        return (
            server_context(config) if config.serves else None,
            client_context(
                ca=config.ca,
                certificate=config.certificate,
                key=config.key,
                crl=config.crl,
                minimum_version=config.minimum_version,
            )
            if config.connects
            else None,
        )

    def _look(self) -> _Seen:
        config = self.config
        names = (config.certificate, config.key, config.ca, config.crl)
        return tuple(_state_of(name) for name in names)

    def _end(self) -> datetime | None:
        return end_of(self.config.certificate) if self.config.serves else None

    def _revocations(self) -> Revocations | None:
        config = self.config
        return Revocations.read(config.crl, config.ca, datetime.now(UTC)) if config.crl else None

    def _tell_of_end(self) -> None:
        now = datetime.now(UTC)
        self._tell_of_list(now)
        if self._ends_at is None or self._ends_at - now > SOON:
            return
        if self._told_at is None or now - self._told_at >= TOLD_EVERY:
            self._told_at = now
            log.warning(
                "certificate_ends",
                path=self.config.certificate,
                ends_at=str(self._ends_at),
                expired=self._ends_at <= now,
            )

    def _tell_of_list(self, now: datetime) -> None:
        """Warn before the revocation list ends, and once it has: then all connections fail."""
        found, told = self._revoked, self._told_of_list
        if found is None or not found.ends_soon(now):
            return
        has_ended = found.ends_at is not None and found.ends_at <= now
        first_since = has_ended and told is not None and told < (found.ends_at or now)
        if told is None or first_since or now - told >= TOLD_EVERY:
            self._told_of_list = now
            log.warning(
                "crl_ends", path=self.config.crl, ends_at=str(found.ends_at), expired=has_ended
            )


@contextlib.asynccontextmanager
async def kept_fresh(certificates: Certificates | None) -> AsyncIterator[None]:
    if certificates is None:
        yield
        return
    task = asyncio.create_task(certificates.keep_fresh(), name="certificates")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def certificates_of(config: TlsConfig) -> Certificates | None:
    return Certificates(config) if config.serves or config.connects else None


def server_context(config: TlsConfig) -> ssl.SSLContext:
    context = _context(ssl.PROTOCOL_TLS_SERVER, config.minimum_version)
    _load_chain(context, config.certificate, config.key)
    if config.mutual:
        _load_ca(context, config.ca)
        _load_crl(context, config.crl)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(
    *,
    ca: str = "",
    certificate: str = "",
    key: str = "",
    crl: str = "",
    minimum_version: str = "1.2",
) -> ssl.SSLContext:
    """Return the context for connections; it checks the server's certificate and name.

    Without `ca`, the machine's own CAs are trusted. Raises `TlsError`.
    """
    context = _context(ssl.PROTOCOL_TLS_CLIENT, minimum_version)
    if ca:
        _load_ca(context, ca)
    else:
        context.load_default_certs()
    _load_crl(context, crl)
    if certificate or key:
        if not (certificate and key):
            raise TlsError("a certificate and its key belong together: give both, or neither")
        _load_chain(context, certificate, key)
    return context


def end_of(path: str) -> datetime:
    from cryptography import x509  # import late: it takes megabytes, and TLS is optional

    try:
        return x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
    except (OSError, ValueError) as error:
        raise TlsError(f"{path} holds no certificate in PEM form: {error}") from error


def _context(kind: int, minimum_version: str) -> ssl.SSLContext:
    context = ssl.SSLContext(kind)
    context.minimum_version = (
        ssl.TLSVersion.TLSv1_3 if minimum_version == "1.3" else ssl.TLSVersion.TLSv1_2
    )
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    return context


def _load_chain(context: ssl.SSLContext, certificate: str, key: str) -> None:
    _readable(certificate, "certificate")
    _readable(key, "key")
    try:
        context.load_cert_chain(certificate, key, password=_no_passphrase)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"key {key} does not belong to certificate {certificate}: give the two that were "
                "made together"
            ) from error
        raise TlsError(
            f"certificate {certificate} and key {key} cannot be used: both must be in PEM form, "
            f"the key without a passphrase ({error.reason or error})"
        ) from error


def _load_ca(context: ssl.SSLContext, ca: str) -> None:
    _readable(ca, "ca")
    try:
        context.load_verify_locations(ca)
    except ssl.SSLError as error:
        raise TlsError(f"ca {ca} holds no certificate in PEM form ({error.reason})") from error


def _load_crl(context: ssl.SSLContext, crl: str) -> None:
    """Check only the peer's certificate for revocation, not the CAs above it."""
    if not crl:
        return
    _readable(crl, "crl")
    try:
        context.load_verify_locations(crl)
    except ssl.SSLError as error:
        raise TlsError(f"crl {crl} holds no CRL in PEM form ({error.reason})") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _readable(path: str, what: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise TlsError(f"{what} {path} cannot be read: {error.strerror}") from error


def _no_passphrase() -> bytes:
    """Raise an error, where OpenSSL would prompt on the terminal."""
    raise TlsError("the key has a passphrase, which cannot be typed here: use a key without it")


def _state_of(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path) if path else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino) if found else None
