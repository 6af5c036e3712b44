"""Open objects by URL or absolute path with pyarrow's file systems. Blocking.

They need pyarrow built with them, and the environment's credentials.
"""

from __future__ import annotations

from typing import Any

from octavo.ledger.errors import OffloadUnavailable


def file_system(url: str) -> tuple[Any, str]:
    """Return the URL's file system and the path in it. Raises `OffloadUnavailable`."""
    try:
        from pyarrow import fs
    except ImportError as error:
        raise OffloadUnavailable(
            f"{url}: offloaded ledgers need pyarrow, which is not installed: "
            "pip install 'octavo[offload]'"
        ) from error
    try:
        found: tuple[Any, str] = fs.FileSystem.from_uri(url)
    except (ValueError, OSError, NotImplementedError) as error:
        raise OffloadUnavailable(
            f"{url}: not a place for objects: {error}. Give an absolute path, or a URL such as "
            "s3://bucket/folder"
        ) from error
    return found


def joined(folder: str, *names: str) -> str:
    """Join names to the folder's URL; a query (`?region=…`) stays at the end."""
    base, mark, query = folder.partition("?")
    return "/".join((base.rstrip("/"), *names)) + mark + query


def open_object(url: str) -> Any:
    """Open an object for random reads. Raises `OffloadUnavailable`."""
    files, path = file_system(url)
    try:
        return files.open_input_file(path)
    except OSError as error:
        raise OffloadUnavailable(f"{url} cannot be read: {error}") from error
