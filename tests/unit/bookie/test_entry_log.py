"""Entry logs and the ledger state file: rotation, maps, leftovers."""

from __future__ import annotations

import pytest

from octavo.bookie.disk.files import DiskFull
from octavo.bookie.entrylog.format import RECORD_BYTES, Extent, Location, decode_footer, file_name
from octavo.bookie.entrylog.log import EntryLogMissing, EntryLogs
from octavo.bookie.ledgers.state import LedgerState, LedgerStateDamaged, StateFile, encode_record
from octavo.protocol.codes import BookieIOError
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import KEY, make_run


def log_run(ledger_id: int, first: int, count: int = 3, size: int = 100) -> Extent:
    frames = make_run(ledger_id, first, [b"x" * size] * count).frames
    return Extent(ledger_id, first, count, [frames], len(frames))


def opened(disk: MemoryDisk, log_bytes_max: int = 4000) -> EntryLogs:
    for folder in ("/a", "/b"):
        disk.make_directory(folder)
    logs = EntryLogs(disk, ["/a", "/b"], log_bytes_max)
    logs.open()
    logs.cut_abandoned((0, 0), journaled=False)
    return logs


def test_runs_are_read_back_across_logs() -> None:
    logs = opened(MemoryDisk())
    runs = [log_run(number % 2, number * 3) for number in range(20)]
    places = [logs.append([run])[0] for run in runs]
    logs.sync()
    assert len(logs.log_ids) == 3
    for run, place in zip(runs, places, strict=True):
        record, frames = logs.read(place, run.ledger_id)
        assert (record.first_entry, record.entries) == (run.first_entry, 3)
        assert [frames] == run.frames
    for log_id in logs.log_ids:
        scanned = [place for _, place in logs.scan(log_id)]
        assert scanned == [place for place in places if place.log_id == log_id]
        sums: dict[int, int] = {}
        for run, place in zip(runs, places, strict=True):
            if place.log_id == log_id:
                sums[run.ledger_id] = sums.get(run.ledger_id, 0) + run.frames_bytes
        assert logs.ledgers_of(log_id) == sums, "by map or by scan, the same"


def test_a_sealed_log_has_no_reserve_and_a_map() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    logs.append([log_run(1, 0)])
    first = logs._paths[1]
    assert disk.open(first).size() == 4000
    logs.seal()
    data = disk.open(first).pread(10_000, 0)
    footer = decode_footer(data)
    assert footer is not None
    assert footer[0] == 24 + RECORD_BYTES + 3 * 164


def test_what_is_not_what_the_index_said_is_an_io_error() -> None:
    logs = opened(MemoryDisk())
    place, other = logs.append([log_run(1, 0), log_run(2, 0)])
    wrong = [
        (place, 2),
        (place._replace(offset=place.offset + 1), 1),
        (place._replace(length=place.length - 1), 1),
        (place._replace(length=place.length + other.length), 1),
        (place._replace(log_id=9), 1),
        (Location(1, 10**6, 100), 1),
    ]
    for location, ledger_id in wrong:
        with pytest.raises(BookieIOError):
            logs.read(location, ledger_id)


def test_a_full_disk_adds_nothing_and_the_next_attempt_goes_on() -> None:
    disk = MemoryDisk()
    logs = opened(disk, log_bytes_max=10**6)
    logs.append([log_run(1, 0)])
    disk.capacity = disk.used
    before = logs.position
    with pytest.raises(DiskFull):
        logs.append([log_run(1, 3, 3, 10**6)])
    assert logs.position == before
    disk.capacity = 2**40
    (place,) = logs.append([log_run(1, 3)])
    assert logs.read(place, 1)[0].first_entry == 3


def test_after_a_restart_the_old_log_is_cut_and_never_appended_to() -> None:
    disk = MemoryDisk()
    logs = opened(disk)
    places = logs.append([log_run(1, 0), log_run(1, 3)])
    logs.sync()
    end = places[1].offset + places[1].length
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    again.cut_abandoned((1, places[1].offset), journaled=False)
    assert again.position == (1, end)
    assert disk.open(logs._paths[1]).pread(4, end) == b"EMAP", "and sealed where it was cut"
    (place,) = again.append([log_run(1, 6)])
    assert place.log_id == 2
    assert again.read(places[0], 1)[0].first_entry == 0
    assert again.ledgers_of(1) == {1: 6 * 164}


def test_no_id_is_used_twice() -> None:
    """Until the journal is replayed, the index may name records of a dropped log."""
    disk = MemoryDisk()
    logs = opened(disk)
    (first,) = logs.append([log_run(1, 0)])
    end = first.offset + first.length
    for number in range(3):
        logs.roll()
        logs.append([log_run(1, 3 + 3 * number)])
    logs.sync()
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    again.cut_abandoned((1, end), journaled=True)
    assert again.log_ids == [1]
    assert again.append([log_run(1, 3)])[0].log_id == 5


def test_after_a_lost_log_the_next_one_is_newer_than_the_mark() -> None:
    """Otherwise the next mark would name an older log, and everything behind it would be cut."""
    disk = MemoryDisk()
    logs = opened(disk)
    logs.append([log_run(1, 0)])
    logs.sync()
    again = EntryLogs(disk, ["/a", "/b"], 4000)
    again.open()
    again.cut_abandoned((7, 1000), journaled=False, missing=True)
    assert again.append([log_run(1, 3)])[0].log_id == 8


def test_a_log_that_the_mark_names_must_be_there() -> None:
    with pytest.raises(EntryLogMissing, match=file_name(3)):
        EntryLogs(MemoryDisk(), ["/a"], 4000).cut_abandoned((3, 100), journaled=True)


def state(last_entry: int) -> LedgerState:
    made = LedgerState(KEY)
    made.last_entry = last_entry
    return made


def test_state_file_counts_up_to_the_mark() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a")
    file = StateFile(disk, "/a")
    assert file.wants_rewrite(0)
    file.rewrite([encode_record(1, state(1)), encode_record(2, state(1))])
    file.append([encode_record(1, state(5))])
    position = (file.file_id, file.offset)
    file.append([encode_record(1, state(9))])
    found = {key: value.last_entry for key, value in StateFile(disk, "/a").load(position)}
    assert found == {1: 5, 2: 1}, "what lies behind the mark is the journal's"
    found = {key: value.last_entry for key, value in StateFile(disk, "/a").load(None)}
    assert found == {1: 9, 2: 1}, "without a mark: as far as it is good"


def test_state_file_is_rewritten_when_stale_and_the_old_one_goes() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a")
    file = StateFile(disk, "/a")
    file.rewrite([encode_record(1, state(0))])
    while not file.wants_rewrite(1):
        file.append([encode_record(1, state(file.offset))] * 500)
    assert 2**20 < file.offset < 2**20 + 100_000
    file.rewrite([encode_record(1, state(7))])
    assert len(disk.list_directory("/a")) == 2
    file.remove_old()
    assert len(disk.list_directory("/a")) == 1
    position = (file.file_id, file.offset)
    assert [held.last_entry for _, held in StateFile(disk, "/a").load(position)] == [7]


def test_a_missing_state_file_is_damage() -> None:
    disk = MemoryDisk()
    disk.make_directory("/a")
    with pytest.raises(LedgerStateDamaged, match="is missing"):
        list(StateFile(disk, "/a").load((3, 100)))
