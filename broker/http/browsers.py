"""Which requests a browser may make here, so that a foreign page cannot work through its reader.

A browser sends along who asks (`Origin`, `Sec-Fetch-Site`), and a page cannot change that. A call
that changes something is refused when it comes from another site; programs send neither header and
are not concerned. And since a foreign name may be made to point at this address (DNS rebinding),
`Host` must be a name that no foreign page can have. Pure; after Go's `CrossOriginProtection`.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Mapping
from urllib.parse import urlsplit

from octavo.broker.http.problems import Problem

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_OWN_SITES = frozenset(("same-origin", "none"))
"""`none`: a person typed the address."""

PAGE_HEADERS: Mapping[str, str] = {
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    ),
}
"""For what a browser may show."""


def check_browser(
    method: str, headers: Mapping[str, str], hosts: Collection[str], origins: Collection[str]
) -> None:
    """Raises a 421 for a foreign `Host`, and a 403 for a change that a foreign page asks for.

    `hosts` are names beyond those that are always allowed, `origins` sites such as
    `https://console.example.com` whose pages may call.
    """
    host = headers.get("Host")
    if host is not None and not _is_own(_name_of(host), hosts):
        raise Problem(
            421,
            "unknown-host",
            f"this broker does not go by the name {host[:100]!r}; if it should, add it to the "
            "setting allowed_hosts (http section), or use its IP address",
        )
    if method not in SAFE_METHODS:
        check_origin(headers, origins)


def check_origin(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Raises a 403 when a page of another site asks for what is not its to ask."""
    host = headers.get("Host")
    origin = headers.get("Origin")
    if origin is not None and origin in origins:
        return
    site = headers.get("Sec-Fetch-Site")
    foreign = (
        site not in _OWN_SITES
        if site is not None
        else origin is not None and _site_of(origin) != (host or "").lower()
    )
    if foreign:
        raise Problem(
            403,
            "foreign-origin",
            f"a page of {(origin or 'another site')[:100]!r} may not change anything here; if it "
            "should, add that origin to the setting allowed_origins (http section)",
        )


def _site_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""  # of nowhere that we could be


def _name_of(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return "no name."


def _is_own(name: str, hosts: Collection[str]) -> bool:
    if "." not in name and ":" not in name:
        return True  # localhost, or a name that only this network knows: no foreign page has one
    if name.endswith(".localhost") or name in hosts:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
