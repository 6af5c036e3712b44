"""Plant a bug: replace a few words in the source of a production function, and undo it.

An edit names a function, the old text and the new text, like a line of a diff. The function is
compiled again and its code object is swapped in place, so that modules that imported it run the bug
too. An edit whose text is missing or occurs twice is an error, because such an edit plants nothing.
"""

from __future__ import annotations

import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType


class EditCameLoose(Exception):
    """The production code has changed: the edit no longer fits."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Replace the text `old` by `new` in the function `target` ("module:Class.method")."""

    target: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A bug that seeds find (`canon`: its number in docs/planted_bugs.md; 0: it has none)."""

    name: str
    canon: int
    reference: str
    title: str
    story: str
    """The bug in the field, the effect of the edits, and the harm."""
    breaks: str
    """The properties."""
    found_by: str
    """The workload and the faults that reveal it."""
    edits: Sequence[Edit]
    profile: str | None = None
    """The profile of the seeds; None: each seed draws its own."""


@dataclass(frozen=True, slots=True)
class Absent:
    """A bug of the canon that cannot be planted yet."""

    canon: int
    reference: str
    title: str
    reason: str


def function_of(target: str) -> FunctionType:
    """Return the function that an edit names."""
    module_name, _, path = target.partition(":")
    found: object = importlib.import_module(module_name)
    for name in path.split("."):
        found = inspect.getattr_static(found, name)
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, staticmethod | classmethod):
        found = found.__func__
    found = inspect.unwrap(found) if callable(found) else found  # a context manager's body
    if not isinstance(found, FunctionType):
        raise EditCameLoose(f"{target} is no function")
    return found


@cache
def edited(function: FunctionType, edits: tuple[Edit, ...]) -> CodeType:
    """Return the code of `function` with all edits made."""
    source = textwrap.dedent(inspect.getsource(function))
    for edit in edits:
        count = source.count(edit.old)
        if count != 1:
            raise EditCameLoose(f"{edit.target} has {count} times: {edit.old}")
        source = source.replace(edit.old, edit.new)
    code = function.__code__
    padded = "\n" * (code.co_firstlineno - 1) + source  # tracebacks name the right lines
    module = compile(
        padded,
        code.co_filename,
        "exec",
        flags=annotations.compiler_flag,
        dont_inherit=True,
    )
    found = [
        const
        for const in module.co_consts
        if isinstance(const, CodeType) and const.co_name == function.__name__
    ]
    if len(found) != 1 or found[0].co_freevars != code.co_freevars:
        raise EditCameLoose(f"{edits[0].target} cannot be compiled alone")
    return found[0]


@contextmanager
def planted_edits(edits: Sequence[Edit]) -> Iterator[None]:
    """Within the block, all `edits` are in place."""
    by_target: dict[str, list[Edit]] = {}
    for edit in edits:
        by_target.setdefault(edit.target, []).append(edit)
    new: list[tuple[FunctionType, CodeType]] = []
    for target, of_target in by_target.items():
        function = function_of(target)
        new.append((function, edited(function, tuple(of_target))))
    old = [(function, function.__code__) for function, _ in new]
    for function, code in new:
        function.__code__ = code
    try:
        yield
    finally:
        for function, code in old:
            function.__code__ = code
