"""The record of the time that was known last, and what time the metadata store says it is.

    /octavo/clock   time_ms, highest_ms, confirmed

Written by each broker once a minute: when the store changed it last, by a clock of the store's own,
is a second witness beside the writer's clock (broker/clock/timekeeper.py).
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
    """`time_ms`: the time that was safe to delete by when it was written, 0 when it never was.

    `highest_ms`: what ledgers were dated by then, 0 in records of older versions. `confirmed`
    counts how often a person has said what time it is.
    """

    time_ms: int = 0
    highest_ms: int = 0
    confirmed: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)


class Written(NamedTuple):
    """The record as it stands, and the time by the store's clock; None where it has none."""

    record: ClockRecord
    store_ms: int | None


class ClockStore:
    """Writes the record."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def write(self, make: Callable[[ClockRecord], ClockRecord]) -> Written:
        """Set it to `make(what stands there)`, by compare-and-set, anew also when that is the same.

        Raises `MetadataUnavailable`, `BadRecord`: then it is written later, or was.
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
