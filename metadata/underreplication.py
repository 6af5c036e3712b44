"""What Apache's auditor, replicators and shell expect below `underreplication`, from the start on.

Octavo's bookies keep their copies themselves (ledger/rereplication) and never read these records.
Apache's own make them when an auditor first runs, and until then `whoisauditor`,
`lostbookierecoverydelay -get` and all that asks likewise end in NoNode (BookKeeper 4.18).
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
"""In BookKeeper's bytes. The delay is in seconds; 0 is Apache's own default."""


async def lay_out(store: MetadataStore, root: str) -> None:
    """Make what is missing of them; what is there stays as it is. Raises `MetadataError`."""
    folder = f"{root}/underreplication"
    there = await store.children(folder)
    for name, value in _RECORDS.items():
        if name not in there:
            with contextlib.suppress(RecordExists):
                await store.create(f"{folder}/{name}", value)
