"""When a subscription counts as unused: by the owner's calls and by marks, and when that is
unknown.
"""

from __future__ import annotations

import pytest

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import PartitionMoving
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
