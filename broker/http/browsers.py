"""Which requests a browser may make here, so that a foreign page cannot work through its reader.

A browser sends along who asks (`Origin`, `Sec-Fetch-Site`), and a page cannot change that. A call
that changes something is refused when it comes from another site; programs send neither header and
are not concerned. And since a foreign name may be made to point at this address (DNS rebinding),
`Host` must be a name that no foreign page can have. Pure; after Go's `CrossOriginProtection`.

A page of another site may see no answer, unless its site is named (`allowed_origins`): then it may
make any call, by CORS, with what it shows itself (`Authorization`). What the browser would add of
its own accord (a certificate, a password that was typed once) is never asked for: no answer has
`Access-Control-Allow-Credentials`. Nothing here sets a cookie.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Collection, Mapping, MutableMapping
from hashlib import sha256
from typing import Protocol
from urllib.parse import urlsplit

from octavo.broker.http.problems import Problem
from octavo.broker.http.status_page import STYLE
from octavo.protocol.host_names import is_address, is_own, name_of

SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))
_BROWSERS = "mozilla/"
"""How the `User-Agent` of every browser begins; a page cannot change it without asking first."""
_LEASED_TYPES = frozenset(
    ("*/*", "application/*", "application/json", "application/x-ndjson", "text/event-stream")
)
_OWN_SITES = frozenset(("same-origin", "none"))
"""`none`: a person typed the address."""

HSTS_S = 30 * 24 * 3600
"""So long a browser that has seen the page by TLS goes to no port of that name without it."""
PREFLIGHT_S = 600
"""So long a browser need not ask again whether a page of a named site may call."""

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
"""For what a browser may show: its own style sheet, and nothing that runs or is fetched."""


SANDBOX = "sandbox; default-src 'none'; frame-ancestors 'none'"
"""For everything else: a page of no site, without scripts, in nobody's frame."""
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
"""What a browser shows without running anything; all else it is to save, not to show."""
_PASSIVE_KINDS = ("audio/", "video/", "font/")


class Asked(Protocol):
    """What is looked at of a request."""

    @property
    def method(self) -> str:
        """As it was sent."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Of the request."""
        ...

    @property
    def secure(self) -> bool:
        """Whether it came by TLS."""
        ...


def check_browser(
    method: str, headers: Mapping[str, str], hosts: Collection[str], origins: Collection[str]
) -> None:
    """Raises a 421 for a foreign `Host`, and a 403 for a change that a foreign page asks for.

    `hosts` are names beyond those that are always allowed, `origins` sites such as
    `https://console.example.com` whose pages may call.
    """
    host = headers.get("Host")
    if host is not None and not is_own(host, hosts):
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


def check_lease(headers: Mapping[str, str], origins: Collection[str]) -> None:
    """Raises a 403 when a browser makes a GET that leases messages, and no page of ours asks.

    Where a page is not loaded by TLS, a picture's or a script's request to another site says
    neither `Origin` nor `Sec-Fetch-Site`. So a browser has to say that it is one of our own pages,
    or show something that such a request cannot have (`Authorization`).
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
    """The answer to a browser that asks whether a page of a named site may make a call: it may, any
    call that there is. None when that is not what is asked, or the site is not named."""
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
        "Access-Control-Allow-Headers": "Authorization, *",  # `*` is all but that one
        "Access-Control-Max-Age": str(PREFLIGHT_S),
        "Vary": "Origin",
        "Server": "octavo",
    }


def protect(
    answer: MutableMapping[str, str],
    request: Asked,
    origins: Collection[str],
) -> None:
    """Put into the head of an answer what a browser is to obey."""
    headers = request.headers
    answer["X-Content-Type-Options"] = "nosniff"
    is_safe = request.method in SAFE_METHODS
    if is_safe:  # the answer to any other one is kept by nobody, unless it says so
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
    """What users have stored is no page of this site: nothing in it runs, whatever its type."""
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
        return ""  # of nowhere that we could be


def _is_of_dns(host: str) -> bool:
    """Whether TLS alone may be demanded of that name: neither an address nor one of this machine,
    on which other servers have other ports."""
    name = name_of(host)
    return "." in name.strip(".") and not name.endswith(".localhost") and not is_address(name)
