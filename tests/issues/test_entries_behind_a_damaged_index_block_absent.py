"""Entries whose index record stood in a damaged block were listed as absent.

To find the runs of a ledger from an entry on, the index looks for the record before it. When that
one lay in the damaged block and the next record in a good one, the second look-up forgot the error
of the first: no run, no error. The list of a ledger's entries lacked them, and a newer run that
overlapped the lost one did not cut it. Found by damaging one block of a real index.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bookie.disk.damage import DamagedRead
from octavo.bookie.entrylog.format import Location
from octavo.bookie.index.index import IndexedExtent, RocksIndex

RUNS = 2000
ENTRIES = 10


def test_every_entry_is_found_or_unknown(tmp_path: Path) -> None:
    path = str(tmp_path / "index")
    index = RocksIndex(path)
    index.put(
        [
            IndexedExtent(1, n * ENTRIES, n * ENTRIES + ENTRIES - 1, Location(1, n * 100, 100))
            for n in range(RUNS)
        ],
        (1, RUNS * 100),
    )
    index.flush()
    index.close()
    table = max(Path(path).glob("*.sst"), key=lambda file: file.stat().st_size)
    data = bytearray(table.read_bytes())
    third = len(data) // 3  # amid the blocks of records
    for at in range(third, third + 64):
        data[at] ^= 0xFF
    table.write_bytes(data)
    index = RocksIndex(path)
    unknown = 0
    for entry_id in range(RUNS * ENTRIES):
        try:
            found = index.runs(1, entry_id, entry_id)
        except DamagedRead:
            unknown += 1
            continue
        assert found, f"entry {entry_id} is answered as absent"
    assert 0 < unknown < RUNS * ENTRIES
    with pytest.raises(DamagedRead):
        index.runs(1)
    index.close()
