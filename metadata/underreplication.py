"""The records that Apache's auditor, replicators and shell expect below `underreplication`.

Octavo never reads them. Without them `whoisauditor`, `lostbookierecoverydelay -get` and others fail
with NoNode (BookKeeper 4.18).
"""

from __future__ import annotations

import contextlib

from octavo.metadata.store import MetadataStore, RecordExists

_RECORDS = {
    "LAYOUT": b'type: "BASIC"\nversion: 1\n',
    "ledgers": b"",
    "locks": b"",
    "auditorelection": b"",
    "lostBookieRecoveryDelay": b"0",
}
"""BookKeeper's records, in its bytes. The delay is in seconds."""


async def lay_out(store: MetadataStore, root: str) -> None:
    """Create the missing records. Raises `MetadataError`."""
    folder = f"{root}/underreplication"
    there = await store.children(folder)
    for name, value in _RECORDS.items():
        if name not in there:
            with contextlib.suppress(RecordExists):
                await store.create(f"{folder}/{name}", value)
