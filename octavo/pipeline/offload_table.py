"""Registers offloaded objects as the data files of an Iceberg table: a table without a second copy.

The table's files follow the partitions' records: objects that a record names are in the table, all
others are not. So the job may be killed at any step, and the next run completes the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from octavo.ledger.errors import OffloadDamaged
from octavo.ledger.offload.message_rows import rows_schema
from octavo.ledger.offload.object_store import open_object
from octavo.metadata.offloads import is_readable
from octavo.metadata.topics import OffloadRecord, PartitionRecord
from octavo.pipeline.table_iceberg import Conflict, IcebergTable, Place, only_follower
from octavo.pipeline.table_rules import (
    INCARNATION,
    OBJECTS,
    TOPIC,
    Position,
    TableUnusable,
    check_topic,
)

_TRIES_MAX = 5


class Registered(NamedTuple):
    """The number of objects that a run added to a table, removed from it, and left out.

    Objects of format 1 are left out, because their rows are entries.
    """

    added: int
    removed: int
    skipped: int


def objects_of(records: Iterable[PartitionRecord]) -> dict[str, OffloadRecord]:
    """Return the complete, unencrypted objects that the records name, by URL. Pure."""
    return {
        link.offload.url: link.offload
        for record in records
        for link in record.ledgers
        if is_readable(link.offload) and link.offload is not None and not link.offload.encryption
    }


def register(
    place: Place, topic: str, incarnation: str, records: Iterable[PartitionRecord]
) -> Registered:
    """Make the table hold exactly the objects that the records name.

    A table is made with its first object. Raises `TableUnusable`, `TableTaken`, `OffloadDamaged`,
    `OffloadUnavailable`, and `Conflict` when other programs change the table all the time.
    """
    wanted = objects_of(records)
    with only_follower(place):
        for left in reversed(range(_TRIES_MAX)):
            try:
                return _registered(place, topic, incarnation, wanted)
            except Conflict:
                if not left:
                    raise
    raise AssertionError("the last try returns or raises")


def _registered(
    place: Place, topic: str, incarnation: str, wanted: Mapping[str, OffloadRecord]
) -> Registered:
    table = IcebergTable(place, "octavo pipeline offload", lambda _: None)
    said = {TOPIC: topic, INCARNATION: incarnation, OBJECTS: "true"}
    if not table.load():
        if not wanted:
            return Registered(0, 0, 0)
        table.create(rows_schema(), said, by_day=False)
    if table.properties.get(OBJECTS) != "true":
        raise TableUnusable(
            f"table {place.namespace}.{place.name} was not made by octavo pipeline offload "
            f"--as-table (it has no property {OBJECTS}): give another --catalog"
        )
    check_topic(
        Position(table.properties[TOPIC], table.properties[INCARNATION]), topic, incarnation
    )
    there = table.files()
    new = [url for url in wanted if url not in there]
    readable = [url for url in new if _has_rows(url)]
    gone = [file for path, file in there.items() if path not in wanted]
    if readable or gone:
        table.change_files(readable, gone)
    return Registered(len(readable), len(gone), len(new) - len(readable))


def _has_rows(url: str) -> bool:
    import pyarrow.parquet as pq

    with open_object(url) as file:
        try:
            found = pq.read_schema(file)
        except ValueError as error:
            raise OffloadDamaged(f"{url} is damaged: {error}") from error
    return bool(found.remove_metadata().equals(rows_schema()))
