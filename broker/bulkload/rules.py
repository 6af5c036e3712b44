"""Bulk loads: ledgers written beforehand join many partitions at once. Pure.

A writer (a Spark task) fills *private ledgers* on the bookies, closes them, and commits batches of
them under (id, batch): the batch number ascends.

    1. check      the ledgers are closed, belong to this batch by their metadata, hold what is said
    2. commit     compare-and-set of the bulk load's record to batch and parts: the decision
    3. load       at each partition's owner, while publishers continue (partition/rollover.py):
                  the open ledger is closed, then ONE compare-and-set of the partition's record does
                      [… open] → [… closed] [private …] [new open],  bulk_loads[mark] = batch
    4. complete   the bulk load's record says so once every owner has answered

**All or nothing.** No part is visible before step 2; after it every part will be, because the
record alone is enough to continue: by a repeated commit, the next batch's, or any broker's sweep.
In one partition a part appears whole, at consecutive offsets; between partitions there is a delay,
which a reader can wait for (`complete`). A topic deleted after step 2 loses its part.

**Once.** A batch not newer than the record's is a repeat. An owner inserts only parts that the
incomplete record names, and marks the insertion in the partition's record. A mark has the id and
the time of its first use, so that an id used again after it was forgotten counts as new. Marks are
read under the partition's turn for roll-overs; another owner's insertion makes our compare-and-set
fail. Complete batches' marks are pruned beyond `MARKS_MAX`.

**Giving up.** An abort first notes ledgers as refused in the record, then deletes them; a commit
that names a refused ledger fails. Ledgers that a partition names, or will get by an incomplete
commit, are never deleted. So any process may give up orphans.

**Published by the writer.** A small batch needs no ledgers: its writer *begins* it (the record
notes its content), publishes it as an idempotent producer, and commits without parts. It is not all
or nothing, but stored once: a repeat must begin with the same content (`BATCH_BEGUN`). Until then
no other batch may begin or commit.

**Owner and order.** A commit under a foreign id, or far ahead, would drop later batches in silence:
repeats are answered "done". So the first batch with a token binds the id to it, and batches follow
one another by number; a writer with gaps names the batch before (`after`).

Cursors and producers do not change: offsets stay dense, and private ledgers have no sequences.
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
"""`octavo.kind` of a private ledger; stored words keep a bulk load's name of 0.1."""
KIND_KEY, PARTITION_KEY = "octavo.kind", "octavo.partition"
BULK_LOAD_KEY, BATCH_KEY = "octavo.transaction", "octavo.batch"

MARKS_MAX = 64
"""Beyond this many, marks of complete batches are pruned."""
LEDGERS_MAX = 4_000
"""Bounds a bulk load, and a partition that gets some: a record is limited to 1 MB."""
REFUSED_MAX = 10_000
"""Bounds the refused ledgers; a commit removes its own batch's."""


class Standing(enum.Enum):
    REPEATED = "repeated"
    """This batch, or a newer batch, was committed before."""
    WAITS = "waits"
    """An older batch must be completed first."""
    NEW = "new"


class Caller(NamedTuple):
    """`digest`: of its token. `after`: the batch before, if named."""

    digest: str = ""
    after: int | None = None


def digest_of(token: bytes) -> str:
    return hashlib.sha256(token).hexdigest() if token else ""


def check_caller(record: BulkLoadRecord, caller: Caller) -> None:
    if record.token_digest not in ("", caller.digest):
        raise FOREIGN_BULK_LOAD(
            "this id is bound to the token that its first batch came with, and the call has "
            f"{'another token' if caller.digest else 'none'}: choose another id"
        )


def check_order(record: BulkLoadRecord, batch: int, after: int | None) -> None:
    """Accept the next batch or an earlier batch."""
    expected = record.batch + 1
    if batch <= expected or batch == record.begun:
        return
    if after is None:
        raise BatchOutOfOrder(
            f"batch {batch} is not the next batch, which is {expected}; to skip numbers on "
            f"purpose, send after: {record.batch}, the newest that is committed",
            expected,
        )
    # A forgotten id looks new; its writer knows its last batch.
    if record.batch not in (after, -1):
        raise BatchOutOfOrder(
            f"batch {batch} should follow batch {after}, but the newest committed batch is "
            f"{record.batch}",
            expected,
        )


def standing(record: BulkLoadRecord, batch: int) -> Standing:
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
    """Return the record that notes a new batch; None if it is noted already."""
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
    """Return the record that commits a new batch; `published`: by its writer."""
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
    if record.batch != batch or record.complete:
        return None
    return replace(record, complete=True)


def aborting(
    record: BulkLoadRecord, batch: int, ledgers: Collection[int], now_ms: int
) -> BulkLoadRecord | None:
    """Return the record that refuses these ledgers; None if nothing changes."""
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
    if record.batch != batch or record.complete:
        return None
    name = (namespace, topic, partition)
    return next((p for p in record.parts if (p.namespace, p.topic, p.partition) == name), None)


def check_large_taken(name: PartitionName, settings: TopicSettings, ledgers: int) -> None:
    topic = name.topic_name
    if settings.schema_validate:
        raise LargeNotTaken(
            f"topic {topic} checks a schema, and a body that comes in pieces cannot be checked: "
            "publish it as an ordinary message, or to a topic whose schema has validate: false"
        )
    check_copy_taken(name, settings, ledgers)


def check_copy_taken(name: PartitionName, settings: TopicSettings, ledgers: int) -> None:
    """Check that a partition takes a large copy, to which no schema applies."""
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
    """Return the bulk load's key in a partition's record; ids have no `@`."""
    return f"{bulk_load}@{record.since_ms}"


def bulk_load_of(mark: str) -> str:
    return mark.rpartition("@")[0]


def is_loaded(marks: Mapping[str, int], mark: str, batch: int) -> bool:
    return marks.get(mark, -1) >= batch


def is_finished(mark: str, batch: int, record: BulkLoadRecord) -> bool:
    """Return whether a partition may forget a batch, by its bulk load's current record."""
    return mark != mark_of(bulk_load_of(mark), record) or completed(record, batch) is None


def marking(
    marks: Mapping[str, int], mark: str, batch: int, finished: Collection[str]
) -> dict[str, int]:
    assert not is_loaded(marks, mark, batch)
    kept = {name: of for name, of in marks.items() if name not in finished}
    return {**kept, mark: batch}
