"""The steps of an offload and of a compaction on a partition's record."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.metadata.compactions import (
    CompactionLost,
    collected,
    compacted_ledgers,
    published,
    retired_before,
)
from octavo.metadata.compactions import begun as compaction_begun
from octavo.metadata.compactions import given_up as compaction_given_up
from octavo.metadata.offloads import (
    COPYING,
    DROPPED,
    OFFLOADED,
    OffloadLost,
    begun,
    change_partition,
    dropped,
    finished,
    given_up,
    is_only_copy,
    is_readable,
    same_to_owner,
    with_jobs_part_of,
)
from octavo.metadata.store import MetadataUnavailable, RecordNotFound, VersionConflict
from octavo.metadata.topic_records import decode_record, encode_record
from octavo.metadata.topics import (
    CompactedLedger,
    CompactionRecord,
    OffloadRecord,
    PartitionLedger,
    PartitionRecord,
    RetiredLedger,
    TopicRecord,
    TopicSettings,
)

CLOSED = PartitionLedger(1, 0, 10, 100)
RECORD = PartitionRecord((CLOSED, PartitionLedger(2, 10)), epoch=3)
COPY = OffloadRecord("a", COPYING, "folder")
WHOLE = OffloadRecord("a", OFFLOADED, "object", 5, 10, 99, 7, 8)


def state(record: PartitionRecord, at: int = 0) -> str | None:
    offload = record.ledgers[at].offload
    return None if offload is None else offload.state


def test_the_way_of_a_ledger() -> None:
    copying = begun(RECORD, 1, COPY)
    assert state(copying) == COPYING
    whole = finished(copying, 1, WHOLE)
    assert state(whole) == OFFLOADED
    assert finished(whole, 1, WHOLE) == whole, "each step may be taken twice"
    only = dropped(whole, 1, "a", 77)
    assert only.ledgers[0].offload == replace(WHOLE, state=DROPPED, since_ms=77)
    assert dropped(only, 1, "a", 78) == only
    # Its answer was lost, and the ledger was dropped since. If it were called failed, the object,
    # now the only copy, would be removed.
    assert finished(only, 1, WHOLE) == only
    assert given_up(begun(RECORD, 1, COPY), 1, "a") == RECORD == given_up(RECORD, 1, "a")
    readable = [is_readable(one.ledgers[0].offload) for one in (RECORD, copying, whole, only)]
    assert readable == [False, False, True, True]
    assert [is_only_copy(one.ledgers[0].offload) for one in (copying, whole, only)] == [
        False, False, True,
    ]  # fmt: skip


def test_of_two_copies_the_later_one_counts() -> None:
    second = begun(begun(RECORD, 1, COPY), 1, replace(COPY, uuid="b"))
    with pytest.raises(OffloadLost, match="another process has begun"):
        finished(second, 1, WHOLE)
    with pytest.raises(OffloadLost, match="belongs to another process"):
        given_up(second, 1, "a")
    with pytest.raises(OffloadLost, match="no complete copy"):
        dropped(second, 1, "b", 1)
    assert state(finished(second, 1, replace(WHOLE, uuid="b"))) == OFFLOADED


def test_what_cannot_be_offloaded() -> None:
    with pytest.raises(OffloadLost, match="ledger 2 is open"):
        begun(RECORD, 2, COPY)
    with pytest.raises(OffloadLost, match="does not belong to its partition"):
        begun(RECORD, 3, COPY)
    with pytest.raises(OffloadLost, match="offloaded already"):
        begun(finished(begun(RECORD, 1, COPY), 1, WHOLE), 1, replace(COPY, uuid="c"))
    with pytest.raises(OffloadLost, match="begun to copy it again"):
        finished(RECORD, 1, WHOLE)


offloads = st.none() | st.builds(
    OffloadRecord, st.sampled_from("ab"), st.sampled_from([COPYING, OFFLOADED]), st.just("x")
)
records = st.lists(st.tuples(st.integers(1, 9), offloads), max_size=5, unique_by=lambda t: t[0])


def record_of(links: list[tuple[int, Any]]) -> PartitionRecord:
    return PartitionRecord(tuple(PartitionLedger(i, 0, 1, offload=o) for i, o in links))


@given(records, records)
def test_a_change_of_places_is_kept_and_is_no_other_change(one: Any, other: Any) -> None:
    mine, found = record_of(one), record_of(other)
    merged = with_jobs_part_of(mine, found)
    assert same_to_owner(merged, mine)
    places = dict(other)
    for link, (ledger_id, own) in zip(merged.ledgers, one, strict=True):
        assert link.offload == places.get(ledger_id, own)
    assert same_to_owner(mine, found) == ([i for i, _ in one] == [i for i, _ in other])
    assert not same_to_owner(mine, replace(mine, epoch=1)), "another owner"
    assert not same_to_owner(mine, replace(mine, trimmed_offset=1))


class Topics:
    """One record; `before` runs before each write."""

    def __init__(self) -> None:
        self.record, self.version = RECORD, 0
        self.before: list[Any] = []

    async def read_topic(self, *name: Any) -> tuple[TopicRecord, int]:
        return TopicRecord(TopicSettings()), 0

    async def read_partition(self, *name: Any) -> tuple[PartitionRecord, int]:
        if self.record is None:
            raise RecordNotFound("gone")
        return self.record, self.version

    async def write_partition(self, *args: Any, guard: str | None = None) -> int:
        record, version = args[-2:]
        step = self.before.pop(0) if self.before else None
        if step == "away":
            raise MetadataUnavailable("no answer")
        if step == "owner":
            self.record, self.version = replace(self.record, epoch=9), self.version + 1
        if version != self.version:
            raise VersionConflict("changed")
        self.record, self.version = record, self.version + 1
        if step == "lost reply":
            raise MetadataUnavailable("no answer")
        return self.version


@pytest.mark.parametrize("steps", [[], ["owner"], ["away", "owner"], ["lost reply"]])
async def test_a_step_takes_effect_once_beside_the_owner(steps: list[str]) -> None:
    topics: Any = Topics()
    topics.before = list(steps)
    await change_partition(topics, ("n", "t", 0), lambda record: begun(record, 1, COPY))
    assert state(topics.record) == COPYING
    assert topics.record.epoch == (9 if "owner" in steps else 3)
    assert topics.version == 1 + steps.count("owner")


async def test_a_store_that_stays_away_is_said() -> None:
    topics: Any = Topics()
    topics.before = ["away"] * 100
    with pytest.raises(MetadataUnavailable, match="n/t/0 could not be changed"):
        await change_partition(
            topics, ("n", "t", 0), lambda record: begun(record, 1, COPY), timeout_s=0.3
        )


# The steps of a compaction on a partition's record, while its owner changes it too.
COMPACTED_RECORD = PartitionRecord(
    (PartitionLedger(1, 0, 10, 100), PartitionLedger(2, 10)), epoch=3
)
ONE = CompactedLedger(7, 0, 8, 3, 50, 1, 99)
TWO = CompactedLedger(8, 2, 19, 4, 60)


def test_the_way_of_a_view() -> None:
    first = published(compaction_begun(COMPACTED_RECORD, "a", 1), "a", 9, [ONE], 5)
    assert first.compaction == CompactionRecord(9, (ONE,), 5)
    assert published(first, "a", 9, [ONE], 6) == first, "each step may be taken twice"
    again = compaction_begun(first, "b", 7)
    assert again.compaction is not None
    assert (again.compaction.horizon, again.compaction.run) == (9, "b"), "the old view stands"
    second = published(again, "b", 20, [TWO], 8)
    assert second.compaction == CompactionRecord(20, (TWO,), 8, retired=(RetiredLedger(7, 8),))
    assert compacted_ledgers(second) == [8, 7]
    assert (retired_before(second, 7), retired_before(second, 8)) == ([], [7])
    left = collected(second, [7])
    assert compacted_ledgers(left) == [8]
    assert collected(left, [7]) == left
    assert same_to_owner(left, COMPACTED_RECORD), "the partition itself is as it was"


def test_of_two_runs_the_later_one_publishes() -> None:
    both = compaction_begun(compaction_begun(COMPACTED_RECORD, "a", 1), "b", 2)
    with pytest.raises(CompactionLost, match="b was begun after it"):
        published(both, "a", 9, [ONE], 5)
    assert compaction_given_up(both, "a") == both
    over = compaction_given_up(both, "b")
    assert over.compaction == CompactionRecord()
    with pytest.raises(CompactionLost):
        published(over, "b", 9, [ONE], 5)
    with pytest.raises(CompactionLost):
        published(COMPACTED_RECORD, "b", 9, [ONE], 5)


def test_neither_the_owner_nor_the_job_undoes_the_other() -> None:
    viewed = published(compaction_begun(COMPACTED_RECORD, "a", 1), "a", 9, [ONE], 5)
    owners = replace(
        COMPACTED_RECORD, ledgers=(*COMPACTED_RECORD.ledgers, PartitionLedger(3, 20)), epoch=4
    )
    assert not same_to_owner(owners, viewed)
    merged = with_jobs_part_of(owners, viewed)
    assert merged == replace(owners, compaction=viewed.compaction)


def test_records_of_before_are_read_and_unknown_fields_are_kept() -> None:
    viewed = published(compaction_begun(COMPACTED_RECORD, "a", 1), "a", 9, [ONE], 5)
    assert decode_record(PartitionRecord, "r", encode_record(viewed)) == viewed
    assert viewed.compaction is not None
    newer = replace(viewed, compaction=replace(viewed.compaction, extra={"later": [1]}))
    found = decode_record(PartitionRecord, "r", encode_record(newer))
    assert found == newer
    assert compaction_begun(found, "b", 2).compaction.extra == {"later": [1]}  # type: ignore[union-attr]


@pytest.mark.parametrize("seed", range(40))
def test_no_ledger_of_a_view_is_forgotten(seed: int) -> None:
    """Runs begin, publish, give up, lose; the record names every ledger until it was collected."""
    rng = random.Random(seed)
    record, runs, ids = COMPACTED_RECORD, ["run-0"], iter(range(100, 999))
    named: set[int] = set()
    for now_ms in range(1, 60):
        what, run = rng.random(), rng.choice(runs[-2:])
        if what < 0.3:
            runs.append(f"run-{now_ms}")
            record = compaction_begun(record, runs[-1], now_ms)
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
            record = compaction_given_up(record, run)
        else:
            going = retired_before(record, now_ms - rng.randint(0, 20))
            assert not {one.ledger_id for one in _view(record).ledgers} & set(going)
            record = collected(record, going)
            named.difference_update(going)
        record = with_jobs_part_of(
            replace(COMPACTED_RECORD, epoch=now_ms), record
        )  # the owner writes, too
        assert sorted(compacted_ledgers(record)) == sorted(named), f"seed {seed} at {now_ms}"


def _view(record: PartitionRecord) -> CompactionRecord:
    return record.compaction or CompactionRecord()
