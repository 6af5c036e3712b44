"""A small process that kills its parent when the parent's event loop hangs.

`loop_watch` does not run while a C library holds the interpreter's lock. This process gets a byte a
second from the loop, and counts its own turns without one, except while the parent is stopped
(SIGSTOP) or traced. After `turns_max` it sends SIGABRT, so that all stacks are written, and then
SIGKILL.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import select
import signal
import sys
from pathlib import Path

import structlog

from octavo.process.parent import die_with_parent

STANDS_STILL_S = 25
"""Longer than the thread's bound, because the thread can log the loop's stack."""
_TURN_S = 1.0
_DUMP_S = 2.0
"""Time for the fault handler to write before the parent is killed."""

log = structlog.get_logger()


class OutsideWatch:
    """Make it before the event loop and any thread; call `beat` on the loop, and `stop`."""

    def __init__(self, *, turns_max: int = STANDS_STILL_S, turn_s: float = _TURN_S) -> None:
        faulthandler.enable()
        self._turn_s = turn_s
        self._timer: asyncio.TimerHandle | None = None
        reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        parent = os.getpid()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                die_with_parent(signal.SIGKILL, parent)
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                    # A terminal sends these to all processes; only the parent decides to end.
                    signal.signal(number, signal.SIG_IGN)
                os.close(self._writing)
                _close_others(reading)
                _watch(reading, parent, turns_max, turn_s)
                code = 0
            finally:
                os._exit(code)
        os.close(reading)

    def beat(self) -> None:
        with contextlib.suppress(BlockingIOError):  # pipe full: the watching process hangs
            try:
                os.write(self._writing, b".")
            except OSError as error:
                log.warning("outside_watch_gone", reason=str(error))
                return
        self._timer = asyncio.get_running_loop().call_later(self._turn_s, self.beat)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        os.close(self._writing)
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # the watching process has no state to clean up
            os.waitpid(self.pid, 0)


def _close_others(kept: int) -> None:
    """Close the parent's files, above all its sockets. Standard error stays open."""
    for low, high in ((0, 2), (3, kept), (kept + 1, 1 << 16)):
        os.closerange(low, high)


def _watch(reading: int, parent: int, turns_max: int, turn_s: float) -> None:
    silent = 0
    told = select.poll()  # `select` refuses descriptors from 1,024 on
    told.register(reading, select.POLLIN)
    while silent < turns_max:
        if told.poll(turn_s * 1000):
            if not os.read(reading, 4096):
                return
            silent = 0
        elif _is_held(parent):
            silent = 0
        else:
            silent += 1
    said = f"process {parent}: its event loop stands still since {silent * turn_s:g} s; killed\n"
    with contextlib.suppress(OSError):
        os.write(2, said.encode())
    os.kill(parent, signal.SIGABRT)
    told.poll(_DUMP_S * 1000)  # returns early if the parent ends
    os.kill(parent, signal.SIGKILL)


def _is_held(pid: int) -> bool:
    """Whether the process is stopped or traced; False without /proc."""
    if sys.platform != "linux":
        return False
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in b"Tt"
    except OSError:
        return False
