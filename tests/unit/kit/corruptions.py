"""One lie in a legal history of legal.py: each must be found, and nothing else reported. A
corruption returns False when it finds no place for its lie."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from tests.support.kit.history import Call, History, Operation
from tests.support.kit.problems import Kind

Pair = tuple[int, Any]
Corruption = Callable[[History, random.Random], bool]


def reads(told: History) -> list[Operation]:
    return [one for one in told if one.call in (Call.POLL, Call.RECEIVE, Call.READ)]


def sends(told: History, outcome: str) -> list[Operation]:
    return [one for one in told if one.call is Call.SEND and one.outcome == outcome]


def read_values(told: History) -> dict[Any, int]:
    """Return everything that was read, and the first step at which a process knew it."""
    found: dict[Any, int] = {}
    for one in reads(told):
        for _, value in one.result:
            found[value] = min(found.get(value, one.completed), one.completed)
    return found


def length(told: History, log: str) -> int:
    offsets = [at for one in reads(told) if one.log == log for at, _ in one.result]
    return max(offsets, default=-1) + 1


def hide(
    told: History, value: Any, *, only: Callable[[Operation], bool] = lambda one: True
) -> None:
    for one in reads(told):
        if only(one):
            one.result = [pair for pair in one.result if pair[1] != value]


def swap(told: History, first: Any, second: Any) -> None:
    other = {first: second, second: first}
    for one in reads(told):
        one.result = [(at, other.get(value, value)) for at, value in one.result]
    by_value = {one.value: one for one in told if one.call is Call.SEND}
    a, b = by_value[first], by_value[second]
    if a.result is not None or b.result is not None:
        a.result, b.result = b.result, a.result


def pick(rng: random.Random, candidates: list[Any]) -> Any:
    return rng.choice(candidates) if candidates else None


def told_place(told: History, *, last: bool) -> list[Operation]:
    return [
        one
        for one in sends(told, "ok")
        if one.result is not None and (one.result == length(told, one.log) - 1) is last
    ]


def lose(told: History, rng: random.Random) -> bool:
    if (one := pick(rng, told_place(told, last=False))) is None:
        return False
    hide(told, one.value)
    return True


def lose_the_end(told: History, rng: random.Random) -> bool:
    if (one := pick(rng, told_place(told, last=True))) is None:
        return False
    hide(told, one.value)
    return True


def withhold(told: History, rng: random.Random) -> bool:
    value = pick(rng, sorted(read_values(told)))
    if value is None:
        return False
    hide(told, value, only=lambda one: one.group == "shared")
    log, at = next((o.log, at) for o in reads(told) for at, v in o.result if v == value)
    for one in of(told, Call.ACK):
        if one.log == log:
            one.value = [offset for offset in one.value if offset != at]
    # The marks would show it too.
    told.operations = [one for one in told if one.call is not Call.MARK]
    return True


def fail_what_is_there(told: History, rng: random.Random) -> bool:
    there = read_values(told)
    one = pick(rng, [one for one in sends(told, "info") if one.value in there])
    if one is None:
        return False
    one.outcome, one.completed = "fail", one.invoked + 1
    return True


def invent(told: History, rng: random.Random) -> bool:
    there = read_values(told)
    one = pick(rng, [one for one in sends(told, "info") if one.value in there])
    if one is None:
        return False
    for read in reads(told):
        read.result = [(at, "x" if value == one.value else value) for at, value in read.result]
    return True


def double(told: History, rng: random.Random) -> bool:
    value = pick(rng, sorted(read_values(told)))
    if value is None:
        return False
    log = next(o.log for o in reads(told) if any(v == value for _, v in o.result))
    told.add_done("r3", Call.POLL, log, length(told, log), [(length(told, log), value)])
    return True


def neighbours(told: History) -> Iterator[tuple[Operation, Operation]]:
    """Return neighbouring sends in a log, where no read of the first came before the second."""
    by_value = {one.value: one for one in told if one.call is Call.SEND}
    known = read_values(told)
    places = {(one.log, at): value for one in reads(told) for at, value in one.result}
    for (log, at), value in places.items():
        following = places.get((log, at + 1))
        if following is not None:
            first, second = by_value[value], by_value[following]
            if min(known[value], known[following]) > second.invoked:
                yield first, second


def reorder(told: History, rng: random.Random) -> bool:
    pairs = [(a.value, b.value) for a, b in neighbours(told) if a.process == b.process]
    if (pair := pick(rng, pairs)) is None:
        return False
    swap(told, *pair)
    return True


def turn_time(told: History, rng: random.Random) -> bool:
    pairs = [
        (a.value, b.value)
        for a, b in neighbours(told)
        if a.process != b.process and a.completed < b.invoked
    ]
    if (pair := pick(rng, pairs)) is None:
        return False
    swap(told, *pair)
    return True


def tell_two(told: History, rng: random.Random) -> bool:
    there = read_values(told)
    stray = pick(rng, [one for one in sends(told, "info") if one.value not in there])
    read = pick(rng, [one for one in reads(told) if one.process == "r1" and one.result])
    if stray is None or read is None or read.completed < stray.invoked:
        return False
    at = rng.randrange(len(read.result))
    read.result[at] = (read.result[at][0], stray.value)
    return True


def move(told: History, rng: random.Random) -> bool:
    if (one := pick(rng, told_place(told, last=rng.random() < 0.5))) is None:
        return False
    one.result = length(told, one.log) + 5
    return True


def dig(told: History, rng: random.Random) -> bool:
    ends = {(one.log, length(told, one.log) - 1) for one in reads(told)}
    held = {value: (one.log, at) for one in reads(told) for at, value in one.result}
    unknown = [one for one in sends(told, "info") if one.value in held]
    one = pick(rng, [one for one in unknown if held[one.value] not in ends])
    if one is None:
        return False
    hide(told, one.value)
    return True


def take_back(told: History, rng: random.Random) -> bool:
    read = pick(rng, [one for one in reads(told) if one.process == "r2" and one.result])
    if read is None:
        return False
    told.add_done("r2", Call.POLL, read.log, None, read.result[:1])
    return True


def skip(told: History, rng: random.Random) -> bool:
    found = [
        (one, value) for one in reads(told) if one.process == "r1" for _, value in one.result[:-1]
    ]
    if (chosen := pick(rng, found)) is None:
        return False
    hide(told, chosen[1], only=lambda one: one.process == "r1")
    return True


def marks(told: History) -> list[Operation]:
    return [one for one in told if one.call is Call.MARK and one.result > 0]


def regress(told: History, rng: random.Random) -> bool:
    one = pick(rng, [one for one in marks(told) if one.group == "shared"])
    if one is None:
        return False
    told.add_done("watcher", Call.MARK, one.log, None, one.result - 1, group="shared")
    return True


def overtake(told: History, rng: random.Random) -> bool:
    if (one := pick(rng, marks(told))) is None:
        return False
    at = length(told, one.log) + rng.randrange(1, 4)
    told.add_done("watcher", Call.MARK, one.log, None, at, group=one.group)
    return True


def redeliver(told: History, rng: random.Random) -> bool:
    acked = [one for one in told if one.call is Call.ACK and one.is_ok]
    offsets = [(one.log, at) for one in acked for at in one.value if at not in one.result]
    if (place := pick(rng, offsets)) is None:
        return False
    value = next(
        v for o in reads(told) if o.log == place[0] for at, v in o.result if at == place[1]
    )
    told.add_done("c0", Call.RECEIVE, place[0], None, [(place[1], value)], group="shared")
    return True


TOPIC: list[tuple[Corruption, Kind]] = [
    (lose, Kind.LOST),
    (lose_the_end, Kind.UNSEEN),
    (withhold, Kind.UNSEEN),
    (fail_what_is_there, Kind.PHANTOM),
    (invent, Kind.PHANTOM),
    (double, Kind.DUPLICATE),
    (reorder, Kind.REORDERED),
    (turn_time, Kind.REAL_TIME),
    (tell_two, Kind.INCONSISTENT),
    (move, Kind.MOVED),
    (dig, Kind.HOLE),
    (take_back, Kind.NONMONOTONIC),
    (skip, Kind.SKIPPED),
    (regress, Kind.CURSOR_REGRESS),
    (overtake, Kind.MARK_OVER_UNACKED),
    (redeliver, Kind.REDELIVERED),
]


def of(told: History, call: Call) -> list[Operation]:
    return [one for one in told if one.call is call]


def last_of(told: History) -> int:
    last: int = of(told, Call.CLOSE)[0].result[0]
    return last


def lac_back(told: History, rng: random.Random) -> bool:
    lacs = [one for one in of(told, Call.LAC) if one.result > 0 and not of_closed(told, one)]
    if (one := pick(rng, lacs)) is None:
        return False
    following = told.operations.index(one) + 1
    again = Operation(one.process, Call.LAC, one.log, None, one.completed, 0.0)
    again.outcome, again.result, again.completed = "ok", one.result - 1, one.completed
    # There is no event between the two steps: make room for one.
    for other in told.operations[following:]:
        other.invoked += 10
    for other in told:
        if other.completed > one.completed and other.outcome != "info":
            other.completed += 10
    again.invoked, again.completed = one.completed + 1, one.completed + 2
    told.operations.insert(following, again)
    return True


def of_closed(told: History, one: Operation) -> bool:
    return one.invoked > of(told, Call.CLOSE)[0].invoked


def lac_stale(told: History, rng: random.Random) -> bool:
    if last_of(told) < 1:
        return False
    told.add_done("other", Call.LAC, "ledger 1", None, rng.randrange(last_of(told)))
    return True


def lac_ahead(told: History, rng: random.Random) -> bool:
    told.add_done("stranger", Call.LAC, "ledger 1", None, last_of(told) + rng.randrange(1, 9))
    return True


def unconfirmed(told: History, rng: random.Random) -> bool:
    if (last := last_of(told)) < 1:
        return False
    lac = rng.randrange(last)
    value = of(told, Call.ADD)[last].value
    told.add_done("new", Call.LAC, "ledger 1", None, lac)
    told.add_done("new", Call.READ, "ledger 1", None, [(last, value)])
    return True


def diverge(told: History, rng: random.Random) -> bool:
    adds = of(told, Call.ADD)
    held = [
        one for one in of(told, Call.REPLICA) if any(at <= last_of(told) for at, _ in one.result)
    ]
    if len(adds) < 2 or (one := pick(rng, held)) is None:
        return False
    at, value = one.result[0]
    one.result[0] = (at, next(add.value for add in adds if add.value != value))
    return at <= last_of(told)


def end_twice(told: History, rng: random.Random) -> bool:
    last = last_of(told)
    told.add_done("third", Call.CLOSE, "ledger 1", None, (last + 1, 7 * (last + 2)))
    return True


def ack_too_late(told: History, rng: random.Random) -> bool:
    adds = [one for one in of(told, Call.ADD) if one.outcome == "info"]
    if (one := pick(rng, adds[:1])) is None:
        return False
    at = of(told, Call.ADD).index(one)
    if at <= last_of(told):
        return False
    one.outcome, one.result, one.completed_at = "ok", at, None
    told.ok(one, at)
    return True


def ack_after_fence(told: History, rng: random.Random) -> bool:
    acked = [one for one in of(told, Call.ADD) if one.is_ok]
    fence = of(told, Call.FENCE)[0]
    early = [one for one in acked if one.completed < fence.invoked]
    if not early or len(early) != len(acked):
        return False
    fence.invoked, fence.completed = -2, -1
    return True


def forget(told: History, rng: random.Random) -> bool:
    acked = [one for one in of(told, Call.ADD) if one.is_ok]
    if (one := pick(rng, acked)) is None:
        return False
    told.add_done("late", Call.READ, "ledger 1", None, [(one.result, None)])
    return True


def leave_out(told: History, rng: random.Random) -> bool:
    if last_of(told) < 0:
        return False
    at = rng.randrange(last_of(told) + 1)
    for one in of(told, Call.READ):
        if one.process == "r1":
            one.result = [pair for pair in one.result if pair[0] != at]
    return True


def invent_entry(told: History, rng: random.Random) -> bool:
    adds = [one for one in of(told, Call.ADD) if one.outcome == "info"]
    within = [one for one in adds if of(told, Call.ADD).index(one) <= last_of(told)]
    if (one := pick(rng, within)) is None:
        return False
    one.value = "x"
    return True


def read_beyond(told: History, rng: random.Random) -> bool:
    beyond = of(told, Call.ADD)[last_of(told) + 1 :]
    if not beyond:
        return False
    told.add_done("late", Call.READ, "ledger 1", None, [(last_of(told) + 1, beyond[0].value)])
    return True


def turn_acks(told: History, rng: random.Random) -> bool:
    acked = sorted((o for o in of(told, Call.ADD) if o.is_ok), key=lambda one: one.completed)
    pairs = [(a, b) for a, b in pairwise(acked) if b.invoked < a.completed]
    if (pair := pick(rng, pairs)) is None:
        return False
    a, b = pair
    a.completed, b.completed = b.completed, a.completed
    return True


LEDGER: list[tuple[Corruption, set[Kind]]] = [
    (lac_back, {Kind.LAC_BACK}),
    (lac_stale, {Kind.LAC_STALE}),
    (lac_ahead, {Kind.LAC_AHEAD}),
    (unconfirmed, {Kind.UNCONFIRMED}),
    (diverge, {Kind.DIVERGED}),
    (end_twice, {Kind.TWO_ENDS}),
    (ack_too_late, {Kind.ACK_BEYOND_END}),
    (ack_after_fence, {Kind.ACK_AFTER_FENCE}),
    (forget, {Kind.LOST}),
    (leave_out, {Kind.UNSEEN}),
    (invent_entry, {Kind.PHANTOM}),
    (read_beyond, {Kind.READ_BEYOND_END}),
    (turn_acks, {Kind.ACK_DISORDER}),
]
