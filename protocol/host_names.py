"""Check a server's host names against DNS rebinding. Pure.

A foreign host name can point at our address, so the `Host` header must have a name that no foreign
page can have.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[^\[\]@/?#\\\s]*\]|[^\[\]@/?#\\\s:]*)(:[0-9]*)?")
"""Libraries parse other forms in different ways."""


def name_of(host: str) -> str:
    """Return the host in lower case, without port; "no name." if there is none."""
    if not _HOST.fullmatch(host):
        return "no name."
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return "no name."


def is_own(host: str, names: Collection[str]) -> bool:
    """Whether it is an IP address, a name without a dot, or in `names`."""
    name = name_of(host)
    if "." not in name and ":" not in name:
        return True
    return name.endswith(".localhost") or name in names or is_address(name)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
