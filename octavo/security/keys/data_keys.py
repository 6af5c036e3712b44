"""Unwrapped data keys in the memory of a process.

The source confirms a key in use every `recheck_s`. Reads wait for that. Writers do not: they fail
once the check misses the key; entries sealed until then are unreadable anyway.
"""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

import structlog
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from octavo.protocol.codes import OctavoError
from octavo.protocol.encrypted import KEY_BYTES, WRITER_BYTES, Cipher
from octavo.security.keys.errors import KeyMissing
from octavo.security.keys.sources import KeySource
from octavo.security.keys.wrapped import Wrapped

log = structlog.get_logger()


class DataKey:
    def __init__(self, source: KeySource, wrapped: Wrapped, recheck_s: float) -> None:
        self.wrapped = wrapped
        self._source = source
        self._recheck_s = recheck_s
        self._cipher: Cipher | None = None
        self._confirmed_s = float("-inf")
        self._checking: asyncio.Task[None] | None = None
        self._missing: OctavoError | None = None

    def take(self, data_key: bytes) -> None:
        self._cipher = AESGCM(data_key)
        self._missing = None
        self._confirmed_s = asyncio.get_running_loop().time()

    async def opening(self) -> Cipher:
        if self._cipher is None or not self._is_fresh():
            await asyncio.shield(self._check())
        if self._cipher is None:
            raise self._missing or KeyMissing(f"there is no key {self.wrapped.key_name}")
        return self._cipher

    def sealing(self) -> Cipher:
        """Return the cipher without waiting. Raises `KeyMissing` once it is known that the key is
        missing.
        """
        if not self._is_fresh():
            self._check()
        if self._cipher is None:
            raise self._missing or KeyMissing(f"there is no key {self.wrapped.key_name}")
        return self._cipher

    def _is_fresh(self) -> bool:
        return asyncio.get_running_loop().time() - self._confirmed_s < self._recheck_s

    def _check(self) -> asyncio.Task[None]:
        if self._checking is None:
            self._checking = asyncio.get_running_loop().create_task(
                self._ask(), name=f"key {self.wrapped.key_id}"
            )
            self._checking.add_done_callback(self._checked)
        return self._checking

    def _checked(self, task: asyncio.Task[None]) -> None:
        self._checking = None
        if not task.cancelled():
            task.exception()  # mark it as seen; callers that wait get it by themselves

    async def _ask(self) -> None:
        try:
            data_key = await self._source.unwrap(self.wrapped)
        except KeyMissing as error:
            if self._cipher is not None:
                log.warning("key_forgotten", key=self.wrapped.key_name)
            self._cipher, self._missing = None, error
            raise
        self.take(data_key)


class DataKeys:
    def __init__(
        self,
        source: KeySource,
        *,
        random_bytes: Callable[[int], bytes],
        recheck_s: float,
    ) -> None:
        """Hold keys; `random_bytes` is the operating system's, except in a simulation."""
        self._source = source
        self._random_bytes = random_bytes
        self._recheck_s = recheck_s
        self._keys: weakref.WeakValueDictionary[Wrapped, DataKey] = weakref.WeakValueDictionary()

    async def new(self, namespace: str) -> DataKey:
        data_key = self._random_bytes(KEY_BYTES)
        made = DataKey(self._source, await self._source.wrap(namespace, data_key), self._recheck_s)
        made.take(data_key)
        self._keys[made.wrapped] = made
        return made

    def of(self, wrapped: Wrapped) -> DataKey:
        found = self._keys.get(wrapped)
        if found is None:
            found = self._keys[wrapped] = DataKey(self._source, wrapped, self._recheck_s)
        return found

    def writer_prefix(self) -> bytes:
        """Return a random prefix that keeps this writer's nonces apart from all others'."""
        return self._random_bytes(WRITER_BYTES)

    async def rewrapped(self, wrapped: Wrapped) -> Wrapped | None:
        """Wrap the same data key with the namespace's current key; None if it already is.

        Raises `KeyMissing`, `KeySourceUnavailable`.
        """
        data_key = await self._source.unwrap(wrapped)
        again = await self._source.wrap(wrapped.namespace, data_key)
        return None if again.key_id == wrapped.key_id else again
