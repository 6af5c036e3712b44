"""Which offsets a table gets next, and what it says of itself, without a cluster and a catalog."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="needs octavo[tables]")

from octavo.pipeline.table_rules import (
    TOPIC,
    DataFile,
    Position,
    Snapshot,
    TableUnusable,
    TopicReplaced,
    Upkeep,
    check_topic,
    next_ranges,
    position_in,
    resumed,
    to_expire,
    to_join,
)
from octavo.spark.splits import DataLost, Span, View

AT = Position("public/t", "i1", {0: 10, 2: 7})
OURS = {TOPIC: "public/t", "octavo.incarnation": "i1"}


def view(partition: int, end: int, trimmed: int = 0) -> View:
    return View("public/t", partition, (Span(partition, 0, end, end * 100, 5),), trimmed)


def snapshots(*summaries: dict[str, str]) -> list[Snapshot]:
    """Return a line of snapshots, oldest first: 1, 2, …"""
    return [Snapshot(n, n - 1 or None, n * 1000, one) for n, one in enumerate(summaries, 1)]


def test_a_position_survives_its_summary() -> None:
    assert position_in(AT.summary()) == AT
    assert AT.at({2: 9, 3: 1}).offsets == {0: 10, 2: 9, 3: 1}
    assert position_in({}) is None


@pytest.mark.parametrize("text", ["", "[]", '{"0": -1}', '{"0": 1.5}', '{"x": 1}', '{"0": true}'])
def test_offsets_changed_by_hand_are_refused(text: str) -> None:
    with pytest.raises(TableUnusable, match="changed by hand"):
        position_in({"octavo.offsets": text})


def test_the_position_is_that_of_the_newest_snapshot_which_has_one() -> None:
    """A snapshot of another program has none; a rolled-back table continues where it was."""
    later = AT.at({0: 20})
    every = snapshots(AT.summary(), {}, later.summary(), {})
    assert resumed(4, every, OURS) == later
    assert resumed(2, every, OURS) == AT
    assert resumed(None, every, OURS).offsets == {}
    kept = {**OURS, **later.summary()}
    assert resumed(4, every[3:], kept) == later, "its ancestors were expired"
    with pytest.raises(TableUnusable, match="expired"):
        resumed(4, every[3:], OURS)
    with pytest.raises(TableUnusable, match="made by another program than octavo"):
        resumed(None, [], {})


def test_a_table_of_another_topic_or_of_an_earlier_topic_is_refused() -> None:
    check_topic(AT, "public/t", "i1")
    with pytest.raises(TopicReplaced, match="deleted and created again"):
        check_topic(AT, "public/t", "i2")
    with pytest.raises(TopicReplaced, match="was deleted since"):
        check_topic(AT, "public/t", "")
    with pytest.raises(TableUnusable, match="holds topic public/t, not public/u"):
        check_topic(AT, "public/u", "i1")


def test_a_commit_is_bounded_and_begins_new_partitions() -> None:
    views = [view(0, 1_000), view(1, 50), view(2, 7)]
    plan = next_ranges(AT, views, rows_max=104, bytes_max=10**9, fail=True)
    assert sum(one.end - one.start for one in plan.ranges) == 104
    assert [(one.view.partition, one.start) for one in plan.ranges] == [(0, 10), (1, 0)]
    assert (plan.behind, plan.is_full) == (1_040, True)
    plan = next_ranges(AT, views, rows_max=10**6, bytes_max=10_400, fail=True)
    assert 100 <= sum(one.end - one.start for one in plan.ranges) <= 104
    whole = next_ranges(AT, views, rows_max=10**6, bytes_max=10**9, fail=True)
    assert not whole.is_full
    assert not next_ranges(
        AT.at({0: 1_000, 1: 50}), views, rows_max=1, bytes_max=1, fail=True
    ).ranges


def test_messages_that_retention_removed_are_said() -> None:
    with pytest.raises(DataLost, match="offsets 10 to 19 were trimmed"):
        next_ranges(AT, [view(0, 30, 20)], rows_max=9, bytes_max=9999, fail=True)
    plan = next_ranges(AT, [view(0, 30, 20)], rows_max=99, bytes_max=9999, fail=False)
    assert [(one.start, one.end) for one in plan.ranges] == [(20, 30)]
    new = Position("public/t", "i1")
    plan = next_ranges(new, [view(0, 30, 20)], rows_max=99, bytes_max=9999, fail=True)
    assert [(one.start, one.end) for one in plan.ranges] == [(20, 30)], "a table begins there"


def test_small_files_of_a_day_are_joined_with_files_of_their_size() -> None:
    keep = Upkeep(merge_files_min=3, merge_bytes_max=1_000_000, merge_rows_max=100)
    small = [DataFile(f"s{n}", 1, 5_000, 10) for n in range(4)]
    other_day = [DataFile(f"o{n}", 2, 5_000, 10) for n in range(2)]
    larger = [DataFile(f"l{n}", 1, 400_000, 10) for n in range(2)]
    done = [DataFile("done", 1, 1_000_000, 10), DataFile("many", 1, 5_000, 100)]
    assert to_join([*small, *other_day, *larger, *done], keep) == [small]
    many = [DataFile(f"m{n:03}", 1, 5_000, 10) for n in range(25)]
    groups = to_join(many, keep)
    assert [len(one) for one in groups] == [10, 10, 5]


def test_old_ancestors_are_expired_up_to_the_first_that_is_kept() -> None:
    every = snapshots(*({} for _ in range(8)))
    keep = Upkeep(keep_ms=3_000, keep_min=2)
    assert [one.id for one in to_expire(8, every, [], 8_000, keep)] == [1, 2, 3, 4, 5]
    assert [one.id for one in to_expire(8, every, [3], 8_000, keep)] == [1, 2]
    assert [one.id for one in to_expire(8, every, [], 80_000, keep)] == [1, 2, 3, 4, 5, 6]
    assert to_expire(None, every, [], 80_000, keep) == []
