"""A look at an index without touching it: RocksDB, opened read-only over links to its files.

RocksDB writes its own log into the folder that it opens, read-only or not. So what is opened is a
folder of symbolic links, made in the system's folder for temporary files and removed by `close`.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable

from rocksdict import AccessType

from octavo.bookie.disk.damage import DamagedRead
from octavo.bookie.index.index import IndexRun, RocksIndex
from octavo.protocol.codes import BookieIOError

_NOT_LINKED = ("LOCK", "LOG", "IDENTITY", "rocksdict-config")
"""What RocksDB and its binding write at each start."""


class IndexView(RocksIndex):
    """Reads only. Raises `BookieIOError` when there is no index at `path`, or a damaged one."""

    def __init__(self, path: str) -> None:
        if not os.path.exists(f"{path}/CURRENT"):
            raise BookieIOError(f"{path} holds no index: there is no file CURRENT in it")
        self._links = tempfile.TemporaryDirectory(prefix="octavo-index-")
        try:
            for name in sorted(os.listdir(path)):
                if not name.startswith(_NOT_LINKED):
                    os.symlink(os.path.abspath(f"{path}/{name}"), f"{self._links.name}/{name}")
            super().__init__(self._links.name, AccessType.read_only())
        except BaseException as error:
            links = self._links.name
            self._links.cleanup()
            if isinstance(error, DamagedRead):
                message = str(error).replace(links, path)
                raise DamagedRead(message, error.damage._replace(path=path)) from error
            raise
        self._path = path

    def put(self, runs: Iterable[IndexRun], covered: tuple[int, int]) -> None:  # noqa: ARG002
        """Refused."""
        raise BookieIOError(f"index {self._path} is only looked at")

    def delete_ledger(self, ledger_id: int) -> None:  # noqa: ARG002
        """Refused."""
        raise BookieIOError(f"index {self._path} is only looked at")

    def flush(self) -> None:
        """Nothing was put."""

    def close(self) -> None:
        """Give it back."""
        super().close()
        self._links.cleanup()
