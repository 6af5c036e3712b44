"""Processes that exchange messages, as a system to explore. A node is an object whose methods
take a message and post others. A message in flight may be delivered at any time, after any
other, or never. A node also takes own steps, its moods (begin, time out, crash), some of which
use up a limited number of faults. Each step of a node is computed once, by unpickling it and
running the production code; from then on it is two look-ups. A state is one integer: the
messages in flight as a bit set above the number of the configuration of all nodes."""

from __future__ import annotations

import enum
import pickle
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

Renaming = Mapping[str, str]


def renamings(groups: Sequence[Sequence[str]]) -> list[Renaming]:
    """Return all renamings that exchange names within each group; the first changes nothing."""
    return [
        {old: new for names, found in zip(groups, order, strict=True)
         for old, new in zip(names, found, strict=True)}
        for order in product(*[permutations(names) for names in groups])
    ]  # fmt: skip


def renamed(value: Any, by: Renaming) -> Any:
    """Rename an argument of a message. Values that hold names deeper inside have `under`."""
    if isinstance(value, str):
        return by.get(value, value)
    if type(value) is tuple:
        return tuple([renamed(item, by) for item in value])
    return value.under(by) if hasattr(value, "under") else value


class Symmetry:
    def __init__(self, world: World, by: Sequence[Renaming]) -> None:
        self._world = world
        self._by = by
        self._inverse = [by.index({new: old for old, new in renaming.items()}) for renaming in by]
        self._locals: list[dict[int, int]] = [{} for _ in by]
        self._messages: list[dict[int, int]] = [{} for _ in by]
        self._flights: list[dict[int, int]] = [{} for _ in by]
        self._best: dict[int, tuple[int, tuple[int, ...]]] = {}

    def least(self, config: int, under_way: int) -> tuple[int, int]:
        best = self._best.get(config)
        if best is None:
            best = self._best[config] = self._find_best(config)
        config, ways = best
        if ways == (0,):
            return config, under_way
        return config, min([self._flight(way, under_way) for way in ways])

    def _find_best(self, config: int) -> tuple[int, tuple[int, ...]]:
        parts = self._world.parts(config)
        if len(parts) == 1:
            return config, (0,)
        found = [self._parts(way, parts) for way in range(len(self._by))]
        least = min(found)
        ways = tuple(way for way, other in enumerate(found) if other == least)
        return self._world.config(least), ways

    def _parts(self, way: int, parts: tuple[int | str, ...]) -> tuple[int, ...]:
        names, by = self._world.names, self._by[way]
        new = {
            by.get(name, name): self._local(way, int(part))
            for name, part in zip(names, parts[1:], strict=True)
        }
        return (int(parts[0]), *[new[name] for name in names])

    def _local(self, way: int, local: int) -> int:
        found = self._locals[way].get(local)
        if found is None:
            before, message = self._world.origin(local)
            name = self._by[way].get(self._world.node(local).name, self._world.node(local).name)
            if before < 0:
                found = self._world.first_local(name)
            else:
                args = (self._local(way, before), self._message(way, message))
                found = self._world.local_step(*args)
            home = self._locals[self._inverse[way]]
            assert home.setdefault(found, local) == local, "the code does not treat names alike"
            self._locals[way][local] = found
        return found

    def _message(self, way: int, number: int) -> int:
        found = self._messages[way].get(number)
        if found is None:
            by, message = self._by[way], self._world.message(number)
            found = self._messages[way][number] = self._world.number_of(_renamed(message, by))
        return found

    def _flight(self, way: int, under_way: int) -> int:
        if way == 0:
            return under_way
        found = self._flights[way].get(under_way)
        if found is None:
            found, rest = 0, under_way
            while rest:
                bit = rest & -rest
                rest ^= bit
                found |= 1 << self._message(way, bit.bit_length() - 1)
            self._flights[way][under_way] = found
        return found


