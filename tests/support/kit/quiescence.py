"""Finds counts that were never given back: each `describe()` that is not all 0 at rest. The
walk goes from a few roots along fields, containers and bound methods of the product's objects;
it enters no object of the tests, so that in the simulator it stays within one process."""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

_LONG = 5_000


def describable(roots: Iterable[object]) -> list[object]:
    """Return all objects with a `describe()` that can be reached from `roots`."""
    found: list[object] = []
    seen: dict[int, object] = {}
    line = deque(roots)
    while line:
        one = line.popleft()
        kind = type(one)
        inside = _INSIDE.get(kind)
        if inside is None:
            inside = _INSIDE[kind] = _how_to_enter(kind)
        if inside is _nothing or id(one) in seen:
            continue
        seen[id(one)] = one  # keep the object, so that its id is not reused during the walk
        if kind in _DESCRIBED:
            found.append(one)
        line.extend(inside(one))
    return found


def _nothing(_: Any) -> tuple[object, ...]:
    return ()


def _of_mapping(one: Any) -> list[object]:
    return [] if len(one) > _LONG else [*one.keys(), *one.values()]


def _of_container(one: Any) -> list[object]:
    return [] if len(one) > _LONG else list(one)


def _of_partial(one: Any) -> tuple[object, ...]:
    return (one.func, *one.args, *one.keywords.values())


def _of_fields(slots: tuple[str, ...], one: Any) -> list[object]:
    found = list(vars(one).values()) if hasattr(one, "__dict__") else []
    found += [getattr(one, slot) for slot in slots if hasattr(one, slot)]
    return found


_Enter = Callable[[Any], Iterable[object]]
_INSIDE: dict[type, _Enter] = {}
"""How to enter an object of each type: each test walks through some 10,000 objects of few types."""
_DESCRIBED: set[type] = set()


def _how_to_enter(kind: type) -> _Enter:
    if issubclass(kind, Mapping):
        return _of_mapping
    if issubclass(kind, list | tuple | set | frozenset | deque):
        return _of_container
    if issubclass(kind, types.MethodType):
        return lambda method: (method.__self__,)
    if issubclass(kind, functools.partial):
        return _of_partial
    if issubclass(kind, type) or not (_is_product(kind) or any(map(_describes, kind.__mro__))):
        return _nothing
    if callable(getattr(kind, "describe", None)):
        _DESCRIBED.add(kind)
    return functools.partial(_of_fields, tuple(_slots(kind)))


def _is_product(kind: type) -> bool:
    return kind.__module__.startswith("octavo.")


def _describes(kind: type) -> bool:
    """Whether this is a class of the product that counts; a class of the tests may inherit it."""
    return _is_product(kind) and "describe" in vars(kind)


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for slot in (slots,) if isinstance(slots, str) else slots:
            if slot not in ("__dict__", "__weakref__"):
                mangled = slot.startswith("__") and not slot.endswith("__")
                yield f"_{base.__name__.lstrip('_')}{slot}" if mangled else slot


def in_use(one: Any) -> dict[str, int]:
    return {name: count for name, count in one.describe().items() if count}


class Unrest:
    """The counts that no look has seen at 0. Call `look` until it returns False: background
    work may begin again at any time, but a leak does not end. Unreachable objects are dropped."""

    def __init__(self, roots: Callable[[], Iterable[object]]) -> None:
        self._roots = roots
        self._left: dict[tuple[int, str], object] = {}
        for one in describable(roots()):
            for name in in_use(one):
                self._left[id(one), name] = one

    def look(self) -> bool:
        for (number, name), one in list(self._left.items()):
            if name not in in_use(one):
                del self._left[number, name]
        return bool(self._left)

    def left(self) -> list[str]:
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
    """Return what closed parts still hold, by class and name. It must be empty: work that the
    close cut off has to give back what it held."""
    return sorted(
        f"{type(one).__module__.removeprefix('octavo.')}.{type(one).__name__} {name} {count}"
        for one in describable(parts)
        if type(one).__name__ not in _OF_CLIENTS
        for name, count in in_use(one).items()
    )
