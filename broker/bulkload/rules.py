"""Bulk loads: ledgers written beforehand join many partitions at once. Pure.

A writer (a Spark task) fills *private ledgers*, one or several per partition, straight at the
bookies, and closes them. A **bulk load** commits batches of them under (id, batch): the id is a
query's, the batch ascends. To commit it one record is written; the partitions follow from that.

    1. check      the ledgers are closed, are this batch's by their own metadata, hold what is said
    2. commit     compare-and-set of the bulk load's record to batch and parts: the decision
    3. load       each partition's owner, whose publishers go on meanwhile (partition/rollover.py):
                  the open ledger is closed, then in ONE compare-and-set of the partition's record
                      [… open] → [… closed] [private …] [new open],  bulk_loads[mark] = batch
    4. complete   the bulk load's record says so once every owner has answered

**All or nothing** means this. Before step 2 no part is visible anywhere, nor ever will be unless
the commit is made. From step 2 on every part will be, whoever crashes: the record alone is enough
to go on, and that is done by the repeated commit, by the commit of the next batch (which may not
begin before), and by every broker now and then (`BulkLoads.sweep`). In one partition a part
appears in one instant, whole, at consecutive offsets; a take-over has all of it or none, as there
is one compare-and-set. Between *two partitions* there is an interval, as long as the owners take,
in which one shows its part and the other not yet; no partition ever shows a part of what is not
committed. There is no read barrier and that promise needs none: consumers follow partitions singly,
and offsets of two partitions have no order. Whoever wants a cut over partitions waits for
`complete`: a commit is answered only then, and `GET /v1/bulk-loads/<id>` tells it. A topic
deleted after step 2 takes its part with it; a namesake made later does not get it.

**Once** means: a batch that is not newer than the record's is a repeat and does nothing but finish
what is unfinished. An owner takes in only what the record says and only while it is not complete;
it keeps `bulk_loads[mark]`, so an owner after it knows. Such a mark may go once the record is
complete, for from then on nobody asks; more than `MARKS_MAX` are pruned so. A mark is the id and
when it was first used: an id that was forgotten and is used again is another one, or some
partitions would take its batches for old ones and others not. The truth is read under the
partition's turn for roll-overs: another insertion of the same batch is either all before or all
after, and another owner's makes our compare-and-set fail.

**Giving up.** A driver that aborts after a commit whose answer was lost must not delete ledgers
that are part of a partition now, nor may a commit still under way name ledgers already deleted. So
an abort first notes the ledgers in the record as refused, by compare-and-set; then they go. A
commit that names one of them is refused. What a partition names is never deleted, nor what it will
name by a commit that is not complete. Orphans of dead tasks are given up the same way by whoever
finds them, after a time of grace that is a matter of courtesy, not of safety.

**Published by the writer.** A small batch need not have ledgers: its writer may publish it as an
idempotent producer, one record batch to each partition, and have only the decision kept here. It
*begins*: the record notes the batch and its content by partition, as the writer words it; it
publishes; it commits without parts. Such a batch is not all or nothing between partitions: each has
its share when it was published. It is once, for a repeat begins with the same content or is refused
(`BatchBegun`), so the same producer numbers stand for the same messages, and after the commit it is
not published at all. No other batch may begin or be committed while one is begun and not committed,
nor may that one be committed by ledgers: some of it may be visible already.

**Whose, and in order.** A repeat is answered as done, whatever it holds; so whoever commits under
another's id, or a number far ahead by mistake, would have all batches of the id up to there dropped
in silence. The first batch that comes with a token binds the id to it, and from then on callers
without it are refused. A batch follows the newest committed one by one; a writer whose numbers have
gaps, or go on from an id that was forgotten, says which batch was the last before (`after`). Ids of
older versions are bound to nothing until their writer gives a token.

**Consequences.** Cursors count offsets, which stay dense: they need nothing. The producers' table
is untouched: private ledgers have no sequences, so a take-over does not scan them (`bulk_loaded`).
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from octavo.broker.errors import (
    BatchBegun,
    BatchOutOfOrder,
    BulkLoadAborted,
    ForeignBulkLoad,
    LargeNotTaken,
    TooManyLedgers,
)
from octavo.broker.types import PartitionName, TopicSettings
from octavo.metadata.bulk_loads import BulkLoadPart, BulkLoadRecord

KIND = b"transaction"
"""`octavo.kind` of a private ledger; the other keys of its custom metadata are these. Stored words
keep the name that a bulk load had in 0.1: ledgers that were written before must still be known."""
KIND_KEY, PARTITION_KEY = "octavo.kind", "octavo.partition"
BULK_LOAD_KEY, BATCH_KEY = "octavo.transaction", "octavo.batch"

MARKS_MAX = 64
"""More marks than this in a partition's record are pruned of those whose batch is complete."""
LEDGERS_MAX = 4_000
"""Private ledgers of one bulk load, and ledgers of a partition that is to get some: records are
bounded by ZooKeeper's 1 MB."""
REFUSED_MAX = 10_000
"""Ledgers noted as given up and not yet forgotten; a commit forgets those of its batch."""


class Standing(enum.Enum):
    """What is to be done for a batch that somebody wants committed."""

    REPEATED = "repeated"
    """It was committed before, or a newer one was."""
    WAITS = "waits"
    """An older batch has to be completed first."""
    NEW = "new"


class Caller(NamedTuple):
    """Who asks. `digest` is of its token; `after` is the batch before this one, if it says."""

    digest: str = ""
    after: int | None = None


def digest_of(token: bytes) -> str:
    """What is kept of a token; "" when there is none."""
    return hashlib.sha256(token).hexdigest() if token else ""


