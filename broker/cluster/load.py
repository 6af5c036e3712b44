"""The load of each partition, and which partition a loaded broker gives away. Pure.

Load is messages per second, published and read, plus KiB per second, smoothed. Moves end: with
constant loads, each lessens the sum of the brokers' distances from the mean by at least `GAIN`
means, and that sum is at most two means per broker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from octavo.broker.types import PartitionName, Work

MESSAGE_BYTES = 1024
SMOOTHED_OVER_S = 30.0
"""Time constant: load of this age counts about a third."""
MEASURED_EVERY_S = 5.0
IDLE = 0.01
"""Smaller loads count as zero, which a smoothed load never reaches."""
GAIN = 0.1
"""Smallest gain of a move, as a part of the mean load."""
TOLD_STEP = 0.1
"""Report a load when it changed by this part of itself, or of the floor …"""


TOLD_WITHIN_S = 10.0
"""… and a smaller change, of a tenth, after this time."""


class LoadRules(NamedTuple):
    floor: float
    """A broker with less load gives nothing away …"""
    above_mean: float
    """… and with less than this multiple of the mean load."""
    pause_s: float
    rest_s: float
    """How long a partition stays where it was opened."""


class Giving(NamedTuple):
    partition: PartitionName
    to: str
    load: float
    own: float
    successors: float
    mean: float


class _Meter:
    __slots__ = ("at_s", "load", "work")

    def __init__(self, work: Work, at_s: float) -> None:
        self.work = work
        self.at_s = at_s
        self.load: float | None = None
        """None after the first measurement: a rate needs two."""


class Loads:
    def __init__(self) -> None:
        self._meters: dict[PartitionName, _Meter] = {}
        self._busy: dict[PartitionName, float] = {}

    def measure(self, work: Iterable[tuple[PartitionName, Work]], now_s: float) -> None:
        before, self._meters = self._meters, {}
        for name, done in work:
            meter = before.get(name)
            if meter is None or _is_less(done, meter.work):
                meter = _Meter(done, now_s)  # reopened: its work counts from 0
            elif now_s > meter.at_s:
                _note(meter, done, now_s)
            self._meters[name] = meter
        self._busy = {
            name: meter.load
            for name, meter in self._meters.items()
            if meter.load is not None and meter.load >= IDLE
        }

    def of(self, name: PartitionName) -> float:
        return self._busy.get(name, 0.0)

    def total(self, is_served: Callable[[PartitionName], bool]) -> float:
        return sum(load for name, load in self._busy.items() if is_served(name))


def _is_less(now: Work, before: Work) -> bool:
    return now.messages < before.messages or now.payload_bytes < before.payload_bytes


def _note(meter: _Meter, done: Work, now_s: float) -> None:
    took_s = now_s - meter.at_s
    messages = done.messages - meter.work.messages
    payload_bytes = done.payload_bytes - meter.work.payload_bytes
    now = (messages + payload_bytes / MESSAGE_BYTES) / took_s
    if meter.load is None:
        meter.load = now
    else:
        meter.load += (now - meter.load) * (1 - math.exp(-took_s / SMOOTHED_OVER_S))
    meter.work, meter.at_s = done, now_s


def worth_telling(told: int | None, now: float, floor: float, since_s: float = 0.0) -> int:
    """Return the load to tell: `told` of `since_s` ago, unless it is wrong by a step.

    A step is at least a tenth of the floor, below which no broker gives anything away. Reports
    smaller changes each `TOLD_WITHIN_S`, zero at once.
    """
    whole = round(now)
    if told is None or not whole:
        return whole
    wrong = abs(now - told)
    if wrong > TOLD_STEP * max(told, floor):
        return whole
    is_due = since_s >= TOLD_WITHIN_S
    return whole if is_due and wrong > TOLD_STEP * max(told, 1) else told


def choose(
    own: str, loads: Mapping[str, float], movable: Mapping[PartitionName, float], rules: LoadRules
) -> Giving | None:
    """Return the partition that `own` should give away, and to which broker, if any.

    `loads`: of all brokers that may be given partitions, `own` included. `movable`: partitions of
    `own`.
    """
    if len(loads) < 2 or own not in loads:
        return None
    ids = sorted(loads)
    mean = sum(loads.values()) / len(loads)
    most, least = (pick(ids, key=loads.__getitem__) for pick in (max, min))
    if own != most or loads[own] <= max(rules.floor, rules.above_mean * mean):
        return None
    above, below = loads[own] - mean, mean - loads[least]

    def gain(name: PartitionName) -> float:
        load = movable[name]
        return above + below - abs(above - load) - abs(below - load)

    best = max(sorted(movable), key=gain, default=None)
    if best is None or gain(best) < GAIN * mean:
        return None
    return Giving(best, least, movable[best], loads[own], loads[least], mean)


class LoadTurns:
    def __init__(self, rules: LoadRules) -> None:
        self._rules = rules
        self._moved_s = -math.inf

    def may_move(self, now_s: float, changed_s: float) -> bool:
        return now_s - max(self._moved_s, changed_s) >= self._rules.pause_s

    def tried(self, now_s: float) -> None:
        self._moved_s = now_s
