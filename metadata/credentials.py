"""Our user and password for ZooKeeper, in a file, not in a URL that appears in logs."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from octavo.metadata.store import BadMetadataCredentials

_FORM = "it holds one line, user:password"


class Credentials(NamedTuple):
    user: str
    password: str

    def __repr__(self) -> str:
        return f"Credentials({self.user!r}, …)"


def read_credentials(path: str) -> Credentials:
    """Read the file. Raises `BadMetadataCredentials`, which never shows the contents."""
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
