"""Settings of TLS: one group, shared by bookies, brokers and their clients."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.bounds import beyond_bounds
from octavo.protocol.codes import OctavoError, Scope


class TlsError(OctavoError):
    """A TLS setting or file cannot be used. The message says which, and what would be right."""

    name = "tls"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """All settings of TLS. By default, nothing is encrypted."""

    certificate: str = ""
    """PEM file: certificate, then intermediate CAs. If set, every port speaks TLS."""
    key: str = ""
    """PEM file: the certificate's private key, without a passphrase."""
    ca: str = ""
    """PEM file: the trusted CAs. If set, connections to bookies and brokers use TLS."""
    crl: str = ""
    """PEM file: [revoked certificates](security.md#revoked-certificates), a list for each CA."""
    mutual: bool = False
    """Clients must show a certificate signed by `ca`."""
    minimum_version: str = "1.2"
    """`1.2` or `1.3`."""
    start_tls: bool = False
    """Ask bookies for TLS by BookKeeper's START_TLS; otherwise TLS begins with the first byte."""
    plain_allowed: bool = False
    """Ports also accept connections without TLS: for a migration, node by node."""
    reload_ms: int = 10_000
    """How often the files are checked for changes. New connections use the new files."""
    handshake_timeout_ms: int = 10_000
    """A connection that has not finished the handshake by then is closed."""
    handshakes_max: int = 256
    """Handshakes at a time of a port. A further connection waits, or replaces the oldest."""

    def __post_init__(self) -> None:
        for name, other in (("certificate", "key"), ("key", "certificate")):
            if getattr(self, name) and not getattr(self, other):
                raise TlsError(
                    f"tls setting {name} = {getattr(self, name)!r}: give {other} too, "
                    f"they belong together (`octavo certs` makes both)"
                )
        if self.certificate and not self.ca:
            raise TlsError(
                f"tls setting certificate = {self.certificate!r}: give ca too; bookies and brokers "
                "need it to check each other"
            )
        if self.crl and not self.ca:
            raise TlsError(
                f"tls setting crl = {self.crl!r}: give ca too, the CAs whose lists it holds"
            )
        if self.mutual and not self.certificate:
            raise TlsError("tls setting mutual = true: give certificate, key and ca too")
        if self.minimum_version not in ("1.2", "1.3"):
            raise TlsError(
                f"tls setting minimum_version = {self.minimum_version!r}: use 1.2 or 1.3"
            )
        if wrong := beyond_bounds(self):
            raise TlsError(
                f"tls setting {wrong.name} = {wrong.value}: use {wrong.bounds.least} or more"
            )

    def check_node(self) -> None:
        """Require a bookie or broker with `ca` to have a certificate, except during a migration.

        Raises `TlsError`.
        """
        if self.connects and not (self.serves or self.plain_allowed):
            raise TlsError(
                f"tls setting ca = {self.ca!r}: a node needs certificate and key too "
                "(`octavo certs` makes them)"
            )

    @property
    def serves(self) -> bool:
        return bool(self.certificate)

    @property
    def connects(self) -> bool:
        """Whether connections to bookies and brokers are TLS."""
        return bool(self.ca)
