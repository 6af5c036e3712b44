"""A fault in a file: a flipped bit, or a 512-byte block with other bytes than were written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from octavo.bookie.journal.format import (
    BLOCK_HEADER_BYTES,
    FILE_HEADER_BYTES,
    BlockKind,
    decode_block_header,
    file_id_of,
)
from tests.support.engine_lab.images import Image

BLOCK = 512


class Fault(NamedTuple):
    kind: str
    path: str
    start: int
    end: int
    data: bytes
    """The bytes there instead. Empty, with `end` the old size: the file is cut."""

    def __str__(self) -> str:
        return f"{self.kind} in {self.path} at {self.start}…{self.end}"

    def hurt(self, image: Image) -> Image:
        data, size = image.files[self.path]
        if not self.data:
            new = (data[: self.start], self.start)
        else:
            padded = data.ljust(self.end, b"\0")
            new = (padded[: self.start] + self.data + padded[self.end :], size)
        return image._replace(files={**image.files, self.path: new})


def block_faults(image: Image) -> Iterator[Fault]:
    """Yield faults of every block of every file: zeros, junk, a neighbour's content, the file
    cut there."""
    for path, (data, size) in sorted(image.files.items()):
        for start in range(0, len(data), BLOCK):
            end = min(start + BLOCK, size)
            old = data[start:end].ljust(end - start, b"\0")
            others = {
                "zeros": bytes(end - start),
                "junk": b"\xa5" * (end - start),
                "the block before it": data[start - BLOCK : start][: end - start],
                "the block after it": data[end : end + BLOCK].ljust(end - start, b"\0"),
            }
            for kind, new in others.items():
                if len(new) == len(old) and new != old:
                    yield Fault(kind, path, start, end, new)
            yield Fault("cut", path, start, size, b"")


def bit_faults(image: Image, first: int, stride: int) -> Iterator[Fault]:
    """Yield a flipped bit in every `stride`-th byte of all files, from `first` on."""
    position = 0
    for path, (data, _) in sorted(image.files.items()):
        for at, byte in enumerate(data):
            if position % stride == first:
                flipped = bytes([byte ^ 1 << position % 8])
                yield Fault("a flipped bit", path, at, at + 1, flipped)
            position += 1


class JournalBlock(NamedTuple):
    start: int
    end: int
    is_group: bool


def newest_journal(image: Image) -> tuple[str, list[JournalBlock]]:
    names = [(file_id_of(path.rpartition("/")[2]), path) for path in image.files]
    file_id, path = max((file_id, path) for file_id, path in names if file_id is not None)
    assert file_id is not None
    data = image.files[path][0].ljust(image.files[path][1], b"\0")
    blocks: list[JournalBlock] = []
    offset = FILE_HEADER_BYTES
    while (block := decode_block_header(data, offset, file_id, offset)) is not None:
        end = offset + BLOCK_HEADER_BYTES + block.body_bytes
        blocks.append(JournalBlock(offset, end, block.kind is BlockKind.GROUP))
        offset = end
    return path, blocks


def is_torn_tail(fault: Fault, image: Image) -> bool:
    """Whether the fault looks like a write that the last crash tore: no header of a later
    block is left to prove that the hurt block had been durable."""
    path, blocks = newest_journal(image)
    if fault.path != path:
        return False
    for number, block in enumerate(blocks):
        if block.start < fault.end and fault.start < block.end:
            later = blocks[number + 1 :]
            return all(
                one.start < fault.end and fault.start < one.start + BLOCK_HEADER_BYTES
                for one in later
            )
    return False
