"""Make a producer id specific to its principal, on a secured cluster (decision 64).

Readers see producer ids. If ids were stored as given, another principal could use a producer's next
sequence, so that its message counts as a repeat and is lost, or shut it out by a higher epoch. So
the owner stores an id derived from principal, given id and the brokers' key.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable

from octavo.protocol.batch import HEADER_BYTES, NO_PRODUCER, read_header, sealed
from octavo.security.principal import Identity


class ProducerIds:
    def __init__(self, key: bytes, secured: Callable[[], bool]) -> None:
        self._key = key
        self._secured = secured

    def bound(self, identity: Identity, batch: bytes) -> bytes:
        if not self._secured() or identity.is_node:
            return batch
        header = read_header(batch)
        if header.producer_id <= NO_PRODUCER:
            return batch
        digest = self._of_principal(identity.name, str(header.producer_id))
        own = int.from_bytes(digest[:8], "big") >> 1
        return sealed(header._replace(producer_id=own), memoryview(batch)[HEADER_BYTES:])

    def bound_name(self, identity: Identity, name: str) -> str:
        if not self._secured() or identity.is_node:
            return name
        return self._of_principal(identity.name, name)[:16].hex()

    def _of_principal(self, principal: str, given: str) -> bytes:
        text = f"producer-id\0{principal}\0{given}".encode("utf-8", "surrogateescape")
        return hmac.digest(self._key, text, hashlib.sha256)
