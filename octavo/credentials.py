"""Where commands that take a metadata URL and no settings find the credentials for it."""

from __future__ import annotations

import os

VARIABLE = "OCTAVO_METADATA_CREDENTIALS_FILE"
"""The variable of the setting `metadata_credentials_file` of long-running processes."""


def credentials_file() -> str:
    """The absolute path of the file; empty when none is set."""
    found = os.environ.get(VARIABLE, "")
    return os.path.abspath(found) if found else ""
