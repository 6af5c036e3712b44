"""A change of one record together with a look at, or a change of, the record beside it.

`beside` gives what has the three calls of a kazoo client that change a record. Without a second
path that is the client itself; with one each call is a transaction of ZooKeeper's, whose result is
that of the first record, or the error of whichever refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kazoo import exceptions as zk

_OTHERS = (zk.RolledBackError, zk.RuntimeInconsistency)
"""What operations say that were refused for the sake of another one."""


def beside(client: Any, path: str | None) -> Any:
    """Who makes the change; `path` as the client knows it."""
    return client if path is None else _Pair(client, path)


class _Pair:
    def __init__(self, client: Any, path: str) -> None:
        self._client = client
        self._path = path

    def create_async(self, path: str, value: bytes, *, ephemeral: bool, sequence: bool) -> Any:
        """Both are made."""
        both = self._client.transaction()
        both.create(path, value, ephemeral=ephemeral, sequence=sequence)
        both.create(self._path, b"")
        return self._sent(both, lambda found: found[0])

    def set_async(self, path: str, value: bytes, *, version: int) -> Any:
        """While the other one is there."""
        both = self._client.transaction()
        both.check(self._path, -1)
        both.set_data(path, value, version)
        return self._sent(both, lambda found: found[1])

    def delete_async(self, path: str, *, version: int) -> Any:
        """Both go."""
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
