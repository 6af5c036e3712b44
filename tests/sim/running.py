"""Makes a simulated loop the running loop, for asyncio and for production code.

Asking asyncio for the running loop costs a system call each time (it checks for a fork), and
asyncio keeps a list of all tasks that no code here reads. Both are bypassed.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import events, tasks
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.sim.loop import SimLoop

_NAMES = (
    (asyncio, "get_running_loop"),
    (events, "get_running_loop"),
    (events, "_get_running_loop"),
)
_ALL_TASKS: Any = vars(tasks).get("_all_tasks", vars(tasks).get("_scheduled_tasks"))
_REAL = [(owner, name, getattr(owner, name)) for owner, name in _NAMES]


@contextmanager
def running(loop: SimLoop) -> Iterator[None]:
    hooks = sys.get_asyncgen_hooks()
    events._set_running_loop(loop)
    itself = repeat(loop).__next__  # as quick as can be: it is called half as often as steps run
    for owner, name in _NAMES:
        setattr(owner, name, itself)
    _ALL_TASKS.add = id  # does nothing, without a Python frame
    sys.set_asyncgen_hooks(firstiter=None, finalizer=loop.finalize_generator)
    try:
        yield
    finally:
        sys.set_asyncgen_hooks(*hooks)
        del _ALL_TASKS.add
        for owner, name, real in _REAL:
            setattr(owner, name, real)
        events._set_running_loop(None)
