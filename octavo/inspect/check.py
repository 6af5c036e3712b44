"""Check a stopped bookie: each file, then all files against each other. Only reads.

The caller holds the locks of the folders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from octavo.bookie.check.folder_check import Report, check_folders
from octavo.bookie.disk.damage import Damage
from octavo.bookie.disk.files import Disk
from octavo.bookie.ledgers.cookies import LOCK_FILE
from octavo.inspect.folders import BookieFolders
from octavo.inspect.line import Wish
from octavo.inspect.walks import NothingToInspect, walks_of
from octavo.protocol.codes import OctavoError


@dataclass(slots=True)
class Checked:
    report: Report
    damage: list[Damage] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Reasons why the bookie would refuse to start, and problems without a place in a file."""

    @property
    def ok(self) -> bool:
        return not self.damage and not self.problems and not self.report.dropped


def check_bookie(disk: Disk, folders: BookieFolders, on_bytes: Callable[[int], None]) -> Checked:
    """Check a bookie's disks; `on_bytes` is called with the bytes read since the last call."""
    exact: list[Damage] = []
    problems: list[str] = []
    empty = [one for one in folders.all if set(disk.list_directory(one)) <= {LOCK_FILE}]
    problems += [f"{folder} is empty: is its disk mounted?" for folder in empty]
    for kind in ("cookie", "limbo", "journal", "state"):
        where = {"cookie": folders.all, "journal": folders.journals}.get(kind, folders.ledgers)
        for folder in (one for one in where if one not in empty):
            try:
                walks, _ = walks_of(disk, kind, folder, Wish(verify=True))
                exact += [one for walk in walks for line in walk.lines() for one in line.damage]
            except NothingToInspect:
                if kind == "cookie":
                    problems.append(f"{folder} carries no cookie")
            except OctavoError as error:
                problems.append(str(error))
    report = check_folders(disk, folders.journals, folders.ledgers, on_bytes)
    places = {(one.path, one.offset) for one in exact}
    inside = {path.rpartition("/")[0] for path, _ in places}
    others = [
        one
        for one in report.damage
        if (one.path, one.offset) not in places and one.path not in inside
    ]
    return Checked(report, exact + others, problems + report.refusals)
