"""The content of a simulated file: as readers see it, as it is on the platter, and the difference.

A crash keeps any subset of the unsynced 512-byte sectors, each with all older writes to it. A
sector may be torn: new bytes, then garbage. The size may have grown without the bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

SECTOR = 512


class Piece(NamedTuple):
    op: int
    offset: int
    data: bytes

    @property
    def sector(self) -> int:
        return self.offset // SECTOR


class Resize(NamedTuple):
    size: int


Op = tuple[int, bytes] | Resize


class Inode:
    __slots__ = ("data", "durable", "durable_size", "links", "lost", "ops", "size")

    def __init__(self, durable: bytes = b"") -> None:
        self.data = bytearray(durable)
        self.size = len(durable)
        self.durable = bytearray(durable)
        self.durable_size = len(durable)
        self.ops: list[Op] = []
        self.lost = False
        """Readers see bytes that are neither durable nor waiting to be (a sync failed)."""
        self.links = 0

    def pread(self, length: int, offset: int) -> bytes:
        end = min(offset + length, self.size)
        if offset >= end:
            return b""
        found = bytes(self.data[offset:end])
        missing = end - offset - len(found)
        return found + bytes(missing) if missing else found

    def write(self, offset: int, data: bytes) -> None:
        put(self.data, offset, data)
        end = offset + len(data)
        if end > self.size:
            self.size = end
        self.ops.append((offset, data))

    def resize(self, size: int) -> None:
        if size < len(self.data):
            del self.data[size:]
        self.size = size
        self.ops.append(Resize(size))

    def sync(self) -> None:
        for op in self.ops:
            if isinstance(op, Resize):
                del self.durable[op.size :]
            else:
                put(self.durable, *op)
        self.ops.clear()
        self.durable_size = self.size

    def image(self) -> bytes:
        return bytes(self.data) + bytes(self.size - len(self.data))

    def durable_image(self) -> bytes:
        return bytes(self.durable) + bytes(self.durable_size - len(self.durable))

    # Crashes

    def pieces(self) -> list[Piece]:
        found: list[Piece] = []
        for number, op in enumerate(self.ops):
            if isinstance(op, Resize):
                continue
            offset, data = op
            position = 0
            while position < len(data):
                end = min(len(data), position + SECTOR - (offset + position) % SECTOR)
                found.append(Piece(number, offset + position, data[position:end]))
                position = end
        return found

    def sizes(self) -> list[int]:
        found = [self.durable_size]
        size = self.durable_size
        for op in self.ops:
            size = op.size if isinstance(op, Resize) else max(size, op[0] + len(op[1]))
            if size != found[-1]:
                found.append(size)
        return found

    def settle(self, kept: list[tuple[int, bytes]], size: int) -> None:
        """Become what a crash leaves: the synced bytes, `kept` over them, cut to `size`."""
        for offset, data in kept:
            put(self.durable, offset, data)
        del self.durable[size:]
        self.durable_size = self.size = size
        self.data = bytearray(self.durable)
        self.ops.clear()
        self.lost = False

    def crash(self, rng: random.Random | None, note: Callable[[str], None]) -> None:
        """Lose a random part of the unsynced data; without `rng`, all of it."""
        if not self.ops or rng is None:
            if self.ops or self.lost:
                self.settle([], self.durable_size)
            return
        size = rng.choice(self.sizes())
        self.settle(self._survivors(rng, note), size)

    def drop(self, rng: random.Random | None, note: Callable[[str], None]) -> None:
        """Fail a sync: waiting writes count as clean, and a random part never arrived. Without
        `rng` no part arrived."""
        data, size = self.data, self.size
        if rng is None:
            self.settle([], self.durable_size)
        else:
            self.settle(self._survivors(rng, note), rng.choice(self.sizes()))
        self.data, self.size, self.lost = data, size, True

    def forget_cached(self) -> None:
        if self.lost:
            self.ops.clear()
            self.settle([], self.durable_size)

    def _survivors(
        self, rng: random.Random, note: Callable[[str], None]
    ) -> list[tuple[int, bytes]]:
        pieces = self.pieces()
        chance = rng.choice((0.0, 0.5, 0.9, 1.0))
        torn = rng.random() < 0.5
        broken: set[int] = set()
        kept: list[tuple[int, bytes]] = []
        for piece in pieces:
            if piece.sector in broken or rng.random() >= chance:
                # a newer write is kept only with the older writes below it
                broken.add(piece.sector)
                note("disk: sector lost")
            elif torn and rng.random() < 0.5:
                good = rng.randrange(len(piece.data))
                junk = rng.choice((b"", bytes(len(piece.data)), rng.randbytes(len(piece.data))))
                kept.append((piece.offset, piece.data[:good] + junk[good:]))
                broken.add(piece.sector)
                note("disk: sector torn")
            else:
                kept.append((piece.offset, piece.data))
        return kept


def put(data: bytearray, offset: int, new: bytes) -> None:
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(new)] = new
