"""Settings of security: one group, shared by all processes of a cluster."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from octavo.protocol.bounds import beyond_bounds, bounded
from octavo.protocol.codes import OctavoError, Scope

CERTIFICATE_PRINCIPALS = ("cn", "dn", "uri")


class SecurityError(OctavoError):
    """The message says which setting or file, and what would be right."""

    name = "security"
    scope = Scope.PROCESS


@dataclass(frozen=True, slots=True, kw_only=True)
class SecurityConfig:
    """The defaults accept the cluster's own tokens, users and certificates.

    Access rules are not settings: they are in the metadata store (`octavo acl`).
    """

    required: bool = False
    """Serve only a secured cluster (`octavo security secure`)."""
    certificate_principal: str = "cn"
    """What names the user: `cn` (common name), `dn` (whole subject) or `uri` (SPIFFE id)."""
    revoked_file: str = ""
    """Revoked certificates: a CRL (PEM), or one serial number a line."""
    api_keys_file: str = ""
    """API keys, one a line: `name:SHA-256 in hex`, then optionally `:group,group`."""
    jwt_issuer: str = ""
    """The issuer of foreign JWTs that are accepted: their claim `iss`."""
    jwt_audience: str = ""
    """The audience that foreign JWTs must name in their claim `aud`."""
    jwt_keys_file: str = ""
    """Public keys of the issuer: PEM, a JWK or a set of JWKs (JWKS)."""
    jwks_url: str = ""
    """The address of the issuer's JWKS; `https://`, or `http://` to this machine."""
    jwks_refresh_ms: int = 300_000
    """How often the JWKS is fetched again."""
    jwks_retry_ms: int = 10_000
    """The least time between fetches for an unknown key, which otherwise fetches at once."""
    jwt_principal_claim: str = "sub"
    """The claim that names the user."""
    jwt_groups_claim: str = "groups"
    """The claim that lists the user's groups."""
    files_reload_ms: int = 2_000
    """How often the files above are checked for changes."""
    password_checks_max: int = 2
    """Password checks that run at once, one thread each."""
    password_checks_waiting_max: int = bounded(64, 8)
    """Password checks that may wait; one address may take an eighth."""
    verified_max: int = 10_000
    """Verified proofs that are cached; the least recently used goes first."""
    failed_logins_max: int = 10_000
    """Pairs of address and user whose failed logins are remembered."""

    def __post_init__(self) -> None:
        if self.certificate_principal not in CERTIFICATE_PRINCIPALS:
            raise _bad(self, "certificate_principal", "use cn, dn or uri")
        keys = [name for name in ("jwt_keys_file", "jwks_url") if getattr(self, name)]
        if len(keys) == 2:
            raise _bad(self, "jwks_url", "give this or jwt_keys_file, not both")
        for name in ("jwt_issuer", "jwt_audience"):
            if keys and not getattr(self, name):
                raise SecurityError(
                    f"security setting {keys[0]} = {getattr(self, keys[0])!r}: give {name} too, "
                    "or tokens issued for other services would be accepted"
                )
            if getattr(self, name) and not keys:
                raise _bad(self, name, "give jwks_url or jwt_keys_file too")
        if self.jwt_issuer == "octavo":
            raise _bad(self, "jwt_issuer", "that is the issuer of the cluster's own tokens")
        if self.jwks_url and not _is_safe(self.jwks_url):
            raise _bad(self, "jwks_url", "use https://…, or http:// to this machine")
        for name in ("jwt_principal_claim", "jwt_groups_claim"):
            if not getattr(self, name):
                raise _bad(self, name, "name a claim")
        if wrong := beyond_bounds(self):
            raise _bad(self, wrong.name, f"use {wrong.bounds.least} or more")


def _is_safe(url: str) -> bool:
    """Return whether a third party on the network cannot change what is fetched."""
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
