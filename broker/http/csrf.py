"""Decide which requests browsers may make, so that a foreign page cannot use its reader's access.

A browser sends a request's origin (`Origin`, `Sec-Fetch-Site`), which a page cannot change: a
change from another site is refused. A foreign name can point to this address (DNS rebinding), so
`Host` must be ours. Pure; modelled on Go's `CrossOriginProtection`.

Pages of `allowed_origins` may make every call, with credentials that they send themselves.
Credentials that the browser adds are never used: answers lack `Access-Control-Allow-Credentials`,
and cookies are not set.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, MutableMapping
from hashlib import sha256
from typing import Protocol
from urllib.parse import urlsplit

from octavo.broker.http.overview import STYLE
from octavo.broker.http.problems import Problem
from octavo.protocol.host_names import is_address, is_own, name_of

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_BROWSERS = "mozilla/"
"""Every browser's `User-Agent`; a page cannot change it without a preflight."""
_LEASED_TYPES = frozenset(
    ("*/*", "application/*", "application/json", "application/x-ndjson", "text/event-stream")
)
_OWN_SITES = frozenset(("same-origin", "none"))
"""`none`: a person typed the address."""

HSTS_S = 30 * 24 * 3600
"""A browser that loaded the page by TLS uses only TLS this long."""
PREFLIGHT_S = 600

PAGE_HEADERS: Mapping[str, str] = {
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; "
        f"style-src 'sha256-{b64encode(sha256(STYLE.encode()).digest()).decode()}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'"
PASSIVE_TYPES = frozenset(
    (
        "application/json",
        "application/problem+json",
        "application/x-ndjson",
        "application/octet-stream",
        "application/vnd.kafka.recordbatch.v2",
        "text/plain",
        "text/csv",
        "text/event-stream",
        "image/png",
        "image/jpeg",
        "image/gif",
        "image/webp",
    )
)
"""A browser shows these without running anything; others are downloaded."""
_PASSIVE_KINDS = ("audio/", "video/", "font/")


class Asked(Protocol):
    @property
    def method(self) -> str: ...

    @property
    def headers(self) -> Mapping[str, str]: ...

    @property
    def secure(self) -> bool: ...


def check_browser(
    method: str, headers: Mapping[str, str], hosts: Collection[str], origins: Collection[str]
) -> None:
    """Raise a 421 for a foreign `Host`, a 403 for a change by a foreign page."""
    host = headers.get("Host")
    if host is not None and not is_own(host, hosts):
        raise Problem(
            421,
            "unknown-host",
            f"this broker does not have the name {host[:100]!r}; if it should, add the name to the "
            "setting allowed_hosts (http section), or use the broker's IP address",
        )
    if method not in SAFE_METHODS:
        check_origin(headers, origins)


def check_origin(headers: Mapping[str, str], origins: Collection[str]) -> None:
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


def check_lease(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Raise a 403 when a browser makes a GET that leases messages, unless from our own page.

    A page without TLS loads pictures without `Origin` or `Sec-Fetch-Site`. So a browser must show
    that its page is ours, or send `Authorization`.
    """
    check_origin(headers, origins)
    if "Origin" in headers or "Sec-Fetch-Site" in headers or "Authorization" in headers:
        return
    accepted = {
        wish.partition(";")[0].strip().lower() for wish in headers.get("Accept", "*/*").split(",")
    }
    is_browser = (
        headers.get("User-Agent", "").lower().startswith(_BROWSERS)
        or "Accept-Language" in headers
        or "Referer" in headers
        or "text/html" in accepted
        or ("*/*" in accepted and accepted > _LEASED_TYPES & accepted)
    )
    if is_browser:
        raise Problem(
            403,
            "foreign-origin",
            "this call leases messages, and a browser that does not say which page asks (Origin, "
            "Sec-Fetch-Site) may not make it; a program that calls itself a browser can send "
            "Authorization, or another User-Agent",
        )


def preflight(
    method: str, headers: Mapping[str, str], origins: Collection[str]
) -> Mapping[str, str] | None:
    origin = headers.get("Origin")
    if (
        method != "OPTIONS"
        or "Access-Control-Request-Method" not in headers
        or origin is None
        or origin not in origins
    ):
        return None
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Methods": "GET, HEAD, POST, PUT, PATCH, DELETE",
        "Access-Control-Allow-Headers": "Authorization, *",  # `*` covers the others
        "Access-Control-Max-Age": str(PREFLIGHT_S),
        "Vary": "Origin",
        "Server": "octavo",
    }


def protect(
    answer: MutableMapping[str, str],
    request: Asked,
    origins: Collection[str],
) -> None:
    headers = request.headers
    answer["X-Content-Type-Options"] = "nosniff"
    is_safe = request.method in SAFE_METHODS
    if is_safe:  # answers to other methods are cached only if they say so
        answer.setdefault("Cache-Control", "no-store")
    if (
        request.secure
        and "Content-Security-Policy" in answer
        and _is_of_dns(headers.get("Host", ""))
    ):
        answer["Strict-Transport-Security"] = f"max-age={HSTS_S}"
    if is_safe:
        _disarm(answer)
    origin = headers.get("Origin")
    if origins and (origin is not None or is_safe):
        answer["Vary"] = "Origin"
        if origin is not None and origin in origins:
            answer["Access-Control-Allow-Origin"] = origin
            answer["Access-Control-Expose-Headers"] = "*"


def _disarm(answer: MutableMapping[str, str]) -> None:
    """Keep a browser from running stored content as a page of this site."""
    if "Content-Security-Policy" in answer:  # the status page
        return
    answer["Content-Security-Policy"] = SANDBOX
    kind = answer.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind and not (kind in PASSIVE_TYPES or kind.startswith(_PASSIVE_KINDS)):
        answer.setdefault("Content-Disposition", "attachment")


def _site_of(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""  # never our own site


def _is_of_dns(host: str) -> bool:
    """Return whether TLS may be required for a host: not for addresses or this machine's names."""
    name = name_of(host)
    return "." in name.strip(".") and not name.endswith(".localhost") and not is_address(name)
