"""Shared ledgers: which partitions refer to a ledger, and when it may be deleted. Pure.

A fork's partitions begin with ledgers of the forked topic. Each shared ledger has a separate record
with its referrers: all partitions whose records name it. A ledger that only one partition names has
no such record. Three rules make this safe without a lock:

    joining         add the new partition and the partition it shares with as referrers before the
                    new partition's record exists; then check that the other's record still names
                    the ledger
    leaving         first remove the ledger from the partition's record, only then read the
                    referrers and remove the partition from them
    the last one    leaves a record without referrers, which no partition may join; deletes the
                    ledger; and then that record

So if a partition joins while another leaves, at least one of them sees the other: the leaving one
finds the newcomer among the referrers, or the newcomer finds that the record no longer names the
ledger, and gives up. A partition's record never names a ledger again that it dropped. So any broker
may remove a referrer that does not name the ledger, unless its topic is still being made.

A crash leaves too many referrers, never too few, and a sweep removes them by `is_gone`.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.broker.errors import LEDGER_GOING, TOO_MANY_FORKS
from octavo.metadata.topic_records import PartitionRecord, Referrer, ShareRecord, TopicRecord


def joined(
    ledger_id: int, record: ShareRecord | None, referrers: Iterable[Referrer], most: int
) -> ShareRecord:
    """Add these referrers. `record`: None if the ledger was never shared.

    Raises `LEDGER_GOING` when it is being deleted, `TOO_MANY_FORKS` beyond `most` referrers.
    """
    if record is None:
        record = ShareRecord()
    elif not record.referrers:
        raise LEDGER_GOING(f"ledger {ledger_id} is being deleted: no partition uses it any more")
    found = list(record.referrers)
    found += [one for one in dict.fromkeys(referrers) if one not in found]
    if len(found) > most:
        raise TOO_MANY_FORKS(
            f"ledger {ledger_id} is part of {len(record.referrers)} partitions; at most {most} may "
            "share a ledger (ledger_shares_max)"
        )
    return ShareRecord(tuple(found), record.extra)


def left(record: ShareRecord, referrer: Referrer) -> ShareRecord:
    """Remove this referrer. If none is left, the ledger must be deleted: no partition may join."""
    return ShareRecord(tuple(one for one in record.referrers if one != referrer), record.extra)


def is_gone(
    ledger_id: int, referrer: Referrer, topic: TopicRecord | None, record: PartitionRecord | None
) -> bool:
    """Whether the referrer's record does not name the ledger, nor ever will.

    `topic` and `record` are the referrer's, None if missing, both read after the record of the
    ledger's referrers.
    """
    if record is not None and ledger_id in {one.ledger_id for one in record.ledgers}:
        mine = record.incarnation == referrer.incarnation
        if mine or record.deleted:  # the topic's deletion will remove the referrer
            return False
    if topic is None or topic.identity != referrer.incarnation:
        return True
    if not topic.stands or record is None or record.deleted:
        return False  # the topic is being made, or its deletion will remove the referrer
    return record.incarnation == referrer.incarnation
