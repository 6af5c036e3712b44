"""A read error at a sealed log's map made the scrubber call the map damaged, and so it stayed.

The disk refused two reads of the map and served all later ones. What is on the disk was good: the
finding is *unreadable*, and ends when a later pass reads the map back. Found by seed 2002895.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from octavo.bookie.disk.damage import DamageKind
from octavo.bookie.disk.files import DiskError
from tests.support.damaged_logs import fill
from tests.support.storage_support import CONFIG, Bench

SMALL_LOGS = replace(CONFIG, entry_log_bytes_max=2000, scrub_bytes_per_s=2**30)


@pytest.mark.parametrize("refused", ["footer", "map"])
async def test_a_map_that_cannot_be_read_is_unreadable(
    monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    async with Bench(SMALL_LOGS) as bench:
        placed = await fill(bench)
        scrubber = bench.storage.scrubber
        assert scrubber is not None
        path = placed[0].path
        end = max(at.location.offset + at.location.length for at in placed if at.path == path)
        size = bench.disk.names[path].size
        kind = type(bench.disk.open(path))
        pread = kind.pread
        left = 2

        def troubled(self: object, length: int, offset: int) -> bytes:
            nonlocal left
            wanted = offset == end if refused == "map" else offset + length == size
            if left and wanted and self.path == path:  # type: ignore[attr-defined]
                left -= 1
                raise DiskError(f"pread {path}: input/output error")
            return pread(self, length, offset)  # type: ignore[arg-type]

        monkeypatch.setattr(kind, "pread", troubled)
        await scrubber.one_pass()
        assert left == 0
        found = [(one.kind, one.offset) for one in bench.storage.damages.current()]
        assert found == [(DamageKind.UNREADABLE, end)]
        await scrubber.one_pass()
        assert not bench.storage.damages.current()
