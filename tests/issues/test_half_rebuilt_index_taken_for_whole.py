"""An index whose rebuild was cut short counted as complete when the mark was lost too.

Found by reading the code while the rebuild was moved to a module of its own: an index that is being
rebuilt says that it covers the logs up to byte 0 of log 0, and without a mark nothing more was
wanted of it. The next start took the half for the whole, and denied the other half. Now, without a
mark, the index must cover the logs as far as they were kept.
"""

from __future__ import annotations

import pytest

from octavo.bookie.disk.files import DiskError
from tests.sim.index import SimIndex
from tests.support.memory_index import MemoryIndex
from tests.support.storage_support import Bench, entry_bytes

ENTRIES = 1500


async def test_the_next_start_goes_on_with_the_rebuild(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench() as bench:
        for number in range(ENTRIES):  # more than one batch of the rebuild, each a record
            await bench.add(number + 1, 0, b"x" * 700)
        await bench.storage.checkpoint()
        for path in list(bench.disk.names):
            if path.endswith(("journal.mark", "0001.journal")):
                del bench.disk.names[path]
                bench.disk.durable_names.pop(path, None)
        await bench.storage.close()
        for path in [path for path in bench.disk.names if path.endswith("journal.mark")]:
            del bench.disk.names[path]
            del bench.disk.durable_names[path]
        bench.indexes.clear()

        put = SimIndex.put

        def dies(self: MemoryIndex, *args: object) -> None:
            if self._runs:
                self.flush()
                raise DiskError("the process ends here")
            put(self, *args)  # type: ignore[arg-type]

        with monkeypatch.context() as patch:
            patch.setattr(SimIndex, "put", dies)
            with pytest.raises(DiskError):
                await bench.start()
        await bench.start()
        for number in range(ENTRIES):
            assert await bench.storage.reads.read(number + 1, 0) == entry_bytes(
                number + 1, 0, b"x" * 700
            )
