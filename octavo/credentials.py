"""Find the credentials and certificates of commands, in environment variables."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from octavo.protocol.codes import OctavoError
from octavo.tls.settings import TlsConfig

if TYPE_CHECKING:
    from octavo.tls.contexts import Certificates

VARIABLE = "OCTAVO_METADATA_CREDENTIALS_FILE"
"""Also sets `metadata_credentials_file` of long-running processes."""
TLS_PREFIX = "OCTAVO_TLS_"
TOKEN = "OCTAVO_TOKEN"
"""The token for brokers and for admin ports of bookies."""
TOKEN_FILE = "OCTAVO_TOKEN_FILE"


class TokenUnusable(OctavoError):
    name = "token-unusable"


def credentials_file() -> str:
    found = os.environ.get(VARIABLE, "")
    return os.path.abspath(found) if found else ""


def bearer() -> dict[str, str]:
    """Return the header with the environment's token, or no header. Raises `TokenUnusable`."""
    found, path = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
    if not found and path:
        try:
            with open(path) as file:
                found = file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise TokenUnusable(f"the file of the token, {path}, cannot be read: {error}") from None
    return shown(found)


def shown(token: str) -> dict[str, str]:
    token = token.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise TokenUnusable("the token is malformed: it must be printable ASCII without spaces")
    return {"Authorization": f"Bearer {token}"} if token else {}


def certificates() -> Certificates | None:
    """Return the certificates for connections to bookies, by `OCTAVO_TLS_…`; None without them.

    Raises `TlsError`, `SettingsError`.
    """
    if not any(name.startswith(TLS_PREFIX) for name in os.environ):
        return None
    from octavo.settings import load  # slow to import, and most commands need no TLS
    from octavo.tls.contexts import certificates_of

    return certificates_of(load(TlsConfig, "tls"))
