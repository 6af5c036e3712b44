"""The enumeration finds planted bugs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

import octavo.bookie.journal.reader
import octavo.bookie.storage
import octavo.bookie.write.checkpoint
from octavo.bookie.adds import AddBatch
from octavo.bookie.disk.files import Disk
from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.journal.format import decode_block_header
from octavo.bookie.journal.journal import JournalWriter
from octavo.bookie.journal.mark import Mark, Position
from octavo.bookie.journal.reader import JournalReader, records_of
from octavo.bookie.ledgers.control import LedgerControl, LedgerReplay
from octavo.bookie.ledgers.state import LedgerStates
from octavo.bookie.write.cache import WriteCache
from octavo.bookie.write.checkpoint import Checkpointer
from tests.crash_states.explore import CrashStateFailed, explore, explore_kills
from tests.sim.disk_handle import SimFile, SimHandle
from tests.sim.mutants import planted as bug_planted
from tests.single_fault.sweep import WrongAnswer, cases, faults_of, sweep

checkpoint: Any = octavo.bookie.write.checkpoint
Patch = Callable[[pytest.MonkeyPatch], None]
PLANTED: dict[str, tuple[Patch, Sequence[str]]] = {}
"""Name → the bug, and a life with an operation that shows it."""


def planted(*life: str) -> Callable[[Patch], Patch]:
    def enter(patch: Patch) -> Patch:
        PLANTED[patch.__name__] = (patch, life)
        return patch

    return enter


def skip(patch: pytest.MonkeyPatch, owner: Any, name: str, when: Callable[..., bool]) -> None:
    real = getattr(owner, name)
    patch.setattr(owner, name, lambda self, *args: None if when(self, *args) else real(self, *args))


def syncs_of(suffix: str) -> Callable[[SimFile], bool]:
    return lambda file: file.path.endswith(suffix)


@planted("add")
def ack_before_fsync(patch: pytest.MonkeyPatch) -> None:
    skip(patch, SimFile, "datasync", syncs_of(".journal"))


@planted("add", "fence", "power")
def fence_not_journaled(patch: pytest.MonkeyPatch) -> None:
    async def fence(self: LedgerControl, ledger_id: int, key: bytes) -> None:
        self._authorized(ledger_id, key).fenced = True
        self._states.touch(ledger_id)

    patch.setattr(LedgerControl, "fence", fence)


@planted("add", "lac")
def explicit_lac_not_journaled(patch: pytest.MonkeyPatch) -> None:
    async def set_explicit_lac(self: LedgerControl, ledger_id: int, key: bytes, lac: int) -> None:
        state = self._authorized(ledger_id, key)
        state.explicit_lac = max(state.explicit_lac, lac)
        self._states.touch(ledger_id)

    patch.setattr(LedgerControl, "set_explicit_lac", set_explicit_lac)


@planted("add", "delete")
def deletion_not_journaled(patch: pytest.MonkeyPatch) -> None:
    async def delete(self: LedgerControl, ledger_id: int, now_ms: int = 0) -> None:
        state = self._states.get(ledger_id)
        if state is not None and not state.deleted:
            self._forget(ledger_id, state, now_ms)
            self._unsure_deletions.pop(ledger_id, None)

    patch.setattr(LedgerControl, "delete", delete)


@planted("add", "checkpoint")
def mark_before_the_logs_are_synced(patch: pytest.MonkeyPatch) -> None:
    skip(patch, EntryLogs, "sync", lambda logs: True)


@planted("add", "checkpoint")
def mark_before_the_index_is_flushed(patch: pytest.MonkeyPatch) -> None:
    # An old index alone is harmless, since it is rebuilt. With `covered` it claims to be complete.
    def flush_index(self: Checkpointer, removed: Any, runs: Any, covered: Any) -> None:
        self._index.put([], covered)
        self._index.flush()
        self._index.put(runs, covered)

    patch.setattr(Checkpointer, "_flush_index", flush_index)


@planted("add", "checkpoint")
def mark_before_the_states_are_synced(patch: pytest.MonkeyPatch) -> None:
    skip(patch, SimFile, "datasync", syncs_of(".state"))


@planted("add", "busy")
def mark_later_than_the_swap(patch: pytest.MonkeyPatch) -> None:
    # The position is taken when the mark is written, not when the cache is swapped: entries added
    # in between are in the journal before the mark, and nowhere else.
    writers: list[JournalWriter] = []
    really_open, really_write = JournalWriter.open, checkpoint.write_mark

    def remember(self: JournalWriter, file_id: int) -> None:
        writers.append(self)
        really_open(self, file_id)

    def write_mark(disk: Disk, directories: Sequence[str], mark: Mark) -> None:
        late = replace(mark, journals=(Position(writers[-1].file_id, writers[-1].offset),))
        really_write(disk, directories, late)

    patch.setattr(JournalWriter, "open", remember)
    patch.setattr(checkpoint, "write_mark", write_mark)


@planted("add", "checkpoint", "fence", "checkpoint")
def states_forgotten_by_an_empty_flush(patch: pytest.MonkeyPatch) -> None:
    # BookKeeper PR #4843: with nothing to flush, only the mark moved.
    patch.setattr(LedgerStates, "take_dirty", lambda states: [])


@planted("add", "delete", "checkpoint")
def tombstone_left_out_of_the_states(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LedgerStates, "all_ids", LedgerStates.ids)


@planted("add", "checkpoint", "roll", "checkpoint")
def journal_removed_before_the_mark(patch: pytest.MonkeyPatch) -> None:
    real = checkpoint.write_mark

    def write_mark(disk: Disk, directories: Sequence[str], mark: Mark) -> None:
        for name in disk.list_directory("/j"):
            if name.endswith(".journal") and int(name.split(".")[0], 16) < mark.journals[0].file_id:
                disk.unlink(f"/j/{name}")
        real(disk, directories, mark)

    patch.setattr(checkpoint, "write_mark", write_mark)


@planted("add")
def folder_not_synced_after_a_journal_got_its_name(patch: pytest.MonkeyPatch) -> None:
    skip(patch, SimHandle, "sync_directory", lambda disk, path: path == "/j")


@planted("add", "roll", "checkpoint")
def folder_not_synced_after_the_mark_was_renamed(patch: pytest.MonkeyPatch) -> None:
    def synced(disk: SimHandle, path: str) -> bool:
        names = disk.list_directory(path)
        return path in ("/l", "/m") and "journal.mark" in names

    skip(patch, SimHandle, "sync_directory", synced)


@planted("add", "checkpoint")
def folder_not_synced_after_a_log_was_made(patch: pytest.MonkeyPatch) -> None:
    # Later syncs of the same folder hide it, unless the log is in the other folder.
    skip(patch, SimHandle, "sync_directory", lambda disk, path: path in ("/l", "/m"))


@planted("add")
def torn_tail_taken_as_good(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(octavo.bookie.journal.reader, "body_is_good", lambda block, body: True)


@planted("add", "roll", "checkpoint", "roll", "add")
def blocks_of_a_recycled_file_taken_as_good(patch: pytest.MonkeyPatch) -> None:
    def decode(data: Any, start: int, file_id: int, offset: int) -> Any:
        for its_id in range(file_id, 0, -1):
            found = decode_block_header(data, start, its_id, offset)
            if found is not None:
                return found
        return None

    patch.setattr(octavo.bookie.journal.reader, "decode_block_header", decode)


@planted("add", "power", "add")
def last_journal_not_sealed_before_the_next(patch: pytest.MonkeyPatch) -> None:
    def seal(self: JournalReader) -> int:
        return self.end.file_id if self.end is not None else 0

    patch.setattr(JournalReader, "seal", seal)


@planted("add", "checkpoint", "compact", "compact")
def log_removed_before_the_index_knows_its_copies(patch: pytest.MonkeyPatch) -> None:
    # BookKeeper #1534 with its effect: the index claims to have the copies, and lacks them, when
    # the log that they were copied from is deleted.
    async def relocate(self: Checkpointer, found: Any) -> int:
        with patch.context() as meanwhile:
            meanwhile.setattr(Checkpointer, "_put", put)
            return await real(self, found)

    def put(self: Checkpointer, runs: Any, covered: Any) -> None:
        self._index.put([], covered)
        self._index.flush()
        self._index.put(runs, covered)
        self._index_behind = False

    real = Checkpointer.relocate
    patch.setattr(Checkpointer, "relocate", relocate)


def test_a_replay_that_stays_in_the_page_cache_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def replay(
        readers: Sequence[JournalReader], ledgers: LedgerReplay, cache: WriteCache, *_: Any
    ) -> None:
        for block in readers[0].blocks():
            for record in records_of(block.body):
                if ledgers.replay(record) and isinstance(record, AddBatch):
                    cache.active.put(record)

    monkeypatch.setattr(octavo.bookie.storage, "replay", replay)
    with pytest.raises(CrashStateFailed, match="sync failed"):
        explore_kills([("add",), ("fence",)])


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patch, life = PLANTED[name]
    lives = [life[:length] for length in range(len(life) + 1)]
    explore(lives)
    patch(monkeypatch)
    with pytest.raises(CrashStateFailed, match="the power fails"):
        explore(lives)


# The simulator's planted storage bugs (tests/sim/mutants) are found without the simulator
CRASHES: dict[str, Sequence[str]] = {
    "highest-mark-of-several-folders": ("add", "checkpoint", "add", "checkpoint"),  # #3329
    "state-not-flushed-with-an-empty-cache": ("add", "checkpoint", "fence", "checkpoint"),  # #4843
    "checkpoint-skipped": ("add", "checkpoint", "roll", "checkpoint"),  # #4844
    "copies-behind-the-mark": ("add", "checkpoint", "compact", "compact"),
}
"""Name → a life with an operation that shows the bug."""
FAULTS = ("corruption-answered-absent", "bad-header-means-an-empty-log")  # #2908, #4607


@pytest.mark.parametrize("name", CRASHES)
def test_a_crash_state_shows_it(name: str) -> None:
    life = CRASHES[name]
    lives = [life[:length] for length in range(len(life) + 1)]
    explore(lives)
    with bug_planted(name), pytest.raises(CrashStateFailed):
        explore(lives)


def test_an_index_flushed_too_late_is_made_up_for() -> None:
    """BookKeeper #1534 shows in no crash here: a start adds the existing logs to an index
    behind the mark. test_planted.py plants the bug with its effect."""
    life = ("add", "checkpoint", "compact", "compact")
    with bug_planted("log-unlinked-before-the-index-flush"):
        explore([life[:length] for length in range(len(life) + 1)])


@pytest.mark.parametrize("name", FAULTS)
def test_a_single_fault_shows_it(name: str) -> None:
    all_cases = list(cases())
    with bug_planted(name), pytest.raises(WrongAnswer):
        deque(sweep(case, faults_of(case, 0, 3)) for case in all_cases)
