"""Check that index, entry logs and ledger state agree. Blocking; changes nothing.

Every extent of the index points to a good record. Every entry of a live ledger's record is indexed
there, or at a later copy, or at an older copy with the same bytes (after an interrupted
compaction). The ledger state has every ledger of the index.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from octavo.bookie.check.scrub import LogScrub
from octavo.bookie.disk.damage import DamagedRead, DamageKind, DamageRegistry
from octavo.bookie.disk.files import Disk
from octavo.bookie.entrylog.format import Location
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.entrylog.walk import Checked
from octavo.bookie.index.index import INDEX_FOLDER, IndexedExtent, LedgerIndex
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.read.cache import CachedExtent
from octavo.protocol.codes import BookieIOError

Progress = Callable[[int], None]


_log = structlog.get_logger()


def _quiet(size: int) -> None: ...


class ConsistencyCheck:
    def __init__(
        self,
        disk: Disk,
        logs: EntryLogs,
        index: LedgerIndex,
        states: LedgerStates | None,
        damages: DamageRegistry,
        *,
        vouched: tuple[int, int],
        index_path: str,
        state_path: str,
        progress: Progress = _quiet,
    ) -> None:
        """Compare entry logs, index and states; `vouched` is the mark's (log id, offset)."""
        self._disk = disk
        self._logs = logs
        self._index = index
        self._states = states
        self._damages = damages
        self._vouched = vouched
        self._covered = index.covered or (0, 0)
        self._index_path = index_path
        self._state_path = state_path
        self._progress = progress
        self._matched = 0
        self.records = 0
        self.runs = 0
        self.entries = 0
        self.bytes = 0

    def run(self) -> None:
        if self._covered > self._vouched:
            self._damages.report(DamageKind.INDEX, self._index_path)
        for log_id in self._logs.log_ids:
            if log_id <= self._vouched[0]:
                self._log(log_id)
        if self._count_index() != self._matched:
            self._check_runs()

    # Logs → index

    def _log(self, log_id: int) -> None:
        end = self._vouched[1] if log_id == self._vouched[0] else None
        scrub = LogScrub(
            self._disk,
            self._logs,
            self._index,
            self._damages,
            log_id,
            end,
            on_good=self._record,
            uncached=False,
        )
        while not scrub.done:
            size = scrub.step()
            self.bytes += size
            self._progress(size)

    def _record(self, walked: Checked) -> None:
        record, location = walked.record, walked.location
        assert record is not None
        self.records += 1
        runs = self._index.runs(record.ledger_id, record.first_entry, record.last_entry)
        state = None if self._states is None else self._states.get(record.ledger_id)
        lives = state is not None and not state.deleted and location[:2] < self._covered
        expected = record.first_entry
        for run in runs:
            first, last = max(run.first, record.first_entry), min(run.last, record.last_entry)
            if first > expected and lives:
                self._not_indexed(record.ledger_id, location, expected, first - 1)
            expected = last + 1
            if run.location == location:
                self._matched += last - first + 1
            elif run.location[:2] < location[:2] and lives and not self._same(run, walked):
                self._not_indexed(record.ledger_id, location, first, last)
        if expected <= record.last_entry and lives:
            self._not_indexed(record.ledger_id, location, expected, record.last_entry)

    def _not_indexed(self, ledger_id: int, location: Location, first: int, last: int) -> None:
        path = self._logs.path_of(location.log_id)
        self._damages.report(
            DamageKind.NOT_INDEXED,
            path,
            location.offset,
            location.length,
            ledger_id=ledger_id,
            first=first,
            last=last,
        )

    def _same(self, run: IndexedExtent, walked: Checked) -> bool:
        """Whether the copy that the index prefers has the same bytes."""
        record = walked.record
        assert record is not None
        first, last = max(run.first, record.first_entry), min(run.last, record.last_entry)
        try:
            old = self._entries(run)
            new = self._entries(
                IndexedExtent(
                    record.ledger_id, record.first_entry, record.last_entry, walked.location
                )
            )
        except BookieIOError:
            return True
        return all(
            old.entry(entry_id) == new.entry(entry_id) for entry_id in range(first, last + 1)
        )

    def _entries(self, run: IndexedExtent) -> CachedExtent:
        _, frames = self._logs.read(run.location, run.ledger_id)
        return CachedExtent(run.ledger_id, run.first, run.last, frames)

    def _count_index(self) -> int:
        ledger_id, first, last = -1, 0, -1
        for run in self._index.all_runs():
            if run.ledger_id != ledger_id:
                self._ledger(ledger_id, first, last)
                ledger_id, first = run.ledger_id, run.first
            last = run.last
            self.runs += 1
            self.entries += run.last - run.first + 1
        self._ledger(ledger_id, first, last)
        return self.entries

    def _ledger(self, ledger_id: int, first: int, last: int) -> None:
        if ledger_id < 0 or self._states is None:
            return
        state = self._states.get(ledger_id)
        if state is not None and (state.deleted or state.last_entry >= last):
            return
        self._damages.report(
            DamageKind.STATE,
            self._state_path,
            ledger_id=ledger_id,
            first=first if state is None else state.last_entry + 1,
            last=last,
        )

    # Index → logs

    def _check_runs(self) -> None:
        """Find the extents that point to no record that was read."""
        known = {(damage.path, damage.offset) for damage in self._damages.current()}
        present = dict.fromkeys(self._logs.log_ids)
        gone: dict[tuple[int, int], tuple[int, int]] = {}
        for run in self._index.all_runs():
            at = run.location
            if at.log_id not in present:
                place = at.log_id, run.ledger_id
                first, last = gone.get(place, (run.first, run.last))
                gone[place] = min(first, run.first), max(last, run.last)
            elif (self._logs.path_of(at.log_id), at.offset) not in known:
                self._check_run(run)
        for (log_id, ledger_id), (first, last) in gone.items():
            self._damages.report(
                DamageKind.MISSING_FILE,
                self._logs.path_of(log_id),
                ledger_id=ledger_id,
                first=first,
                last=last,
            )

    def _check_run(self, run: IndexedExtent) -> None:
        at = run.location
        kind: DamageKind | None = None
        if (at.log_id, at.offset + at.length) > self._vouched:
            kind = DamageKind.WRONG_RECORD  # the next start would cut it
        try:
            self._entries(run)
        except DamagedRead as error:
            kind = error.damage.kind
        except BookieIOError:
            kind = DamageKind.WRONG_RECORD
        if kind is not None:
            self._damages.report(
                kind,
                self._logs.path_of(at.log_id),
                at.offset,
                at.length,
                ledger_id=run.ledger_id,
                first=run.first,
                last=run.last,
            )


def check_at_start(
    disk: Disk,
    logs: EntryLogs,
    index: LedgerIndex,
    states: LedgerStates,
    damages: DamageRegistry,
    vouched: tuple[int, int],
    directory: str,
) -> None:
    """Check at a start; findings do not stop it.

    Entries in the write cache are in no log yet.
    """
    check = ConsistencyCheck(
        disk,
        logs,
        index,
        states,
        damages,
        vouched=vouched,
        index_path=f"{directory}/{INDEX_FOLDER}",
        state_path=directory,
    )
    check.run()
    _log.info(
        "consistency_checked",
        records=check.records,
        runs=check.runs,
        damage=len(damages.current()),
    )
