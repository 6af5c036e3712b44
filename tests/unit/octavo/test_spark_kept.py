"""The connection that a Python worker of Spark keeps between its tasks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from octavo.loop_thread import LoopThread
from octavo.spark import kept
from octavo.spark.kept import IDLE_S, Connection, Kept


def _connection() -> tuple[Connection, AsyncMock]:
    cluster: Any = AsyncMock()
    return Connection(LoopThread("test"), cluster), cluster.close


def test_the_next_task_of_the_run_takes_it_and_no_other_meanwhile() -> None:
    slot = Kept()
    assert slot.take("run") is None
    one, closed = _connection()
    slot.put("run", one)
    assert slot.take("run") is one
    assert slot.take("run") is None
    one.end()
    closed.assert_awaited_once()
    assert one.thread.is_stopped


def test_another_run_and_an_old_connection_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0
    monkeypatch.setattr(kept, "time", SimpleNamespace(monotonic=lambda: now_s))
    slot = Kept()
    for key, later_s in (("other", 0.0), ("run", IDLE_S)):
        one, closed = _connection()
        slot.put("run", one)
        now_s += later_s
        assert slot.take(key) is None
        closed.assert_awaited_once()
        assert one.thread.is_stopped


def test_it_keeps_one_at_most() -> None:
    slot = Kept()
    (one, closed), (two, _) = _connection(), _connection()
    slot.put("run", one)
    slot.put("run", two)
    closed.assert_awaited_once()
    assert slot.take("run") is two
    two.end()


def test_a_connection_whose_loop_has_ended_is_not_given_out() -> None:
    slot = Kept()
    one, closed = _connection()
    slot.put("run", one)
    one.thread.stop()  # as after a fork
    assert slot.take("run") is None
    closed.assert_not_awaited()


def test_outside_of_streams_nothing_is_kept() -> None:
    assert kept.run_of_task() is None
