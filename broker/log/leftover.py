"""Ledgers that nobody names any more: which may go. Pure.

A partition's record says which ledgers make it up. A failed opening, a roll-over whose outcome
nobody knows, a crash between making a ledger and naming it, a deletion that did not come through:
each leaves a ledger that no record names. That alone proves nothing, for an owner may be about to
name it. So every ledger made for a partition is labelled, in its custom metadata, with the topic's
incarnation and the epoch e that the partition's record had when it was made, and is named only by
a change of a record of that incarnation that is at epoch e:

    opening                  made after the record was read at e, named by the change from e to
    (partition/opening.py)   e + 1; whoever was quicker has made it e + 1, and the change fails
    roll-over and insertion made and named by one task of an owner at e. Before the owner opens the
    (partition/rollover.py)  partition anew that task has ended; before another one does, the
                             change fails. Ledgers that are inserted are a bulk load's,
                             without a label, or a large message's
    large message            made by an upload at e, named by the insertion of the pipeline that
    (partition/large.py)     was open when the upload began: it has ended when the epoch moves
    state ledger             lives through its owner's opening anew, so it looks: made at e, it is
    (state/log.py)           not named at e + 1 but made once more
    jobs, deletions          name none of these

A change is a compare-and-set of the whole record, so one of epoch e that is late, or comes twice,
fails once the epoch is above e. Epochs never fall within an incarnation, incarnations never come
back, and what left a record is not named again. So a ledger that a record read *after* the
ledger's listing does not name may go when that record's epoch is above e, or when the topic's
incarnation is another one, or the topic is gone. A topic that is being deleted is its deletion's
matter, until it is gone.

What is not named at the record's own epoch stays until the epoch moves, by the next opening.
A ledger of a broker's compaction says its run in the epoch's stead, and was made while the record
had that run. Only a record that still has it can come to name the ledger, and a run that left the
record never comes back (metadata/compactions.py). A ledger that forks have, too (referrers.py), is
not judged by its label, which is of the partition that it was made for. Neither are ledgers without
these labels (older versions, private ledgers of bulk loads, views that jobs made, other users of
the bookies): `octavo pipeline gc` knows those of bulk loads and views.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from octavo.broker.errors import InvalidName
from octavo.broker.types import PartitionName, checked_name
from octavo.metadata.compactions import KIND, KIND_KEY, RUN_KEY, compacted_ledgers
from octavo.metadata.topics import PartitionRecord, TopicRecord

_PARTITION, _KIND = "octavo.partition", KIND_KEY
_INCARNATION, _EPOCH = "octavo.incarnation", "octavo.epoch"
_KINDS = (b"data", b"state")


class Label(NamedTuple):
    """What a ledger says of itself."""

    partition: PartitionName
    incarnation: str
    epoch: int
    run: str = ""
    """Of the compaction that made it; then it has no epoch."""


def custom_of(name: PartitionName, kind: str, record: PartitionRecord) -> dict[str, bytes]:
    """The custom metadata of a ledger of this `kind` that is made while `record` stands."""
    assert kind.encode() in _KINDS, kind
    return {
        _PARTITION: str(name).encode(),
        _KIND: kind.encode(),
        _INCARNATION: record.incarnation.encode(),
        _EPOCH: str(record.epoch).encode(),
    }


def compaction_custom_of(name: PartitionName, incarnation: str, run: str) -> dict[str, bytes]:
    """The custom metadata of a ledger of a compacted view, made while the record has this run."""
    return {
        _PARTITION: str(name).encode(),
        _KIND: KIND,
        RUN_KEY: run.encode(),
        _INCARNATION: incarnation.encode(),
    }


def partition_of(custom: Mapping[str, bytes]) -> PartitionName | None:
    """The partition that a broker made a ledger for; None for all other ledgers."""
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
    """The label in a ledger's custom metadata; None when it has none that we write."""
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
    """Raises `ValueError` for what we would not have written."""
    number = int(text)
    if str(number) != text or number < 0:
        raise ValueError(text)
    return number


def may_go(
    ledger_id: int, label: Label, topic: TopicRecord | None, record: PartitionRecord | None
) -> bool:
    """Whether no record names the ledger, nor ever will.

    `topic` and `record` are those of the label's partition, None where there is none, both read
    after the ledger had been listed.
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
    """All ledgers that a partition's record names."""
    named = {segment.ledger_id for segment in record.ledgers} | set(compacted_ledgers(record))
    return named if record.state_ledger is None else named | {record.state_ledger}


class Suspects:
    """Ledgers that may go by one proof. A second one, a while later, convicts.

    One proof is enough by the rule above; the second one stands against what the rule takes for
    granted. Times are those of a clock that nobody sets, in seconds.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._since_s: dict[int, float] = {}

    @property
    def known(self) -> list[int]:
        """All of them, ascending."""
        return sorted(self._since_s)

    def judged(self, ledger_id: int, now_s: float, *, goes: bool) -> bool:
        """Note what was found at `now_s`; True when it `goes` by two proofs a grace apart."""
        if not goes:
            self.acquitted(ledger_id)
            return False
        return now_s - self._since_s.setdefault(ledger_id, now_s) >= self._grace_s

    def acquitted(self, ledger_id: int) -> None:
        """It is named, or gone."""
        self._since_s.pop(ledger_id, None)
