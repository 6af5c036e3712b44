"""Turns any object of the product into a hashable value, generically: a new field of a state
machine is part of its state at once."""

from __future__ import annotations

import enum
from collections.abc import Hashable
from typing import Any

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
