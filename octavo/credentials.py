"""Where commands that take a metadata URL and no settings find credentials and certificates."""

from __future__ import annotations

import os

from octavo.tls.contexts import Certificates, certificates_of
from octavo.tls.settings import TlsConfig

VARIABLE = "OCTAVO_METADATA_CREDENTIALS_FILE"
"""The variable of the setting `metadata_credentials_file` of long-running processes."""
TLS_PREFIX = "OCTAVO_TLS_"


def credentials_file() -> str:
    """The absolute path of the file; empty when none is set."""
    found = os.environ.get(VARIABLE, "")
    return os.path.abspath(found) if found else ""


def certificates() -> Certificates | None:
    """How to connect to bookies, by the variables of the settings `tls`; None without any.

    Raises `TlsError`, `SettingsError`.
    """
    if not any(name.startswith(TLS_PREFIX) for name in os.environ):
        return None
    from octavo.settings import load  # of use to few, and slow to import

    return certificates_of(load(TlsConfig, "tls"))