def _renamed(message: Message, by: Renaming) -> Message:
    return message._replace(
        to=by.get(message.to, message.to),
        sender=by.get(message.sender, message.sender),
        args=tuple([renamed(arg, by) for arg in message.args]),
    )


_ATOMS = (int, str, bytes, bool, float, type(None), enum.Enum)


def freeze(value: Any) -> Hashable:
    """Errors count by their type only."""
    if isinstance(value, _ATOMS):
        return value
    if isinstance(value, list | tuple):
        return tuple([freeze(item) for item in value])
    if isinstance(value, dict):
        return ("dict", frozenset((freeze(key), freeze(held)) for key, held in value.items()))
    if isinstance(value, set | frozenset):
        return frozenset(freeze(item) for item in value)
    if isinstance(value, BaseException):
        return type(value).__name__
    assert not callable(value), value
    return (type(value).__name__, tuple((name, freeze(held)) for name, held in _fields(value)))


def _fields(value: Any) -> list[tuple[str, Any]]:
    names = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    found = [(name, getattr(value, name)) for name in names if hasattr(value, name)]
    return found + sorted(getattr(value, "__dict__", {}).items())


AT_ONCE = -1
_BITS = 32
_CONFIG = (1 << _BITS) - 1


class Message(NamedTuple):
    """Calls `method` of node `to` when it is delivered."""

    to: str
    method: str
    args: tuple[Any, ...]
    sender: str
    twin: int = 0
    """Distinguishes a message from an equal message in flight."""

    def __str__(self) -> str:
        # The nodes know which request and attempt it answers.
        args = self.args[2:] if self.sender in self.args[:1] else self.args[1:]
        return f"{self.sender} → {self.to}: {self.method} {' '.join(map(_short, args))}".rstrip()


def _short(arg: Any) -> str:
    if hasattr(arg, "brief"):
        return str(arg.brief())
    if isinstance(arg, tuple):
        return f"({' '.join(map(_short, arg))})"
    return arg.decode() if isinstance(arg, bytes) else str(arg)


class Mood(NamedTuple):
    method: str
    args: tuple[Any, ...] = ()
    faults: int = 0


