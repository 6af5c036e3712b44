"""Shared ledgers: who refers to one, and when nobody does any more. Pure.

A fork's partitions begin with ledgers of the topic that was forked. Each of these has a record of
its own with its referrers, which are all the partitions whose records name it; a ledger that only
one partition names has none. Three rules make it safe without a lock:

    who joins       is a referrer before its partition's record exists, and so is the one that it
                    shares with; then it looks whether that one's record names the ledger still
    who leaves      has its partition's record name the ledger no more, and only then looks at the
                    referrers and takes itself out
    who is last     leaves a record without referrers, which nobody may join; deletes the ledger;
                    and then the record

So of one who joins and one who leaves at the same time one sees the other: who leaves finds the
newcomer among the referrers, or the newcomer finds that the record names the ledger no more, and
gives up. What left a partition's record is not named by it again, so a referrer that does not name
the ledger may be taken out by anybody, but for one whose topic is still being made.

A crash leaves referrers too many, never too few, and a sweep takes them out by `is_gone`.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.broker.errors import LedgerGoing, TooManyForks
from octavo.metadata.topic_records import PartitionRecord, Referrer, ShareRecord, TopicRecord


def joined(
    ledger_id: int, record: ShareRecord | None, referrers: Iterable[Referrer], most: int
) -> ShareRecord:
    """With these referrers. `record`: None when nobody has shared the ledger yet.

    Raises `LedgerGoing` when it is being deleted, `TooManyForks` beyond `most` referrers.
    """
    if record is None:
        record = ShareRecord()
    elif not record.referrers:
        raise LedgerGoing(f"ledger {ledger_id} is being deleted: nobody refers to it any more")
    found = list(record.referrers)
    found += [one for one in dict.fromkeys(referrers) if one not in found]
    if len(found) > most:
        raise TooManyForks(
            f"ledger {ledger_id} is part of {len(record.referrers)} partitions; at most {most} may "
            "share one (ledger_shares_max)"
        )
    return ShareRecord(tuple(found), record.extra)


def left(record: ShareRecord, referrer: Referrer) -> ShareRecord:
    """Without this referrer. None of them is left: the ledger has to go, for nobody may join."""
    return ShareRecord(tuple(one for one in record.referrers if one != referrer), record.extra)


def is_gone(
    ledger_id: int, referrer: Referrer, topic: TopicRecord | None, record: PartitionRecord | None
) -> bool:
    """Whether the referrer's record does not name the ledger, nor ever will.

    `topic` and `record` are the referrer's, None where there is none, both read after the record of
    the ledger's referrers.
    """
    if record is not None and ledger_id in {one.ledger_id for one in record.ledgers}:
        mine = record.incarnation == referrer.incarnation
        if mine or record.deleted:  # its deletion will see to it
            return False
    if topic is None or topic.identity != referrer.incarnation:
        return True
    if not topic.stands or record is None or record.deleted:
        return False  # it is being made, or its deletion will see to it
    return record.incarnation == referrer.incarnation
