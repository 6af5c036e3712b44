"""The measurement of loop turns in attacks finds the long turns."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from tests.attack.canary import PACE_S, waited_of, wanted_in
from tests.attack.timed import FOLDER, Turns
from tests.support.loop_time import LoopTime


def _busy(seconds: float) -> None:
    until_s = time.thread_time() + seconds
    while time.thread_time() < until_s:
        pass


async def test_a_busy_turn_is_measured_and_a_sleeping_one_is_not() -> None:
    async with LoopTime() as measured:
        await asyncio.sleep(0.02)
        _busy(0.06)
    assert measured.longest_s >= 0.06
    async with LoopTime() as measured:
        await asyncio.sleep(0.02)
        time.sleep(0.06)  # noqa: ASYNC251  (the loop stands, and no processor time is spent)
    assert measured.longest_s < 0.05


def test_the_longest_turn_is_found(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "broker-1").write_text("[1.0, 9.0, 0]\n[5.0, 0.03, 0]\n[6.0, 0.3")
    (tmp_path / FOLDER / "broker-2").write_text("[5.5, 0.07, 0.05]\n")
    (tmp_path / FOLDER / "bookie-1").write_text("[5.5, 0.9, 0]\n")
    turn = Turns(tmp_path).longest(2.0, "broker")
    assert turn is not None
    assert (turn.process, turn.processor_s) == ("broker-2", 0.07)
    assert Turns(tmp_path).longest(7.0, "broker") is None


def test_time_without_a_processor_is_no_harm() -> None:
    """A canary's bound judges what the cluster did with the processor time that it got."""
    assert wanted_in(10.0, 0.0, 0.5) == 0.5 * 10.0 / PACE_S
    assert wanted_in(10.0, 8.0, 0.5) == pytest.approx(0.5 * 2.0 / PACE_S)
    assert wanted_in(10.0, 12.0, 0.5) == 0.0
    assert waited_of(2**31) == 0.0  # no such process


def test_how_long_a_process_waited_for_a_processor_only_grows() -> None:
    before = waited_of(os.getpid())
    time.sleep(0.01)
    assert waited_of(os.getpid()) >= before >= 0.0
