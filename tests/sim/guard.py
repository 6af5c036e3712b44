"""Forbids the real world while a seed runs: real time, threads, sockets, files, randomness.

A use raises `RealWorldTouched`, again when the guard is left. `from time import monotonic` escapes.
Metrics and log records may use real time, which no code reads back.
"""

from __future__ import annotations

import asyncio
import builtins
import io
import os
import random
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_HARMLESS = (
    "importlib",
    "linecache",
    "logging",
    "prometheus_client",
    "structlog",
    "tokenize",
    "warnings",
)
"""Modules whose use of the real world has no effect on the simulation."""


class RealWorldTouched(BaseException):
    pass


_touched: list[RealWorldTouched] = []
_depth = 0
_thread = 0


def _forbidden(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == _thread and not _is_harmless():
            _raise(name)
        return real(*args, **kwargs)

    return call


def _is_harmless() -> bool:
    module = sys._getframe(2).f_globals.get("__name__", "")
    return module.partition(".")[0] in _HARMLESS


def _raise(name: str) -> None:
    frame = sys._getframe(2)
    code = frame.f_code
    error = RealWorldTouched(
        f"{name} called by {code.co_qualname} ({code.co_filename}:{frame.f_lineno})"
    )
    _touched.append(error)
    raise error


def _seed(self: random.Random, a: Any = None, version: int = 2) -> None:
    """Refuse a generator without a seed, which would ask the operating system for one."""
    if a is None and type(self) is random.Random and threading.get_ident() == _thread:
        _raise("random.Random() without a seed")
    _real_seed(self, a, version)


_real_seed = random.Random.seed

_TIME = (
    "time monotonic perf_counter time_ns monotonic_ns perf_counter_ns process_time sleep"
    " localtime gmtime"
)
_RANDOM = (
    "random randrange randint choice choices sample shuffle uniform expovariate getrandbits"
    " randbytes gauss triangular betavariate normalvariate _urandom seed"
)
_OS = "urandom getrandom open mkdir unlink rename replace listdir scandir fork read write"


def _targets() -> list[tuple[Any, str, str]]:
    named = [(time, _TIME, "time"), (random, _RANDOM, "random"), (os, _OS, "os")]
    found = [
        (owner, attribute, f"{name}.{attribute}")
        for owner, attributes, name in named
        for attribute in attributes.split()
        if hasattr(owner, attribute)
    ]
    return [
        *found,
        (uuid, "uuid1", "uuid.uuid1"),
        (uuid, "uuid4", "uuid.uuid4"),
        (random.SystemRandom, "random", "random.SystemRandom.random"),
        (random.SystemRandom, "getrandbits", "random.SystemRandom.getrandbits"),
        (random.SystemRandom, "randbytes", "random.SystemRandom.randbytes"),
        (threading.Thread, "start", "threading.Thread.start"),
        (socket.socket, "__init__", "socket.socket"),
        (socket, "getaddrinfo", "socket.getaddrinfo"),
        (subprocess.Popen, "__init__", "subprocess.Popen"),
        (builtins, "open", "open"),
        (io, "open", "io.open"),
        (asyncio, "new_event_loop", "asyncio.new_event_loop"),
        (asyncio, "run", "asyncio.run"),
        (asyncio.BaseEventLoop, "__init__", "a real event loop"),
    ]


def _swaps() -> list[tuple[Any, str, Any, Any]]:
    swaps = []
    for owner, attribute, name in _targets():
        real = vars(owner)[attribute]
        swaps.append((owner, attribute, real, _forbidden(name, real)))
    swaps.append((random.Random, "seed", _real_seed, _seed))
    return swaps


_SWAPS = _swaps()


@contextmanager
def forbid_real_world() -> Iterator[None]:
    global _depth, _thread
    if _depth == 0:
        _thread = threading.get_ident()
        _touched.clear()
        for owner, attribute, _, forbidden in _SWAPS:
            setattr(owner, attribute, forbidden)
    _depth += 1
    swallowed = True
    try:
        yield
    except RealWorldTouched:
        swallowed = False
        raise
    finally:
        _depth -= 1
        if _depth == 0:
            _thread = 0
            for owner, attribute, real, _ in _SWAPS:
                setattr(owner, attribute, real)
        if swallowed and _touched and sys.exc_info()[0] is None:
            raise _touched[0]


def touched() -> list[RealWorldTouched]:
    return list(_touched)
