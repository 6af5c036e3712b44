"""Key sources: they hold the keys of namespaces, and wrap and unwrap data keys."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from octavo.protocol.encrypted import KEY_BYTES
from octavo.security.keys.errors import InvalidKeys, KeyMissing, KeySourceUnavailable
from octavo.security.keys.key_file import NamespaceKey, parse
from octavo.security.keys.wrapped import KEY_ID_RULE, WRAPPED_BYTES_MAX, Wrapped, is_key_id

T = TypeVar("T")
_AT_ONCE = 8
"""The most calls to a key service at the same time."""


class KeySource(ABC):
    """Caches nothing: `DataKeys` does that."""

    @abstractmethod
    async def wrap(self, namespace: str, data_key: bytes) -> Wrapped:
        """Wrap with the namespace's current key. Raises `KeyMissing`, `KeySourceUnavailable`."""

    @abstractmethod
    async def unwrap(self, wrapped: Wrapped) -> bytes:
        """Raises `KeyMissing`, `KeySourceUnavailable`."""


class FileKeys(KeySource):
    """A key file, read again after a change; wraps with AES-KW (RFC 3394)."""

    def __init__(self, what: str, look: Callable[[], object], read: Callable[[], str]) -> None:
        """Watch a file of keys.

        `what` names the file in errors; `look` returns a value that changes with the file. `look`
        and `read` raise `KeySourceUnavailable` if the file cannot be read, or if other users can
        read it.
        """
        self._what = what
        self._look = look
        self._read = read
        self._seen: object = None
        self._keys: dict[str, dict[str, bytes]] = {}

    def refresh(self) -> None:
        """Read the file if it has changed.

        Raises `KeySourceUnavailable`, also for an invalid file: it may say that a key was deleted.
        """
        seen = self._look()
        if seen == self._seen:
            return
        self._seen, self._keys = None, {}
        try:
            found = parse(self._what, self._read())
        except InvalidKeys as error:
            raise KeySourceUnavailable(f"{error}; until it is repaired, no key is used") from error
        for one in found:
            self._keys.setdefault(one.namespace, {})[one.key_id] = one.key
        self._seen = seen

    def names(self) -> list[tuple[str, str]]:
        """Return namespace and id of every key; a namespace's wrapping key comes first."""
        self.refresh()
        return [(namespace, key_id) for namespace, keys in self._keys.items() for key_id in keys]

    async def wrap(self, namespace: str, data_key: bytes) -> Wrapped:
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        self.refresh()
        keys = self._keys.get(namespace)
        if not keys:
            raise KeyMissing(
                f"{self._what} has no key for namespace {namespace}, whose topics are encrypted: "
                f"`octavo keys add {namespace}` makes a key"
            )
        key_id, key = next(iter(keys.items()))
        return Wrapped(namespace, key_id, aes_key_wrap(key, data_key))

    async def unwrap(self, wrapped: Wrapped) -> bytes:
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        self.refresh()
        key = self._keys.get(wrapped.namespace, {}).get(wrapped.key_id)
        if key is None:
            raise KeyMissing(f"{self._what} has no key {wrapped.key_name}")
        try:
            return aes_key_unwrap(key, wrapped.wrapped)
        except (InvalidUnwrap, ValueError):
            raise KeyMissing(
                f"{self._what}: key {wrapped.key_name} did not wrap this data key, "
                "or the wrapped key was changed"
            ) from None


class KeyService(Protocol):
    """A plug-in: a client of a key management service.

    Both calls may block; they run on threads. They raise `KeyError` if the service does not have
    the key, and any other exception if it cannot say.
    """

    def wrap(self, namespace: str, data_key: bytes) -> tuple[str, bytes]:
        """Wrap 32 bytes. Returns the current key's id and the wrapped bytes."""

    def unwrap(self, namespace: str, key_id: str, wrapped: bytes) -> bytes: ...


class ServiceKeys(KeySource):
    def __init__(self, what: str, service: KeyService, timeout_s: float) -> None:
        self._what = what
        self._service = service
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="octavo-keys")

    async def wrap(self, namespace: str, data_key: bytes) -> Wrapped:
        key_id, wrapped = await self._asked(
            f"namespace {namespace}", lambda: self._service.wrap(namespace, data_key)
        )
        if not is_key_id(key_id):
            raise KeySourceUnavailable(f"{self._what} returned an invalid key id: {KEY_ID_RULE}")
        if len(wrapped) > WRAPPED_BYTES_MAX:
            raise KeySourceUnavailable(
                f"{self._what} returned a wrapped key of {len(wrapped)} bytes; at most "
                f"{WRAPPED_BYTES_MAX} are accepted"
            )
        return Wrapped(namespace, key_id, bytes(wrapped))

    async def unwrap(self, wrapped: Wrapped) -> bytes:
        found = await self._asked(f"key {wrapped.key_name}", lambda: self._service.unwrap(*wrapped))
        if len(found) != KEY_BYTES:
            raise KeySourceUnavailable(
                f"{self._what} unwrapped {len(found)} bytes with key {wrapped.key_name}; a data "
                f"key has {KEY_BYTES}"
            )
        return bytes(found)

    async def _asked(self, about: str, question: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._timeout_s):
                return await loop.run_in_executor(self._threads, question)
        except KeyError:
            raise KeyMissing(f"{self._what} has no {about}") from None
        except TimeoutError:
            why = f"no answer in {self._timeout_s:g} s"
        except Exception as error:
            # The exception's text may hold a secret: report only its type.
            why = type(error).__name__
        raise KeySourceUnavailable(f"{self._what} failed for {about}: {why}") from None


__all__ = ["FileKeys", "KeyService", "KeySource", "NamespaceKey", "ServiceKeys"]
