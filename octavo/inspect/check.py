"""Checks a stopped bookie: each file by itself, then what they say together. Reads only.

The caller holds the locks of the folders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bookie.damage import Damage
from bookie.disk import Disk
from octavo.inspect.folders import BookieFolders
from octavo.inspect.line import Wish
from octavo.inspect.walks import NothingToInspect, walks_of
from protocol.codes import OctavoError

_KINDS = ("cookie", "mark", "limbo", "journal", "state", "entrylog", "index")


@dataclass(slots=True)
class Checked:
    """What a check found."""

    files: int = 0
    damage: list[Damage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What is wrong and has no place in a file."""


def check_bookie(disk: Disk, folders: BookieFolders, on_bytes: Callable[[int], None]) -> Checked:
    """Look at everything; `on_bytes` is told how many bytes were read since it was told last."""
    found = Checked()
    for kind in _KINDS:
        _check_kind(disk, folders, kind, found, on_bytes)
    seen: dict[tuple[str, str, int, int | None], Damage] = {}
    for one in found.damage:
        seen.setdefault((one.kind, one.path, one.offset, one.ledger_id), one)
    found.damage = list(seen.values())
    return found


def _check_kind(
    disk: Disk,
    folders: BookieFolders,
    kind: str,
    found: Checked,
    on_bytes: Callable[[int], None],
) -> None:
    where = folders.journals if kind == "journal" else folders.ledgers
    if kind == "cookie":
        where = folders.all
    if kind == "index":
        where = [folders.index] if folders.index is not None else []
        if not where:
            found.problems.append("there is no index: the next start makes it anew")
    for folder in where:
        try:
            walks, _ = walks_of(disk, kind, folder, Wish(verify=True))
            for walk in walks:
                found.files += 1
                for line in walk.lines():
                    found.damage += line.damage
                if kind != "index":
                    on_bytes(walk.bytes)
        except NothingToInspect:
            if kind == "cookie":
                found.problems.append(f"{folder} carries no cookie")
        except OctavoError as error:
            found.problems.append(str(error))
