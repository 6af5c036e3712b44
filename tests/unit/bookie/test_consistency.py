"""The check of index against logs against ledger states names each contradiction."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from octavo.bookie.check.consistency import ConsistencyCheck
from octavo.bookie.disk.damage import Damage, DamageKind, DamageRegistry
from octavo.bookie.entrylog.format import RECORD_BYTES, Location
from octavo.bookie.index.index import IndexedExtent
from tests.support.damaged_logs import Placed, checked_run, cut, fill, flip, records_in
from tests.support.memory_index import MemoryIndex
from tests.support.storage_support import CONFIG, Bench

KINDS = DamageKind
SMALL_LOGS = replace(CONFIG, entry_log_bytes_max=2000)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with Bench(SMALL_LOGS) as made:
        yield made


def index_of(bench: Bench) -> MemoryIndex:
    index = bench.storage._index
    assert isinstance(index, MemoryIndex)
    return index


def checked(bench: Bench) -> list[Damage]:
    storage = bench.storage
    found = DamageRegistry(told=False)
    index = index_of(bench)
    check = ConsistencyCheck(
        bench.disk,
        storage.logs,
        index,
        storage._states,
        found,
        vouched=storage._checkpointer.vouched(),
        index_path="/l/index",
        state_path="/l",
    )
    check.run()
    assert check.runs == len(list(index.all_runs()))
    assert check.records + len(found.current()) > 0
    return found.current()


def finding(kind: DamageKind, at: Placed, first: int = 0, last: int = 0) -> Damage:
    record, location = at.record, at.location
    return Damage(
        kind,
        at.path,
        location.offset,
        location.length,
        record.ledger_id,
        record.first_entry + first,
        record.last_entry - last,
    )


def run_of(at: Placed) -> IndexedExtent:
    record = at.record
    return IndexedExtent(record.ledger_id, record.first_entry, record.last_entry, at.location)


async def test_what_was_written_and_cut_and_deleted_in_good_order_is_consistent(
    bench: Bench,
) -> None:
    await fill(bench)
    await bench.send(checked_run(1, 2, [b"again"] * 4))
    await bench.storage.checkpoint()
    await bench.storage.delete_ledger(2)
    assert checked(bench) == []
    await bench.storage.checkpoint()
    await bench.send(checked_run(7, 0, [b"in the write cache"]))
    assert checked(bench) == []
    await bench.restart()
    assert checked(bench) == []
    await bench.crash()
    assert checked(bench) == []


@pytest.mark.parametrize("number", range(9))
async def test_damage_in_a_log_has_one_finding(bench: Bench, number: int) -> None:
    at = (await fill(bench))[number]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES + 3)
    assert checked(bench) == [finding(KINDS.EXTENT_CHECKSUM, at)]
    flip(bench.disk, at.path, at.location.offset + RECORD_BYTES + 3)
    flip(bench.disk, at.path, at.location.offset)
    assert checked(bench) == [finding(KINDS.RECORD_HEADER, at)]


async def test_a_log_cut_between_two_records_is_seen_by_the_index(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    cut(bench.disk, placed[2].path, placed[2].location.offset)
    assert checked(bench) == [finding(KINDS.TRUNCATED, placed[2])]


async def test_a_missing_log_is_named_for_each_of_its_ledgers(bench: Bench) -> None:
    placed = await fill(bench)
    path = placed[0].path
    gone = [at.record for at in placed if at.path == path]
    await bench.storage.close()
    del bench.disk.names[path]
    await bench.start()
    assert {found[:1] + found[4:7] for found in checked(bench)} == {
        (KINDS.MISSING_FILE, one.ledger_id, one.first_entry, one.last_entry) for one in gone
    }


async def test_a_record_that_the_index_lost_is_not_indexed(bench: Bench) -> None:
    placed = await fill(bench)
    index_of(bench).delete_ledger(2)
    lost = [at for at in placed if at.record.ledger_id == 2]
    assert checked(bench) == [finding(KINDS.NOT_INDEXED, at) for at in lost]


async def test_a_hole_in_the_index_is_named_with_its_entries(bench: Bench) -> None:
    at = (await fill(bench, rounds=1, ledgers=1))[0]
    index = index_of(bench)
    index.delete_ledger(1)
    index.put(
        [IndexedExtent(1, 0, 0, at.location), IndexedExtent(1, 3, 3, at.location)],
        bench.storage._checkpointer.vouched(),
    )
    assert checked(bench) == [finding(KINDS.NOT_INDEXED, at, first=1, last=1)]


async def test_an_older_copy_counts_only_if_it_holds_the_same(bench: Bench) -> None:
    await bench.send(checked_run(1, 0, [b"one", b"two", b"three"]))
    await bench.storage.checkpoint()
    await bench.overwrite(checked_run(1, 0, [b"one", b"two", b"other"]))
    await bench.storage.checkpoint()
    old, new = records_in(bench.disk, bench.config.ledger_directories)
    index = index_of(bench)
    index.put([IndexedExtent(1, 0, 1, old.location)], bench.storage._checkpointer.vouched())
    assert checked(bench) == []
    index.put([IndexedExtent(1, 0, 2, old.location)], bench.storage._checkpointer.vouched())
    assert checked(bench) == [finding(KINDS.NOT_INDEXED, new)]


async def test_an_index_that_points_at_another_ledgers_record(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    wrong = IndexedExtent(1, 0, 3, placed[2].location)
    index_of(bench).put([wrong], bench.storage._checkpointer.vouched())
    found = finding(KINDS.WRONG_RECORD, placed[2])._replace(ledger_id=1)
    assert checked(bench) == [found]


async def test_an_index_that_points_between_two_records(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    at = placed[1].location
    aside = Location(at.log_id, at.offset + 1, at.length - 1)
    index_of(bench).put(
        [run_of(placed[1])._replace(location=aside)], bench.storage._checkpointer.vouched()
    )
    found = finding(KINDS.RECORD_HEADER, placed[1])
    assert checked(bench) == [found._replace(offset=aside.offset, length=aside.length)]


async def test_an_index_that_finds_more_in_a_record_than_it_holds(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    index_of(bench).put([run_of(placed[1])._replace(last=4)], bench.storage._checkpointer.vouched())
    state = bench.storage._states.get(2)
    assert state is not None
    state.last_entry = 4
    assert checked(bench) == [finding(KINDS.WRONG_RECORD, placed[1], last=-1)]


async def test_an_index_beyond_the_mark(bench: Bench) -> None:
    placed = await fill(bench, rounds=1, ledgers=3)
    at = placed[-1].location
    behind = Location(at.log_id, at.offset + at.length, at.length)
    index_of(bench).put([run_of(placed[-1])._replace(first=0, location=behind)], (9, 9))
    kinds = {(found.kind, found.path) for found in checked(bench)}
    assert (KINDS.INDEX, "/l/index") in kinds
    assert any(kind in (KINDS.TRUNCATED, KINDS.RECORD_HEADER) for kind, _ in kinds)


async def test_a_state_that_knows_less_than_the_index(bench: Bench) -> None:
    await fill(bench)
    states = bench.storage._states
    state = states.get(2)
    assert state is not None
    state.last_entry = 5
    del states._all[3]
    assert checked(bench) == [
        Damage(KINDS.STATE, "/l", 0, 0, 2, 6, 11),
        Damage(KINDS.STATE, "/l", 0, 0, 3, 0, 11),
    ]


async def test_a_start_reports_what_it_finds_and_serves(bench: Bench) -> None:
    placed = await fill(bench)
    flip(bench.disk, placed[4].path, placed[4].location.offset + RECORD_BYTES)
    bench.config = replace(bench.config, consistency_check_on_start=True)
    await bench.restart()
    found = [damage._replace(found_ms=0) for damage in bench.storage.damages.current()]
    assert found == [finding(KINDS.EXTENT_CHECKSUM, placed[4])]
    assert await bench.storage.reads.read(1, 0)
