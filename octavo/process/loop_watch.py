"""Ends a process whose event loop stands still, so that others take over what it holds.

A loop that does not turn answers nobody, yet a session with ZooKeeper is kept alive by kazoo's own
threads: the broker would keep its partitions for ever. So a thread asks the loop for a sign of life
once a second; after `STANDS_STILL_S` without one it writes down where the loop stands and ends the
process. Seconds are counted by the thread's own turns, not by a clock: a process that was stopped
(SIGSTOP) or a machine that slept has missed none.
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
"""Far above any pause of a healthy process; a session is over after 10 by default."""
EXIT_CODE = 1

log = structlog.get_logger()


class LoopWatch:
    """Watches the loop that runs where it is made, from `start` to `stop`."""

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
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; the thread ends by itself."""
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
                except RuntimeError:  # it is closed: the process ends
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
