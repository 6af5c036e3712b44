"""Encrypted ledgers: sealed by their writer, opened by who reads messages.

The payload is sealed before the digest is made, so whatever carries, stores, copies, compares or
moves entries has sealed ones and needs no key: bookies, recovery, re-replication, scrubbing,
offloaded objects. A ledger is encrypted when its record says so (`Wrapped`), and then all of it is.

What is opened is checked: an entry that was not written so, in that place, is `EntryTampered`, and
never an absent one.
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
"""After opening so much others get their turn on the loop: a fifth of a millisecond. In a thread it
would take as long, and the loop would stand: the library keeps the interpreter to itself."""


def wrapped_of(metadata: LedgerMetadata) -> Wrapped | None:
    """The data key of a ledger, as its record has it; None when it is not encrypted.

    Raises `BadRecord`.
    """
    text = metadata.custom.get(ENCRYPTION_KEY)
    return None if text is None else Wrapped.decode(f"ledger {metadata.ledger_id}", text)


def plain_length(metadata: LedgerMetadata) -> int:
    """Bytes of all payloads of a closed ledger, as they were given to its writer."""
    if ENCRYPTION_KEY not in metadata.custom:
        return metadata.length
    return metadata.length - OVERHEAD_BYTES * (metadata.last_entry + 1)


class Sealing:
    """Seals the entries of one ledger, for its one writer."""

    def __init__(self, ledger_id: int, key: DataKey, writer: bytes) -> None:
        """`writer`: four bytes that no other writer has."""
        self._ledger_id = ledger_id
        self._key = key
        self._cipher = key.sealing()
        self._writer = writer

    def check(self) -> None:
        """Before an add. Raises `KeyMissing` once it is known that the key was forgotten."""
        self._key.sealing()

    async def is_readable(self) -> bool:
        """Whether what was written may be given away now."""
        try:
            await self._key.opening()
        except (KeyMissing, KeySourceUnavailable):
            return False
        return True

    def seal(self, entry_id: int, payload: bytes) -> bytes:
        """The sealed payload. Once for each id: a nonce is used once."""
        return seal(self._cipher, self._writer, self._ledger_id, entry_id, payload)


class Opening:
    """Opens entries of one ledger."""

    def __init__(self, ledger_id: int, wrapped: Wrapped, keys: DataKeys | None) -> None:
        self._ledger_id = ledger_id
        self.wrapped = wrapped
        self._keys = keys
        self._key: DataKey | None = None if keys is None else keys.of(wrapped)

    async def check(self) -> None:
        """Whether entries could be opened now. Raises what `opened` raises of keys."""
        await self._held().opening()

    def anew(self, metadata: LedgerMetadata) -> Opening:
        """By what the ledger's record says now."""
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
        """The same entries with the payloads that were written, and the ledger's length as it is.

        `front`: at least the first, and those after it that are good. Raises `KeyMissing`,
        `KeySourceUnavailable`; `EntryTampered` for what is not what was written.
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
    """How the ledger's entries are opened; None when they are not encrypted. Raises `BadRecord`."""
    wrapped = wrapped_of(metadata)
    return None if wrapped is None else Opening(metadata.ledger_id, wrapped, keys)


Seal = Callable[[int, bytes], bytes]
"""(entry id, payload) → the sealed payload."""
