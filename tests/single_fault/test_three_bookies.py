"""One of three bookies has a hurt block: it says so, and clients read from the others."""

from __future__ import annotations

from pathlib import Path

import pytest

from octavo.bookie.read.path import ReadPath
from octavo.protocol.codes import BookieIOError, NoSuchEntry
from tests.single_fault.sweep import WrongAnswer
from tests.single_fault.three_bookies import faults_of, kind_of, sweep_cluster, three_bookies

STRIDE = 13
"""`make fault-sweep` hurts every block."""


@pytest.mark.long
async def test_no_hurt_block_makes_a_bookie_lie(tmp_path: Path) -> None:
    ends = await sweep_cluster(tmp_path, STRIDE)
    assert ends.total() > 50
    assert ends["log", "explicit error"] > 3
    assert ends["journal", "all there"] > 3


async def test_every_block_of_every_kind_of_file_is_hurt(tmp_path: Path) -> None:
    async with three_bookies(tmp_path) as world:
        found = list(faults_of(world.image))
    kinds = {kind_of(fault.path) for fault in found}
    assert {"journal", "log", "state", "journal.mark", "VERSION", "LOCK"} <= kinds
    assert {"index CURRENT", "index MANIFEST", "index sst"} <= kinds
    for path, (_, size) in world.image.files.items():
        hurt = {fault.start for fault in found if fault.path == path}
        assert hurt == set(range(0, size, 512)), path
    assert len(set(world.held)) > 60


async def test_a_bookie_that_denies_what_it_cannot_read_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # BookKeeper #2908, as it was.
    real = ReadPath.read_many

    async def read_many(self: ReadPath, *where: int, **how: bool) -> list[bytes]:
        try:
            return await real(self, *where, **how)
        except BookieIOError as error:
            raise NoSuchEntry(str(error)) from error

    monkeypatch.setattr(ReadPath, "read_many", read_many)
    with pytest.raises(WrongAnswer, match="is denied"):
        await sweep_cluster(tmp_path, 5, only=".log")
