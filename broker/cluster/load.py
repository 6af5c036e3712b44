"""How much each partition gives its broker to do, and which one a loaded broker gives away. Pure.

Load is messages a second, published and read, plus their KiB a second: a message costs about what
a KiB does. Each partition's is smoothed, a broker's is the sum of its partitions'; so it falls at
once when one has gone. Every broker knows what the others have told (standing.py), and decides for
itself whether it is the one that gives, and what to whom.

Why it comes to rest: with loads that do not change, each move lessens the sum of all brokers'
distances from their mean by at least `GAIN` of that mean, and the sum is never more than twice the
number of brokers times the mean. So there are never more than 2 / `GAIN` moves for each broker,
and no state comes twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from octavo.broker.types import PartitionName, Work

MESSAGE_BYTES = 1024
"""What a message costs, in bytes."""
SMOOTHED_OVER_S = 30.0
"""What was so long ago counts a third of what is now."""
MEASURED_EVERY_S = 5.0
IDLE = 0.01
"""Less counts as nothing: what is smoothed never comes to an end."""
GAIN = 0.1
"""A move that brings less, in parts of the mean, is not made."""
TOLD_STEP = 0.1
"""A load is told when it has changed by so much of itself, or of the floor."""


TOLD_WITHIN_S = 10.0
"""So long after the last telling a change is told that is a step of the load, not of the floor."""


class LoadRules(NamedTuple):
    """Of `BrokerConfig`."""

    floor: float
    """Who has less to do gives nothing away."""
    above_mean: float
    """Nor who has less than so many times the mean."""
    pause_s: float
    """Between two moves of a broker, and after brokers came or went."""
    rest_s: float
    """So long a partition stays where it was opened."""


class Giving(NamedTuple):
    """A move, and by which figures."""

    partition: PartitionName
    to: str
    load: float
    """Of the partition."""
    own: float
    """Of the broker that gives."""
    heirs: float
    mean: float


class _Meter:
    __slots__ = ("at_s", "load", "work")

    def __init__(self, work: Work, at_s: float) -> None:
        self.work = work
        self.at_s = at_s
        self.load: float | None = None
        """None: seen once, so nobody knows."""


class Loads:
    """Of one broker's partitions. Times are of one steady clock, in seconds."""

    def __init__(self) -> None:
        self._meters: dict[PartitionName, _Meter] = {}
        self._busy: dict[PartitionName, float] = {}

    def measure(self, work: Iterable[tuple[PartitionName, Work]], now_s: float) -> None:
        """These are served now, and so much they have done."""
        before, self._meters = self._meters, {}
        for name, done in work:
            meter = before.get(name)
            if meter is None or _is_less(done, meter.work):
                meter = _Meter(done, now_s)  # opened anew: it counts from 0
            elif now_s > meter.at_s:
                _note(meter, done, now_s)
            self._meters[name] = meter
        self._busy = {
            name: meter.load
            for name, meter in self._meters.items()
            if meter.load is not None and meter.load >= IDLE
        }

    def of(self, name: PartitionName) -> float:
        """The partition's; 0 when it is not known yet."""
        return self._busy.get(name, 0.0)

    def total(self, is_served: Callable[[PartitionName], bool]) -> float:
        """Of all that are served at this moment. Costs what is busy, not what is idle."""
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
    """Return the load to tell: what was told `since_s` ago, unless that is wrong by a step.

    A step is a tenth of the floor at least: no broker gives anything away for less. A smaller
    change is told as well, for people who look, but no more often than each `TOLD_WITHIN_S`; that
    nothing is left to do is told at once.
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
    """What broker `own` is to give to whom; None: nothing.

    `loads`: of all brokers that may be given something, `own` among them. `movable`: of its
    partitions that may go.
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
    """When a broker may give something away. Times are of one steady clock, in seconds."""

    def __init__(self, rules: LoadRules) -> None:
        self._rules = rules
        self._moved_s = -math.inf

    def may_move(self, now_s: float, changed_s: float) -> bool:
        """`changed_s`: when brokers came, went or were drained last."""
        return now_s - max(self._moved_s, changed_s) >= self._rules.pause_s

    def tried(self, now_s: float) -> None:
        """It gives something away now, or has tried to."""
        self._moved_s = now_s