def check_caller(record: BulkLoadRecord, caller: Caller) -> None:
    """Raises `ForeignBulkLoad`."""
    if record.token_digest not in ("", caller.digest):
        raise ForeignBulkLoad(
            "this id is bound to the token that its first batch came with, and the call has "
            f"{'another one' if caller.digest else 'none'}: take an id of your own"
        )


def check_order(record: BulkLoadRecord, batch: int, after: int | None) -> None:
    """Whether `batch` is next, or was before. Raises `BatchOutOfOrder`."""
    expected = record.batch + 1
    if batch <= expected or batch == record.begun:
        return
    if after is None:
        raise BatchOutOfOrder(
            f"batch {batch} is not the next one, which is {expected}; a writer that means it says "
            f"after: {record.batch}, the newest that is committed",
            expected,
        )
    # An id that was forgotten looks like a new one, and its writer knows better.
    if record.batch not in (after, -1):
        raise BatchOutOfOrder(
            f"batch {batch} is to follow batch {after}, but the newest that is committed is "
            f"{record.batch}",
            expected,
        )


def standing(record: BulkLoadRecord, batch: int) -> Standing:
    """Where `batch` stands against the newest one that is committed."""
    if batch <= record.batch:
        return Standing.REPEATED
    return Standing.NEW if record.complete else Standing.WAITS


def ledger_ids(parts: Iterable[BulkLoadPart]) -> list[int]:
    """All ledgers of a bulk load."""
    return [ledger.ledger_id for part in parts for ledger in part.ledgers]


def beginning(
    record: BulkLoadRecord,
    batch: int,
    content: Mapping[str, str],
    now_ms: int,
    digest: str = "",
) -> BulkLoadRecord | None:
    """The record that notes a new batch of a writer that publishes it; None when it has it.

    Raises `BatchBegun`.
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
        raise BatchBegun(
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
    """The record that commits a new batch; `published`: its writer has done that, and began it.

    Raises `BulkLoadAborted`, `BatchBegun`.
    """
    assert standing(record, batch) is Standing.NEW
    if published:
        assert not parts
        _check_begun(record, batch)
    elif record.begun > record.batch:
        raise BatchBegun(
            f"batch {record.begun} was begun by a writer that publishes it, and may be visible in "
            "part: finish it the same way before anything else"
        )
    gone = sorted(record.refused.keys() & set(ledger_ids(parts)))
    if gone:
        raise BulkLoadAborted(
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
        raise BatchBegun(f"batch {batch} is not the one that was begun: {begun}")


def completed(record: BulkLoadRecord, batch: int) -> BulkLoadRecord | None:
    """The record once all parts of `batch` are taken in; None when it says so, or is past it."""
    if record.batch != batch or record.complete:
        return None
    return replace(record, complete=True)


def aborting(
    record: BulkLoadRecord, batch: int, ledgers: Collection[int], now_ms: int
) -> BulkLoadRecord | None:
    """The record that refuses these ledgers of an uncommitted batch; None when none is needed."""
    if batch <= record.batch or set(ledgers) <= record.refused.keys():
        return None
    refused = {**record.refused, **dict.fromkeys(ledgers, batch)}
    if len(refused) > REFUSED_MAX:
        raise BulkLoadAborted(
            f"{len(refused)} ledgers of batches that were never committed; at most {REFUSED_MAX} "
            "are noted: commit a batch first"
        )
    return replace(record, refused=refused, since_ms=record.since_ms or now_ms, changed_ms=now_ms)


def part_of(
    record: BulkLoadRecord, batch: int, namespace: str, topic: str, partition: int
) -> BulkLoadPart | None:
    """What `batch` still may owe to this partition; None when it is complete or owes nothing."""
    if record.batch != batch or record.complete:
        return None
    name = (namespace, topic, partition)
    return next((p for p in record.parts if (p.namespace, p.topic, p.partition) == name), None)


def check_large_taken(name: PartitionName, settings: TopicSettings, ledgers: int) -> None:
    """Whether a partition with so many ledgers takes a large message.

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
    """Whether it takes a dead letter or a retry that is large: no schema is looked at.

    Raises `LargeNotTaken`, `TooManyLedgers`.
    """
    topic = name.topic_name
    if settings.compaction_after_bytes is not None:
        raise LargeNotTaken(
            f"topic {topic} is compacted, which would keep a large message and not its body: "
            "publish it to a topic without compaction, and its place here"
        )
    if ledgers >= LEDGERS_MAX:
        raise TooManyLedgers(
            f"{name} has {ledgers} ledgers, and a large message is one more; at most "
            f"{LEDGERS_MAX}: let retention remove some"
        )


def mark_of(bulk_load: str, record: BulkLoadRecord) -> str:
    """What a partition keeps a bulk load's newest batch under. Ids have no `@`."""
    return f"{bulk_load}@{record.since_ms}"


def bulk_load_of(mark: str) -> str:
    """The id in a mark."""
    return mark.rpartition("@")[0]


def is_loaded(marks: Mapping[str, int], mark: str, batch: int) -> bool:
    """Whether a partition has this batch, or a newer one, by its own record."""
    return marks.get(mark, -1) >= batch


def is_finished(mark: str, batch: int, record: BulkLoadRecord) -> bool:
    """Whether nobody will ask for this mark any more; `record` is what its id has now."""
    return mark != mark_of(bulk_load_of(mark), record) or completed(record, batch) is None


def marking(
    marks: Mapping[str, int], mark: str, batch: int, finished: Collection[str]
) -> dict[str, int]:
    """The marks with one more and without those that are `finished`."""
    assert not is_loaded(marks, mark, batch)
    kept = {name: of for name, of in marks.items() if name not in finished}
    return {**kept, mark: batch}
