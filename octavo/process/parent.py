"""The kernel's bond to a parent: a signal when the parent dies, however it dies."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send this process `number` when its parent ends.

    The parent's thread that started this process counts, so that must be one that lives as long.
    `parent`: its process id, if it is known; when it has died before this call, the signal comes
    at once. Does nothing where there is no Linux.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # a library without it: nothing is lost
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
