"""kill −9 of a process that stores: what it had acked is there, with the real disk and RocksDB."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from pathlib import Path

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.storage import Storage
from tests.support.storage_support import entry_bytes, make_run

KILLS = 4
RUN = 20


def config_in(folder: Path) -> BookieConfig:
    return BookieConfig(
        journal_directories=(f"{folder}/journal",),
        ledger_directories=(f"{folder}/a", f"{folder}/b"),
        journal_file_bytes_max=256 * 1024,
        journal_preallocate_bytes=64 * 1024,
        write_cache_bytes_max=128 * 1024,
        entry_log_bytes_max=512 * 1024,
    )


def payload(entry_id: int) -> bytes:
    return b"%d " % entry_id * 30


async def store_for_ever(folder: Path, first: int) -> None:
    """Add runs and say on stdout which entry was acked last."""
    storage = Storage(config_in(folder), disk=RealDisk())
    await storage.start()

    def add(start: int) -> None:
        run = make_run(1, start, [payload(entry_id) for entry_id in range(start, start + RUN)])
        storage.add([run], lambda results: acked(start, results))

    def acked(start: int, results: object) -> None:
        assert "OK" in repr(results), results
        print(start + RUN - 1, flush=True)
        add(start + 5 * RUN)

    for number in range(5):
        add(first + number * RUN)
    await asyncio.Event().wait()


async def test_kill_loses_nothing_acked(tmp_path: Path) -> None:
    rng = random.Random(7)
    last = -1
    for _ in range(KILLS):
        code = (
            "import asyncio, pathlib; from tests.process.test_storage_kill import store_for_ever;"
            f"asyncio.run(store_for_ever(pathlib.Path({str(tmp_path)!r}), {last + 1}))"
        )
        child = subprocess.Popen(  # noqa: ASYNC220 - the child is the point, nothing else runs
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert child.stdout is not None
        acks = rng.randrange(50, 400)
        said = [line for line, _ in zip(child.stdout, range(acks), strict=False)]
        child.send_signal(signal.SIGKILL)
        rest, _ = child.communicate(timeout=10)
        said += rest.splitlines()  # the log is among it
        last = max(int(line) for line in said if line.strip().isdigit())
        storage = Storage(config_in(tmp_path), disk=RealDisk())
        await storage.start()
        try:
            found = await storage.reads.read_many(1, 0, 10**6, 10**9)
            assert len(found) > last
            for entry_id, entry in enumerate(found):
                assert entry == entry_bytes(1, entry_id, payload(entry_id))
            last = len(found) - 1
        finally:
            await storage.close()
