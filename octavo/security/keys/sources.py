"""Where the keys of namespaces are, and what wraps the data keys of ledgers.

`FileKeys` has them from a file's text and wraps with AES-KW (RFC 3394); `ServiceKeys` asks somebody
else, who never gives them away: a key management service, behind a plug-in.
"""

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
"""Questions to a key service."""


class KeySource(ABC):
    """Wraps and unwraps. Every call asks anew: what is remembered, `DataKeys` remembers."""

    @abstractmethod
    async def wrap(self, namespace: str, data_key: bytes) -> Wrapped:
        """Wrap with the namespace's present key. Raises `KeyMissing`, `KeySourceUnavailable`."""

    @abstractmethod
    async def unwrap(self, wrapped: Wrapped) -> bytes:
        """The data key. Raises `KeyMissing`, `KeySourceUnavailable`."""


class FileKeys(KeySource):
    """Keys from a file, read again when it has changed."""

    def __init__(self, what: str, look: Callable[[], object], read: Callable[[], str]) -> None:
        """`what` names the file. `look` gives another value when it has changed; `read` its text.

        Both raise `KeySourceUnavailable` when it cannot be read, or by too many.
        """
        self._what = what
        self._look = look
        self._read = read
        self._seen: object = None
        self._keys: dict[str, dict[str, bytes]] = {}

    def refresh(self) -> None:
        """Take a change in. Raises `KeySourceUnavailable`, also for what is no key file: until it
        is mended nobody knows which keys are left."""
        seen = self._look()
        if seen == self._seen:
            return
        self._seen, self._keys = None, {}
        try:
            found = parse(self._what, self._read())
        except InvalidKeys as error:
            raise KeySourceUnavailable(f"{error}; no key is used until that is mended") from error
        for one in found:
            self._keys.setdefault(one.namespace, {})[one.key_id] = one.key
        self._seen = seen

    def names(self) -> list[tuple[str, str]]:
        """Namespace and id of every key; of each namespace the one that wraps first."""
        self.refresh()
        return [(namespace, key_id) for namespace, keys in self._keys.items() for key_id in keys]

    async def wrap(self, namespace: str, data_key: bytes) -> Wrapped:
        """See `KeySource`."""
        from cryptography.hazmat.primitives.keywrap import aes_key_wrap

        self.refresh()
        keys = self._keys.get(namespace)
        if not keys:
            raise KeyMissing(
                f"{self._what} has no key of namespace {namespace}, whose topics are encrypted: "
                f"`octavo keys add {namespace}` makes one"
            )
        key_id, key = next(iter(keys.items()))
        return Wrapped(namespace, key_id, aes_key_wrap(key, data_key))

    async def unwrap(self, wrapped: Wrapped) -> bytes:
        """See `KeySource`."""
        from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

        self.refresh()
        key = self._keys.get(wrapped.namespace, {}).get(wrapped.key_id)
        if key is None:
            raise KeyMissing(f"{self._what} has no key {wrapped.key_name}")
        try:
            return aes_key_unwrap(key, wrapped.wrapped)
        except (InvalidUnwrap, ValueError):
            raise KeyMissing(
                f"{self._what}: key {wrapped.key_name} is not the one that wrapped this data key, "
                "or the wrapped key was changed"
            ) from None


class KeyService(Protocol):
    """What a plug-in implements: a client of a key management service.

    Both calls block, and are made on threads. They raise `KeyError` when the service has no such
    key (any more), and anything else when it cannot tell.
    """

    def wrap(self, namespace: str, data_key: bytes) -> tuple[str, bytes]:
        """The present key's id, and the 32 bytes of `data_key` wrapped by that key."""

    def unwrap(self, namespace: str, key_id: str, wrapped: bytes) -> bytes:
        """The data key."""


class ServiceKeys(KeySource):
    """Keys that a service keeps to itself."""

    def __init__(self, what: str, service: KeyService, timeout_s: float) -> None:
        """`what` names it in errors; who has not answered in `timeout_s` is not there."""
        self._what = what
        self._service = service
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="octavo-keys")

    async def wrap(self, namespace: str, data_key: bytes) -> Wrapped:
        """See `KeySource`."""
        key_id, wrapped = await self._asked(
            f"namespace {namespace}", lambda: self._service.wrap(namespace, data_key)
        )
        if not is_key_id(key_id):
            raise KeySourceUnavailable(f"{self._what} named a key that cannot be: {KEY_ID_RULE}")
        if len(wrapped) > WRAPPED_BYTES_MAX:
            raise KeySourceUnavailable(
                f"{self._what} gave a wrapped key of {len(wrapped)} bytes; at most "
                f"{WRAPPED_BYTES_MAX} are kept"
            )
        return Wrapped(namespace, key_id, bytes(wrapped))

    async def unwrap(self, wrapped: Wrapped) -> bytes:
        """See `KeySource`."""
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
            # Its text may hold anything: only what it is, is told.
            why = type(error).__name__
        raise KeySourceUnavailable(f"{self._what} cannot be asked for {about}: {why}") from None


__all__ = ["FileKeys", "KeyService", "KeySource", "NamespaceKey", "ServiceKeys"]
