"""Find the files of a kind at a path, and the walks over them. Blocking; never writes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from octavo.bookie.disk.files import Disk, File
from octavo.bookie.entrylog.format import FILE_HEADER_BYTES, decode_file_header, log_id_of
from octavo.bookie.index.index import INDEX_FOLDER
from octavo.bookie.journal.format import file_id_of as journal_id_of
from octavo.bookie.journal.mark import NAME as MARK_NAME
from octavo.bookie.journal.mark import read_mark
from octavo.bookie.journal.reader import journal_files
from octavo.bookie.ledgers.cookies import VERSION_FILE
from octavo.bookie.ledgers.limbo import NAME as LIMBO_NAME
from octavo.bookie.ledgers.state import file_id_of as state_id_of
from octavo.inspect.entry_log import EntryLogWalk
from octavo.inspect.folders import BookieFolders, NoBookieHere, find_folders
from octavo.inspect.index import IndexReader, LogLookup, walk_index
from octavo.inspect.journal import walk_journal
from octavo.inspect.line import Line, Wish
from octavo.inspect.small import mark_fields, walk_cookie, walk_limbo, walk_mark, walk_state
from octavo.protocol.codes import BookieIOError, OctavoError

KINDS = ("journal", "entrylog", "index", "cookie", "mark", "state", "limbo")
_IS_OF_KIND: dict[str, Callable[[str], bool]] = {
    "journal": lambda name: journal_id_of(name) is not None,
    "entrylog": lambda name: log_id_of(name) is not None,
    "state": lambda name: state_id_of(name) is not None,
    "mark": lambda name: name == MARK_NAME,
    "limbo": lambda name: name == LIMBO_NAME,
    "cookie": lambda name: name == VERSION_FILE,
}
_MISSING = {
    "journal": "journal file",
    "entrylog": "entry log: the first flush makes one",
    "state": "ledger state: the first flush makes one",
    "mark": "journal mark: the first flush makes one",
    "limbo": "limbo file: there is one only after data was lost",
    "cookie": f"cookie, that is, no file {VERSION_FILE}",
}


@dataclass(slots=True)
class Walk:
    """A file (of the index, its folder) and how to walk it."""

    path: str
    bytes: int
    lines: Callable[[], Iterator[Line]]


class NothingToInspect(OctavoError):
    name = "nothing-to-inspect"


def walks_of(disk: Disk, kind: str, path: str, wish: Wish) -> tuple[list[Walk], str | None]:
    """Return the walks in order, and the process that runs the bookie (None: none, or unknown).

    Raises `NoBookieHere`, `NothingToInspect`, `BookieIOError`.
    """
    if not os.path.exists(path):
        raise NothingToInspect(f"{path} does not exist")
    path = os.path.abspath(path)
    folders = _folders_around(disk, path)
    running = folders.running
    if kind == "index":
        return [_index_walk(_index_path(folders, path), wish)], running
    is_file = os.path.isfile(path)
    files = [_of_kind(kind, path)] if is_file else _files(disk, kind, folders, path)
    if not files:
        raise NothingToInspect(f"{path} holds no {_MISSING[kind]}")
    context = _Context(disk, folders, wish)
    return [context.walk(kind, one) for one in files], running


def _folders_around(disk: Disk, path: str) -> BookieFolders:
    if os.path.isdir(path) and not os.path.exists(f"{path}/CURRENT"):
        return find_folders(disk, [path])
    try:
        return find_folders(disk, [os.path.dirname(path)])
    except NoBookieHere:
        return BookieFolders()


def _index_path(folders: BookieFolders, path: str) -> str:
    if os.path.exists(f"{path}/CURRENT"):
        return path
    found = folders.index if os.path.isdir(path) else None
    if found is None:
        raise NothingToInspect(
            f"{path} holds no index (a folder {INDEX_FOLDER}/ with a file CURRENT)"
        )
    return found


def _of_kind(kind: str, path: str) -> str:
    name = path.rpartition("/")[2]
    for other, is_it in _IS_OF_KIND.items():
        if other != kind and is_it(name):
            raise NothingToInspect(f"{path} is of another kind: octavo inspect {other} {path}")
    return path


def _files(disk: Disk, kind: str, folders: BookieFolders, path: str) -> list[str]:
    where = [path] if path in folders.all else folders.all
    found = [
        f"{folder}/{name}"
        for folder in where
        for name in disk.list_directory(folder)
        if _IS_OF_KIND[kind](name)
    ]
    if kind == "entrylog":  # the logs of all folders are one sequence
        found.sort(key=lambda one: one.rpartition("/")[2])
    return found


class _Context:
    def __init__(self, disk: Disk, folders: BookieFolders, wish: Wish) -> None:
        self._disk = disk
        self._wish = wish
        self._mark: dict[str, Any] = {}
        self._unmarked: int | None = None
        """The vouched bytes of a log without a mark: 0 in a running bookie, else unknown."""
        try:
            mark = read_mark(disk, folders.ledgers)
            self._mark = mark_fields(mark) if mark is not None else {}
            self._unmarked = 0 if folders.running is not None else None
        except OctavoError:
            pass  # `inspect mark` reports what is wrong with it
        self._index = folders.index
        self._positions = _positions(self._mark, folders.journals)

    def walk(self, kind: str, path: str) -> Walk:
        name = path.rpartition("/")[2]
        try:
            size = os.path.getsize(path)
        except FileNotFoundError:
            size = 0  # a running bookie has removed it
        lines: Callable[[File], Iterator[Line]]
        if kind == "journal":
            found = journal_id_of(name) or 0
            folder = os.path.dirname(path)
            newer = any(one > found for one in journal_files(self._disk, folder))
            lines = partial(
                walk_journal,
                wish=self._wish,
                file_id=found,
                newer=newer,
                marked=self._marked(folder, found, size),
            )
        elif kind == "entrylog":
            lines = partial(self._entry_log, log_id=log_id_of(name) or 0)
        elif kind == "state":
            lines = partial(self._state, file_id=state_id_of(name) or 0)
        else:
            lines = {"cookie": walk_cookie, "mark": walk_mark, "limbo": walk_limbo}[kind]
        return Walk(path, size, partial(self._opened, path, lines))

    def _marked(self, folder: str, file_id: int, size: int) -> int:
        """Return the byte of a journal file up to which its records are safe in other files."""
        position = self._positions.get(folder)
        if position is None or not file_id or file_id > position[0]:
            return 0
        return size if file_id < position[0] else position[1]

    def _opened(self, path: str, lines: Callable[[File], Iterator[Line]]) -> Iterator[Line]:
        gone = Line("gone", 0, 0, note="the bookie has removed it meanwhile")
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            yield gone
            return
        try:
            for line in lines(file):
                if line.damage and not self._disk.exists(path):
                    yield gone  # a new journal file may use its space by now
                    return
                yield line
        finally:
            file.close()

    def _entry_log(self, file: File, log_id: int) -> Iterator[Line]:
        if not log_id:  # a copy with another file name
            front = decode_file_header(file.pread(FILE_HEADER_BYTES, 0))
            log_id = front if isinstance(front, int) else 0
        vouched = self._unmarked
        if self._mark:
            marked = (self._mark["log_id"], self._mark["log_offset"])
            vouched = marked[1] if log_id == marked[0] else file.size() * (log_id < marked[0])
        reader: IndexReader | None = None
        if self._index is not None:
            try:
                reader = IndexReader(self._index)
            except BookieIOError:
                pass  # the entries of a damaged range stay unknown
        lookup = LogLookup(reader, log_id)
        walk = EntryLogWalk(file, self._wish, log_id=log_id, vouched=vouched, lookup=lookup)
        yield from walk.lines()

    def _state(self, file: File, file_id: int) -> Iterator[Line]:
        end = self._unmarked
        if self._mark and file_id:  # only the file that the mark names counts
            end = self._mark["state_offset"] if self._mark["state_id"] == file_id else 0
        yield from walk_state(file, self._wish, file_id=file_id, end=end)


def _positions(mark: dict[str, Any], folders: list[str]) -> dict[str, tuple[int, int]]:
    """Return the mark's position in each journal folder; empty if the folders cannot be matched.

    Moved folders are matched by order, or by the last part of their paths if the mark has paths.
    """
    if not mark:
        return {}
    if "journals" not in mark:  # version 1
        return {folders[0]: (mark["file_id"], mark["offset"])} if len(folders) == 1 else {}
    if len(folders) == len(mark["journals"]) == 1:
        one = mark["journals"][0]
        return {folders[0]: (one["file_id"], one["offset"])}
    names = {one["folder"].rpartition("/")[2]: one for one in mark["journals"]}
    if len(names) != len(mark["journals"]):
        return {}
    found = ((folder, names.get(folder.rpartition("/")[2])) for folder in folders)
    return {folder: (one["file_id"], one["offset"]) for folder, one in found if one is not None}


def _index_walk(path: str, wish: Wish) -> Walk:
    size = 0
    for one in os.scandir(path):
        with suppress(FileNotFoundError):  # a running bookie removes files of its index
            size += one.stat().st_size
    return Walk(path, size, lambda: walk_index(IndexReader(path), wish))
