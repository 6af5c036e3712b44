"""Three Octavo bookies without brokers, with Octavo's ledger client, as in B2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import octavo
from bench.b2_three_bookies import bookies
from bench.peers.contract import LEDGER_BYTES, Bookies, Cluster, Load, job

LEDGER_WARM_S = 2.0
"""A client first adds to another ledger, briefly: entries of 64 KB fill disks quickly."""
SETTINGS = {"gc_interval_ms": 5_000, "gc_quarantine_ms": 5_000}
"""Remove deleted ledgers quickly, or a run would fill tens of GB of disk."""


class OctavoBookies(Bookies):
    name = "octavo-bookies"
    version = octavo.__version__

    def __init__(self, url: str, pids: list[int]) -> None:
        self._url = url
        self._pids = pids

    def pids(self) -> list[int]:
        return self._pids

    def command(self, workload: str, topic: str, load: Load) -> list[str]:
        del topic
        return job(
            "ledger_client", workload, url=self._url, entry_bytes=LEDGER_BYTES[workload],
            warm_s=LEDGER_WARM_S, seconds=load.seconds,
        )  # fmt: skip


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    url = f"file://{folder}/metadata.db"
    with bookies(str(folder), url, 3, **SETTINGS) as processes:
        yield OctavoBookies(url, [process.pid for process in processes])
