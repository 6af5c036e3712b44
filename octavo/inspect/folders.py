"""Find a bookie's folders from any path that a person gives, and whether the bookie runs.

The cookie (VERSION) names the folders; if they were moved, those with the same cookie belong
together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.bookie.disk.files import Disk, DiskError, lock_holder
from octavo.bookie.entrylog.format import log_id_of
from octavo.bookie.index.index import INDEX_FOLDER
from octavo.bookie.journal.format import file_id_of as journal_id_of
from octavo.bookie.journal.mark import NAME as MARK_NAME
from octavo.bookie.ledgers.cookies import LOCK_FILE, VERSION_FILE
from octavo.bookie.ledgers.state import file_id_of as state_id_of
from octavo.inspect.small import read_cookie
from octavo.metadata.cookie import Cookie
from octavo.protocol.codes import OctavoError

_DEPTH = 2
_FOLDERS_MAX = 1000


class NoBookieHere(OctavoError):
    name = "no-bookie-here"


@dataclass(slots=True)
class BookieFolders:
    cookie: Cookie | None = None
    journals: list[str] = field(default_factory=list)
    ledgers: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Folders that the cookie names, but that do not exist."""

    @property
    def all(self) -> list[str]:
        return list(dict.fromkeys([*self.journals, *self.ledgers]))

    @property
    def bytes(self) -> int:
        found = (entry for folder in self.all for entry in os.scandir(folder))
        return sum(entry.stat().st_size for entry in found if entry.is_file())

    @property
    def running(self) -> str | None:
        """Return the process that holds a folder's lock, as its LOCK file says, or None."""
        for folder in self.all:
            holder = lock_holder(f"{folder}/{LOCK_FILE}")
            if holder is not None:
                return holder
        return None

    @property
    def index(self) -> str | None:
        for folder in self.ledgers:
            if os.path.exists(f"{folder}/{INDEX_FOLDER}/CURRENT"):
                return f"{folder}/{INDEX_FOLDER}"
        return None


def find_folders(disk: Disk, paths: Sequence[str]) -> BookieFolders:
    candidates: dict[str, Cookie | None] = {}
    for path in paths:
        if not os.path.isdir(path):
            raise NoBookieHere(f"{path} is not a folder")
        _collect(disk, os.path.abspath(path), _DEPTH, candidates)
    if not candidates:
        raise NoBookieHere(
            f"{', '.join(paths)}: no bookie's folder is there or below (none holds a file "
            f"{VERSION_FILE}, journal files or entry logs)"
        )
    ids = sorted({cookie.bookie_id for cookie in candidates.values() if cookie is not None})
    if len(ids) > 1:
        raise NoBookieHere(
            f"{', '.join(paths)} holds folders of {len(ids)} bookies ({', '.join(ids)}): name "
            "the folders of a single bookie"
        )
    cookie = next((one for one in candidates.values() if one is not None), None)
    if cookie is not None and not cookie.incarnation:
        raise NoBookieHere(
            f"{', '.join(paths)} belongs to bookie {cookie.bookie_id} of Apache BookKeeper: use "
            "`bookkeeper shell`, Octavo cannot read its files"
        )
    return _sorted(disk, candidates, cookie)


def _collect(disk: Disk, path: str, depth: int, found: dict[str, Cookie | None]) -> None:
    try:
        names = disk.list_directory(path)
    except DiskError:
        return
    if VERSION_FILE in names or any(map(_is_ours, names)):
        cookie: Cookie | str | None = None
        if VERSION_FILE in names and os.path.isfile(f"{path}/{VERSION_FILE}"):
            file = disk.open(f"{path}/{VERSION_FILE}")
            cookie = read_cookie(file)
            file.close()
        found[path] = cookie if isinstance(cookie, Cookie) else None
        return
    for name in names[:_FOLDERS_MAX] if depth else ():
        below = f"{path}/{name}"
        if os.path.isdir(below) and not os.path.islink(below):
            _collect(disk, below, depth - 1, found)


def _is_ours(name: str) -> bool:
    found = (journal_id_of(name), log_id_of(name), state_id_of(name))
    return name == MARK_NAME or any(one is not None for one in found)


def _sorted(
    disk: Disk, candidates: dict[str, Cookie | None], cookie: Cookie | None
) -> BookieFolders:
    folders = BookieFolders(cookie)
    named_journals = cookie.journal_dir.split(",") if cookie is not None else []
    named_ledgers = list(cookie.ledger_dirs) if cookie is not None else []
    in_place = [one for one in [*named_journals, *named_ledgers] if one in candidates]
    if cookie is not None and in_place:
        folders.journals = [one for one in named_journals if os.path.isdir(one)]
        folders.ledgers = [one for one in named_ledgers if os.path.isdir(one)]
        named = dict.fromkeys([*named_journals, *named_ledgers])
        folders.missing = [one for one in named if not os.path.isdir(one)]
        return folders
    for path in sorted(candidates):
        names = disk.list_directory(path)
        base = path.rpartition("/")[2]
        holds_journal = any(journal_id_of(name) is not None for name in names)
        holds_ledgers = any(
            log_id_of(name) is not None or state_id_of(name) is not None for name in names
        )
        holds_ledgers = holds_ledgers or MARK_NAME in names or INDEX_FOLDER in names
        if not holds_journal and not holds_ledgers:
            holds_journal = base in {one.rpartition("/")[2] for one in named_journals}
            holds_ledgers = not holds_journal
        if holds_journal:
            folders.journals.append(path)
        if holds_ledgers:
            folders.ledgers.append(path)
    folders.ledgers.sort(key=lambda path: (not _is_first(disk, path), path))
    return folders


def _is_first(disk: Disk, path: str) -> bool:
    names = disk.list_directory(path)
    return INDEX_FOLDER in names or any(state_id_of(name) is not None for name in names)
