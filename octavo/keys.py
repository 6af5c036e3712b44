"""Load the keys of namespaces, from a key file on this machine or from a key service's plug-in.

A key file has mode 0600 and is replaced as a whole, so that a removed key is gone from the disk.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from octavo.protocol.codes import OctavoError
from octavo.security.keys.config import KeysConfig
from octavo.security.keys.data_keys import DataKeys
from octavo.security.keys.errors import InvalidKeys, KeySourceUnavailable
from octavo.security.keys.key_file import FILE_BYTES_MAX
from octavo.security.keys.sources import FileKeys, KeyService, KeySource, ServiceKeys

VARIABLES = "OCTAVO_KEYS_"


def data_keys_of(config: KeysConfig) -> DataKeys | None:
    source = key_source(config)
    if source is None:
        return None
    return DataKeys(source, random_bytes=secrets.token_bytes, recheck_s=config.recheck_ms / 1000)


def keys_of_environment() -> DataKeys | None:
    """Make the keys of `OCTAVO_KEYS_…`, for commands and Spark jobs; None without such settings.

    Raises as `data_keys_of`, and `SettingsError`.
    """
    if not any(name.startswith(VARIABLES) for name in os.environ):
        return None
    from octavo.settings import load  # slow to import, and most commands need no keys

    return data_keys_of(load(KeysConfig, "keys"))


def key_source(config: KeysConfig) -> KeySource | None:
    if config.file:
        found = file_keys(Path(config.file))
        try:
            found.refresh()  # report a bad file at the start rather than at the first read
        except KeySourceUnavailable as error:
            raise InvalidKeys(str(error)) from error
        return found
    if config.service:
        return ServiceKeys(
            f"key service {config.service}", _made(config.service), config.timeout_ms / 1000
        )
    return None


def file_keys(path: Path) -> FileKeys:
    what = f"key file {path}"

    def look() -> object:
        with _told(what):
            found = os.stat(path)
            _check(what, found)
            return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino

    return FileKeys(what, look, lambda: read_text(path))


def read_text(path: Path) -> str:
    """Read a key file. Raises `KeySourceUnavailable`, also if other users may read it."""
    what = f"key file {path}"
    with _told(what), open(path, "rb") as file:
        _check(what, os.fstat(file.fileno()))
        data = file.read(FILE_BYTES_MAX + 1)
    try:
        if len(data) <= FILE_BYTES_MAX:
            return data.decode()
    except UnicodeDecodeError:
        pass
    raise KeySourceUnavailable(f"{what} must be UTF-8 text of at most {FILE_BYTES_MAX} bytes")


def change_text(path: Path, change: Callable[[str], str]) -> None:
    """Replace the file's text, or make the file. Raises `KeySourceUnavailable`."""
    what = f"key file {path}"
    text = change(read_text(path) if path.exists() else "")
    beside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    with _told(what):
        try:
            handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            os.rename(beside, path)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _check(what: str, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise KeySourceUnavailable(f"{what} must be a regular file")
    others = found.st_mode & 0o077
    if others:
        raise KeySourceUnavailable(
            f"{what} may be read or changed by other users than its owner (mode "
            f"{stat.S_IMODE(found.st_mode):04o}): chmod 600 it, and make new keys if others "
            "could have read it"
        )


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KeySourceUnavailable(f"{what} cannot be read or written: {error.strerror}") from error


def _made(setting: str) -> KeyService:
    module, _, factory = setting.partition(":")
    try:
        made: KeyService = getattr(importlib.import_module(module), factory)()
    except OctavoError:
        raise
    except Exception as error:
        # A plug-in's error text may contain its credentials: show only the error's type.
        raise InvalidKeys(
            f"keys setting service = {setting!r} cannot be made: {type(error).__name__}"
        ) from None
    for name in ("wrap", "unwrap"):
        if not callable(getattr(made, name, None)):
            raise InvalidKeys(
                f"keys setting service = {setting!r} makes a {type(made).__name__}, which has no "
                f"{name}(); see KeyService"
            )
    return made
