"""A power failure in the middle of writing a file's header left a bookie that never started again.

Found by the crash-state enumeration (`tests/crash_states`), twice. A restart wrote the header of
the last journal file once more over the good one, for the case that it had none: torn by the next
power failure, the file was `JournalDamaged`. And an entry log whose first header was torn counted
as damaged, though the header is durable before the first record is written: the rebuild of the
index failed on it. Nothing was lost in either case, and the bookie said so and stayed away.
"""

from __future__ import annotations

import pytest

from octavo.bookie.entrylog.format import FILE_HEADER_BYTES, encode_file_header
from tests.crash_states.explore import Explored, explore_one
from tests.sim.disk import SimDisk
from tests.support.storage_support import CONFIG, Bench


@pytest.mark.parametrize("sequence", [("restart",), ("add", "power"), ("add", "checkpoint")])
def test_the_power_fails_while_a_header_is_written(sequence: tuple[str, ...]) -> None:
    explored = Explored()
    explore_one(sequence, explored)
    assert explored.states > 5


@pytest.mark.parametrize("holds", [b"", b"not zeros"])
async def test_only_a_log_that_holds_nothing_is_removed(holds: bytes) -> None:
    disk = SimDisk()
    path = f"{CONFIG.ledger_directories[0]}/0000000000000001.log"
    disk.make_directory(CONFIG.ledger_directories[0])
    file = disk.open(path, create=True)
    file.pwritev([encode_file_header(1)[:10]], 0)
    file.pwritev([holds], FILE_HEADER_BYTES + 5000)
    file.close()
    bench = Bench(disk=disk)  # type: ignore[arg-type]
    if holds:
        with pytest.raises(Exception, match="header"):
            await bench.start()
    else:
        await bench.start()
        await bench.storage.close()
    assert disk.exists(path) == bool(holds)
