"""Finds counts that were never given back: each `describe()` that is not all 0 at rest.

Cores and drivers of the product that count or queue have a `describe() -> dict[str, int]`. At rest,
each value is 0. `describable` finds these objects from a few roots, along fields, containers and
bound methods of the product's own objects. It enters no object of the tests, so in the simulator it
stays within one process.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_PLAIN = (str, bytes, bytearray, memoryview, int, float, bool, type(None), type, range)
_LONG = 5_000
"""Longer containers are data: entries, offsets, messages."""


def describable(roots: Iterable[object]) -> list[object]:
    """Return all objects with a `describe()` that can be reached from `roots`."""
    found: list[object] = []
    seen: dict[int, object] = {}
    line = deque(roots)
    while line:
        one = line.popleft()
        if isinstance(one, _PLAIN) or id(one) in seen:
            continue
        seen[id(one)] = one  # keep the object, so that its id is not reused during the walk
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
    """Return the values of a `describe()` that are not 0."""
    return {name: count for name, count in one.describe().items() if count}


class Unrest:
    """The counts that have not been seen at 0 yet.

    Call `look` until it returns False. A count that was 0 at any look is fine: background work may
    begin again at any time, but a leak does not end. Objects that became unreachable, such as a
    closed connection, are dropped.
    """

    def __init__(self, roots: Callable[[], Iterable[object]]) -> None:
        self._roots = roots
        self._left: dict[tuple[int, str], object] = {}
        for one in describable(roots()):
            for name in in_use(one):
                self._left[id(one), name] = one

    def look(self) -> bool:
        """Return whether some count has not been 0 since this object was made."""
        for (number, name), one in list(self._left.items()):
            if name not in in_use(one):
                del self._left[number, name]
        return bool(self._left)

    def left(self) -> list[str]:
        """Return the remaining counts that are still above 0, by class and name."""
        self.look()
        reachable = {id(one) for one in describable(self._roots())}
        return sorted(
            f"{type(one).__module__.removeprefix('octavo.')}.{type(one).__name__} {name} "
            f"{in_use(one).get(name, 0)}"
            for (number, name), one in self._left.items()
            if number in reachable
        )


_OF_CLIENTS = ("Dispatcher", "KeyOrder", "SpentMessages")
"""Leases of consumers end with the partition; its next owner delivers the messages again."""


def held_after_close(parts: Iterable[object]) -> list[str]:
    """Return what closed parts still hold, by class and name. It must be empty: work that the close
    cut off has to give back what it held."""
    return sorted(
        f"{type(one).__module__.removeprefix('octavo.')}.{type(one).__name__} {name} {count}"
        for one in describable(parts)
        if type(one).__name__ not in _OF_CLIENTS
        for name, count in in_use(one).items()
    )
