"""Which messages a compaction keeps, against the plain rule; when a run ends; how urgent it is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.log import compaction_rules
from octavo.broker.log.compaction_rules import (
    Choice,
    CompactionPolicy,
    Dirt,
    NewestOffsets,
    run_messages_max,
    urgency,
)
from octavo.protocol.records import Record

KEYS = st.lists(
    st.none() | st.sampled_from([b"", b"a", b"b", b"k" * 15, b"k" * 16, b"k" * 17, b"l" * 300])
)
DAY_MS = 86_400_000


@given(st.lists(KEYS, max_size=6), st.integers(0, 9), st.integers(0, 4))
def test_what_stays_of_new_messages_is_the_newest_of_each_key(
    batches: list[list[bytes | None]], start: int, before: int
) -> None:
    newest = NewestOffsets(start, 1_000, 1_000)
    first = max(0, start - before)  # the first batch may begin before the horizon
    log = list(enumerate((key for batch in batches for key in batch), first))
    at = first
    for batch in batches:
        if at + len(batch) > start:
            newest.note(at, batch)
        at += len(batch)
    for _ in newest.settling():
        pass
    new = [(offset, key) for offset, key in log if offset >= start]
    last = {key: offset for offset, key in new}
    stays = [key is None or last[key] == offset for offset, key in new]
    behind = max(0, at - start)
    assert newest.staying(start, behind) == bytes(stays)
    assert newest.staying(first, at - first) == bytes(at - first - behind) + bytes(stays)
    assert len(newest) == len(last.keys() - {None})
    assert all(key is None or newest.has(key) for key in last)


def test_a_gap_between_batches_keeps_nothing() -> None:
    newest = NewestOffsets(0, 10, 10)
    newest.note(0, [b"a", None])
    newest.note(5, [b"a"])
    for _ in newest.settling():
        pass
    assert newest.staying(0, 6) == bytes([0, 1, 0, 0, 0, 1])


def test_a_run_is_full_with_so_many_keys_or_messages() -> None:
    newest = NewestOffsets(0, 2, 4)
    newest.note(0, [b"a", b"a", None])
    assert not newest.is_full
    newest.note(3, [b"a"])
    assert newest.is_full, "four messages"
    newest = NewestOffsets(0, 2, 4)
    newest.note(0, [b"a", b"b"])
    assert newest.is_full, "two keys"


def test_marks_are_set_some_at_a_time() -> None:
    count = 2 * compaction_rules._SETTLED_AT_ONCE
    newest = NewestOffsets(0, count, count)
    newest.note(0, [b"%d" % number for number in range(count)])
    assert len(list(newest.settling())) == 2
    assert newest.staying(0, count) == b"\1" * count


def test_what_stays_of_the_view_before() -> None:
    newest = NewestOffsets(10, 10, 10)
    newest.note(10, [b"newer"])
    choice = Choice(newest, tombstones_ms=100, now_ms=1_000)
    assert choice.keeps(Record(b"other", b"v", (), 0))
    assert choice.keeps(Record(None, b"v", (), 0)), "no key has no newer message"
    assert not choice.keeps(Record(b"newer", b"v", (), 5_000))
    assert choice.keeps(Record(b"other", None, (), 901)), "a young tombstone"
    assert not choice.keeps(Record(b"other", None, (), 900))
    assert Choice(newest, 100, None).keeps(Record(b"other", None, (), 0)), "nothing goes by age now"


def test_a_run_ends_after_a_few_times_the_view() -> None:
    assert run_messages_max(Dirt(0, 10**9, 10**9, 0)) == 1_000_000
    assert run_messages_max(Dirt(0, 10**9, 10**9, 500_000)) == 2_000_000
    assert run_messages_max(Dirt(0, 10**9, 10**9, 10**9)) == 16_000_000


def test_the_more_is_due_the_more_urgent() -> None:
    policy = CompactionPolicy(after_bytes=1_000, dirty_ratio=0.5, tombstones_ms=DAY_MS)
    assert urgency(Dirt(0, 10, 1_000, 0), policy) == 1
    assert urgency(Dirt(0, 30, 3_000, 0), policy) == 3
    assert urgency(Dirt(0, 30, 3_000, 20), policy) == 1.5, "the ratio was reached later"
    assert urgency(Dirt(0, 0, 0, 20), policy) == 1, "for tombstones alone"
    assert urgency(Dirt(0, 30, 3_000, 20), policy._replace(dirty_ratio=0)) == 3
    assert urgency(Dirt(0, 30, 3_000, 20), policy._replace(dirty_ratio=1)) == 3
