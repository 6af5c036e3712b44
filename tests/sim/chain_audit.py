"""The referee of ledger lists: sees every change of a partition's record when it takes effect.

Only the owner of the current epoch changes the list, and a new owner raises the epoch. All ledgers
but the last are closed. A named ledger is never deleted. Only messages that every subscription has
acked are trimmed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

from octavo.broker.log.ledger_list import is_measured
from octavo.broker.types import PartitionName
from octavo.metadata.clock import CLOCK_PATH
from octavo.metadata.offloads import same_to_owner
from octavo.metadata.topic_records import (
    PartitionLedger,
    PartitionRecord,
    TopicRecord,
    decode_record,
)
from tests.sim.bulk_load_audit import BulkLoadAudit
from tests.sim.compaction_audit import CompactedHistory
from tests.sim.ledger_audit import LedgerAudit
from tests.sim.metadata_tree import Change
from tests.sim.offload_audit import OffloadAudit
from tests.sim.time_audit import TimeAudit
from tests.sim.topic_audit import TopicAudit
from tests.sim.trace import Trace

_PARTITION = re.compile(r"/octavo/topics/([^/]+)/([^/]+)/partitions/(\d+)$")
_TOPIC = re.compile(r"/octavo/topics/([^/]+)/([^/]+)$")


class Owned:
    def __init__(self) -> None:
        self.record = PartitionRecord()
        self.owner = -1
        """The store that began the present epoch."""


class ChainAudit:
    def __init__(
        self, topics: TopicAudit, ledgers: LedgerAudit, trace: Trace, fail: Callable[[str], None]
    ) -> None:
        self.owned: dict[PartitionName, Owned] = {}
        self._topics = topics
        self._ledgers = ledgers
        self._trace = trace
        self._fail = fail
        self.bulk_loads: BulkLoadAudit | None = None
        self.offloads: OffloadAudit | None = None
        self.times: TimeAudit | None = None
        self.views: dict[PartitionName, CompactedHistory] = {}
        """Filled in seeds that have compacted views."""

    def changed(self, change: Change) -> None:
        if self.times is not None and change.path == CLOCK_PATH and change.value is not None:
            self.times.clock_written(change)
        if change.path.startswith("/ledgers/"):
            if change.value is None:
                self._check_not_named()
            return
        if self.bulk_loads is not None and _TOPIC.match(change.path):
            self.bulk_loads.topic_is_gone = (
                change.value is None
                or decode_record(TopicRecord, change.path, change.value).deleting
            )
        found = _PARTITION.match(change.path)
        if found is None or change.value == b"":
            return
        name = PartitionName(found[1], found[2], int(found[3]))
        if change.value is None:
            gone = self.owned.pop(name, None)
            if gone is not None and self.offloads is not None:
                self.offloads.partition_gone(gone.record.ledgers)
            return
        record = decode_record(PartitionRecord, change.path, change.value)
        known = self.owned.setdefault(name, Owned())
        if known.record.incarnation and record.incarnation != known.record.incarnation:
            known = self.owned[name] = Owned()  # the record of an earlier topic of that name
        what = f"{name} by {change.by}: {_short(known.record)} → {_short(record)}"
        if record.deleted:
            if not same_to_owner(_standing(record), _standing(known.record)):
                self._fail(f"S9 a chain is changed that is being deleted: {what}")
            known.record = record
            return
        if not known.record.ledgers and any(link.shared for link in record.ledgers):
            self._trace.probe("topic.fork")
            known.record = record  # its readers check the content (fork_load.py)
            return
        self._check_epoch(known, record, change, what)
        for link, following in pairwise(record.ledgers):
            if link.count is None or link.base_offset + link.count != following.base_offset:
                self._fail(f"S9 a link does not begin where the last one ends: {what}")
        alone = self._without_bulk_load(name, known, record, what)
        self._check_links(known.record.ledgers, alone, what)
        if self.offloads is not None:
            self.offloads.links_changed(name, known.record.ledgers, record.ledgers, what)
        self._check_view(name, known.record, record, what)
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
        elif (
            record.epoch
            and change.store != known.owner
            and not (
                (self.offloads is not None or self.views) and same_to_owner(known.record, record)
            )
        ):
            self._fail(f"S9 somebody else than the owner of epoch {old} changes the chain: {what}")

    def _check_view(
        self, name: PartitionName, old: PartitionRecord, new: PartitionRecord, what: str
    ) -> None:
        before, after = old.compaction, new.compaction
        if before == after:
            return
        if after is None or (before is not None and after.horizon < before.horizon):
            self._fail(f"X9 a compacted view is taken back: {what}")
        elif before is None or (before.horizon, before.ledgers) != (after.horizon, after.ledgers):
            history = self.views.get(name)
            if history is None:  # a fork's view, which brokers make too; fork_load.py reads it
                self._trace.probe("compacted.fork")
                return
            for one in after.ledgers:
                history.learn(one, self._ledgers.ledgers[one.ledger_id].sent)
            history.published(after)

    def _without_bulk_load(
        self, name: PartitionName, known: Owned, record: PartitionRecord, what: str
    ) -> tuple[PartitionLedger, ...]:
        """Return the links without those of a new bulk load, which have their own checks."""
        before = {link.ledger_id for link in known.record.ledgers}
        added = [link for link in record.ledgers[:-1] if link.ledger_id not in before]
        if added and all(link.pieces for link in added):  # large_load.py reads it
            self._trace.probe("topic.large")
            at = record.ledgers.index(added[0])
            return (*record.ledgers[:at], record.ledgers[-1])
        if self.bulk_loads is None or not added:
            return record.ledgers
        at = record.ledgers.index(added[0])
        if list(record.ledgers[at:-1]) != added or record.ledgers[-1].ledger_id in before:
            self._fail(f"X2 not between the ledger that was open and a new one: {what}")
        self.bulk_loads.taken_in(name, added, record, what)
        return (*record.ledgers[:at], record.ledgers[-1])

    def _check_links(
        self, old: tuple[PartitionLedger, ...], new: tuple[PartitionLedger, ...], what: str
    ) -> None:
        kept = [link for link in old if any(link.ledger_id == n.ledger_id for n in new)]
        known = {link.ledger_id: link for link in kept}
        for link in new:
            before = known.get(link.ledger_id)
            if (
                before is not None
                and before.count is not None
                and before != self._closed(link, before)
            ):
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
            if new[-1].base_offset < old[-1].base_offset:
                self._fail(f"S9 the chain goes back: {what}")
        elif old and old[-1].count is None and old[-1] not in new:
            self._check_closed(old[-1], new, what)
            self._trace.probe("topic.ledger_closed")

    def _closed(self, link: PartitionLedger, before: PartitionLedger) -> PartitionLedger:
        """Return the link without fields that other referees check, and without newly measured
        times."""
        if not is_measured(before) and is_measured(link):
            self._trace.probe("topic.ledger_measured")
            link = replace(link, first_ms=before.first_ms, last_ms=before.last_ms, disorder_ms=-1)
        if before.aging_since_ms is None and link.aging_since_ms is not None:
            self._trace.probe("topic.ledger_dated")
            link = replace(link, aging_since_ms=None)
        return link if self.offloads is None else replace(link, offload=before.offload)

    def _check_closed(
        self, last: PartitionLedger, new: tuple[PartitionLedger, ...], what: str
    ) -> None:
        """Check that the last ledger is closed for good before a ledger is added or called
        closed."""
        if last.shared:  # it ends where the fork was made, whatever its source adds
            return
        history = self._ledgers.ledgers.get(last.ledger_id)
        if history is None or not history.is_closed:
            self._fail(f"S9 ledger {last.ledger_id} is followed and not closed: {what}")
            return
        link = next((link for link in new if link.ledger_id == last.ledger_id), None)
        empty = history.record.last_entry < 0
        if (link is None) != empty and last.count is None:
            self._fail(f"S9 ledger {last.ledger_id} ends at {history.record.last_entry}: {what}")

    def _trimmed(
        self, name: PartitionName, old: PartitionRecord, new: PartitionRecord, what: str
    ) -> None:
        if new.trimmed_offset < old.trimmed_offset:
            self._fail(f"S9 what was trimmed comes back: {what}")
        log = self._topics.logs.get(name)
        view = self.views.get(name)
        if view is not None and view.own is not None:
            horizon = 0 if new.compaction is None else new.compaction.horizon
            if new.trimmed_offset > horizon:
                self._fail(f"X18 {name} is trimmed to {new.trimmed_offset}, its view: {horizon}")
        if log is not None:
            self._trace.probe("topic.trim")
            if self.times is not None:
                self.times.trimmed(log, log.trimmed, new.trimmed_offset, old.ledgers)
            log.trim(new.trimmed_offset)

    def _check_not_named(self) -> None:
        for name, known in self.owned.items():
            record = known.record
            if record.deleted:
                continue
            for link in record.ledgers:
                if self._is_deleted(link.ledger_id) and not (
                    self.offloads is not None and self.offloads.may_be_deleted(link)
                ):
                    self._fail(
                        f"P46 ledger {link.ledger_id} of {name} was deleted: {_short(record)}"
                    )
            view = () if record.compaction is None else record.compaction.ledgers
            for one in view:
                if self._is_deleted(one.ledger_id):
                    self._fail(f"P46 ledger {one.ledger_id} of {name}, of its view, was deleted")
            if record.state_ledger is not None and self._is_deleted(record.state_ledger):
                self._fail(f"P46 state ledger of {name} was deleted: {_short(record)}")

    def _is_deleted(self, ledger_id: int) -> bool:
        history = self._ledgers.ledgers.get(ledger_id)
        return history is not None and history.deleted


def _standing(record: PartitionRecord) -> PartitionRecord:
    """Return the record without the fields that a deletion changes."""
    return replace(record, deleted=False, incarnation="")


def _short(record: PartitionRecord) -> str:
    links = " ".join(f"{x.ledger_id}@{x.base_offset}+{x.count}" for x in record.ledgers)
    return (
        f"epoch {record.epoch} [{links}] from {record.trimmed_offset} state {record.state_ledger}"
    )
