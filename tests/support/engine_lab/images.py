"""Lists every disk that a power failure at a given moment may leave. Each unsynced change is a
question with its answers: was it kept, torn, flushed? `images` combines all answers; above
`COMBINATIONS_MAX` it keeps those that differ in at most two from "all lost" or "nothing lost",
and says so."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import combinations, product
from typing import NamedTuple

from tests.sim.disk import SimDisk
from tests.sim.disk_handle import NameOp
from tests.sim.index import Change, KeptIndex, apply_change
from tests.sim.inode import Inode, Piece

COMBINATIONS_MAX = 128
"""Two to the sixth, twice: torn sectors double it."""
JUNK = b"\xee"

Answer = tuple[str, object, object]
"""(kind of question, its subject, answer)."""


class FrozenFile(NamedTuple):
    durable: bytes
    sizes: list[int]
    pieces: list[Piece]


class Moment(NamedTuple):
    names: dict[str, int]
    name_ops: list[tuple[str, int | None, str]]
    files: list[FrozenFile]
    folders: dict[str, None]
    indexes: dict[str, tuple[KeptIndex, list[Change]]]


class Image(NamedTuple):
    files: dict[str, tuple[bytes, int]]
    """Path → bytes and size. The file is zero from the end of the bytes to its size."""
    folders: dict[str, None]
    indexes: dict[str, tuple[KeptIndex, list[Change]]]

    def disk(self) -> SimDisk:
        disk = SimDisk()
        disk.folders = dict(self.folders)
        for path, (data, size) in self.files.items():
            inode = Inode(data)
            inode.size = inode.durable_size = size
            disk.names[path] = inode
        disk.durable_names = dict(disk.names)
        disk.recount()
        for path, (flushed, changes) in self.indexes.items():
            kept = disk.indexes.kept[path] = KeptIndex()
            copy_index(flushed, kept)
            for change in changes:
                apply_change(kept.flushed, change)
        return disk

    def digest(self, more: object) -> bytes:
        indexes = [
            (path, sorted(kept.flushed._runs.items()), kept.flushed.covered, changes)
            for path, (kept, changes) in sorted(self.indexes.items())
        ]
        whole = (sorted(self.files.items()), indexes, more)
        return hashlib.blake2b(repr(whole).encode(), digest_size=12).digest()


def freeze(disk: SimDisk) -> Moment:
    """Copy the disk's present state; the disk itself may change afterwards."""
    numbers: dict[int, int] = {}
    files: list[FrozenFile] = []

    def number(inode: Inode) -> int:
        found = numbers.get(id(inode))
        if found is None:
            found = numbers[id(inode)] = len(files)
            files.append(FrozenFile(bytes(inode.durable), inode.sizes(), inode.pieces()))
        return found

    def frozen(op: NameOp) -> tuple[str, int | None, str]:
        return op.name, None if op.inode is None else number(op.inode), op.old

    names = {path: number(inode) for path, inode in disk.durable_names.items()}
    ops = [frozen(op) for ops in disk.unsynced_names.values() for op in ops]
    indexes: dict[str, tuple[KeptIndex, list[Change]]] = {}
    for path, kept in disk.indexes.kept.items():
        copy = KeptIndex()
        copy_index(kept, copy)
        indexes[path] = (copy, list(kept.unflushed))
    return Moment(names, ops, files, dict(disk.folders), indexes)


def copy_index(source: KeptIndex, target: KeptIndex) -> None:
    target.flushed._firsts = {key: list(value) for key, value in source.flushed._firsts.items()}
    target.flushed._runs = {key: list(value) for key, value in source.flushed._runs.items()}
    target.flushed._covered = source.flushed.covered


def images(moment: Moment) -> Iterator[Image]:
    questions = _questions(moment, torn=True)
    if _combinations(questions) > COMBINATIONS_MAX:
        questions = _questions(moment, torn=False)
    if _combinations(questions) <= COMBINATIONS_MAX:
        for answers in product(*questions):
            yield _image(moment, answers)
        return
    for start in (0, -1):
        usual = [options[start] for options in questions]
        for count in range(3):
            for which in combinations(range(len(questions)), count):
                answers_list = list(usual)
                for at in which:
                    answers_list[at] = questions[at][-1 - start]
                yield _image(moment, tuple(answers_list))


def is_complete(moment: Moment) -> bool:
    return _combinations(_questions(moment, torn=False)) <= COMBINATIONS_MAX


def _combinations(questions: list[list[Answer]]) -> int:
    total = 1
    for options in questions:
        total *= len(options)
    return total


def _questions(moment: Moment, *, torn: bool) -> list[list[Answer]]:
    found: list[list[Answer]] = []
    for number, op in enumerate(moment.name_ops):
        found.append([("name", number, False), ("name", number, op)])
    for number, file in enumerate(moment.files):
        if len(file.sizes) > 1:
            found.append([("size", number, size) for size in dict.fromkeys(file.sizes)])
        sectors: dict[int, list[Piece]] = {}
        for piece in file.pieces:
            sectors.setdefault(piece.sector, []).append(piece)
        for pieces in sectors.values():
            options: list[Answer] = [("write", number, pieces[:n]) for n in range(len(pieces) + 1)]
            if torn:
                options.insert(1, ("write", number, [_torn(pieces[0])]))
            found.append(options)
    for path, (_, changes) in moment.indexes.items():
        if changes:
            found.append([("index", path, changes[:n]) for n in range(len(changes) + 1)])
    return found


def _torn(piece: Piece) -> Piece:
    half = len(piece.data) // 2
    return piece._replace(data=piece.data[:half] + JUNK * (len(piece.data) - half))


def _image(moment: Moment, answers: tuple[Answer, ...]) -> Image:
    content = {number: bytearray(file.durable) for number, file in enumerate(moment.files)}
    sizes = {number: file.sizes[0] for number, file in enumerate(moment.files)}
    names = dict(moment.names)
    indexes = {path: (kept, list[Change]()) for path, (kept, _) in moment.indexes.items()}
    for kind, whose, answer in answers:
        if kind == "write":
            for piece in answer:  # type: ignore[attr-defined]
                _put(content[whose], piece)  # type: ignore[index]
        elif kind == "size":
            sizes[whose] = answer  # type: ignore[index, assignment]
        elif kind == "name" and answer:
            _apply(names, *answer)  # type: ignore[misc]
        elif kind == "index":
            indexes[whose] = (indexes[whose][0], answer)  # type: ignore[index, assignment]
    files = {
        path: (bytes(content[number][: sizes[number]]).rstrip(b"\0"), sizes[number])
        for path, number in names.items()
    }
    return Image(files, moment.folders, indexes)


def _put(data: bytearray, piece: Piece) -> None:
    if piece.offset > len(data):
        data.extend(bytes(piece.offset - len(data)))
    data[piece.offset : piece.offset + len(piece.data)] = piece.data


def _apply(names: dict[str, int], name: str, number: int | None, old: str) -> None:
    if old and names.get(old) == number:
        del names[old]
    if number is None:
        names.pop(name, None)
    else:
        names[name] = number
