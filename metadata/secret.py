"""The cluster's secret, and the keys that prove that a process belongs to the cluster.

    /octavo/secret   secret: 64 hexadecimal digits

Processes that may read the metadata are trusted with it; it is never sent. The first process that
needs it creates it. It never changes, and each use has its own key.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.metadata.store import BadRecord, MetadataStore, RecordExists, RecordNotFound
from octavo.metadata.topic_records import decode_record, encode_record

SECRET_PATH = "/octavo/secret"
SECRET_BYTES = 32
_HEX = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}\Z")


@dataclass(frozen=True, slots=True)
class SecretRecord:
    secret: str = field(repr=False)
    extra: Mapping[str, Any] = field(default_factory=dict)


class ClusterSecret:
    """Nothing that is printed, logged or raised shows the secret."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SECRET_BYTES
        self._secret = secret

    def key(self, use: str) -> bytes:
        """Derive the key for a use, which reveals neither the secret nor other keys."""
        return hmac.digest(self._secret, f"octavo {use}".encode(), hashlib.sha256)

    @property
    def ledger_password(self) -> bytes:
        """Return the password of the cluster's own ledgers: 64 hexadecimal digits."""
        return self.key("ledgers").hex().encode()


async def cluster_secret(
    store: MetadataStore, *, rng: random.Random | None = None
) -> ClusterSecret:
    """Return the secret; create it if there is none. Safe when many processes do it at once."""
    try:
        return await _read(store)
    except RecordNotFound:
        made = (rng or random.SystemRandom()).randbytes(SECRET_BYTES)
    try:
        await store.create(SECRET_PATH, encode_record(SecretRecord(made.hex())))
    except RecordExists:
        return await _read(store)
    return ClusterSecret(made)


async def _read(store: MetadataStore) -> ClusterSecret:
    record = decode_record(SecretRecord, SECRET_PATH, (await store.get(SECRET_PATH)).value)
    if not _HEX.match(record.secret):
        raise BadRecord(
            f"{SECRET_PATH}: the secret must be {2 * SECRET_BYTES} hexadecimal digits. Restore the "
            "record as it was; if it is lost, delete it: ledgers keep the password they have"
        )
    return ClusterSecret(bytes.fromhex(record.secret))
