"""Check the host names of a server, so that foreign web pages cannot reach it. Pure.

An attacker can make a foreign host name point at our address (DNS rebinding); a browser then treats
this server as that site. So the `Host` header must have a name that no foreign page can have.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[^\[\]@/?#\\\s]*\]|[^\[\]@/?#\\\s:]*)(:[0-9]*)?")
"""The value of a `Host` header; libraries parse other forms in different ways."""


def name_of(host: str) -> str:
    """Return the name in a `Host` header, in lower case, without port; "no name." if there is
    none."""
    if not _HOST.fullmatch(host):
        return "no name."
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return "no name."


def is_own(host: str, names: Collection[str]) -> bool:
    """Whether a `Host` header is an IP address, a name without a dot, or one of `names`."""
    name = name_of(host)
    if "." not in name and ":" not in name:
        return True  # localhost, or a name in this network only: no foreign page has it
    return name.endswith(".localhost") or name in names or is_address(name)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
