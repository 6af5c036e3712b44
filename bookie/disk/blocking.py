"""Runs blocking calls in one executor: the way from the loop to the threads that touch disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


class Blocking:
    """`await blocking(function, *args)` runs `function` in `executor`."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor

    async def __call__(self, function: Callable[P, R], *args: P.args, **_: P.kwargs) -> R:
        """What `function(*args)` returns or raises."""
        return await asyncio.get_running_loop().run_in_executor(
            self.executor, partial(function, *args)
        )
