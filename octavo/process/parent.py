"""Asks the kernel for a signal when the parent process dies, in whatever way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send this process `number` when its parent ends.

    The kernel watches the *thread* that started this process, so start it from a thread that lives
    as long as the parent. `parent` is the parent's process id, if known: if it died before this
    call, the signal is sent at once. Does nothing on systems other than Linux.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
