"""Orphan ledgers: which ledgers no record names or ever will, so that they may go. Pure.

A partition's record says which ledgers make it up. A failed opening, a roll-over with an unknown
outcome, a crash between making a ledger and naming it, an incomplete deletion: each leaves a ledger
that no record names. That alone proves nothing, because an owner may be about to name it. So every
ledger made for a partition is labelled, in its custom metadata, with the topic's incarnation and
the epoch e that the partition's record had when the ledger was made. Only a change of a record of
that incarnation, at epoch e, may name it:

    opening                  made after the record was read at e, named by the change from e to
    (partition/opening.py)   e + 1; if another owner has made it e + 1 first, the change fails
    roll-over and insertion  made and named by one task of an owner at e, which ends before the
    (partition/rollover.py)  owner opens the partition again; if another owner opens it, the
                             change fails. Inserted ledgers belong to a bulk load, without a
                             label, or to a large message
    large message            made by an upload at e, named by an insertion of the pipeline that
    (partition/large.py)     was open when the upload began; the pipeline ends before the epoch
                             changes
    state ledger             made at e. If its owner has reopened the partition meanwhile, the
    (state/log.py)           owner does not name it at e + 1, but makes another ledger
    jobs, deletions          name no ledger with such a label

A change is a compare-and-set of the whole record, so a late or repeated change of epoch e fails
once the epoch is above e. Epochs never fall within an incarnation, incarnations never come back,
and a ledger that left a record is not named again. So if a record that was read *after* the ledger
was listed does not name the ledger, the ledger may go when that record's epoch is above e, or the
topic has another incarnation, or is gone. Ledgers of a topic that is being deleted are left to the
deletion, until it is done.

An unnamed ledger of the record's current epoch stays until the next opening raises the epoch. A
broker's compaction ledger is labelled with its run instead of the epoch, and was made while the
record had that run. Only a record that still has the run can name the ledger, and a run that left
the record never comes back (metadata/compactions.py). A ledger that forks share (below) is not
judged by its label, which names only the first partition. Nor are ledgers without these labels
(older versions, private ledgers of bulk loads, views that jobs made, other users of the bookies):
`octavo pipeline gc` handles bulk loads and views.

Reference counts say which partitions share a ledger, and when it may be deleted. A fork's
partitions begin with ledgers of the forked topic. Each shared ledger has a separate record with its
referrers: all partitions whose records name it. A ledger that only one partition names has no such
record. Three rules make this safe without a lock:

    joining         before the new partition's record exists, add the new partition, and the
                    partition whose ledger it shares, as referrers; then check that this
                    partition's record still names the ledger
    leaving         remove the ledger from the partition's record; only then read the referrers
                    and remove the partition from them
    the last one    leaves a record without referrers, which no partition may join; deletes the
                    ledger; and then deletes that record

So if a partition joins while another leaves, at least one of them sees the other: the leaving one
finds the newcomer among the referrers, or the newcomer finds that the record no longer names the
ledger, and gives up. Once a partition's record has dropped a ledger, it never names it again. So
any broker may remove a referrer whose record does not name the ledger, unless its topic is still
being made. A crash leaves too many referrers, never too few, and a sweep removes them by `is_gone`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from octavo.broker.errors import LEDGER_GOING, TOO_MANY_FORKS, InvalidName
from octavo.broker.types import PartitionName, checked_name
from octavo.metadata.compactions import KIND, KIND_KEY, RUN_KEY, compacted_ledgers
from octavo.metadata.topic_records import PartitionRecord, Referrer, ShareRecord, TopicRecord

_PARTITION, _KIND = "octavo.partition", KIND_KEY
_INCARNATION, _EPOCH = "octavo.incarnation", "octavo.epoch"
_KINDS = (b"data", b"state")


class Label(NamedTuple):
    partition: PartitionName
    incarnation: str
    epoch: int
    run: str = ""
    """The compaction run that made the ledger; then there is no epoch."""


def custom_of(name: PartitionName, kind: str, record: PartitionRecord) -> dict[str, bytes]:
    """Return the custom metadata of a ledger of this `kind`, made while `record` is current."""
    assert kind.encode() in _KINDS, kind
    return {
        _PARTITION: str(name).encode(),
        _KIND: kind.encode(),
        _INCARNATION: record.incarnation.encode(),
        _EPOCH: str(record.epoch).encode(),
    }


def compaction_custom_of(name: PartitionName, incarnation: str, run: str) -> dict[str, bytes]:
    """Return the custom metadata of a ledger that this compaction run makes for its view."""
    return {
        _PARTITION: str(name).encode(),
        _KIND: KIND,
        RUN_KEY: run.encode(),
        _INCARNATION: incarnation.encode(),
    }


def partition_of(custom: Mapping[str, bytes]) -> PartitionName | None:
    """Return the partition for which a broker made the ledger; None for all other ledgers."""
    if custom.get(_KIND) not in _KINDS:
        return None
    return _named_partition(custom)


def _named_partition(custom: Mapping[str, bytes]) -> PartitionName | None:
    try:
        namespace, topic, number = custom.get(_PARTITION, b"").decode().split("/")
        return PartitionName(
            checked_name("namespace", namespace), checked_name("topic", topic), _number(number)
        )
    except (ValueError, InvalidName):
        return None


def label_of(custom: Mapping[str, bytes]) -> Label | None:
    """Return the label in a ledger's custom metadata; None without a valid label."""
    compacted = custom.get(_KIND) == KIND
    partition = _named_partition(custom) if compacted else partition_of(custom)
    try:
        incarnation = custom.get(_INCARNATION, b"").decode()
        run = custom.get(RUN_KEY, b"").decode() if compacted else ""
        epoch = -1 if compacted else _number(custom.get(_EPOCH, b"").decode())
    except ValueError:
        return None
    if not partition or not incarnation or compacted != bool(run):
        return None
    return Label(partition, incarnation, epoch, run)


