"""End a process whose event loop hangs, so that other processes take over its partitions.

kazoo's own threads would keep its session alive for ever. So a thread asks the loop for a sign of
life once a second; after `STANDS_STILL_S` without it, the thread logs the loop's stack and ends the
process. It counts its own turns, not the clock, so that SIGSTOP does not look like a hanging loop.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import traceback
from collections.abc import Callable

import structlog

STANDS_STILL_S = 20
"""Far longer than any pause of a healthy process."""
EXIT_CODE = 1

log = structlog.get_logger()


class LoopWatch:
    def __init__(
        self,
        *,
        turns_max: int = STANDS_STILL_S,
        turn_s: float = 1.0,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched = threading.get_ident()
        self._turns_max = turns_max
        self._turn_s = turn_s
        self._end = end
        self._stopped = threading.Event()
        self._alive = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _watch(self) -> None:
        self._alive.set()
        silent = 0
        while not self._stopped.wait(self._turn_s):
            if self._alive.is_set():
                silent = 0
                self._alive.clear()
                try:
                    self._loop.call_soon_threadsafe(self._alive.set)
                except RuntimeError:  # the loop is closed: the process ends
                    return
                continue
            silent += 1
            if silent >= self._turns_max:
                self._give_up()
                return

    def _give_up(self) -> None:
        frame = sys._current_frames().get(self._watched)
        where = "".join(traceback.format_stack(frame)) if frame is not None else "unknown"
        log.critical("loop_stands_still", seconds=self._turns_max * self._turn_s, where=where)
        self._end(EXIT_CODE)
