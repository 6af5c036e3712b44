"""Orphan ledgers: which ledgers no record names or ever will, so that they may go. Pure.

A crash or failure between making a ledger and naming it leaves a ledger that no record names, but
so does an owner that is about to name it. So each ledger's custom metadata has a label: the topic's
incarnation, and the epoch e of the partition's record when it was made. Only a change of a record
of that incarnation at epoch e may name it:

    opening                  named by the change from e to e + 1
    roll-over and insertion  made and named by one task, which ends before the epoch changes
    large message            named by the pipeline in which the upload began, likewise
    state ledger             after a reopening, its owner makes another ledger
    jobs, deletions          name no ledger with such a label

A change is a compare-and-set of the whole record, epochs never fall, incarnations never come back,
and a ledger that left a record is not named again. So if a record that was read *after* the ledger
was listed does not name it, the ledger may go when that record's epoch is above e, or the topic has
another incarnation, or is gone. A topic's deletion removes its own ledgers. A compaction's ledger
is labelled with its run instead: only a record with that run can name it. Ledgers without labels
are not judged.

Reference counts say which partitions share a ledger with forks: a record for each shared ledger has
its referrers. Three rules need no lock:

    joining         before the new partition's record exists, add it and the partition whose
                    ledger it shares as referrers; then check that the latter still names it
    leaving         remove the ledger from the partition's record; only then the referrer
    the last one    leaves a record without referrers, which no partition may join; deletes the
                    ledger; and then deletes that record

So of a joining and a leaving partition, at least one sees the other, and the joining partition
gives up if the ledger is gone. A crash leaves too many referrers, never too few; a sweep removes
them by `is_gone`.
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
    """The compaction run that made it, in place of an epoch."""


def custom_of(name: PartitionName, kind: str, record: PartitionRecord) -> dict[str, bytes]:
    assert kind.encode() in _KINDS, kind
    return {
        _PARTITION: str(name).encode(),
        _KIND: kind.encode(),
        _INCARNATION: record.incarnation.encode(),
        _EPOCH: str(record.epoch).encode(),
    }


def compaction_custom_of(name: PartitionName, incarnation: str, run: str) -> dict[str, bytes]:
    return {
        _PARTITION: str(name).encode(),
        _KIND: KIND,
        RUN_KEY: run.encode(),
        _INCARNATION: incarnation.encode(),
    }


def partition_of(custom: Mapping[str, bytes]) -> PartitionName | None:
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
    """Parse a number in the form that `str` gives; else raise `ValueError`."""
    number = int(text)
    if str(number) != text or number < 0:
        raise ValueError(text)
    return number


def may_go(
    ledger_id: int, label: Label, topic: TopicRecord | None, record: PartitionRecord | None
) -> bool:
    """Whether the ledger may go; `topic`, `record` (None: missing) were read after its listing."""
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
    """Ledgers that may go by one check, deleted after a second: against errors in the rule. Times
    are steady seconds.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since_s: dict[int, float] = {}

    @property
    def known(self) -> list[int]:
        return sorted(self._since_s)

    def judged(self, ledger_id: int, now_s: float, *, goes: bool) -> bool:
        """Return whether the ledger may go, by two checks a grace apart."""
        if not goes:
            self.acquitted(ledger_id)
            return False
        return now_s - self._since_s.setdefault(ledger_id, now_s) >= self._grace_s

    def acquitted(self, ledger_id: int) -> None:
        self._since_s.pop(ledger_id, None)


def joined(
    ledger_id: int, record: ShareRecord | None, referrers: Iterable[Referrer], most: int
) -> ShareRecord:
    """Return the record with more referrers; `record` is None if the ledger was never shared."""
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
    return ShareRecord(tuple(one for one in record.referrers if one != referrer), record.extra)


def is_gone(
    ledger_id: int, referrer: Referrer, topic: TopicRecord | None, record: PartitionRecord | None
) -> bool:
    """Whether the referrer is gone; `topic` and `record` (None: missing) were read after it."""
    if record is not None and ledger_id in {one.ledger_id for one in record.ledgers}:
        mine = record.incarnation == referrer.incarnation
        if mine or record.deleted:  # the topic's deletion will remove the referrer
            return False
    if topic is None or topic.identity != referrer.incarnation:
        return True
    if not topic.stands or record is None or record.deleted:
        return False  # the topic is being made, or its deletion will remove the referrer
    return record.incarnation == referrer.incarnation
