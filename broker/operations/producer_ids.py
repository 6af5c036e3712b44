"""Make a producer id specific to its principal, on a secured cluster. Decision 64.

Readers of a topic see the producer ids of its batches. If ids were stored as given, a principal
that may publish could use the next sequence of another principal's producer, so that the other's
message would be taken for a repeat and lost; or it could shut that producer out with a higher
epoch. So the owner stores a batch under an id that it derives from the principal and the given id,
with the brokers' key. Every owner derives the same id.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from octavo.protocol.batch import HEADER_BYTES, NO_PRODUCER, read_header, sealed
from octavo.security.principal import Identity


class ProducerIds:
    """Derives the stored ids and names of producers from those that clients give."""

    def __init__(self, key: bytes, secured: Callable[[], bool]) -> None:
        """`key`: shared by the brokers of the cluster. `secured`: whether callers are known."""
        self._key = key
        self._secured = secured

    def bound(self, identity: Identity, batch: bytes) -> bytes:
        """Return the batch as stored for its caller: unchanged, unless it names a producer."""
        if not self._secured() or identity.is_node:
            return batch
        header = read_header(batch)
        if header.producer_id <= NO_PRODUCER:
            return batch
        digest = self._of_principal(identity.name, str(header.producer_id))
        own = int.from_bytes(digest[:8], "big") >> 1
        return sealed(header._replace(producer_id=own), memoryview(batch)[HEADER_BYTES:])

    def bound_name(self, identity: Identity, name: str) -> str:
        """Return the stored name of a durable stream's producer, which readers see, too."""
        if not self._secured() or identity.is_node:
            return name
        return self._of_principal(identity.name, name)[:16].hex()

    def _of_principal(self, principal: str, given: str) -> bytes:
        text = f"producer-id\0{principal}\0{given}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256)
