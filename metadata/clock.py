"""The last known time, and the time by the metadata store's own clock.

    /octavo/clock   time_ms, highest_ms, confirmed

Each broker writes it once a minute, to compare the store's clock with its own
(broker/clock/timekeeper.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo.metadata.store import MetadataStore, RecordExists, RecordNotFound, VersionConflict
from octavo.metadata.topic_records import decode_record, encode_record

CLOCK_PATH = "/octavo/clock"


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """`time_ms`: safe for deletions; 0 for never. `highest_ms`: the highest time used for ledgers.

    `confirmed`: how often an operator has confirmed the time.
    """

    time_ms: int = 0
    highest_ms: int = 0
    confirmed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


class Written(NamedTuple):
    """When a record was written, by the store's clock; None if it has none."""

    record: ClockRecord
    store_ms: int | None


class ClockStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def write(self, make: Callable[[ClockRecord], ClockRecord]) -> Written:
        """Write even if nothing changes.

        After `MetadataUnavailable` or `BadRecord` it may have been written.
        """
        while True:
            with contextlib.suppress(VersionConflict, RecordExists):
                try:
                    value, version = await self._store.get(CLOCK_PATH)
                except RecordNotFound:
                    record = make(ClockRecord())
                    await self._store.create(CLOCK_PATH, encode_record(record))
                else:
                    record = make(decode_record(ClockRecord, CLOCK_PATH, value))
                    await self._store.put(CLOCK_PATH, encode_record(record), version)
                with contextlib.suppress(RecordNotFound):
                    return Written(record, await self._store.changed_at(CLOCK_PATH))
                return Written(record, None)
