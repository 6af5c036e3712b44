"""Bulk loads: ledgers written beforehand join many partitions at once. Pure.

A writer (a Spark task) fills *private ledgers*, one or several per partition, directly on the
bookies, and closes them. A **bulk load** commits batches of them under (id, batch): the id belongs
to a query, the batch number ascends. A commit writes one record; the partitions follow from it.

    1. check      the ledgers are closed, belong to this batch by their metadata, hold what is said
    2. commit     compare-and-set of the bulk load's record to batch and parts: the decision
    3. load       at each partition's owner, while publishers continue (partition/rollover.py):
                  the open ledger is closed, then ONE compare-and-set of the partition's record does
                      [… open] → [… closed] [private …] [new open],  bulk_loads[mark] = batch
    4. complete   the bulk load's record says so once every owner has answered

**All or nothing.** No part becomes visible before step 2. After step 2 every part will become
visible, whatever crashes, because the record alone is enough to continue: a repeated commit
continues, or the commit of the next batch (which must wait), or any broker's sweep
(`BulkLoads.sweep`). In one partition a part appears at once, whole, at consecutive offsets; a
take-over finds all of it or none, because there is one compare-and-set. For a while one partition
shows its part and another does not yet. That does no harm: consumers follow each partition by
itself, and offsets of two partitions have no order. A reader that wants a consistent cut waits
until `GET /v1/bulk-loads/<id>` says `complete`; a commit returns only then. If a topic is deleted
after step 2, its part is lost, and a later topic with the same name does not get it.

**Once.** A batch that is not newer than the record's batch is a repeat, and only completes
unfinished work. An owner inserts only parts that the record names, while the record is not
complete, and marks the insertion (`bulk_loads[mark]`) in the partition's record for later owners.
Marks of a complete batch are not needed any more: beyond `MARKS_MAX` they are pruned.
A mark consists of the id and the time of the id's first use: without the time, a partition might
take the first batches of a forgotten id that is used again for old batches. Marks are read under
the partition's turn for roll-overs: another insertion of this batch comes entirely before or after,
and an insertion by another owner makes our compare-and-set fail.

**Giving up.** A driver may abort after a commit whose answer was lost. The abort must not delete
ledgers that are part of a partition now, and a commit still under way must not name deleted
ledgers. So an abort first notes the ledgers in the record as refused, by compare-and-set, and then
deletes them. A commit that names a refused ledger fails. Ledgers that a partition names, or will
get by an incomplete commit, are never deleted. Any process may give up orphans of dead tasks this
way. It waits a grace period first, as a courtesy; safety does not depend on that.

**Published by the writer.** A small batch needs no ledgers: its writer may publish it as an
idempotent producer, one record batch per partition, and keep only the decision here. The writer
*begins* the batch: the record notes it, and the writer's description of its content by partition.
The writer publishes, and commits without parts. Such a batch is not all or nothing: each partition
shows its part once published. But it is stored once: a repeat must begin with the same content
(otherwise `BATCH_BEGUN`), so equal producer numbers stand for equal messages, and after the commit
a repeat publishes nothing. While a batch is begun and not committed, no other batch may begin or
commit, and this batch may not be committed by ledgers: part of it may be visible already.

**Owner and order.** The answer to a repeat is "done", whatever the repeat contains. So if a caller
commits under a foreign id, or a number far ahead by mistake, later batches of the id up to that
number would be dropped in silence. Therefore the first batch that comes with a token binds the id
to this token, and calls without the token are refused. Batches follow one another by number; a
writer whose numbers have gaps, or whose id was forgotten, says which batch was its last (`after`).
Ids of older versions are bound to no token until their writer sends one.

**Consequences.** Cursors do not change, because offsets stay dense. The producers' table does not
change: private ledgers have no sequences, so a take-over does not scan them (`bulk_loaded`).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from octavo.broker.errors import (
    BATCH_BEGUN,
    BULK_LOAD_ABORTED,
    FOREIGN_BULK_LOAD,
    BatchOutOfOrder,
    LargeNotTaken,
    TooManyLedgers,
)
from octavo.broker.types import PartitionName, TopicSettings
from octavo.metadata.bulk_loads import BulkLoadPart, BulkLoadRecord

KIND = b"transaction"
"""`octavo.kind` of a private ledger; the other keys of its custom metadata follow. Stored words
keep the name that a bulk load had in 0.1, because older ledgers must still be recognised."""
KIND_KEY, PARTITION_KEY = "octavo.kind", "octavo.partition"
BULK_LOAD_KEY, BATCH_KEY = "octavo.transaction", "octavo.batch"

MARKS_MAX = 64
"""With more marks in a partition's record, marks of complete batches are pruned."""
LEDGERS_MAX = 4_000
"""The most private ledgers of a bulk load, and the most ledgers of a partition that gets some. A
record is limited to ZooKeeper's 1 MB.
"""
REFUSED_MAX = 10_000
"""The most ledgers noted as refused. A commit removes its own batch's ledgers from the note."""


