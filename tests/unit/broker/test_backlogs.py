"""The driver of time to live and quotas: the clock of its marks, and the order of subscriptions."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import BacklogQuotaExceeded, PartitionMoving
from octavo.broker.partition.backlogs import Backlogs
from octavo.broker.partition.context import PassedOver
from octavo.broker.policies import Ages, Backlog, Quota, Stored, bytes_from, room_from
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import (
    CursorState,
    Op,
    State,
    cursor_op,
    delete_op,
    encode,
    snapshot,
    sought_op,
    used_op,
)
from octavo.broker.subscriptions.last_used import LastUsed
from octavo.broker.topic_rates import INTO, OUT_OF, Rates, has_rates
from octavo.broker.types import PartitionName, TopicSettings
from octavo.metadata.topics import Policies

NAME = PartitionName("public", "t", 0)


class Bench:
    """A subscription `s` over a log of 100 messages of 10 bytes."""

    def __init__(self, policies: Policies, hold_ms: int = 5_000) -> None:
        self.policies = policies
        self.cursor = 0
        self.end = 100
        self.time: DeletionTime | None = DeletionTime(1_000, "", 0, 1_000)
        self.written: list[Any] = []
        context: Any = SimpleNamespace(
            config=SimpleNamespace(backlog_hold_ms=hold_ms),
            topics=SimpleNamespace(list_subscriptions=self._names),
            deletion_time=lambda: self.time,
            passed_over=PassedOver(),
        )
        subscriptions: Any = SimpleNamespace(
            committed=lambda: {"s": self.cursor}, bounded=lambda: {"s": self.cursor},
            pass_over=self._pass_over, follow=self._follow, know_letters=self._know_letters,
        )  # fmt: skip
        self.backlogs = Backlogs(
            NAME, context, lambda: TopicSettings(policies=self.policies), subscriptions,
            self._persist, lambda: [Stored(0, self.end, 10 * self.end)], Ages(),
        )  # fmt: skip
        self.passed_over = context.passed_over

    async def _names(self, *_: str) -> list[str]:
        return ["s"]

    async def _follow(self, _: object) -> None:
        pass

    async def _know_letters(self) -> None:
        pass

    async def _persist(self, op: Any) -> None:
        self.written.append(op)

    async def _pass_over(self, _: str, end: int) -> int:
        passed, self.cursor = max(0, end - self.cursor), max(end, self.cursor)
        return passed


async def test_marks_are_made_by_a_time_that_is_not_behind_and_judged_by_one_that_is_not_ahead(
) -> None:  # fmt: skip
    bench = Bench(Policies(ttl_ms=1_000))
    bench.time = DeletionTime(5_000, "", 0, 9_000)
    await bench.backlogs.keep()
    assert bench.written == [[50, 100, 9_000]]
    bench.time = DeletionTime(9_500, "", 0, 9_500)
    await bench.backlogs.keep()
    assert bench.cursor == 0, "the clock was behind when it was marked"
    bench.time = DeletionTime(10_000, "", 0, 12_000)
    await bench.backlogs.keep()
    assert bench.cursor == 0, "the bound itself is no excess"
    bench.time = DeletionTime(10_002, "", 0, 12_000)
    await bench.backlogs.keep()
    assert bench.cursor == 100
    assert bench.passed_over.expired == 100


async def test_while_clocks_do_not_agree_nothing_is_marked_and_without_time_nothing_goes() -> None:
    bench = Bench(Policies(ttl_ms=1_000))
    bench.time = DeletionTime(5_000, "they do not agree", 0, 5_000)
    await bench.backlogs.keep()
    assert not bench.written
    bench.time = None
    bench.backlogs.ages.note(100, 1)
    await bench.backlogs.keep()
    assert bench.cursor == 0


async def test_nothing_is_written_where_nothing_is_unacked() -> None:
    bench = Bench(Policies(ttl_ms=1_000))
    bench.cursor = 100
    await bench.backlogs.keep()
    assert not bench.written


async def test_who_comes_while_others_go_on_waits_behind_them() -> None:
    bench = Bench(Policies(backlog_bytes=500))
    bench.backlogs.judge()
    done: list[int] = []

    async def publish(number: int) -> None:
        await bench.backlogs.admit()
        done.append(number)

    waiting = [asyncio.create_task(publish(number)) for number in range(3)]
    await asyncio.sleep(0)
    bench.cursor = 60
    bench.backlogs.acked()
    waiting.append(asyncio.create_task(publish(3)))
    for _ in range(2):
        await asyncio.sleep(0)
    waiting.append(asyncio.create_task(publish(4)))
    await asyncio.gather(*waiting)
    assert done == [0, 1, 2, 3, 4]
    await bench.backlogs.admit()


async def test_who_waits_is_let_go_when_the_partition_closes() -> None:
    bench = Bench(Policies(backlog_bytes=500), hold_ms=60_000)
    bench.backlogs.judge()
    waiting = asyncio.create_task(bench.backlogs.admit())
    await asyncio.sleep(0.01)
    assert not waiting.done()
    bench.backlogs.close()
    async with asyncio.timeout(2):
        await waiting


async def test_whoever_waits_in_vain_is_told_so() -> None:
    bench = Bench(Policies(backlog_bytes=500), hold_ms=10)
    bench.backlogs.judge()
    told = await asyncio.gather(*(bench.backlogs.admit() for _ in range(3)), return_exceptions=True)
    assert all(isinstance(one, BacklogQuotaExceeded) for one in told)
    assert all("1000 bytes are kept for it, and the quota is 500" in str(one) for one in told)
    bench.policies = Policies(backlog_bytes=500, backlog_policy="evict")
    await bench.backlogs.keep()
    for _ in range(20):
        await asyncio.sleep(0)
    assert bench.cursor == 50
    assert bench.backlogs._over is None


ledgers = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5_000)), max_size=6)


def laid(parts: list[tuple[int, int]], start: int = 7) -> list[Stored]:
    found = []
    for count, size in parts:
        found.append(Stored(start, start + count, size))
        start += count
    return found


@given(parts=ledgers, bytes_max=st.integers(0, 20_000))
def test_what_is_evicted_to_fits_and_no_more_is_evicted_than_has_to(
    parts: list[tuple[int, int]], bytes_max: int
) -> None:
    stored = laid(parts)
    first = room_from(bytes_max, stored)
    assert bytes_from(first, stored) <= bytes_max
    if stored and first > stored[0].start:
        assert bytes_from(first - 1, stored) > bytes_max
    if stored:
        assert stored[0].start <= first <= stored[-1].end


@given(parts=ledgers)
def test_bytes_grow_towards_the_beginning(parts: list[tuple[int, int]]) -> None:
    stored = laid(parts)
    end = stored[-1].end if stored else 7
    sizes = [bytes_from(offset, stored) for offset in range(end + 2)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == sum(part.bytes for part in stored)
    assert sizes[end] == 0


def test_the_slowest_is_named_with_figures() -> None:
    quota = Quota(1_000, 60_000)
    fast = Backlog("fast", 90, 1_000, 60_000)
    large = Backlog("large", 5, 3_000, 1_000)
    old = Backlog("old", 40, 10, 90_000)
    assert quota.slowest([fast]) is None, "the bound itself is no excess"
    assert quota.slowest([fast, old, large]) == large
    assert quota.slowest([fast, old]) == old
    assert Quota(None, None).slowest([large, old]) is None
    assert Quota(None, 60_000).slowest([large, old]) == old
    assert "'large'" in quota.said_of(large)
    assert "offset 5" in quota.said_of(large)
    assert "3000 bytes are kept for it, and the quota is 1000" in quota.said_of(large)
    assert "90 s old, and the quota is 60 s" in quota.said_of(old)
    assert ";" not in quota.said_of(old)


HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


class World:
    """One owner after the other; `ops` is durable."""

    def __init__(self, span_ms: int | None = DAY_MS) -> None:
        self.span_ms = span_ms
        self.steady_ms = 0
        self.wall_ms: int | None = 1_000 * DAY_MS
        self.doubt = ""
        self.ops: list[Op] = [cursor_op("s", 7, 0)]
        self.owner()

    def owner(self) -> None:
        """Make a new owner that knows the durable state."""
        self.held = State.told_by([encode(self.ops)]).cursors["s"]
        self.uses = LastUsed(
            lambda: self.steady_ms / 1000, self.time, lambda: self.span_ms, self.ops.append
        )

    def time(self) -> DeletionTime | None:
        if self.wall_ms is None:
            return None
        return DeletionTime(self.wall_ms, self.doubt, 0, self.wall_ms)

    def pass_ms(self, ms: int) -> None:
        self.steady_ms += ms
        if self.wall_ms is not None:
            self.wall_ms += ms

    def use(self) -> None:
        self.uses.use("s", self.held)

    def unused(self, retire_s: float = 0.0) -> bool:
        return self.uses.is_unused("s", self.held, self.span_ms or DAY_MS, retire_s)

    @property
    def marks(self) -> list[Op]:
        return [op for op in self.ops if op[0] == 80]


def test_who_owns_it_goes_by_what_it_saw() -> None:
    world = World()
    world.pass_ms(DAY_MS - 1)
    assert not world.unused(), "a full period, for nobody knows what was before"
    world.use()
    world.pass_ms(DAY_MS - 1)
    assert not world.unused()
    world.pass_ms(1)
    assert world.unused()


def test_marks_are_rare() -> None:
    world = World()
    for _ in range(DAY_MS // 60_000):
        world.use()
        world.pass_ms(60_000)
    assert 20 <= len(world.marks) <= 25
    world = World(span_ms=1_600)
    for _ in range(160):
        world.use()
        world.pass_ms(10)
    assert len(world.marks) == 16


def test_a_successor_goes_by_the_mark_and_is_late_never_early() -> None:
    world = World()
    world.use()
    last = HOUR_MS - 1
    world.pass_ms(last)
    world.use()
    assert len(world.marks) == 1, "the last use is not in it"
    world.owner()
    world.pass_ms(DAY_MS - 2)
    assert not world.unused(), "the last use is younger than a day"
    world.owner()
    world.pass_ms(HOUR_MS)
    assert world.unused(), "after a day and an hour, though no owner was there for so long"
    world.doubt = "clocks do not agree"
    assert not world.unused()
    world.doubt = ""
    world.use()
    assert not world.unused()


def test_without_the_policy_marks_are_taken_back() -> None:
    world = World()
    world.use()
    world.span_ms = None
    world.uses.keep([("s", world.held)])
    world.uses.keep([("s", world.held)])
    assert world.marks[1:] == [used_op("s", 0)]
    world.pass_ms(30 * DAY_MS)
    world.use()
    assert len(world.marks) == 2, "and none are made"
    world.span_ms = DAY_MS
    world.owner()
    assert not world.unused(), "what was used meanwhile is not taken for unused"


def test_a_use_before_the_time_is_known_is_marked_later() -> None:
    world = World()
    world.wall_ms = None
    world.use()
    world.uses.keep([("s", world.held)])
    assert not world.marks
    world.wall_ms = 2_000 * DAY_MS
    world.uses.keep([("s", world.held)])
    assert world.marks == [used_op("s", 2_000 * DAY_MS)]


def test_who_comes_while_it_is_retired_keeps_it() -> None:
    world = World()
    world.pass_ms(DAY_MS)
    assert world.unused(retire_s=10.0)
    with pytest.raises(PartitionMoving, match="subscription_expiry"):
        world.use()
    assert not world.unused(retire_s=10.0)
    world.use()
    world.pass_ms(DAY_MS)
    assert world.unused(retire_s=10.0)
    world.pass_ms(10_000)
    world.use()
    world.uses.forget("s")
    assert not world.uses._used_s


def test_marks_survive_seeks_and_snapshots_and_no_namesake_has_them() -> None:
    ops = [cursor_op("s", 7, 0), used_op("s", 500), sought_op("s", 7, 3, 1), used_op("gone", 1)]
    assert State.told_by([encode(ops)]).cursors["s"].used_ms == 500
    ops.append(cursor_op("s", 7, 9))
    state = State.told_by([encode(ops)])
    assert state.cursors["s"].used_ms == 500
    held = CursorState(7, Cursor(4))
    told = State.told_by(
        snapshot([("s", 7, held.cursor)], (), 0, used_ms={"s": 600}, seeks={"s": 2})
    )
    assert told.cursors["s"].used_ms == 600
    assert State.told_by([encode([*ops, cursor_op("s", 8, 0)])]).cursors["s"].used_ms == 0
    again = [*ops, delete_op("s"), cursor_op("s", 7, 0)]
    assert State.told_by([encode(again)]).cursors["s"].used_ms == 0


SLOW = Policies(publish_bytes=1000, publish_messages=10, dispatch_messages=5)


def test_a_topic_waits_for_the_rate_that_is_furthest_away() -> None:
    rates = Rates()
    assert rates.wait("t", SLOW, INTO, 0.0).wait_s == 0
    rates.charge("t", SLOW, INTO, 1500, 40, 0.0)
    found = rates.wait("t", SLOW, INTO, 0.0)
    assert (found.wait_s, found.limit, found.most, found.subject) == (
        3.0, "publish_messages", 10, "topic:t",
    )  # fmt: skip
    assert rates.wait("t", SLOW, OUT_OF, 0.0).wait_s == 0, "the other way is free"
    assert rates.wait("other", SLOW, INTO, 0.0).wait_s == 0
    assert rates.wait("t", SLOW, INTO, 3.1).wait_s == 0
    rates.charge("t", SLOW, OUT_OF, 10**9, 6, 4.0)
    assert rates.wait("t", SLOW, OUT_OF, 4.0).limit == "dispatch_messages"


def test_new_bounds_hold_at_once_and_silence_is_no_bound() -> None:
    rates = Rates()
    rates.charge("t", SLOW, INTO, 10**6, 10**6, 0.0)
    assert rates.wait("t", SLOW, INTO, 0.0).wait_s > 10
    assert rates.wait("t", Policies(publish_bytes=5), INTO, 0.0).wait_s == 0
    assert not has_rates(Policies(ttl_ms=1))
    assert has_rates(SLOW)


def test_no_more_topics_are_remembered_than_the_bound() -> None:
    rates = Rates(topics_kept=2)
    for topic in "abc":
        rates.charge(topic, SLOW, INTO, 0, 100, 0.0)
    assert [rates.wait(topic, SLOW, INTO, 0.0).wait_s > 0 for topic in "bc"] == [True, True]
    assert rates.wait("a", SLOW, INTO, 0.0).wait_s == 0
