"""Where commands that take a metadata URL and no settings find credentials and certificates."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from octavo.protocol.codes import OctavoError
from octavo.tls.settings import TlsConfig

if TYPE_CHECKING:
    from octavo.tls.contexts import Certificates

VARIABLE = "OCTAVO_METADATA_CREDENTIALS_FILE"
"""The variable of the setting `metadata_credentials_file` of long-running processes."""
TLS_PREFIX = "OCTAVO_TLS_"
TOKEN = "OCTAVO_TOKEN"
"""The token that is shown to brokers, and to the admin ports of bookies …"""
TOKEN_FILE = "OCTAVO_TOKEN_FILE"
"""… or the file that holds it, read each time."""


class TokenUnusable(OctavoError):
    """No token, where one is said to be."""

    name = "token-unusable"


def credentials_file() -> str:
    """The absolute path of the file; empty when none is set."""
    found = os.environ.get(VARIABLE, "")
    return os.path.abspath(found) if found else ""


def bearer() -> dict[str, str]:
    """The header that shows the token; none when there is no token. Raises `TokenUnusable`."""
    found, path = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    if not found and path:
        try:
            with open(path) as file:
                found = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenUnusable(f"the file of the token, {path}, cannot be read: {error}") from None
    return shown(found)


def shown(token: str) -> dict[str, str]:
    """The header that shows `token`; none for an empty one. Raises `TokenUnusable`."""
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise TokenUnusable("the token is none: it has spaces, or letters that no token has")
    return {"Authorization": f"Bearer {token}"} if token else {}


def certificates() -> Certificates | None:
    """How to connect to bookies, by the variables of the settings `tls`; None without any.

    Raises `TlsError`, `SettingsError`.
    """
    if not any(name.startswith(TLS_PREFIX) for name in os.environ):
        return None
    from octavo.settings import load  # of use to few, and slow to import
    from octavo.tls.contexts import certificates_of

    return certificates_of(load(TlsConfig, "tls"))
