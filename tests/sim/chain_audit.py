"""The referee of the chains: every change of a partition's record, at the moment it takes effect.

LedgerChaining: only the owner of the current epoch changes the chain; a new owner raises the epoch;
all links but the last are closed, in the record and in the ledger's own; nothing that a record
names is deleted; only what every subscription has acked is trimmed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

from broker.types import PartitionName
from metadata.topic_records import PartitionLedger, PartitionRecord, decode_record
from tests.sim.ledger_audit import LedgerAudit
from tests.sim.metadata_tree import Change
from tests.sim.topic_audit import TopicAudit
from tests.sim.trace import Trace

_PARTITION = re.compile(r"/octavo/topics/([^/]+)/([^/]+)/partitions/(\d+)$")


class Owned:
    """What is known of one partition's record."""

    def __init__(self) -> None:
        self.record = PartitionRecord()
        self.owner = -1
        """The store that began the present epoch."""


class ChainAudit:
    """All chains of one seed."""

    def __init__(
        self, topics: TopicAudit, ledgers: LedgerAudit, trace: Trace, fail: Callable[[str], None]
    ) -> None:
        self.owned: dict[PartitionName, Owned] = {}
        self._topics = topics
        self._ledgers = ledgers
        self._trace = trace
        self._fail = fail

    def changed(self, change: Change) -> None:
        """For the observers of the metadata store."""
        if change.path.startswith("/ledgers/"):
            if change.value is None:
                self._check_not_named()
            return
        found = _PARTITION.match(change.path)
        if found is None or not change.value:
            return
        name = PartitionName(found[1], found[2], int(found[3]))
        record = decode_record(PartitionRecord, change.path, change.value)
        known = self.owned.setdefault(name, Owned())
        what = f"{name} by {change.by}: {_short(known.record)} → {_short(record)}"
        self._check_epoch(known, record, change, what)
        self._check_links(known.record.ledgers, record.ledgers, what)
        if record.trimmed_offset != known.record.trimmed_offset:
            self._trimmed(name, known.record, record, what)
        if record.state_ledger != known.record.state_ledger and known.record.epoch == record.epoch:
            self._trace.probe("topic.state_roll")
        known.record = record

    def _check_epoch(
        self, known: Owned, record: PartitionRecord, change: Change, what: str
    ) -> None:
        old = known.record.epoch
        if record.epoch == old + 1:
            kind = "reopen" if known.owner == change.store else "takeover"
            self._trace.probe(f"topic.{kind}")
            known.owner = change.store
        elif record.epoch != old:
            self._fail(f"S9 the epoch jumps: {what}")
        elif record.epoch and change.store != known.owner:
            self._fail(f"S9 somebody else than the owner of epoch {old} changes the chain: {what}")

    def _check_links(
        self, old: tuple[PartitionLedger, ...], new: tuple[PartitionLedger, ...], what: str
    ) -> None:
        for link, following in pairwise(new):
            if link.count is None or link.base_offset + link.count != following.base_offset:
                self._fail(f"S9 a link does not begin where the last one ends: {what}")
        kept = [link for link in old if any(link.ledger_id == n.ledger_id for n in new)]
        known = {link.ledger_id: link for link in kept}
        for link in new:
            before = known.get(link.ledger_id)
            if before is not None and before.count is not None and before != link:
                self._fail(f"S9 a closed link was changed: {what}")
            if before is not None and before.base_offset != link.base_offset:
                self._fail(f"S9 a link was moved: {what}")
        gone = [link for link in old if link.ledger_id not in known]
        if gone and kept and kept != list(old[len(gone) :]) and old[-1] not in gone:
            self._fail(f"S9 links vanished from the middle: {what}")
        added = [link for link in new if link.ledger_id not in known]
        if len(added) > 1 or (added and added[0] is not new[-1]):
            self._fail(f"S9 more than one ledger was added: {what}")
        if added and old:
            self._check_closed(old[-1], new, what)
            self._trace.probe("topic.ledger_added")

    def _check_closed(
        self, last: PartitionLedger, new: tuple[PartitionLedger, ...], what: str
    ) -> None:
        """Before a ledger is added, the one before it is closed for good."""
        history = self._ledgers.ledgers.get(last.ledger_id)
        if history is None or not history.is_closed:
            self._fail(f"S9 ledger {last.ledger_id} is followed and not closed: {what}")
            return
        link = next((link for link in new if link.ledger_id == last.ledger_id), None)
        empty = history.record.last_entry < 0
        if (link is None) != empty and last.count is None:
            self._fail(f"S9 ledger {last.ledger_id} ends at {history.record.last_entry}: {what}")
        if new[-1].base_offset < last.base_offset:
            self._fail(f"S9 the chain goes back: {what}")

    def _trimmed(
        self, name: PartitionName, old: PartitionRecord, new: PartitionRecord, what: str
    ) -> None:
        if new.trimmed_offset < old.trimmed_offset:
            self._fail(f"S9 what was trimmed comes back: {what}")
        log = self._topics.logs.get(name)
        if log is not None:
            self._trace.probe("topic.trim")
            log.trim(new.trimmed_offset)

    def _check_not_named(self) -> None:
        for name, known in self.owned.items():
            record = known.record
            wanted = [link.ledger_id for link in record.ledgers]
            if record.state_ledger is not None:
                wanted.append(record.state_ledger)
            for ledger_id in wanted:
                history = self._ledgers.ledgers.get(ledger_id)
                if history is not None and history.deleted:
                    self._fail(f"P46 ledger {ledger_id} of {name} was deleted: {_short(record)}")


def _short(record: PartitionRecord) -> str:
    links = " ".join(f"{x.ledger_id}@{x.base_offset}+{x.count}" for x in record.ledgers)
    return (
        f"epoch {record.epoch} [{links}] from {record.trimmed_offset} state {record.state_ledger}"
    )
