"""What a process may take at most, and what it took: docs/limits.md has the same sums.

A process's bound is what it takes idle, the bounds of all that it holds for others, and what its
connections cost, each at its most at the same time.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from octavo.bookie.config import BookieConfig
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.broker.log import compaction
from octavo.ledger.options import LedgerOptions
from octavo.process.spec import read_spec

MIB = 1 << 20
IDLE_BYTES = 96 * MIB
"""Interpreter, libraries, RocksDB, some thousand topics or ledgers: 60 to 90 measured."""
BROKER_CONNECTION_BYTES = 8 * 1024
BOOKIE_CONNECTION_BYTES = 4 * 1024
COMPACTED_KEY_BYTES = 150
LONG_POLL_BYTES = 8 * 1024
UNLISTED_LEDGER_BYTES = 1024
INFLIGHT_SHARES = 5
"""Of one partition's `inflight_bytes_max`: one share under way, four that wait."""


def broker_parts(broker: BrokerConfig, http: HttpConfig, ledger: LedgerOptions) -> dict[str, int]:
    """A broker of which one partition at a time is written to as fast as it can be."""
    connections = http.connections_max + http.connections_reserved
    return {
        "idle": IDLE_BYTES,
        "bodies": http.bodies_bytes_max,
        "newest batches": broker.tail_cache_bytes_max,
        "unpacked batches": broker.opened_bytes_max,
        "read ahead": broker.read_ahead_bytes_max,
        "one partition's batches": INFLIGHT_SHARES * broker.inflight_bytes_max,
        "not acked by every bookie": ledger.pending_bytes_max,
        "connections": connections * BROKER_CONNECTION_BYTES,
        "keys of a compaction": broker.compaction_keys_max * COMPACTED_KEY_BYTES
        + compaction._RUN_MESSAGES_MAX,
    }


def bookie_parts(bookie: BookieConfig) -> dict[str, int]:
    """A bookie."""
    return {
        "idle": IDLE_BYTES,
        "write cache, two halves": 2 * bookie.write_cache_bytes_max,
        "read cache": bookie.read_cache_bytes_max,
        "adds": bookie.add_bytes_max,
        "answers": bookie.answer_bytes_max,
        "half frames": bookie.receive_bytes_max,
        "unlisted ledgers": bookie.unlisted_ledgers_max * UNLISTED_LEDGER_BYTES,
        "connections": bookie.connections_max * BOOKIE_CONNECTION_BYTES,
        "long polls": bookie.long_polls_max * LONG_POLL_BYTES,
    }


def bound_of(spec: Path) -> int:
    """Of the process that was told this."""
    told = read_spec(spec)
    if "bookie" in told.sections:
        return sum(bookie_parts(told.config(BookieConfig, "bookie")).values())
    parts = broker_parts(
        told.config(BrokerConfig, "broker"),
        told.config(HttpConfig, "http"),
        told.config(LedgerOptions, "ledger"),
    )
    return sum(parts.values())


@dataclass
class Peak:
    """The most that a process had."""

    bytes: int
    bound: int
    when: str
    """The attempt in which it had that."""


class Peaks:
    """Of each process of a cluster, for one attempt and for all."""

    def __init__(self, folder: Path, pids: dict[str, int]) -> None:
        self._pids = pids
        self.highest = {
            name: Peak(0, bound_of(folder / "conf" / f"{name}.json"), "") for name in pids
        }

    def begin(self) -> None:
        """An attempt begins: what came before does not count against it."""
        for pid in self._pids.values():
            with contextlib.suppress(OSError):  # where that cannot be the peak is of its whole life
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def end(self, when: str) -> list[str]:
        """What is wrong with what the attempt cost."""
        problems = []
        for name, pid in self._pids.items():
            try:
                found = peak_of(pid)
            except (OSError, psutil.Error):
                continue  # it is gone, and that is told
            highest = self.highest[name]
            if found > highest.bytes:
                highest.bytes, highest.when = found, when
            if found > highest.bound:
                took, bound = found / MIB, highest.bound / MIB
                problems.append(f"{name} took {took:.0f} MiB; its bound is {bound:.0f}")
        return problems

    def report(self) -> list[str]:
        """A line for each process."""
        return [
            f"{name}: at most {one.bytes / MIB:.0f} MiB of {one.bound / MIB:.0f}, in: {one.when}"
            for name, one in sorted(self.highest.items())
        ]


def peak_of(pid: int) -> int:
    """The most resident bytes since they were last forgotten; what it has now where that is all
    that can be had."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        if found is not None:
            return int(found[1]) * 1024
    return int(psutil.Process(pid).memory_info().rss)
