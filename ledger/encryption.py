"""Encrypted ledgers: the writer seals payloads, and readers of messages decrypt them.

Payloads are sealed before the digest, so parts that only carry entries need no key. A ledger is
encrypted, as a whole, if its record has a wrapped key. An entry that was not sealed for its place
raises `EntryTampered`; it is never absent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from octavo.ledger.errors import EntryTampered
from octavo.metadata.ledgers import LedgerMetadata
from octavo.protocol.encrypted import OVERHEAD_BYTES, NotSealed, seal, unseal
from octavo.protocol.entry import Entry
from octavo.security.keys.data_keys import DataKey, DataKeys
from octavo.security.keys.errors import KeyMissing, KeySourceUnavailable
from octavo.security.keys.wrapped import ENCRYPTION_KEY, Wrapped

TURN_BYTES = 256 * 1024
"""About 0.2 ms of work. A thread would not help: the cipher library holds the interpreter lock."""


def wrapped_of(metadata: LedgerMetadata) -> Wrapped | None:
    """Return the wrapped data key, or None if the ledger is not encrypted. Raises `BadRecord`."""
    text = metadata.custom.get(ENCRYPTION_KEY)
    return None if text is None else Wrapped.decode(f"ledger {metadata.ledger_id}", text)


def plain_length(metadata: LedgerMetadata) -> int:
    """Count the bytes of a closed ledger before encryption."""
    if ENCRYPTION_KEY not in metadata.custom:
        return metadata.length
    return metadata.length - OVERHEAD_BYTES * (metadata.last_entry + 1)


class Sealing:
    def __init__(self, ledger_id: int, key: DataKey, writer: bytes) -> None:
        """Seal with `key`; `writer` has four bytes, unique to this writer, for the nonces."""
        self._ledger_id = ledger_id
        self._key = key
        self._cipher = key.sealing()
        self._writer = writer

    def check(self) -> None:
        """Refuse once the key is known to be forgotten. Raises `KeyMissing`."""
        self._key.sealing()

    async def is_readable(self) -> bool:
        try:
            await self._key.opening()
        except (KeyMissing, KeySourceUnavailable):
            return False
        return True

    def seal(self, entry_id: int, payload: bytes) -> bytes:
        """Call once per entry id: a nonce must not be used twice."""
        return seal(self._cipher, self._writer, self._ledger_id, entry_id, payload)


class Opening:
    def __init__(self, ledger_id: int, wrapped: Wrapped, keys: DataKeys | None) -> None:
        self._ledger_id = ledger_id
        self.wrapped = wrapped
        self._keys = keys
        self._key: DataKey | None = None if keys is None else keys.of(wrapped)

    async def check(self) -> None:
        await self._held().opening()

    def anew(self, metadata: LedgerMetadata) -> Opening:
        """Use the wrapped key that the record has now."""
        return Opening(self._ledger_id, wrapped_of(metadata) or self.wrapped, self._keys)

    def _held(self) -> DataKey:
        if self._key is None:
            raise KeyMissing(
                f"ledger {self._ledger_id} is encrypted with key {self.wrapped.key_name}, and "
                "this process has no keys: give it the setting keys.file or keys.service "
                "(OCTAVO_KEYS_FILE, OCTAVO_KEYS_SERVICE)"
            )
        return self._key

    async def opened(self, entries: Iterable[Entry], *, front: bool = False) -> list[Entry]:
        """Decrypt the payloads; the entry's length field is unchanged.

        `front`: stop before a bad entry, unless it is the first. Raises `KeyMissing`,
        `KeySourceUnavailable`, `EntryTampered`.
        """
        cipher = await self._held().opening()
        found: list[Entry] = []
        done = 0
        for entry in entries:
            try:
                payload = unseal(cipher, self._ledger_id, entry.entry_id, entry.payload)
            except NotSealed as error:
                if found and front:
                    break
                raise EntryTampered(self._ledger_id, entry.entry_id, str(error)) from None
            found.append(entry._replace(payload=payload))
            done += len(payload)
            if done >= TURN_BYTES:
                done = 0
                await asyncio.sleep(0)
        return found


def opening_of(metadata: LedgerMetadata, keys: DataKeys | None) -> Opening | None:
    """Return what opens the ledger's payloads; None if not encrypted. Raises `BadRecord`."""
    wrapped = wrapped_of(metadata)
    return None if wrapped is None else Opening(metadata.ledger_id, wrapped, keys)


Seal = Callable[[int, bytes], bytes]
