"""The referee of bulk loads, X1–X5 (docs/properties.md): one attempt at a batch is committed, once.

It sees every change of a bulk load's record and of a partition's record when it takes effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from octavo.broker.bulkload.rules import mark_of
from octavo.broker.types import PartitionName
from octavo.metadata.bulk_loads import BULK_LOADS_ROOT, BulkLoadRecord
from octavo.metadata.topic_records import PartitionLedger, PartitionRecord, decode_record
from tests.sim.events import Events
from tests.sim.ledger_audit import LedgerAudit
from tests.sim.metadata_tree import Change
from tests.sim.topic_audit import TopicAudit
from tests.sim.trace import Trace

BULK_LOADED = -2
"""The epoch of bulk-loaded messages. They have no sequence, and exist once."""


@dataclass(eq=False)
class Attempt:
    """The values that one attempt at a batch wrote: by partition and ledger, in order."""

    bulk_load: str
    batch: int
    number: int
    parts: dict[PartitionName, dict[int, list[str]]] = field(default_factory=dict)
    is_offered: bool = False
    is_refused: bool = False

    def __str__(self) -> str:
        return f"{self.bulk_load} batch {self.batch} attempt {self.number}"

    def ledgers(self) -> dict[PartitionName, list[int]]:
        return {name: list(part) for name, part in self.parts.items()}


class BulkLoadAudit:
    def __init__(
        self,
        topics: TopicAudit,
        ledgers: LedgerAudit,
        events: Events,
        trace: Trace,
        fail: Callable[[str], None],
    ) -> None:
        self.records: dict[str, BulkLoadRecord] = {}
        self.winners: dict[tuple[str, int], Attempt] = {}
        self.attempts: list[Attempt] = []
        self.base_of: dict[int, int] = {}
        """Ledgers that were taken in → their first offset."""
        self.private: dict[int, Attempt] = {}
        """Every ledger that an attempt has reported to its driver."""
        self.topic_is_gone = False
        self._topics = topics
        self._ledgers = ledgers
        self._events = events
        self._trace = trace
        self._fail = fail

    # ------------------------------------------------------------------ drivers

    def wrote(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        for part in attempt.parts.values():
            self.private.update(dict.fromkeys(part, attempt))

    def offers(self, attempt: Attempt) -> None:
        """Note that its driver is about to commit it. Before that, no message of it may be seen."""
        self._events.add("offers", attempt, attempt.ledgers())
        if not attempt.is_offered:
            attempt.is_offered = True
            for name, part in attempt.parts.items():
                values = [value for ledger in part.values() for value in ledger]
                self._topics.logs[name].sends(values, attempt.bulk_load, BULK_LOADED, 0)

    def told(self, attempt: Attempt, *, won: bool) -> None:
        self._events.add("told", attempt, "committed" if won else "committed before")
        winner = self.winners.get((attempt.bulk_load, attempt.batch))
        if winner is None or (won and winner is not attempt):
            self._fail(f"X1 {attempt} was answered {'' if won else 'not '}won; it was {winner}")
            return
        for name, part in winner.parts.items():
            missing = [ledger for ledger in part if ledger not in self.base_of]
            if missing and not self.topic_is_gone:
                self._fail(f"X3 {winner} was answered, {name} has no ledgers {missing}")
        if won:
            for name, part in attempt.parts.items():
                for ledger, values in part.items():
                    base = self.base_of.get(ledger, -1)
                    self._topics.logs[name].acked(values, base, duplicate=False)
        elif winner is not attempt and not attempt.is_refused:
            attempt.is_refused = True
            self._trace.probe("bulk_load.lost_to_another_attempt")
            for name, part in attempt.parts.items():
                self._topics.logs[name].refused([v for values in part.values() for v in values])

    # ------------------------------------------------------------------ records

    def changed(self, change: Change) -> None:
        name = change.path.removeprefix(BULK_LOADS_ROOT + "/")
        if name == change.path or change.value is None:
            return
        new = decode_record(BulkLoadRecord, change.path, change.value)
        old = self.records.get(name, BulkLoadRecord())
        self.records[name] = new
        what = f"{name} by {change.by}: {_short(old)} → {_short(new)}"
        self._events.add("bulk_load", what)
        if new.batch != old.batch:
            self._trace.probe("bulk_load.committed")
            self._committed(name, old, new, what)
        elif new.parts != old.parts or (old.complete and not new.complete):
            self._fail(f"X1 a committed batch was changed: {what}")
        if new.complete and not self.topic_is_gone:
            self._check_complete(new, what)

    def _committed(self, name: str, old: BulkLoadRecord, new: BulkLoadRecord, what: str) -> None:
        if new.batch < old.batch or not old.complete:
            self._fail(f"X1 a batch over one that is newer, or unfinished: {what}")
        found = {
            PartitionName(part.namespace, part.topic, part.partition): [
                ledger.ledger_id for ledger in part.ledgers
            ]
            for part in new.parts
        }
        ids = [one for ledgers in found.values() for one in ledgers]
        attempt = next((self.private[one] for one in ids if one in self.private), None)
        if attempt is None:
            if ids:
                self._fail(f"X1 ledgers that no attempt wrote: {what}")
            return
        if attempt.ledgers() != found or (attempt.bulk_load, attempt.batch) != (name, new.batch):
            self._fail(f"X1 not one whole attempt; it was {attempt} {attempt.ledgers()}: {what}")
        for part in new.parts:
            for ledger in part.ledgers:
                history = self._ledgers.ledgers[ledger.ledger_id]
                if not history.is_closed or history.deleted or ledger.ledger_id in old.refused:
                    self._fail(f"X1 ledger {ledger.ledger_id} is open, or was given up: {what}")
        self.winners[name, new.batch] = attempt

    def _check_complete(self, record: BulkLoadRecord, what: str) -> None:
        for part in record.parts:
            missing = [x.ledger_id for x in part.ledgers if x.ledger_id not in self.base_of]
            if missing:
                self._fail(f"X3 complete, and {missing} are nowhere: {what}")

    # ------------------------------------------------------------------ chains

    def taken_in(
        self,
        name: PartitionName,
        links: Iterable[PartitionLedger],
        record: PartitionRecord,
        what: str,
    ) -> None:
        added = list(links)
        ids = [link.ledger_id for link in added]
        attempt = self.private.get(ids[0])
        if attempt is None or ids != list(attempt.parts.get(name, {})):
            self._fail(f"X2 {ids} are not a whole part of {attempt}: {what}")
            return
        of = self.records.get(attempt.bulk_load, BulkLoadRecord())
        if self.winners.get((attempt.bulk_load, attempt.batch)) is not attempt:
            self._fail(f"X2 {attempt} was not committed: {what}")
        if of.batch != attempt.batch or of.complete:
            self._fail(f"X2 {attempt} is not the batch that is open, {_short(of)}: {what}")
        if record.bulk_loads.get(mark_of(attempt.bulk_load, of)) != attempt.batch:
            self._fail(f"X2 no mark of {attempt} in {dict(record.bulk_loads)}: {what}")
        self._trace.probe("bulk_load.taken_in")
        log = self._topics.logs[name]
        for link in added:
            values = attempt.parts[name][link.ledger_id]
            if link.ledger_id in self.base_of:
                self._fail(f"X2 ledger {link.ledger_id} was taken in before: {what}")
            if link.count != len(values) or not link.bulk_loaded:
                self._fail(f"X2 ledger {link.ledger_id} has {len(values)} messages: {what}")
            self.base_of[link.ledger_id] = link.base_offset
            log.stands(values, link.base_offset, f"{attempt} was taken in")

    def ledger_deleted(self, ledger_id: int) -> None:
        attempt = self.private.get(ledger_id)
        if attempt is None or self.topic_is_gone or ledger_id in self.base_of:
            return  # P46 covers ledgers that a partition names
        if self.winners.get((attempt.bulk_load, attempt.batch)) is attempt:
            self._fail(f"X4 ledger {ledger_id} of {attempt} was deleted, and it is committed")
        self._trace.probe("bulk_load.given_up")

    # ------------------------------------------------------------------ the end

    @property
    def unfinished(self) -> list[str]:
        return [name for name, record in self.records.items() if not record.complete]

    def check_whole(self, left: Iterable[int]) -> None:
        for ledger_id in left:
            self._fail(f"S8 private ledger {ledger_id} is left, of {self.private.get(ledger_id)}")
        for attempt in self.attempts:
            won = self.winners.get((attempt.bulk_load, attempt.batch)) is attempt
            for name, part in attempt.parts.items():
                for ledger, values in part.items():
                    if won and ledger not in self.base_of:
                        self._fail(f"S8 {attempt} is committed, {name} has no ledger {ledger}")
                    sent = self._topics.logs[name].sent
                    seen = [v for v in values if v in sent and sent[v].offset >= 0]
                    if seen and not won:
                        self._fail(f"X5 {attempt} is not committed; {name} has {seen}")


def _short(record: BulkLoadRecord) -> str:
    parts = " ".join(f"{p.partition}:{[x.ledger_id for x in p.ledgers]}" for p in record.parts)
    refused = f" refused {dict(record.refused)}" if record.refused else ""
    return f"batch {record.batch} {'complete' if record.complete else 'open'} {parts}{refused}"
