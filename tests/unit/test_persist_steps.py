"""The tests that kill processes know each file of a bookie and each kind of record.

A new file once had no kind: every bookie with failpoints ended at its start, and with it each test
that kills a bookie in a step.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.disk.files import Disk, File, RealDisk
from octavo.bookie.index.index import LedgerIndex
from tests.support.memory_disk import MemoryDisk
from tests.support.memory_index import MemoryIndex
from tests.support.processes.failpoints import BOOKIE_FAILPOINTS, FIRST_START_FAILPOINTS
from tests.support.processes.seams import OCTAVO_KINDS, FailDisk, FailFile, FailIndex, kind_of
from tests.support.raw_bookie import RawClient, adds_of, running_bookie

ROOT = Path(__file__).parent.parent.parent
FOLDERS = sorted(
    {
        found
        for part in ("metadata", "bookie", "broker", "octavo/security")
        for path in (ROOT / part).rglob("*.py")
        for found in re.findall(r'^\w+ = "/octavo/([a-z-]+)', path.read_text(), re.MULTILINE)
    }
)
_KINDS = {name.partition(".")[0] for name in (*BOOKIE_FAILPOINTS, *FIRST_START_FAILPOINTS)}
_BESIDE_THE_DISK = ("index", "LOCK")
"""RocksDB's own writes, and the lock of a folder."""


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder_of_records_has_a_kind(folder: str) -> None:
    assert folder == "topics" or folder in OCTAVO_KINDS


async def test_each_file_of_a_bookie_has_a_kind_with_failpoints(tmp_path: Path) -> None:
    async with running_bookie(tmp_path) as node:
        client = await RawClient.connect(node)
        client.send(adds_of(1, range(10)))
        assert len(await client.acked(10)) == 10
        client.close()
    config = node.config
    found = _kinds_below(*config.journal_directories, *config.ledger_directories)
    assert {"journal", "high-water", "cookie", "log"} <= found
    assert found <= _KINDS


def _kinds_below(*folders: str) -> set[str]:
    return {
        kind_of(str(path))
        for folder in folders
        for path in Path(folder).rglob("*")
        if path.is_file() and not any(one in _BESIDE_THE_DISK for one in path.parts)
    }


def _public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")}


def test_what_wraps_a_seam_has_all_that_the_seam_has() -> None:
    """A new call of a seam must be in its wrapper as well."""
    armed: Any = None
    index: Any = MemoryIndex()
    assert _public(Disk) <= set(dir(FailDisk(RealDisk(), armed)))
    assert _public(File) <= set(dir(FailFile(MemoryDisk().open("/a", create=True), "log", armed)))
    assert _public(LedgerIndex) <= set(dir(FailIndex(index, armed)))
