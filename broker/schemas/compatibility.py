"""Which versions of a subject a new schema is held against, and which reads which. Pure.

BACKWARD: the new schema reads what the newest version wrote, so consumers go first. FORWARD: the
newest version reads what the new schema writes, so producers go first. FULL: both. …_TRANSITIVE: of
all versions, not only of the newest. NONE: nothing is asked. The words are the field's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

MODES = (
    "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE",
    "NONE",
)  # fmt: skip
DEFAULT_MODE = "BACKWARD"
Schema = TypeVar("Schema")


def problems_of(
    mode: str,
    new: Schema,
    versions: Sequence[tuple[int, Schema]],
    unreadable: Callable[[Schema, Schema], Sequence[str]],
) -> list[str]:
    """Why `new` may not follow these versions, oldest first; empty when it may.

    `unreadable(reader, writer)`: why the one does not read what the other one wrote.
    """
    assert mode in MODES, mode
    direction, _, transitive = mode.partition("_")
    found: list[str] = []
    for number, old in versions if transitive else versions[-1:]:
        if direction in ("BACKWARD", "FULL"):
            found += [f"it does not read version {number}: {why}" for why in unreadable(new, old)]
        if direction in ("FORWARD", "FULL"):
            found += [f"version {number} does not read it: {why}" for why in unreadable(old, new)]
    return found
