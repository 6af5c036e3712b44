"""B5: readers that catch up, and a tail reader, during writes; with one bookie, and with three.

    python -m bench.b5_reads                       # two rounds, 4 readers, 1 KB entries: ~2 min

A writer adds to a new ledger. A tail reader asks the first bookie for each acked entry. Catch-up
readers, in another process, read old ledgers by batch reads of 1 MiB, after the page cache was
dropped. The phases, each with and without readers:

    paced    the writer adds at a fixed rate; latency counts from when an entry was due
    full     the writer keeps a window full: how much do readers slow it down?

Readers, writer and bookies share the processors: on few cores the ratio also depends on these.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import statistics
import tempfile
import time
from collections import deque
from functools import partial
from typing import Any

import psutil
import uvloop

from bench.b1_busy import forget_files
from bench.b1_one_bookie import OwnBookie, Workload, own_bookie, run_size
from bench.b5_catch_up import BATCH_BYTES, Link, Readers, check_links
from bench.program import arguments, end
from octavo.protocol.answers import Added, BatchReadAnswer, parse_answers
from octavo.protocol.frames import (
    ADD_PREFIX_BYTES,
    Flag,
    batch_read_request,
)
from octavo.protocol.limits import FRAME_BYTES_MAX

MIB = 1024 * 1024
FLAGS = int(Flag.CRC32C | Flag.RANGE_ACK)
OLD_LEDGER = 100
TICK_S = 0.001
COUNT_MAX = 1_000_000
SETTINGS: dict[str, Any] = {"scrub_interval_ms": 3_600_000, "flush_interval_ms": 2_000}
Phase = tuple[str, bool]
_ledgers = itertools.count(1000)


class Tail:
    def __init__(self, ledger_id: int) -> None:
        self._ledger_id = ledger_id
        self._next = 0
        self._asked_for: float | None = None
        self.delays_s: list[float] = []
        self.link: Link

    def acked(self, last: int) -> None:
        if self._asked_for is None and last >= self._next:
            self._asked_for = time.perf_counter()
            self._next = last  # the newest entry; a tail reader skips what it is too slow for
            self.link.transport.write(
                batch_read_request(self._ledger_id, last, 1, COUNT_MAX, BATCH_BYTES)
            )

    def on_data(self, data: memoryview) -> int:
        answers, end = parse_answers(data, FRAME_BYTES_MAX)
        for answer in answers:
            assert isinstance(answer, BatchReadAnswer), answer
            assert answer.code == 0, f"acked and not to be read: {answer}"
            assert self._asked_for is not None
            self.delays_s.append(time.perf_counter() - self._asked_for)
            self._next = answer.start_entry + len(answer.entries)
            self._asked_for = None
        return end


class Writer:
    def __init__(self, work: Workload, quorum: int, *, rate: int | None, window: int) -> None:
        self._work = work
        self._quorum = quorum
        self._rate = rate
        self._window = window
        self._links: list[Link] = []
        self._acked: list[int] = []
        self._sent = 0
        self._due: deque[tuple[int, float]] = deque()
        self._tail = Tail(work.ledger_id)
        self.latencies_s: list[float] = []

    async def run(self, ports: list[int], seconds: float) -> dict[str, Any]:
        for number, port in enumerate(ports):
            self._acked.append(0)
            self._links.append(await Link.to(port, partial(self._on_data, number)))
        self._tail.link = await Link.to(ports[0], self._tail.on_data)
        links = [*self._links, self._tail.link]
        started = time.perf_counter()
        while (now := time.perf_counter()) < started + seconds and self._sent < self._work.count:
            self._add(started, now)
            await asyncio.sleep(TICK_S if self._rate else 0)
            check_links(links)
        while min(self._acked) < self._sent:
            await asyncio.sleep(TICK_S)
            check_links(links)
        took = time.perf_counter() - started
        for link in links:
            link.failed.cancel()
            link.transport.close()
        return {
            "entries_per_s": round(self._sent / took),
            "p50_ms": _percentile(self.latencies_s, 0.5),
            "p99_ms": _percentile(self.latencies_s, 0.99),
            "tail_p50_ms": _percentile(self._tail.delays_s, 0.5),
            "tail_p99_ms": _percentile(self._tail.delays_s, 0.99),
        }

    def _add(self, started: float, now: float) -> None:
        if self._rate:
            until = min(self._work.count, int((now - started) * self._rate))
        else:
            until = min(self._work.count, min(self._acked) + self._window, self._sent + 256)
        if until <= self._sent:
            return
        frames = self._work.frames(self._sent, until - self._sent)
        for link in self._links:
            link.transport.write(frames)
        self._sent = until
        self._due.append((until, started + until / self._rate if self._rate else now))

    def _on_data(self, number: int, data: memoryview) -> int:
        answers, end = parse_answers(data, FRAME_BYTES_MAX)
        for answer in answers:
            assert isinstance(answer, Added), answer
            assert answer.first == self._acked[number], "acks out of order"
            self._acked[number] = answer.last + 1
        if number == 0 and answers:
            self._tail.acked(self._acked[0] - 1)
        confirmed = sorted(self._acked)[-self._quorum]
        now = time.perf_counter()
        while self._due and self._due[0][0] <= confirmed:
            self.latencies_s.append(now - self._due.popleft()[1])
        return end


def _percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 2)


async def fill(folders: list[str], args: argparse.Namespace) -> tuple[int, int]:
    count = args.old_mib * MIB // args.readers // args.size
    how = argparse.Namespace(window=5_000, window_bytes=4 * MIB, timeout_s=300, v2=False)
    for folder in folders:
        with own_bookie(folder, **SETTINGS) as bookie:
            for number in range(args.readers):
                work = Workload(OLD_LEDGER + number, args.size, count, FLAGS)
                await run_size(bookie.address, how, args.size, work)
        forget_files(folder)
    return count, work.frame_bytes - ADD_PREFIX_BYTES


async def one_phase(
    args: argparse.Namespace,
    phase: Phase,
    bookies: list[OwnBookie],
    folders: list[str],
    told: dict[str, Any],
) -> dict[str, Any]:
    pace, beside = phase
    rate = args.rate if pace == "paced" else None
    count = int(args.seconds * (rate or args.entries_per_s_max))
    work = Workload(next(_ledgers), args.size, count, FLAGS)
    for folder in folders:
        forget_files(folder)
    readers = Readers(told) if beside else None
    before = _cpu_s(bookies)
    writer = Writer(work, len(bookies) // 2 + 1, rate=rate, window=args.window)
    try:
        result = await writer.run([bookie.address[1] for bookie in bookies], args.seconds)
    finally:
        rates = readers.end() if readers is not None else []
    result["bookies_cpu_s"] = round(_cpu_s(bookies) - before, 2)
    result["catch_up_mb_per_s"] = rates
    return {"bookies": len(bookies), "pace": pace, "beside_readers": beside, **result}


def _cpu_s(bookies: list[OwnBookie]) -> float:
    return sum(sum(psutil.Process(bookie.pid).cpu_times()[:2]) for bookie in bookies)


async def measure(args: argparse.Namespace, bookie_count: int) -> list[dict[str, Any]]:
    phases: list[Phase] = [(pace, beside) for pace in ("paced", "full") for beside in (False, True)]
    results = []
    with contextlib.ExitStack() as stack:
        folders = [
            stack.enter_context(tempfile.TemporaryDirectory(prefix="b5-", dir=args.folder))
            for _ in range(bookie_count)
        ]
        count, entry_bytes = await fill(folders, args)
        bookies = [stack.enter_context(own_bookie(folder, **SETTINGS)) for folder in folders]
        told = {
            "ports": [bookie.address[1] for bookie in bookies],
            "readers": args.readers,
            "first_ledger": OLD_LEDGER,
            "count": count,
            "entry_bytes": entry_bytes,
        }
        for number in range(args.rounds):
            for phase in phases[:: 1 if number % 2 == 0 else -1]:
                results.append(await one_phase(args, phase, bookies, folders, told))
                show(results[-1])
    return results


def show(result: dict[str, Any]) -> None:
    caught_up = sum(result["catch_up_mb_per_s"])
    print(
        f"{result['bookies']} bookies  {result['pace']:<5}  "
        f"{'beside readers' if result['beside_readers'] else 'alone':<14}  "
        f"{result['entries_per_s']:>8,} entries/s  p50 {result['p50_ms']:>7} ms  "
        f"p99 {result['p99_ms']:>7} ms  tail p99 {result['tail_p99_ms']:>7} ms"
        + (f"  catch-up {caught_up:,.0f} MB/s" if caught_up else ""),
        flush=True,
    )


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for count, pace in sorted({(one["bookies"], one["pace"]) for one in results}):
        mine = [one for one in results if (one["bookies"], one["pace"]) == (count, pace)]
        row: dict[str, Any] = {"bookies": count, "pace": pace}
        for name in ("entries_per_s", "p50_ms", "p99_ms", "tail_p99_ms"):
            alone, beside = (
                statistics.median(one[name] for one in mine if one["beside_readers"] is readers)
                for readers in (False, True)
            )
            row[name] = {"alone": alone, "beside": beside, "ratio": round(beside / alone, 2)}
        row["catch_up_mb_per_s"] = statistics.median(
            sum(one["catch_up_mb_per_s"]) for one in mine if one["beside_readers"]
        )
        found.append(row)
        print(
            f"{count} bookies  {pace:<5}  beside readers {row['entries_per_s']['ratio']:.0%} of "
            f"the adds, p50 × {row['p50_ms']['ratio']}, p99 × {row['p99_ms']['ratio']}, tail p99 × "
            f"{row['tail_p99_ms']['ratio']}; catch-up {row['catch_up_mb_per_s']:,.0f} MB/s"
        )
    return found


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--size", type=int, default=1024, help="payload bytes of an entry")
    parser.add_argument("--rate", type=int, default=20_000, help="entries/s of the paced phases")
    parser.add_argument("--entries-per-s-max", type=int, default=200_000, help="made beforehand")
    parser.add_argument("--window", type=int, default=5_000, help="entries in flight, full phases")
    parser.add_argument("--readers", type=int, default=4)
    parser.add_argument("--old-mib", type=int, default=512, help="for the readers, on each bookie")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--bookies", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--folder", help="the bookies' folder; default: a temporary folder")
    args = parser.parse_args()
    load_before = os.getloadavg()[0]
    results = []
    for count in args.bookies:
        results += uvloop.run(measure(args, count))
    found = {"load_before": round(load_before, 1), "bookie": SETTINGS}
    end(args, "b5_reads", **found, summary=summary(results), results=results)


if __name__ == "__main__":
    main()
