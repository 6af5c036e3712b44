"""Change a record, and check or change its companion record in the same step.

With a companion, each call is a ZooKeeper transaction. Its result is the first record's, or the
error of the record that refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo import exceptions as zk

_OTHERS = (zk.RolledBackError, zk.RuntimeInconsistency)
"""Refused because another operation failed."""


def beside(client: Any, path: str | None) -> Any:
    """Pair each operation with the record at `path`, which includes the chroot."""
    return client if path is None else _Pair(client, path)


class _Pair:
    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path

    def create_async(self, path: str, value: bytes, *, ephemeral: bool, sequence: bool) -> Any:
        both = self._client.transaction()
        both.create(path, value, ephemeral=ephemeral, sequence=sequence)
        both.create(self._path, b"")
        return self._sent(both, lambda found: found[0])

    def set_async(self, path: str, value: bytes, *, version: int) -> Any:
        """Set the record if its companion exists."""
        both = self._client.transaction()
        both.check(self._path, -1)
        both.set_data(path, value, version)
        return self._sent(both, lambda found: found[1])

    def delete_async(self, path: str, *, version: int) -> Any:
        both = self._client.transaction()
        both.delete(path, version)
        both.delete(self._path)
        return self._sent(both, lambda found: found[0])

    def _sent(self, both: Any, pick: Callable[[list[Any]], Any]) -> Any:
        result = self._client.handler.async_result()

        def settle(done: Any) -> None:
            error, found = done.exception, done.value or []
            for one in found if error is None else ():
                if isinstance(one, Exception) and not isinstance(one, _OTHERS):
                    error = one
                    break
            if error is None:
                result.set(pick(found))
            else:
                result.set_exception(error)

        both.commit_async().rawlink(settle)
        return result
