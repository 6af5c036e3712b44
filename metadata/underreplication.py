"""The records that Apache's auditor, replicators and shell expect below `underreplication`.

Octavo's bookies maintain their copies themselves (ledger/rereplication) and never read these
records. In Apache's clusters they are created when an auditor first runs. Until then
`whoisauditor`, `lostbookierecoverydelay -get` and similar commands fail with NoNode (BookKeeper
4.18). So Octavo creates them at the start.
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
    """Create those that are missing; existing records stay as they are. Raises `MetadataError`."""
    folder = f"{root}/underreplication"
    there = await store.children(folder)
    for name, value in _RECORDS.items():
        if name not in there:
            with contextlib.suppress(RecordExists):
                await store.create(f"{folder}/{name}", value)
