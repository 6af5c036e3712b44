"""Check the folders of a stopped bookie: mark, ledger state, journals, logs, index. Blocking.

It changes nothing. An index that is missing or behind is only a note, because a start repairs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from octavo.bookie.adds import AddBatch
from octavo.bookie.check.consistency import ConsistencyCheck
from octavo.bookie.disk.damage import Damage, DamageKind, DamageRegistry
from octavo.bookie.disk.files import Disk, DiskError, File
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.index.index import INDEX_FOLDER, IndexView, LedgerIndex
from octavo.bookie.journal.format import Meta
from octavo.bookie.journal.mark import NAME as MARK_NAME
from octavo.bookie.journal.mark import Mark, check_journals, decode_mark
from octavo.bookie.journal.reader import JournalReader, records_of
from octavo.bookie.ledgers import rules as ledger_rules
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.startup.repair import load_states
from octavo.protocol.codes import OctavoError

_MARK_BYTES_MAX = 1024 * 1024

Progress = Callable[[int], None]


@dataclass
class Report:
    damage: list[Damage] = field(default_factory=list)
    dropped: int = 0
    refusals: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    ledgers: int = 0
    journal_blocks: int = 0
    log_records: int = 0
    log_bytes: int = 0
    index_runs: int = 0
    index_entries: int = 0

    @property
    def ok(self) -> bool:
        return not self.damage and not self.refusals and not self.dropped

    def as_json(self) -> dict[str, Any]:
        plain = {**self.__dict__, "damage": [damage.as_json() for damage in self.damage]}
        return {"ok": self.ok, **plain}


class _ReadOnlyDisk:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.list_directory, self.exists = disk.list_directory, disk.exists
        self.free_bytes, self.descriptors_max = disk.free_bytes, disk.descriptors_max

    def open(self, path: str, *, create: bool = False, write: bool = False) -> File:  # noqa: ARG002
        """Open read-only, even when `write` is asked for."""
        if create:
            raise DiskError(f"open {path}: this check creates no files")
        return _SyncedFile(self._disk.open(path))

    def _refuse(self, *paths: str) -> None:
        raise DiskError(f"{', '.join(paths)}: this check changes nothing")

    make_directory = remove_folder = unlink = sync_directory = rename = _refuse

    def lock(self, path: str) -> File:
        raise DiskError(f"lock {path}: this check changes nothing")


class _SyncedFile:
    def __init__(self, file: File) -> None:
        self.path = file.path
        self.size, self.pread, self.uncache = file.size, file.pread, file.uncache
        self.pwritev, self.preallocate, self.truncate = (
            file.pwritev,
            file.preallocate,
            file.truncate,
        )
        self.close = file.close

    def datasync(self) -> None: ...


class _FolderCheck:
    def __init__(
        self,
        disk: Disk,
        journal_directories: Sequence[str],
        ledger_directories: Sequence[str],
        progress: Progress,
        index_opener: Callable[[str], LedgerIndex],
    ) -> None:
        self._disk = _ReadOnlyDisk(disk)
        self._journals = tuple(journal_directories)
        self._ledgers = tuple(ledger_directories)
        self._progress = progress
        self._index_opener = index_opener
        self._damages = DamageRegistry(told=False)
        self.report = Report()

    def run(self) -> Report:
        report = self.report
        self._marks()
        states: LedgerStates | None = LedgerStates()
        mark: Mark | None = None
        try:
            assert states is not None
            mark, _ = load_states(self._disk, self._ledgers, states)
            check_journals(mark, self._journals)
        except OctavoError as error:
            report.refusals.append(str(error))
            states = None
        if mark is None and states is not None:
            report.notes.append(
                f"no readable {MARK_NAME}: a start reads all journals and entry logs"
            )
        if states is not None:
            self._replay(states, mark)
            report.ledgers = len(states.ids())
        self._logs(states, mark)
        report.damage, report.dropped = self._damages.current(), self._damages.dropped
        return report

    def _marks(self) -> None:
        """Report bad copies of the mark, which a start skips silently."""
        for directory in self._ledgers:
            path = f"{directory}/{MARK_NAME}"
            if not self._disk.exists(path):
                continue
            try:
                file = self._disk.open(path)
                try:
                    data = file.pread(_MARK_BYTES_MAX, 0)
                finally:
                    file.close()
                if decode_mark(data) is None:
                    self._damages.report(DamageKind.MARK, path, 0, len(data))
            except DiskError:
                self._damages.report(DamageKind.UNREADABLE, path)
            except OctavoError:
                continue  # a newer version: the refusal reports it

    def _replay(self, states: LedgerStates, mark: Mark | None) -> None:
        for number, directory in enumerate(self._journals):
            position = mark.journals[number] if mark is not None else None
            try:
                for block in JournalReader(self._disk, directory, position).blocks():
                    self.report.journal_blocks += 1
                    self._progress(len(block.body))
                    for record in records_of(block.body):
                        _apply(states, record)
            except OctavoError as error:
                self.report.refusals.append(str(error))
                self._damages.report(DamageKind.JOURNAL, directory)

    def _logs(self, states: LedgerStates | None, mark: Mark | None) -> None:
        report = self.report
        logs = EntryLogs(self._disk, self._ledgers, 1)
        logs.open()
        # Without a mark, check everything.
        vouched = mark.log_position if mark is not None else (max(logs.log_ids, default=0) + 1, 0)
        if mark is not None and mark.log_id and mark.log_id not in logs.log_ids:
            path = logs.path_of(mark.log_id)
            report.refusals.append(f"entry log {path}, which the journal mark names, is missing")
            self._damages.report(DamageKind.MISSING_FILE, path)
        path = f"{self._ledgers[0]}/{INDEX_FOLDER}"
        try:
            index = self._index_opener(path)
        except OctavoError as error:
            report.notes.append(f"{error}. A start rebuilds the index from the entry logs")
            logs.close()
            return
        try:
            self._against_index(index, path, logs, states, vouched)
        except OctavoError as error:
            report.refusals.append(str(error))
            self._damages.report(DamageKind.INDEX, path)
        finally:
            index.close()
            logs.close()

    def _against_index(
        self,
        index: LedgerIndex,
        path: str,
        logs: EntryLogs,
        states: LedgerStates | None,
        vouched: tuple[int, int],
    ) -> None:
        report = self.report
        covered = index.covered
        if logs.log_ids and (covered is None or covered < vouched):
            behind = covered or (0, 0)
            report.notes.append(
                f"the index covers the entry logs up to log {behind[0]} byte {behind[1]}, the mark "
                f"vouches up to log {vouched[0]} byte {vouched[1]}: a start indexes the rest"
            )
        check = ConsistencyCheck(
            self._disk,
            logs,
            index,
            states,
            self._damages,
            vouched=vouched,
            index_path=path,
            state_path=self._ledgers[0],
            progress=self._progress,
        )
        check.run()
        report.log_records, report.log_bytes = check.records, check.bytes
        report.index_runs, report.index_entries = check.runs, check.entries


def _apply(states: LedgerStates, record: AddBatch | Meta) -> None:
    state = states.get(record.ledger_id)
    if state is None:
        state = states.create(record.ledger_id, record.key)
    if isinstance(record, Meta):
        ledger_rules.repeat(state, record)
    else:
        state.last_entry = max(state.last_entry, record.last_entry)


def _quiet(size: int) -> None: ...


def check_folders(
    disk: Disk,
    journal_directories: Sequence[str],
    ledger_directories: Sequence[str],
    progress: Progress = _quiet,
    index_opener: Callable[[str], LedgerIndex] = IndexView,
) -> Report:
    return _FolderCheck(disk, journal_directories, ledger_directories, progress, index_opener).run()
