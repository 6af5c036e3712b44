"""A bookie with a fault on its disk says so, or has the right bytes; it never lies."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import pytest

import octavo.bookie.journal.reader
import octavo.bookie.ledgers.state
import octavo.bookie.startup.opening
from octavo.bookie.entrylog.format import decode_record
from octavo.bookie.entrylog.log import EntryLogs
from tests.single_fault.faults import block_faults
from tests.single_fault.sweep import (
    LIVES,
    WrongAnswer,
    cases,
    cut_short,
    faults_of,
    mark_faults,
    sweep,
)

STRIDE = 11
"""Every how many bits one is flipped here; `python -m tests.single_fault` flips one in each
byte."""


@pytest.mark.long
def test_no_single_fault_makes_a_bookie_lie() -> None:
    ends: Counter[str] = Counter()
    for number, case in enumerate(cases()):
        ends += sweep(case, faults_of(case, number % STRIDE, STRIDE))
    assert ends.total() > 5000
    for kind in (
        "all there",
        "explicit error",
        "refused: JournalDamaged",
        "refused: LedgerStateDamaged",
        "refused: BookieIOError",
        "cut as a torn tail",
    ):
        assert ends[kind] > 50, f"no fault ended as {kind!r}: {ends}"
    assert ends["cut as a torn tail"] < ends.total() / 10


@pytest.mark.long
def test_a_lost_mark_is_made_up_for_wherever_a_checkpoint_was_cut_short() -> None:
    ends: Counter[str] = Counter()
    for case in cut_short():
        ends += sweep(case, mark_faults(case))
    assert ends["all there"] > 500
    assert set(ends) <= {"all there", "refused: JournalDamaged"}, ends


def test_every_block_of_every_file_is_hurt() -> None:
    case = next(cases())
    hurt = {(fault.path, fault.start) for fault in block_faults(case.image)}
    assert {path for path, _ in hurt} == set(case.image.files)
    for path, (data, _) in case.image.files.items():
        assert len([one for one in hurt if one[0] == path]) == -(-len(data) // 512)
    assert len(LIVES) * 2 == len(list(cases()))


Patch = Callable[[pytest.MonkeyPatch], None]


def damaged_blocks_are_skipped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(octavo.bookie.journal.reader.JournalReader, "_lose", lambda *_: None)


def checksums_of_runs_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    def check_record(self: EntryLogs, data: bytes, start: int, location: Any, _: int) -> Any:
        record = decode_record(data, start)
        frames = data[start + location.length - (record.frames_bytes if record else 0) :]
        return record, frames

    patch.setattr(EntryLogs, "check_record", check_record)


def damaged_states_are_taken_for_the_end(patch: pytest.MonkeyPatch) -> None:
    real = octavo.bookie.ledgers.state.StateFile._load
    patch.setattr(
        octavo.bookie.ledgers.state.StateFile,
        "_load",
        lambda self, file_id, _: real(self, file_id, None),
    )


def a_rebuild_stops_at_a_damaged_record(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        EntryLogs, "scan_all", lambda self, log_id, offset=0, end_min=0: self.scan(log_id, offset)
    )


@pytest.mark.parametrize(
    "plant",
    [
        damaged_blocks_are_skipped,
        checksums_of_runs_are_not_looked_at,
        pytest.param(damaged_states_are_taken_for_the_end, marks=pytest.mark.long),
        pytest.param(a_rebuild_stops_at_a_damaged_record, marks=pytest.mark.long),
    ],
)
def test_a_planted_bug_is_found(plant: Patch, monkeypatch: pytest.MonkeyPatch) -> None:
    all_cases = list(cases())
    plant(monkeypatch)
    with pytest.raises(WrongAnswer):
        deque(sweep(case, faults_of(case, 0, 3)) for case in all_cases)
