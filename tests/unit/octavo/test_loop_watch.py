"""A loop that stands still ends its process; a slow loop does not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from octavo.process.loop_watch import EXIT_CODE, LoopWatch


def block_until(happened: threading.Event) -> None:
    assert happened.wait(30)


async def test_a_loop_that_stands_still_ends_the_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ended = threading.Event()
    codes: list[int] = []

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    watch = LoopWatch(turns_max=3, turn_s=0.01, end=end)
    watch.start()
    block_until(ended)
    assert codes == [EXIT_CODE]
    said = capsys.readouterr()
    assert "block_until" in said.out + said.err, "it says where the loop stood"


async def test_a_loop_that_turns_is_left_alone() -> None:
    watch = LoopWatch(turns_max=1_000_000, turn_s=0.001, end=lambda code: pytest.fail("ended"))
    watch.start()
    beats = 0
    while beats < 20:
        if watch._alive.is_set():
            beats += 1
        await asyncio.sleep(0.001)
    watch.stop()
    watch._thread.join(10)
    assert not watch._thread.is_alive()
