"""Switches off costly things without use in a simulation: logging, metrics, garbage collection.

Logs of unexpected errors go to `bugs` and fail the seed. Garbage is collected between seeds: the
moment must not be part of the story.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from structlog._config import BoundLoggerLazyProxy

import octavo.bookie.metrics
import octavo.bookie.node

_COLLECT_EVERY = 60
"""They take some hundred megabytes. A process with fewer seeds never collects."""
_seeds_run = 0


bugs: list[str] = []
"""Log lines since `quiet` was entered that no fault explains."""
_BUG_EVENTS = ("broker_task_failed", "ledger_task_failed", "rollover_failed")


class Injected(Exception):
    pass


class _Mute(structlog.BoundLoggerBase):
    def bind(self, **_: object) -> _Mute:
        return self

    def _say_nothing(self, event: str, **_: object) -> None: ...

    def _remember(self, event: str, **details: object) -> None:
        error = details.get("exc_info")
        if isinstance(error, Injected):
            return
        if event in _BUG_EVENTS or isinstance(error, BaseException):
            bugs.append(f"{event} {details}")

    debug = info = _say_nothing
    warning = error = critical = exception = _remember


_MUTE = _Mute(None, (), {})


def _give_mute(_: BoundLoggerLazyProxy, **__: Any) -> Any:
    return _MUTE


class _NoMetric:
    def __init__(self, *_: Any, **__: Any) -> None: ...

    def labels(self, *_: Any) -> _NoMetric:
        return self

    def _ignore(self, *_: Any) -> None: ...

    inc = dec = set = observe = set_function = register = _ignore


_METRICS = ("CollectorRegistry", "Counter", "Gauge", "Histogram")


@functools.cache
def prepare() -> None:
    """Do once per process, or before it forks, the work that every first seed would do."""
    octavo.bookie.node._version()  # looked up outside of the simulated world
    gc.collect()
    gc.freeze()


@contextmanager
def quiet() -> Iterator[None]:
    global _seeds_run
    prepare()
    was_on = gc.isenabled()
    gc.disable()
    bugs.clear()
    logging = structlog.get_config()
    structlog.configure(wrapper_class=_Mute, cache_logger_on_first_use=False)
    # A log line would bind its logger each time, which takes some steps; this is bound once.
    proxy: Any = BoundLoggerLazyProxy
    bind, proxy.bind = proxy.bind, _give_mute
    metrics = octavo.bookie.metrics
    kept = [(name, getattr(metrics, name)) for name in _METRICS]
    for name, _ in kept:
        setattr(metrics, name, _NoMetric)
    try:
        yield
    finally:
        for name, real in kept:
            setattr(metrics, name, real)
        proxy.bind = bind
        structlog.configure(**logging)
        _seeds_run += 1
        if was_on or _seeds_run % _COLLECT_EVERY == 0:
            gc.collect()  # before it is on again: it would look at all that the seed left
        if was_on:
            gc.enable()
