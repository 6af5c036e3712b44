"""Ask the kernel for a signal when the parent process dies, in whatever way."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals, parent: int | None = None) -> None:
    """Send this process `number` when its parent dies. Linux only.

    The kernel watches the *thread* that started this process: it must live as long as the parent.
    `parent`: its process id; if it has died already, the signal is sent at once.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError, AttributeError):  # a C library without prctl
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), number)
