"""The CAs that a client trusts and the credentials that it sends, from arguments or environment."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from octavo.client.errors import InvalidCall
from octavo.credentials import TokenUnusable, bearer, shown
from octavo.tls.settings import TlsError

if TYPE_CHECKING:
    import ssl

    import aiohttp

VARIABLES = ("OCTAVO_TLS_CA", "OCTAVO_TLS_CERTIFICATE", "OCTAVO_TLS_KEY")
"""Used when `ca_file`, `certificate` and `key` are all left out."""


def context_of(
    ca_file: str | None, certificate: str | None, key: str | None
) -> ssl.SSLContext | None:
    """Make the context for https:// URLs; None without files. Raises `InvalidCall`."""
    given = [one or "" for one in (ca_file, certificate, key)]
    if not any(given):
        given = [os.environ.get(name, "") for name in VARIABLES]
    if not any(given):
        return None
    from octavo.tls.contexts import client_context  # slow to import, and plain HTTP needs none

    try:
        return client_context(ca=given[0], certificate=given[1], key=given[2])
    except TlsError as error:
        raise InvalidCall(str(error)) from error


def proof_of(token: str | None) -> dict[str, str]:
    if not isinstance(token, str | None):
        raise InvalidCall(f"a token must be text, not {type(token).__name__}")
    try:
        return bearer() if token is None else shown(token)
    except TokenUnusable as error:
        raise InvalidCall(str(error)) from error


def connector() -> aiohttp.TCPConnector:
    import aiohttp  # slow to import

    found = context_of(None, None, None)
    return aiohttp.TCPConnector(ssl=True if found is None else found)
