"""The record of the last known time, and the time by the metadata store's own clock.

    /octavo/clock   time_ms, highest_ms, confirmed

Each broker writes the record once a minute. The store notes by its own clock when it changed the
record, and the broker compares that time with its own clock (broker/clock/timekeeper.py).
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
    """`time_ms`: the time that was safe for deletions when the record was written; 0 for never.

    `highest_ms`: the highest time used for dates of ledgers by then; 0 in records of older
    versions. `confirmed` counts how often an operator has confirmed the time.
    """

    time_ms: int = 0
    highest_ms: int = 0
    confirmed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


class Written(NamedTuple):
    """The record that was written, and the time by the store's clock; None if it has no clock."""

    record: ClockRecord
    store_ms: int | None


class ClockStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def write(self, make: Callable[[ClockRecord], ClockRecord]) -> Written:
        """Set the record to `make(current)` by compare-and-set, even if that changes nothing.

        Raises `MetadataUnavailable`, `BadRecord`: then it is written later, or was written.
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
