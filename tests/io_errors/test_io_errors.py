"""A failing disk call loses no acked entry, and leads to no false promise."""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

import octavo.bookie.write.checkpoint
from octavo.bookie.disk.files import DiskError, DiskFull, SyncFailed
from octavo.bookie.gc.compaction import Cleared, Compactor
from octavo.bookie.journal.journal import Journal, JournalWriter
from octavo.bookie.ledgers.state import StateFile
from tests.io_errors.faults import KINDS
from tests.io_errors.sweep import ENDS, all_faults, count_calls, sweep
from tests.support.engine_lab.life import Broken

checkpoint: Any = octavo.bookie.write.checkpoint
STRIDE = 17


def test_no_failing_call_breaks_a_promise() -> None:
    ends: Counter[str] = Counter()
    for fault in all_faults(STRIDE):
        ends += sweep([fault])
    calls, space_calls = count_calls()
    assert calls > 800, "garbage is collected and compacted as well"
    assert ends.total() > 2 * (calls + space_calls) // STRIDE * len(ENDS) - 4 * len(KINDS)
    for kind in ("EIO once", "EIO for long", "ENOSPC once", "ENOSPC for long"):
        assert ends[f"{kind}: went on"] > 0, ends
        assert ends[f"{kind}: refused to start, or ended in its close"] > 0, ends
    assert ends["EIO once: stopped the process"] > 20
    assert ends["ENOSPC for long: stopped the process"] == 0
    assert ends["never reached"] < 5


Patch = Callable[[pytest.MonkeyPatch], None]


def failed_syncs_of_the_state_are_ignored(patch: pytest.MonkeyPatch) -> None:
    real = StateFile.append

    def append(self: StateFile, records: list[bytes]) -> None:
        try:
            real(self, records)
        except SyncFailed:
            self.offset += 24 + sum(map(len, records))

    patch.setattr(StateFile, "append", append)


def groups_that_failed_are_acked(patch: pytest.MonkeyPatch) -> None:
    real = JournalWriter.write

    def write(self: JournalWriter, buffers: list[bytes], length: int, sync: bool) -> None:
        try:
            real(self, buffers, length, sync)
        except SyncFailed:
            raise
        except DiskError:
            pass

    patch.setattr(JournalWriter, "write", write)


def a_failed_journal_goes_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Journal, "_die", lambda self, error: None)


def a_full_disk_is_fatal(patch: pytest.MonkeyPatch) -> None:
    def write_mark(*args: Any) -> None:
        try:
            real(*args)
        except DiskFull as error:
            raise DiskError(str(error)) from error

    real = checkpoint.write_mark
    patch.setattr(checkpoint, "write_mark", write_mark)


def a_full_disk_ends_the_collector(patch: pytest.MonkeyPatch) -> None:
    async def clear(self: Compactor, log_id: int, *, copy: bool) -> Cleared:
        self._read = self._copied = 0
        await self._pass(log_id, copy=copy)
        return Cleared(log_id, True, "", self._read, self._copied)

    patch.setattr(Compactor, "clear", clear)


def a_file_follows_the_one_in_use(patch: pytest.MonkeyPatch) -> None:
    # The bug of tests/unit/bookie/test_start.py.
    patch.setattr(
        JournalWriter,
        "_next_has_its_name",
        property(lambda _: False, lambda *_: None),
        raising=False,
    )


@pytest.mark.long
@pytest.mark.parametrize(
    "plant",
    [
        failed_syncs_of_the_state_are_ignored,
        groups_that_failed_are_acked,
        a_failed_journal_goes_on,
        a_full_disk_is_fatal,
        a_full_disk_ends_the_collector,
        a_file_follows_the_one_in_use,
    ],
)
def test_a_planted_bug_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    faults = list(all_faults())
    random.Random(2).shuffle(faults)  # an order in which each kind comes soon
    plant(monkeypatch)
    with pytest.raises(Broken):
        deque(sweep([fault]) for fault in faults)