class Node:
    """A process. Subclasses hold plain data and production objects that can be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.posted: list[Message] = []

    def post(self, to: str, method: str, *args: Any) -> None:
        self.posted.append(Message(to, method, args, self.name))

    def post_at_once(self, to: str, method: str, *args: Any) -> None:
        """Send an answer that arrives in the same step, to a receiver that meanwhile heeds
        nothing else."""
        self.posted.append(Message(to, method, args, self.name, AT_ONCE))

    def moods(self) -> Sequence[Mood]:
        return ()

    def over(self) -> bool:
        return False

    def ignores(self, message: Message, sender: Any) -> bool:
        """Whether a message, delivered now or ever later, has no effect at all."""
        return self.over()

    def brief(self) -> str:
        return ""


Nodes = dict[str, Any]
Check = Callable[[Nodes], str | None]


_Step = tuple[int, int, tuple[int, ...]]
"""The next configuration, the posted messages as a bit set, and singly."""


class World:
    """A `System` of nodes. `check` names what is wrong with a configuration; `ended` recognises
    its end."""

    def __init__(
        self,
        nodes: Sequence[Node],
        check: Check,
        *,
        faults: int = 0,
        ended: Callable[[Nodes], bool] | None = None,
        alike: Sequence[Sequence[str]] = (),
    ) -> None:
        self.names = [node.name for node in nodes]
        self._place = {name: place for place, name in enumerate(self.names)}
        self._check = check
        self._ended = ended or (lambda found: all(node.over() for node in found.values()))
        self._messages: list[Message] = []
        self._message_ids: dict[Message, int] = {}
        self._twins: dict[int, int] = {}
        """Message → the next equal message."""
        self._first: list[int] = []
        """Message → the first equal message."""
        self._locals: dict[Any, int] = {}
        self._nodes: list[Node] = []
        self._packed: list[bytes] = []
        self._origins: list[tuple[int, int]] = []
        """Local state → the state before it and the message between them."""
        self._local_steps: dict[tuple[int, int], tuple[int | str, tuple[int, ...]]] = {}
        self._configs: dict[tuple[int | str, ...], int] = {}
        self._parts: list[tuple[int | str, ...]] = []
        self._wrong: list[str | None] = []
        self._over: list[bool] = []
        self._moods: list[list[tuple[int, _Step]] | None] = []
        self._tables: list[dict[int, _Step]] = []
        self._heard: list[int] = []
        self._deaf: list[int] = []
        self._first_locals = [self._local(n, node, (-1, -1)) for n, node in enumerate(nodes)]
        posted = [self.number_of(message) for node in nodes for message in node.posted]
        first = self.config((faults, *self._first_locals))
        self._start = first | self._joined(0, posted) << _BITS
        self._symmetry = Symmetry(self, renamings(alike)) if alike else None

    def start(self) -> int:
        return self._start

    def steps(self, state: int) -> list[tuple[int, int]]:
        if self._symmetry is None:
            return self.named_steps(state)
        return [(step, self.representative(after)) for step, after in self.named_steps(state)]

    def representative(self, state: int) -> int:
        if self._symmetry is None:
            return state
        config, under_way = self._symmetry.least(state & _CONFIG, state >> _BITS)
        return under_way << _BITS | config

    def named_steps(self, state: int) -> list[tuple[int, int]]:
        config, under_way = state & _CONFIG, state >> _BITS
        moods = self._moods[config]
        if moods is None:
            moods = self._moods[config] = self._find_moods(config)
        found = [(mood, self._arrive(step, under_way)) for mood, step in moods]
        table, twins, arrive = self._tables[config], self._twins, self._arrive
        rest = under_way
        while rest:
            bit = rest & -rest
            rest ^= bit
            message = bit.bit_length() - 1
            if message in twins and under_way >> twins[message] & 1:
                continue  # deliver the newest of equal messages only
            step = table.get(message)
            if step is None:
                step = table[message] = self._step(config, message, 0)
            found.append((message, arrive(step, under_way ^ bit)))
        return found

    def violation(self, state: int) -> str | None:
        return self._wrong[state & _CONFIG]

    def ended(self, state: int) -> bool:
        return self._over[state & _CONFIG]

    def tell(self, before: int, step: int, after: int) -> str:
        message = self._messages[step]
        node = self.nodes(after).get(message.to)
        what = str(message)
        if not message.sender:
            what = f"{message.to}: {message.method} {' '.join(map(_short, message.args))}".rstrip()
        brief = "" if node is None else node.brief()
        return f"{what}  ⇒ {message.to} {brief}" if brief else what

    def nodes(self, state: int) -> Nodes:
        """Return the nodes of a state, to read only; empty for a broken state."""
        parts = self._parts[state & _CONFIG]
        if len(parts) == 1:
            return {}
        return dict(zip(self.names, [self._nodes[int(part)] for part in parts[1:]], strict=True))

    def parts(self, config: int) -> tuple[int | str, ...]:
        return self._parts[config]

    def node(self, local: int) -> Node:
        return self._nodes[local]

    def origin(self, local: int) -> tuple[int, int]:
        return self._origins[local]

    def first_local(self, name: str) -> int:
        return self._first_locals[self._place[name]]

    def message(self, number: int) -> Message:
        return self._messages[number]

    def local_step(self, local: int, message: int) -> int:
        after, _ = self._run(local, message)
        assert isinstance(after, int), after
        return after

    def _arrive(self, step: _Step, under_way: int) -> int:
        config, mask, posted = step
        if under_way & mask:
            under_way = self._joined(under_way, posted)
        else:
            under_way |= mask
        unheard = under_way & ~self._heard[config]
        if unheard:
            self._hear(config, unheard)
        return (under_way & ~self._deaf[config]) << _BITS | config

    def _joined(self, under_way: int, posted: Sequence[int]) -> int:
        for message in posted:
            at = message
            while under_way >> at & 1:
                if at not in self._twins:
                    self.number_of(self._messages[at]._replace(twin=self._messages[at].twin + 1))
                at = self._twins[at]
            under_way |= 1 << at
        return under_way

    def _step(self, config: int, message: int, cost: int) -> _Step:
        parts = self._parts[config]
        parts = (int(parts[0]) - cost, *parts[1:])
        todo = [self._first[message]]
        posted: list[int] = []
        while todo:
            message = todo.pop(0)
            place = self._place[self._messages[message].to] + 1
            after, said = self._run(int(parts[place]), message)
            if isinstance(after, str):
                return self.config((after,)), 0, ()
            parts = (*parts[:place], after, *parts[place + 1 :])
            for one in said:
                (todo if self._messages[one].twin == AT_ONCE else posted).append(one)
        mask = 0
        for one in posted:
            mask |= 1 << one
        assert mask.bit_count() == len(posted), "no step posts a message twice"
        return self.config(parts), mask, tuple(posted)

    def _run(self, local: int, number: int) -> tuple[int | str, tuple[int, ...]]:
        done = self._local_steps.get((local, number))
        if done is None:
            node = pickle.loads(self._packed[local])
            message = self._messages[number]
            try:
                getattr(node, message.method)(*message.args)
            except AssertionError as error:
                done = f"{node.name}: {message.method}: {error or 'an assertion failed'}", ()
            else:
                after = self._local(self._place[node.name], node, (local, number))
                done = after, tuple([self.number_of(one) for one in node.posted])
            self._local_steps[local, number] = done
        return done

    def _find_moods(self, config: int) -> list[tuple[int, _Step]]:
        parts = self._parts[config]
        found = []
        for part in parts[1:]:
            node = self._nodes[int(part)]
            for method, args, cost in node.moods():
                if cost <= int(parts[0]):
                    mood = self.number_of(Message(node.name, method, args, ""))
                    found.append((mood, self._step(config, mood, cost)))
        return found

    def _hear(self, config: int, unheard: int) -> None:
        """Return the messages that can have no effect any more: they are dropped."""
        nodes = self.nodes(config)
        self._heard[config] |= unheard
        while unheard and nodes:
            bit = unheard & -unheard
            unheard ^= bit
            message = self._messages[bit.bit_length() - 1]
            if nodes[message.to].ignores(message, nodes[message.sender]):
                self._deaf[config] |= bit

    def number_of(self, message: Message) -> int:
        found = self._message_ids.get(message)
        if found is None:
            before = message._replace(twin=message.twin - 1) if message.twin > 0 else None
            previous = -1 if before is None else self.number_of(before)
            found = self._message_ids[message] = len(self._messages)
            self._messages.append(message)
            self._first.append(found if before is None else self._first[previous])
            if before is not None:
                self._twins[previous] = found
        return found

    def _local(self, place: int, node: Node, origin: tuple[int, int]) -> int:
        posted, node.posted = node.posted, []
        key = (place, freeze(node))
        found = self._locals.get(key)
        if found is None:
            found = self._locals[key] = len(self._nodes)
            self._packed.append(pickle.dumps(node, -1))
            self._nodes.append(pickle.loads(self._packed[-1]))
            self._origins.append(origin)
        node.posted = posted
        return found

    def config(self, parts: tuple[int | str, ...]) -> int:
        found = self._configs.get(parts)
        if found is None:
            found = self._configs[parts] = len(self._parts)
            self._parts.append(parts)
            broken = str(parts[0]) if len(parts) == 1 else None
            self._wrong.append(broken or self._check(self.nodes(found)))
            self._over.append(not self._wrong[-1] and self._ended(self.nodes(found)))
            self._moods.append([] if broken else None)
            self._tables.append({})
            self._heard.append(-1 if broken else 0)
            self._deaf.append(-1 if broken else 0)
        return found
