"""What costs time and shows nothing in a simulation is switched off while a seed runs.

logging    a log line costs more than the step it tells of; the seed's events tell it too. What is
           logged of an error that nobody foresaw is kept in `bugs`, and fails the seed
metrics    nobody scrapes; what they would count is not looked at
garbage    collected between seeds, of many at once where it is off altogether: memory is ample,
           the moment of a collection must not be part of the story. What was there before
           the first seed is never looked through again.
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
"""Some hundred megabytes of them; who runs fewer in one process never collects at all."""
_seeds_run = 0


bugs: list[str] = []
"""What was logged since `quiet` was entered that no fault explains."""
_BUG_EVENTS = ("broker_task_failed", "ledger_task_failed", "rollover_failed")


class Injected(Exception):
    """An error that the simulator raises where nobody expects one."""


class _Mute(structlog.BoundLoggerBase):
    """Says nothing, but remembers what tells of a bug."""

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
    """Counter, gauge, histogram and registry that do nothing."""

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def labels(self, *_: Any) -> _NoMetric:
        return self

    def _ignore(self, *_: Any) -> None: ...

    inc = dec = set = observe = set_function = register = _ignore


_METRICS = ("CollectorRegistry", "Counter", "Gauge", "Histogram")


@functools.cache
def prepare() -> None:
    """Do once in a process, or before it forks, what every first seed would have to."""
    octavo.bookie.node._version()  # looked up outside of the simulated world
    gc.collect()
    gc.freeze()


@contextmanager
def quiet() -> Iterator[None]:
    """While this is entered, nothing is logged, counted or collected."""
    global _seeds_run
    prepare()
    was_on = gc.isenabled()
    gc.disable()
    bugs.clear()
    logging = structlog.get_config()
    structlog.configure(wrapper_class=_Mute, cache_logger_on_first_use=False)
    # Each log line binds its logger anew, at the price of some steps; ours is one for all.
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
