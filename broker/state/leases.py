"""A subscription's leases, as an owner leaves them to its successor. Pure.

At a planned end the owner writes them last into the state ledger, or passes them on. They name the
epoch of the partition's record, and every opening raises that: so they are valid for the next
opening only. After a crash there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgpack

from octavo.broker.state.cursor import pack_ranges, ranges_of, unpack_ranges

LEASES_BYTES_MAX = 512 * 1024
"""The most that a hand-over passes on: a subscription with more leases passes on none."""
_OF_ONE_OP = 10_000
_MESSAGES_MAX = 1_000_000
"""Bounds the messages read: a few bytes could encode any number of offsets."""

OUT, ASLEEP, BACK, SPENT = range(4)
"""OUT: leased for `time_ms`. ASLEEP: waits for `time_ms`. BACK: ready. SPENT: copied to another
topic at wall-clock `time_ms`, -1: at once.
"""


class LeftMessages(NamedTuple):
    kind: int
    time_ms: int
    number: int
    """The lease number; 0 if the messages are not leased."""
    consumer: str
    offsets: list[int]
    attempts: list[int]
    keys: list[int | None]
    """Hashes of the keys, if key-shared."""

    def parts(self) -> Iterator[LeftMessages]:
        for at in range(0, len(self.offsets), _OF_ONE_OP):
            end = at + _OF_ONE_OP
            yield self._replace(
                offsets=self.offsets[at:end],
                attempts=self.attempts[at:end],
                keys=self.keys[at:end],
            )


class LeftConsumer(NamedTuple):
    name: str
    priority: int
    seen_ms: int
    able_ms: int | None


class LeftAnswer(NamedTuple):
    """The answer to a consumer's last numbered call."""

    consumer: str
    request: str
    number: int
    was_pending: bool


class LeftHold(NamedTuple):
    name: str
    left_ms: int
    generation: int = 0


@dataclass(slots=True)
class LeftLeases:
    epoch: int
    """The epoch of the record when this was written."""
    era: int
    """The epoch in the ack ids, which the successor continues to use."""
    numbers: int
    active: str = ""
    holder: LeftHold | None = None
    group: LeftHold | None = None
    consumers: list[LeftConsumer] = field(default_factory=list)
    answers: list[LeftAnswer] = field(default_factory=list)
    newest: tuple[str, int, bool] | None = None
    """The highest numbered call of the only consumer, and whether its answer was empty."""
    messages: list[LeftMessages] = field(default_factory=list)

    @property
    def says_something(self) -> bool:
        return bool(self.messages or self.holder or self.group or self.active)

    def later(self, passed_ms: int) -> LeftLeases:
        """Return these leases as they are `passed_ms` later, if unused."""
        if passed_ms <= 0:
            return self
        return replace(
            self,
            holder=_shorter(self.holder, passed_ms),
            group=_shorter(self.group, passed_ms),
            consumers=[
                one._replace(
                    seen_ms=one.seen_ms + passed_ms,
                    able_ms=None if one.able_ms is None else one.able_ms + passed_ms,
                )
                for one in self.consumers
            ],
            messages=[
                one._replace(time_ms=max(0, one.time_ms - passed_ms))
                if one.kind in (OUT, ASLEEP)
                else one
                for one in self.messages
            ],
        )


def left_ops(name: str, created_ms: int, left: LeftLeases) -> list[list[Any]]:
    head = [
        22,
        name,
        created_ms,
        left.epoch,
        left.era,
        left.numbers,
        left.active,
        _told(left.holder),
        _told(left.group),
        [list(one) for one in left.consumers],
        [list(one) for one in left.answers],
        None if left.newest is None else list(left.newest),
    ]
    return [head] + [
        [
            23,
            name,
            part.kind,
            part.time_ms,
            part.number,
            part.consumer,
            pack_ranges(ranges_of(part.offsets)),
            _runs(part.attempts),
            list(part.keys),
        ]
        for messages in left.messages
        for part in messages.parts()
    ]


def left_told(op: Sequence[Any]) -> LeftLeases:
    epoch, era, numbers, active, holder, group, consumers, answers, newest = op[3:]
    return LeftLeases(
        _whole(epoch),
        _whole(era),
        _whole(numbers),
        _text(active),
        _hold_told(holder),
        _hold_told(group),
        [
            LeftConsumer(
                _text(name), _whole(priority), _whole(seen), None if able is None else _whole(able)
            )
            for name, priority, seen, able in consumers
        ],
        [
            LeftAnswer(_text(consumer), _text(request), _whole(number), bool(was_pending))
            for consumer, request, number, was_pending in answers
        ],
        None if newest is None else (_text(newest[0]), _whole(newest[1]), bool(newest[2])),
    )


def messages_told(left: LeftLeases, op: Sequence[Any]) -> None:
    kind, time_ms, number, consumer, ranges, attempts, keys = op[2:]
    if kind not in (OUT, ASLEEP, BACK, SPENT):
        raise ValueError(f"messages were left in an unknown state {kind!r:.20}")
    spans = unpack_ranges(ranges)
    count = sum(end - start for start, end in spans)
    known = sum(len(one.offsets) for one in left.messages)
    if count + known > _MESSAGES_MAX:
        raise ValueError(f"more than {_MESSAGES_MAX} messages were left of one subscription")
    left.messages.append(
        LeftMessages(
            kind,
            time_ms if time_ms == -1 else _whole(time_ms),
            _whole(number),
            _text(consumer),
            [offset for start, end in spans for offset in range(start, end)],
            _unrolled(attempts, count),
            _keys_told(keys, count),
        )
    )


def bounded(found: Iterable[list[list[Any]]]) -> list[list[Any]]:
    sized = [(sum(len(msgpack.packb(op)) for op in ops), ops) for ops in found]
    room, kept = LEASES_BYTES_MAX, list[list[Any]]()
    for size, ops in sorted(sized, key=lambda one: one[0]):
        room -= size
        if room < 0:
            break
        kept += ops
    return kept


def _shorter(hold: LeftHold | None, passed_ms: int) -> LeftHold | None:
    return None if hold is None else hold._replace(left_ms=max(0, hold.left_ms - passed_ms))


def _told(hold: LeftHold | None) -> list[Any] | None:
    return None if hold is None else list(hold)


def _hold_told(told: Sequence[Any] | None) -> LeftHold | None:
    if told is None:
        return None
    name, left_ms, generation = told
    return LeftHold(_text(name), _whole(left_ms), _whole(generation))


def _runs(counts: Sequence[int]) -> list[int]:
    if not any(counts):
        return []
    packed: list[int] = []
    for count in counts:
        if packed and packed[-2] == count:
            packed[-1] += 1
        else:
            packed += (count, 1)
    return packed


def _unrolled(packed: Sequence[int], count: int) -> list[int]:
    if not packed:
        return [0] * count
    if len(packed) % 2 or sum(map(_whole, packed[1::2])) != count:
        raise ValueError("there are not as many attempts as messages")
    return [
        _whole(times)
        for times, run in zip(packed[::2], packed[1::2], strict=True)
        for _ in range(run)
    ]


def _keys_told(keys: Sequence[Any], count: int) -> list[int | None]:
    if keys and len(keys) != count:
        raise ValueError("there are not as many keys as messages")
    return [None if key is None else _whole(key) for key in keys]


def _whole(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r:.30} is not a whole number of 0 or more")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.30} is not a text")
    return value