class Standing(enum.Enum):
    """How a batch to commit relates to the record."""

    REPEATED = "repeated"
    """This batch, or a newer batch, was committed before."""
    WAITS = "waits"
    """An older batch must be completed first."""
    NEW = "new"


class Caller(NamedTuple):
    """The caller. `digest`: of its token. `after`: the batch before this one, if the caller names
    it.
    """

    digest: str = ""
    after: int | None = None


def digest_of(token: bytes) -> str:
    """Return the stored digest of a token; "" without a token."""
    return hashlib.sha256(token).hexdigest() if token else ""


def check_caller(record: BulkLoadRecord, caller: Caller) -> None:
    """Raise `FOREIGN_BULK_LOAD` if the id is bound to another token."""
    if record.token_digest not in ("", caller.digest):
        raise FOREIGN_BULK_LOAD(
            "this id is bound to the token that its first batch came with, and the call has "
            f"{'another token' if caller.digest else 'none'}: choose another id"
        )


def check_order(record: BulkLoadRecord, batch: int, after: int | None) -> None:
    """Check that `batch` is the next or an earlier one. Raises `BatchOutOfOrder`."""
    expected = record.batch + 1
    if batch <= expected or batch == record.begun:
        return
    if after is None:
        raise BatchOutOfOrder(
            f"batch {batch} is not the next batch, which is {expected}; to skip numbers on "
            f"purpose, send after: {record.batch}, the newest that is committed",
            expected,
        )
    # A forgotten id looks like a new id; its writer knows its last batch.
    if record.batch not in (after, -1):
        raise BatchOutOfOrder(
            f"batch {batch} should follow batch {after}, but the newest committed batch is "
            f"{record.batch}",
            expected,
        )


def standing(record: BulkLoadRecord, batch: int) -> Standing:
    """How `batch` relates to the newest committed batch."""
    if batch <= record.batch:
        return Standing.REPEATED
    return Standing.NEW if record.complete else Standing.WAITS


def ledger_ids(parts: Iterable[BulkLoadPart]) -> list[int]:
    return [ledger.ledger_id for part in parts for ledger in part.ledgers]


def beginning(
    record: BulkLoadRecord,
    batch: int,
    content: Mapping[str, str],
    now_ms: int,
    digest: str = "",
) -> BulkLoadRecord | None:
    """Return the record that notes a new batch which its writer publishes; None if it is noted
    already.

    Raises `BATCH_BEGUN`.
    """
    assert standing(record, batch) is Standing.NEW
    if record.begun <= record.batch:
        return replace(
            record,
            begun=batch,
            content=content,
            since_ms=record.since_ms or now_ms,
            changed_ms=now_ms,
            token_digest=record.token_digest or digest,
        )
    _check_begun(record, batch)
    if record.content != content:
        other = sorted(
            name
            for name in record.content.keys() | content.keys()
            if record.content.get(name) != content.get(name)
        )
        raise BATCH_BEGUN(
            f"batch {batch} was begun with other messages for {', '.join(other[:10])}, and may be "
            "published in part: it cannot be finished with these"
        )
    return None


def committing(
    record: BulkLoadRecord,
    batch: int,
    parts: tuple[BulkLoadPart, ...],
    now_ms: int,
    *,
    published: bool = False,
    digest: str = "",
) -> BulkLoadRecord:
    """Return the record that commits a new batch; `published`: its writer began and published it.

    Raises `BULK_LOAD_ABORTED`, `BATCH_BEGUN`.
    """
    assert standing(record, batch) is Standing.NEW
    if published:
        assert not parts
        _check_begun(record, batch)
    elif record.begun > record.batch:
        raise BATCH_BEGUN(
            f"batch {record.begun} was begun by a writer that publishes it, and may be visible in "
            "part: finish it the same way before anything else"
        )
    gone = sorted(record.refused.keys() & set(ledger_ids(parts)))
    if gone:
        raise BULK_LOAD_ABORTED(
            f"ledgers {', '.join(map(str, gone[:10]))} of batch {batch} were given up by an abort; "
            "write the batch again, to new ledgers"
        )
    return replace(
        record,
        batch=batch,
        parts=parts,
        complete=not parts,
        since_ms=record.since_ms or now_ms,
        changed_ms=now_ms,
        refused={ledger: of for ledger, of in record.refused.items() if of > batch},
        token_digest=record.token_digest or digest,
    )


