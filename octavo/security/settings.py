"""What may be set of security: one group, shared by all processes of a cluster."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo.protocol.codes import OctavoError, Scope

CERTIFICATE_PRINCIPALS = ("cn", "dn", "uri")


class SecurityError(OctavoError):
    """Settings or files of which no security can be made. The message says which, and what would
    do."""

    name = "security"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """All settings of security. None given: our own tokens, users and certificates are known.

    Who may do what is not here but in the metadata, where it is the same for all: `octavo acl`.
    """

    required: bool = False
    """Serve secured clusters only: do not start before the policy says that this is one
    (`octavo security secure`), and refuse all calls if it does not any more."""
    certificate_principal: str = "cn"
    """Who a client's certificate is: `cn` (the subject's common name), `dn` (the whole subject) or
    `uri` (its SPIFFE id)."""
    revoked_file: str = ""
    """Certificates that are believed no more: a CRL (PEM), or a serial number in each line."""
    api_keys_file: str = ""
    """API keys, one a line: `name:SHA-256 in hex`, and `:group,group` (`octavo user key`)."""
    jwt_issuer: str = ""
    """Who makes the foreign JWTs that are believed: their claim `iss`."""
    jwt_audience: str = ""
    """Whom foreign JWTs must be for: one of their claim `aud`."""
    jwt_keys_file: str = ""
    """Public keys of the issuer: PEM, a JWK or a set of them (JWKS)."""
    jwks_url: str = ""
    """Where the issuer has its JWKS; `https://`, or `http://` to this machine."""
    jwks_refresh_ms: int = 300_000
    """How often the JWKS is fetched again."""
    jwks_retry_ms: int = 10_000
    """For a key that is not known it is fetched at once, but no more often than this."""
    jwt_principal_claim: str = "sub"
    """The claim that names the user."""
    jwt_groups_claim: str = "groups"
    """The claim that lists the user's groups."""
    files_reload_ms: int = 2_000
    """How often it is looked whether the files above have changed. One that has is taken when it
    has stayed the same for so long."""
    password_checks_max: int = 2
    """Passwords that are checked at once, each by a thread: some ms of a core."""
    password_checks_waiting_max: int = 64
    """Passwords that wait for their check; an eighth of these from one address. One more is told
    to come again later."""
    verified_max: int = 10_000
    """Proofs that are remembered as verified; the one used longest ago is forgotten."""
    failed_logins_max: int = 10_000
    """Addresses, each with a user, of which failed logins are remembered."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense. Raises `SecurityError`."""
        if self.certificate_principal not in CERTIFICATE_PRINCIPALS:
            raise _bad(self, "certificate_principal", "use cn, dn or uri")
        keys = [name for name in ("jwt_keys_file", "jwks_url") if getattr(self, name)]
        if len(keys) == 2:
            raise _bad(self, "jwks_url", "give this or jwt_keys_file, not both")
        for name in ("jwt_issuer", "jwt_audience"):
            if keys and not getattr(self, name):
                raise SecurityError(
                    f"security setting {keys[0]} = {getattr(self, keys[0])!r}: give {name} too, "
                    "or tokens that were made for others would be taken"
                )
            if getattr(self, name) and not keys:
                raise _bad(self, name, "give jwks_url or jwt_keys_file too")
        if self.jwt_issuer == "octavo":
            raise _bad(self, "jwt_issuer", "that is the issuer of our own tokens")
        if self.jwks_url and not _is_safe(self.jwks_url):
            raise _bad(self, "jwks_url", "use https://…, or http:// to this machine")
        for name in ("jwt_principal_claim", "jwt_groups_claim"):
            if not getattr(self, name):
                raise _bad(self, name, "name a claim")
        for name in (
            *("jwks_refresh_ms", "jwks_retry_ms", "files_reload_ms", "password_checks_max"),
            *("verified_max", "failed_logins_max"),
        ):
            if getattr(self, name) < 1:
                raise _bad(self, name, "use 1 or more")
        if self.password_checks_waiting_max < 8:
            raise _bad(self, "password_checks_waiting_max", "use 8 or more")


def _is_safe(url: str) -> bool:
    """Whether nobody between can change what is fetched from there."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme != "http":
        return parts.scheme == "https" and bool(host)
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bad(config: SecurityConfig, name: str, remedy: str) -> SecurityError:
    return SecurityError(f"security setting {name} = {getattr(config, name)!r}: {remedy}")
