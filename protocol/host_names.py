"""By which names a server may be called, so that no foreign page reaches it by its own. Pure.

A name of somebody else may be made to point at our address (DNS rebinding); a browser then takes
what is here for that site's. So `Host` must be a name that no foreign page can have.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from urllib.parse import urlsplit

_HOST = re.compile(r"(\[[^\[\]@/?#\\\s]*\]|[^\[\]@/?#\\\s:]*)(:[0-9]*)?")
"""Of what stands behind `Host:`, which libraries read in more ways than one."""


def name_of(host: str) -> str:
    """The name in a `Host` header, in small letters, without its port; for none "no name."."""
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
        return True  # localhost, or a name that only this network knows: no foreign page has one
    return name.endswith(".localhost") or name in names or is_address(name)


def is_address(name: str) -> bool:
    """Whether a name is an IP address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