def _number(text: str) -> int:
    """Parse a number. Raises `ValueError` for text that `str` of a number would not give."""
    number = int(text)
    if str(number) != text or number < 0:
        raise ValueError(text)
    return number


def may_go(
    ledger_id: int, label: Label, topic: TopicRecord | None, record: PartitionRecord | None
) -> bool:
    """Whether no record names the ledger or ever will.

    `topic` and `record` belong to the label's partition, None if missing; both were read after the
    ledger had been listed.
    """
    if record is not None and ledger_id in named_ledgers(record):
        return False
    if topic is None or topic.identity != label.incarnation:
        return True
    if not topic.stands or record is None or record.deleted:
        return False
    if record.incarnation != label.incarnation:
        return False
    if label.run:
        return record.compaction is None or record.compaction.run != label.run
    return record.epoch > label.epoch


def named_ledgers(record: PartitionRecord) -> set[int]:
    named = {segment.ledger_id for segment in record.ledgers} | set(compacted_ledgers(record))
    return named if record.state_ledger is None else named | {record.state_ledger}


class Suspects:
    """Ledgers that may go by one check; they are deleted only after a second check.

    By the rule above one check is enough; the second protects against errors in the rule's
    assumptions. Times are seconds of a steady clock.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since_s: dict[int, float] = {}

    @property
    def known(self) -> list[int]:
        return sorted(self._since_s)

    def judged(self, ledger_id: int, now_s: float, *, goes: bool) -> bool:
        """Note a check at `now_s`; True if the ledger may go by two checks at least a grace
        apart."""
        if not goes:
            self.acquitted(ledger_id)
            return False
        return now_s - self._since_s.setdefault(ledger_id, now_s) >= self._grace_s

    def acquitted(self, ledger_id: int) -> None:
        """Forget a suspect, because it is named, or deleted."""
        self._since_s.pop(ledger_id, None)


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
    """Remove this referrer. If none is left, no partition may join: delete the ledger."""
    return ShareRecord(tuple(one for one in record.referrers if one != referrer), record.extra)


def is_gone(
    ledger_id: int, referrer: Referrer, topic: TopicRecord | None, record: PartitionRecord | None
) -> bool:
    """Whether the referrer's record does not name the ledger and never will.

    `topic` and `record` are the referrer's, None if missing; both were read after the ledger's
    referrers.
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
