"""Bookies, or recoverers, that can change places: of states equal but for names, one is visited.
To rename a node's state it lives the node's life again with other names, which is exact as long
as the code treats all names alike. Where it does not, the search ends with an error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations, product
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.model.world import Message, World

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
