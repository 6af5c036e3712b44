"""What may be set of TLS: one group, shared by bookies, brokers and those who connect to them."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.protocol.codes import OctavoError, Scope


class TlsError(OctavoError):
    """Settings or files that no TLS can be made of. The message says which, and what would do."""

    name = "tls"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConfig:
    """All settings of TLS. None given: nothing is encrypted."""

    certificate: str = ""
    """PEM file: what this process shows, with the CAs between it and the root behind it. With it,
    every port of the process speaks TLS."""
    key: str = ""
    """PEM file: the certificate's private key, without a passphrase."""
    ca: str = ""
    """PEM file: the CAs whose certificates are believed. With it, every connection that the process
    makes to bookies and brokers is TLS."""
    crl: str = ""
    """PEM file: what the CAs have revoked, one list of each CA that signs certificates here. With
    it no certificate is believed that stands in its CA's list, or whose CA has none that is valid
    now."""
    mutual: bool = False
    """Whoever connects must show a certificate of `ca`."""
    minimum_version: str = "1.2"
    """`1.2` or `1.3`."""
    start_tls: bool = False
    """Bookies are asked for TLS by BookKeeper's START_TLS; else it is there from the first byte."""
    plain_allowed: bool = False
    """Ports take connections without TLS as well: for a change-over, node by node."""
    reload_ms: int = 10_000
    """How often it is looked whether the files have changed; new connections use the new ones."""
    handshake_timeout_ms: int = 10_000
    """Who has not begun TLS by then is cut off, and so is who has not ended its handshake then."""
    handshakes_max: int = 256
    """Connections of one port that have not ended their handshake. One more waits, or takes the
    place of the oldest, if that has had its for a second."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense. Raises `TlsError`."""
        for name, other in (("certificate", "key"), ("key", "certificate")):
            if getattr(self, name) and not getattr(self, other):
                raise TlsError(
                    f"tls setting {name} = {getattr(self, name)!r}: give {other} too, "
                    f"they belong together (`octavo certs` makes both)"
                )
        if self.certificate and not self.ca:
            raise TlsError(
                f"tls setting certificate = {self.certificate!r}: give ca too, for bookies and "
                "brokers check one another by it"
            )
        if self.crl and not self.ca:
            raise TlsError(
                f"tls setting crl = {self.crl!r}: give ca too, whose certificates it is about"
            )
        if self.mutual and not self.certificate:
            raise TlsError("tls setting mutual = true: give certificate, key and ca too")
        if self.minimum_version not in ("1.2", "1.3"):
            raise TlsError(
                f"tls setting minimum_version = {self.minimum_version!r}: use 1.2 or 1.3"
            )
        for name in ("reload_ms", "handshake_timeout_ms", "handshakes_max"):
            if getattr(self, name) < 1:
                raise TlsError(f"tls setting {name} = {getattr(self, name)}: use 1 or more")

    def check_node(self) -> None:
        """A bookie or broker shows a certificate or knows nothing of TLS, but for a change-over.
        Raises `TlsError`."""
        if self.connects and not (self.serves or self.plain_allowed):
            raise TlsError(
                f"tls setting ca = {self.ca!r}: a node needs certificate and key too "
                "(`octavo certs` makes them)"
            )

    @property
    def serves(self) -> bool:
        """Whether ports speak TLS."""
        return bool(self.certificate)

    @property
    def connects(self) -> bool:
        """Whether connections to bookies and brokers are TLS."""
        return bool(self.ca)
