"""Which versions of a subject a new schema is compared with, and in which direction. Pure.

BACKWARD: the new schema reads values of the newest version, so upgrade consumers first. FORWARD:
the newest version reads values of the new schema, so upgrade producers first. FULL: both.
…_TRANSITIVE: compare with all versions, not only the newest.
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
    assert mode in MODES, mode
    direction, _, transitive = mode.partition("_")
    found: list[str] = []
    for number, old in versions if transitive else versions[-1:]:
        if direction in ("BACKWARD", "FULL"):
            found += [f"it does not read version {number}: {why}" for why in unreadable(new, old)]
        if direction in ("FORWARD", "FULL"):
            found += [f"version {number} does not read it: {why}" for why in unreadable(old, new)]
    return found
