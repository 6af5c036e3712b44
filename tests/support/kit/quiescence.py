"""Find what is counted and was not given back: every `describe()` that is not all 0 at rest.

Cores and drivers of the product that count something, or let somebody wait, have a
`describe() -> dict[str, int]`. All of it is 0 when nothing is asked of them. `describable` finds
these objects from a few roots, along fields, containers and bound methods of the product's own
objects; it enters no object of the tests, so in the simulator it stays within one process.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_PLAIN = (str, bytes, bytearray, memoryview, int, float, bool, type(None), type, range)
_LONG = 5_000
"""Containers of more are data: entries, offsets, messages."""


def describable(roots: Iterable[object]) -> list[object]:
    """All objects with a `describe()` that can be reached from `roots`."""
    found: list[object] = []
    seen: dict[int, object] = {}
    line = deque(roots)
    while line:
        one = line.popleft()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one  # kept, so that no id is used twice meanwhile
        if isinstance(one, Mapping | list | tuple | set | frozenset | deque):
            if len(one) <= _LONG:
                line.extend(_inside(one))
        elif isinstance(one, types.MethodType):
            line.append(one.__self__)
        elif isinstance(one, functools.partial):
            line.extend((one.func, *one.args, *one.keywords.values()))
        elif type(one).__module__.startswith("octavo."):
            if callable(getattr(one, "describe", None)):
                found.append(one)
            line.extend(_fields(one))
    return found


def _inside(container: Any) -> Iterator[object]:
    if isinstance(container, Mapping):
        yield from list(container.keys())
        yield from list(container.values())
    else:
        yield from list(container)


def _fields(one: object) -> Iterator[object]:
    yield from list(vars(one).values()) if hasattr(one, "__dict__") else ()
    for kind in type(one).__mro__:
        slots = vars(kind).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            name = f"_{kind.__name__.lstrip('_')}{slot}" if slot.startswith("__") else slot
            if name not in ("__dict__", "__weakref__", "__weakref__") and hasattr(one, name):
                yield getattr(one, name)


def in_use(one: Any) -> dict[str, int]:
    """What of a `describe()` is not 0."""
    return {name: count for name, count in one.describe().items() if count}


class Unrest:
    """What has not been seen at rest yet. `look` again and again; it is over when it gives nothing.

    A count that is 0 at any look is good: background work may begin again at any time, a leak does
    not end. What became unreachable meanwhile, as a connection that is gone, is left out.
    """

    def __init__(self, roots: Callable[[], Iterable[object]]) -> None:
        self._roots = roots
        self._left: dict[tuple[int, str], object] = {}
        for one in describable(roots()):
            for name in in_use(one):
                self._left[id(one), name] = one

    def look(self) -> bool:
        """Whether something has not been at rest since this was made."""
        for (number, name), one in list(self._left.items()):
            if name not in in_use(one):
                del self._left[number, name]
        return bool(self._left)

    def left(self) -> list[str]:
        """What is left, as far as it is still in use, by class and name."""
        self.look()
        reachable = {id(one) for one in describable(self._roots())}
        return sorted(
            f"{type(one).__module__.removeprefix('octavo.')}.{type(one).__name__} {name} "
            f"{in_use(one).get(name, 0)}"
            for (number, name), one in self._left.items()
            if number in reachable
        )


_OF_CLIENTS = ("Dispatcher", "KeyOrder", "SpentMessages")
"""What consumers hold goes with the partition, and its next owner gives it out again."""


def held_after_close(parts: Iterable[object]) -> list[str]:
    """What is still in use of parts that were closed, by class and name: nothing may be.

    Whatever was cut off by the close has to have given back what it held.
    """
    return sorted(
        f"{type(one).__module__.removeprefix('octavo.')}.{type(one).__name__} {name} {count}"
        for one in describable(parts)
        if type(one).__name__ not in _OF_CLIENTS
        for name, count in in_use(one).items()
    )
