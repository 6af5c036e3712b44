"""The steps of a compaction on a partition's record, while its owner changes it too."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from octavo.metadata.compactions import (
    CompactionLost,
    begun,
    collected,
    compacted_ledgers,
    given_up,
    published,
    retired_before,
)
from octavo.metadata.offloads import same_to_owner, with_jobs_part_of
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.metadata.topics import (
    CompactedLedger,
    CompactionRecord,
    PartitionLedger,
    PartitionRecord,
    RetiredLedger,
)

RECORD = PartitionRecord((PartitionLedger(1, 0, 10, 100), PartitionLedger(2, 10)), epoch=3)
ONE = CompactedLedger(7, 0, 8, 3, 50, 1, 99)
TWO = CompactedLedger(8, 2, 19, 4, 60)


def test_the_way_of_a_view() -> None:
    first = published(begun(RECORD, "a", 1), "a", 9, [ONE], 5)
    assert first.compaction == CompactionRecord(9, (ONE,), 5)
    assert published(first, "a", 9, [ONE], 6) == first, "each step may be taken twice"
    again = begun(first, "b", 7)
    assert again.compaction is not None
    assert (again.compaction.horizon, again.compaction.run) == (9, "b"), "the old view stands"
    second = published(again, "b", 20, [TWO], 8)
    assert second.compaction == CompactionRecord(20, (TWO,), 8, retired=(RetiredLedger(7, 8),))
    assert compacted_ledgers(second) == [8, 7]
    assert (retired_before(second, 7), retired_before(second, 8)) == ([], [7])
    left = collected(second, [7])
    assert compacted_ledgers(left) == [8]
    assert collected(left, [7]) == left
    assert same_to_owner(left, RECORD), "the partition itself is as it was"


def test_of_two_runs_the_later_one_publishes() -> None:
    both = begun(begun(RECORD, "a", 1), "b", 2)
    with pytest.raises(CompactionLost, match="b was begun after it"):
        published(both, "a", 9, [ONE], 5)
    assert given_up(both, "a") == both
    over = given_up(both, "b")
    assert over.compaction == CompactionRecord()
    with pytest.raises(CompactionLost):
        published(over, "b", 9, [ONE], 5)
    with pytest.raises(CompactionLost):
        published(RECORD, "b", 9, [ONE], 5)


def test_neither_the_owner_nor_the_job_undoes_the_other() -> None:
    viewed = published(begun(RECORD, "a", 1), "a", 9, [ONE], 5)
    owners = replace(RECORD, ledgers=(*RECORD.ledgers, PartitionLedger(3, 20)), epoch=4)
    assert not same_to_owner(owners, viewed)
    merged = with_jobs_part_of(owners, viewed)
    assert merged == replace(owners, compaction=viewed.compaction)


def test_records_of_before_are_read_and_unknown_fields_are_kept() -> None:
    viewed = published(begun(RECORD, "a", 1), "a", 9, [ONE], 5)
    assert decode_record(PartitionRecord, "r", encode_record(viewed)) == viewed
    assert viewed.compaction is not None
    newer = replace(viewed, compaction=replace(viewed.compaction, extra={"later": [1]}))
    found = decode_record(PartitionRecord, "r", encode_record(newer))
    assert found == newer
    assert begun(found, "b", 2).compaction.extra == {"later": [1]}  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(40))
def test_no_ledger_of_a_view_is_forgotten(seed: int) -> None:
    """Runs begin, publish, give up, lose; the record names every ledger until it was collected."""
    rng = random.Random(seed)
    record, runs, ids = RECORD, ["run-0"], iter(range(100, 999))
    named: set[int] = set()
    for now_ms in range(1, 60):
        what, run = rng.random(), rng.choice(runs[-2:])
        if what < 0.3:
            runs.append(f"run-{now_ms}")
            record = begun(record, runs[-1], now_ms)
        elif what < 0.7:
            horizon = 10 * now_ms
            made = [replace(ONE, ledger_id=next(ids)) for _ in range(rng.randint(0, 3))]
            try:
                record = published(record, run, horizon, made, now_ms)
            except CompactionLost:
                continue
            assert published(record, run, horizon, made, now_ms) == record, "an answer was lost"
            named.update(one.ledger_id for one in made)
        elif what < 0.8:
            record = given_up(record, run)
        else:
            going = retired_before(record, now_ms - rng.randint(0, 20))
            assert not {one.ledger_id for one in _view(record).ledgers} & set(going)
            record = collected(record, going)
            named.difference_update(going)
        record = with_jobs_part_of(replace(RECORD, epoch=now_ms), record)  # the owner writes, too
        assert sorted(compacted_ledgers(record)) == sorted(named), f"seed {seed} at {now_ms}"


def _view(record: PartitionRecord) -> CompactionRecord:
    return record.compaction or CompactionRecord()
