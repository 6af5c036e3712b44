"""A stopped bookie on a real disk, with RocksDB, for tests that look at its folders."""

from __future__ import annotations

from pathlib import Path

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.index.index import IndexedExtent, RocksIndex
from octavo.bookie.storage import Storage
from tests.support.damaged_logs import checked_run
from tests.support.storage_support import Bench


def config_in(folder: Path) -> BookieConfig:
    return BookieConfig(
        journal_directories=(f"{folder}/j",),
        ledger_directories=(f"{folder}/l",),
        journal_preallocate_bytes=4096,
        entry_log_bytes_max=3000,
        flush_interval_ms=3_600_000,
    )


class RealBench(Bench):
    def __init__(self, config: BookieConfig) -> None:
        super().__init__(config, RealDisk())  # type: ignore[arg-type]

    async def __aexit__(self, *_: object) -> None:
        if self.is_open:
            await self.storage.close()

    async def start(self) -> None:
        self.is_open = False
        how = {"on_fatal": self.fatal.append, "on_loss": self.on_loss}
        self.storage = await Storage.open(self.config, disk=self.disk, **how)  # type: ignore[arg-type]
        self.is_open = True


async def filled(folder: Path) -> tuple[BookieConfig, list[IndexedExtent]]:
    """Fill a bookie with overwritten, deleted and plain ledgers, stop it, and return it with
    its index."""
    config = config_in(folder)
    bench = RealBench(config)
    async with bench:
        for number in range(4):
            for ledger_id in range(1, 6):
                first = number * 2 if ledger_id % 2 else number * 4
                payloads = [b"%d of %d" % (number, ledger_id) * 20] * 4
                await bench.overwrite(checked_run(ledger_id, first, payloads))
            await bench.storage.checkpoint()
        await bench.storage.delete_ledger(3)
    return config, runs_of(config)


def names_in(folder: Path | str, pattern: str) -> list[Path]:
    return sorted(Path(folder).glob(pattern))


def read(path: Path) -> bytearray:
    return bytearray(path.read_bytes())


def write(path: Path, data: bytes | bytearray) -> None:
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def runs_of(config: BookieConfig) -> list[IndexedExtent]:
    index = RocksIndex(f"{config.ledger_directories[0]}/index")
    found = list(index.all_runs())
    index.close()
    return found
