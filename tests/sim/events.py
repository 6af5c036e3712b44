"""The events of a seed, in virtual time, for the person who reads a failure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

KEPT = 60


class Events:
    """The last events; with `verbose` each is printed as it happens. Formatting costs more than a
    step of the simulation, so only readers pay for it."""

    def __init__(self, now: Callable[[], float], *, verbose: bool = False) -> None:
        self._now = now
        self._verbose = verbose
        self._kept: deque[tuple[float, str, tuple[Any, ...]]] = deque(maxlen=KEPT)

    def add(self, kind: str, *what: Any) -> None:
        event = (self._now(), kind, what)
        self._kept.append(event)
        if self._verbose:
            print(_line(event), flush=True)

    def lines(self) -> list[str]:
        return [_line(event) for event in self._kept]


def _line(event: tuple[float, str, tuple[Any, ...]]) -> str:
    time_s, kind, what = event
    return f"{time_s:11.6f}  {kind:<16} {' '.join(map(str, what))}"
