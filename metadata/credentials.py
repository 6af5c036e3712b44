"""Our credentials for ZooKeeper: a user and a password, in a file that holds nothing else.

It is a file because a password in a URL or an argument would appear in logs, in messages and in the
list of processes. It is read once, at the start.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from octavo.metadata.store import BadMetadataCredentials

_FORM = "it holds one line, user:password"


class Credentials(NamedTuple):
    """For ZooKeeper's digest authentication."""

    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, …)"


def read_credentials(path: str) -> Credentials:
    """Read the file `path`. Raises `BadMetadataCredentials`, which never shows the contents."""
    try:
        text = Path(path).read_text()
    except OSError as error:
        raise BadMetadataCredentials(
            f"credentials file {path}: {error.strerror}; {_FORM}"
        ) from None
    except UnicodeDecodeError:
        raise BadMetadataCredentials(f"credentials file {path} is not UTF-8; {_FORM}") from None
    line = text.removesuffix("\n").removesuffix("\r")
    user, colon, password = line.partition(":")
    if not (user and colon and password) or "\n" in line:
        raise BadMetadataCredentials(f"credentials file {path} has another form: {_FORM}")
    return Credentials(user, password)