def _check_begun(record: BulkLoadRecord, batch: int) -> None:
    if record.begun != batch:
        begun = (
            "none is" if record.begun <= record.batch else f"batch {record.begun} is, unfinished"
        )
        raise BATCH_BEGUN(f"batch {batch} was not begun: {begun}")


def completed(record: BulkLoadRecord, batch: int) -> BulkLoadRecord | None:
    """Return the record once all parts of `batch` are inserted; None if it is complete or newer."""
    if record.batch != batch or record.complete:
        return None
    return replace(record, complete=True)


def aborting(
    record: BulkLoadRecord, batch: int, ledgers: Collection[int], now_ms: int
) -> BulkLoadRecord | None:
    """Return the record that refuses these ledgers of an uncommitted batch; None if nothing
    changes.
    """
    if batch <= record.batch or set(ledgers) <= record.refused.keys():
        return None
    refused = {**record.refused, **dict.fromkeys(ledgers, batch)}
    if len(refused) > REFUSED_MAX:
        raise BULK_LOAD_ABORTED(
            f"{len(refused)} ledgers of batches that were never committed; at most {REFUSED_MAX} "
            "are noted: commit a batch first"
        )
    return replace(record, refused=refused, since_ms=record.since_ms or now_ms, changed_ms=now_ms)


def part_of(
    record: BulkLoadRecord, batch: int, namespace: str, topic: str, partition: int
) -> BulkLoadPart | None:
    """Return the part of `batch` that this partition may still need to insert; None if there is
    none.
    """
    if record.batch != batch or record.complete:
        return None
    name = (namespace, topic, partition)
    return next((p for p in record.parts if (p.namespace, p.topic, p.partition) == name), None)


def check_large_taken(name: PartitionName, settings: TopicSettings, ledgers: int) -> None:
    """Check that a partition with `ledgers` ledgers takes a large message.

    Raises `LargeNotTaken`, `TooManyLedgers`.
    """
    topic = name.topic_name
    if settings.schema_validate:
        raise LargeNotTaken(
            f"topic {topic} checks a schema, and a body that comes in pieces cannot be checked: "
            "publish it as an ordinary message, or to a topic whose schema has validate: false"
        )
    check_copy_taken(name, settings, ledgers)


def check_copy_taken(name: PartitionName, settings: TopicSettings, ledgers: int) -> None:
    """Check that a partition takes a large dead letter or retry: no schema is applied to these.

    Raises `LargeNotTaken`, `TooManyLedgers`.
    """
    topic = name.topic_name
    if settings.compaction_after_bytes is not None:
        raise LargeNotTaken(
            f"topic {topic} is compacted, and compaction would remove a large message's body: "
            "publish the message to a topic without compaction, and a reference to it here"
        )
    if ledgers >= LEDGERS_MAX:
        raise TooManyLedgers(
            f"{name} has {ledgers} ledgers, and a large message needs another; at most "
            f"{LEDGERS_MAX}: let retention remove some"
        )


def mark_of(bulk_load: str, record: BulkLoadRecord) -> str:
    """Return the key of a bulk load's newest batch in a partition's record. Ids have no `@`."""
    return f"{bulk_load}@{record.since_ms}"


def bulk_load_of(mark: str) -> str:
    return mark.rpartition("@")[0]


def is_loaded(marks: Mapping[str, int], mark: str, batch: int) -> bool:
    """Whether a partition's record says that the partition has this batch or a newer one."""
    return marks.get(mark, -1) >= batch


def is_finished(mark: str, batch: int, record: BulkLoadRecord) -> bool:
    """Whether the mark may go; `record` is the current record of the mark's bulk load."""
    return mark != mark_of(bulk_load_of(mark), record) or completed(record, batch) is None


def marking(
    marks: Mapping[str, int], mark: str, batch: int, finished: Collection[str]
) -> dict[str, int]:
    """Return the marks with the new mark, without the `finished` marks."""
    assert not is_loaded(marks, mark, batch)
    kept = {name: of for name, of in marks.items() if name not in finished}
    return {**kept, mark: batch}
