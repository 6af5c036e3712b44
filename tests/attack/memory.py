"""The memory that a process may take, and what it took; docs/limits.md has the same sums. The
bound is the idle memory plus the maximum of everything held for clients."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from octavo.bookie.config import BookieConfig
from octavo.broker.config import BrokerConfig
from octavo.broker.http.config import HttpConfig
from octavo.broker.log import compaction_rules
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
"""Shares of a partition's `inflight_bytes_max`: one in progress, four waiting."""


def broker_parts(broker: BrokerConfig, http: HttpConfig, ledger: LedgerOptions) -> dict[str, int]:
    """For a broker with one partition at a time written at full speed."""
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
        + compaction_rules._RUN_MESSAGES_MAX,
    }


def bookie_parts(bookie: BookieConfig) -> dict[str, int]:
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
    bytes: int
    bound: int
    when: str


class Peaks:
    def __init__(self, folder: Path, pids: dict[str, int]) -> None:
        self._pids = pids
        self.highest = {
            name: Peak(0, bound_of(folder / "conf" / f"{name}.json"), "") for name in pids
        }

    def begin(self) -> None:
        for pid in self._pids.values():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def end(self, when: str) -> list[str]:
        problems = []
        for name, pid in self._pids.items():
            try:
                found = peak_of(pid)
            except (OSError, psutil.Error):
                continue
            highest = self.highest[name]
            if found > highest.bytes:
                highest.bytes, highest.when = found, when
            if found > highest.bound:
                took, bound = found / MIB, highest.bound / MIB
                problems.append(f"{name} took {took:.0f} MiB; its bound is {bound:.0f}")
        return problems

    def report(self) -> list[str]:
        return [
            f"{name}: at most {one.bytes / MIB:.0f} MiB of {one.bound / MIB:.0f}, in: {one.when}"
            for name, one in sorted(self.highest.items())
        ]


def peak_of(pid: int) -> int:
    """Return the peak of resident bytes since the last reset, or the present value where there
    is no peak."""
    with contextlib.suppress(FileNotFoundError):
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
        if found is not None:
            return int(found[1]) * 1024
    return int(psutil.Process(pid).memory_info().rss)
