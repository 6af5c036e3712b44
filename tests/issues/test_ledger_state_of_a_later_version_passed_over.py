"""Without a readable mark, a ledger state file of a later version was passed over in silence.

Then every fence, key and deletion in it was forgotten, while its page promised a refusal by name.
Found by holding docs/formats/ledger_state.md against the code.
"""

from __future__ import annotations

import pytest
from crc32c import crc32c

from octavo.bookie.ledgers.state import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    MAGIC,
    LedgerState,
    LedgerStateDamaged,
    StateFile,
    encode_block,
    encode_record,
    file_name,
)
from tests.support.memory_disk import MemoryDisk
from tests.support.storage_support import KEY


def later_file(disk: MemoryDisk, version: int) -> None:
    front = FILE_HEADER.pack(MAGIC, version, 1, 0)[:-4]
    front += crc32c(front).to_bytes(4, "big")
    state = LedgerState(KEY)
    state.fenced = True
    disk.make_directory("/a")
    file = disk.open(f"/a/{file_name(1)}", create=True)
    file.pwritev([front + encode_block([encode_record(7, state)], FILE_HEADER_BYTES)], 0)


@pytest.mark.parametrize("position", [None, (1, 100)])
def test_a_later_version_is_refused_by_name(position: tuple[int, int] | None) -> None:
    disk = MemoryDisk()
    later_file(disk, 2)
    with pytest.raises(LedgerStateDamaged, match="is of version 2; this program reads 1"):
        list(StateFile(disk, "/a").load(position))


def test_the_known_version_is_read() -> None:
    disk = MemoryDisk()
    later_file(disk, 1)
    assert [found.fenced for _, found in StateFile(disk, "/a").load(None)] == [True]
