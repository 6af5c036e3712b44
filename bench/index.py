"""The index alone: its size, the cost of a lookup, and the effect of deletions.

    python -m bench.index [--ledgers 100000] [--lookups 20000] [--size-mib 256] [--folder DIR]

`size`: entries of 1,000 bytes for many ledgers in turn; compares the entry logs with the index. The
result depends on how many consecutive entries of a ledger are in a flush: each such run is a
record. `lookups`: `hot` reads cached records, `cold` after the page cache was dropped. `deletes`:
deletes half of the ledgers, then looks up existing and deleted ledgers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence

from bench.program import arguments, end
from bench.storage import make_run
from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.entrylog.format import Location
from octavo.bookie.index.index import IndexedExtent, RocksIndex
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code

ENTRY_BYTES = 1000
RUNS_EACH = 10
RUN_ENTRIES = 60
LOG_BYTES = 512 * 2**20
BATCH = 1000
_cases: list[dict[str, object]] = []


def folder_bytes(folder: str, suffix: str = "") -> int:
    return sum(
        os.path.getsize(f"{root}/{name}")
        for root, _, names in os.walk(folder)
        for name in names
        if name.endswith(suffix)
    )


async def size(args: argparse.Namespace, folder: str, ledgers: int) -> None:
    config = BookieConfig(
        journal_directories=(f"{folder}/journal",),
        ledger_directories=(f"{folder}/ledgers",),
        scrub_interval_ms=0,
    )
    storage = await Storage.open(config, disk=RealDisk())
    run_entries = max(1, min(64, 6400 // ledgers))
    count = args.size_mib * 2**20 // (run_entries * ENTRY_BYTES)
    window = asyncio.Semaphore(64)
    for number in range(count):
        await window.acquire()
        run = make_run(
            number % ledgers, number // ledgers * run_entries, run_entries, ENTRY_BYTES - 4
        )

        def done(results: Sequence[tuple[AddBatch, Code]]) -> None:
            assert all(code is Code.OK for _, code in results)
            window.release()

        storage.add([run], done)
    for _ in range(64):
        await window.acquire()
    await storage.checkpoint()
    current, data = storage.logs.position  # the rest of the current log is only reserved
    data += sum(storage.logs.size_of(found) for found in storage.logs.log_ids if found != current)
    await storage.close()
    index = folder_bytes(f"{config.ledger_directories[0]}/index", ".sst")
    opened = RocksIndex(f"{config.ledger_directories[0]}/index")
    runs = sum(1 for _ in opened.all_runs())
    opened.close()
    shutil.rmtree(folder)
    report(
        "size",
        ledgers=ledgers,
        entries=count * run_entries,
        data_mib=round(data / 2**20, 1),
        index_kib=round(index / 1024, 1),
        index_percent=round(100 * index / data, 3),
        index_runs=runs,
        entries_per_run=round(count * run_entries / runs, 1),
    )


def report(case: str, **facts: object) -> None:
    _cases.append({"case": case, **facts})
    print(json.dumps(_cases[-1]), flush=True)


def fill(index: RocksIndex, ledgers: int) -> None:
    """Add RUNS_EACH runs for each ledger, in the order of flushes: one of each ledger at a time."""
    offset, log_id = 0, 1
    for number in range(RUNS_EACH):
        for start in range(0, ledgers, BATCH):
            runs: list[IndexedExtent] = []
            for ledger_id in range(start, min(start + BATCH, ledgers)):
                first = number * RUN_ENTRIES
                at = Location(log_id, offset, 65_000)
                runs.append(IndexedExtent(ledger_id, first, first + RUN_ENTRIES - 1, at))
                offset += 65_000
                if offset > LOG_BYTES:
                    offset, log_id = 0, log_id + 1
            index.put(runs, (log_id, offset))
        index.flush()


def timed(call: Callable[[int, int], object], asked: Iterable[tuple[int, int]]) -> dict[str, float]:
    each: list[float] = []
    for ledger_id, entry_id in asked:
        begin = time.perf_counter()
        call(ledger_id, entry_id)
        each.append(time.perf_counter() - begin)
    each.sort()
    return {
        "per_s": round(len(each) / sum(each)),
        "us_p50": round(statistics.median(each) * 1e6, 1),
        "us_p99": round(each[int(len(each) * 0.99)] * 1e6, 1),
        "us_max": round(each[-1] * 1e6),
    }


def asked(rng: random.Random, ledgers: list[int], count: int) -> list[tuple[int, int]]:
    return [(rng.choice(ledgers), rng.randrange(RUNS_EACH * RUN_ENTRIES)) for _ in range(count)]


def forget_files(folder: str) -> None:
    for name in os.listdir(folder):
        fd = os.open(f"{folder}/{name}", os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def lookups(args: argparse.Namespace, folder: str, ledgers: int) -> None:
    rng = random.Random(1)
    index = RocksIndex(folder)
    begin = time.perf_counter()
    fill(index, ledgers)
    put_s = time.perf_counter() - begin
    index.close()
    facts = {
        "ledgers": ledgers,
        "runs": ledgers * RUNS_EACH,
        "index_mib": round(folder_bytes(folder, ".sst") / 2**20, 1),
        "puts_per_s": round(ledgers * RUNS_EACH / put_s),
    }
    forget_files(folder)
    begin = time.perf_counter()
    index = RocksIndex(folder)
    facts["open_ms"] = round((time.perf_counter() - begin) * 1000, 1)
    every = list(range(ledgers))
    cold = timed(index.find, asked(rng, every, min(args.lookups, 2000)))
    few = every[: max(1, ledgers // 100)]
    timed(index.find, asked(rng, few, 2000))
    hot = timed(index.find, asked(rng, few, args.lookups))
    spread = timed(index.find, asked(rng, every, args.lookups))
    absent = timed(index.find, [(one + ledgers, entry) for one, entry in asked(rng, every, 2000)])
    index.close()
    report("lookups", **facts, cold=cold, hot=hot, spread=spread, absent=absent)


def deletes(args: argparse.Namespace, folder: str) -> None:
    """Delete half of all ledgers in checkpoints, as garbage collection does."""
    rng = random.Random(2)
    ledgers = 2 * args.ledgers
    index = RocksIndex(folder)
    fill(index, ledgers)
    kept = list(range(0, ledgers, 2))
    gone = list(range(1, ledgers, 2))
    before = timed(index.find, asked(rng, kept, args.lookups))
    slowest = 0.0
    begin = time.perf_counter()
    for start in range(0, len(gone), BATCH):
        step = time.perf_counter()
        for ledger_id in gone[start : start + BATCH]:
            index.delete_ledger(ledger_id)
        index.flush()
        slowest = max(slowest, time.perf_counter() - step)
    took = time.perf_counter() - begin
    after = timed(index.find, asked(rng, kept, args.lookups))
    absent = timed(index.find, asked(rng, gone, args.lookups))
    begin = time.perf_counter()
    runs = sum(1 for _ in index.all_runs())
    walk_s = time.perf_counter() - begin
    assert runs == len(kept) * RUNS_EACH
    index.close()
    begin = time.perf_counter()
    index = RocksIndex(folder)
    open_ms = round((time.perf_counter() - begin) * 1000, 1)
    reopened = timed(index.find, asked(rng, kept, args.lookups))
    index.close()
    report(
        "deletes",
        ledgers=ledgers,
        deleted=len(gone),
        deletes_per_s=round(len(gone) / took),
        slowest_1000_s=round(slowest, 3),
        before=before,
        after=after,
        absent=absent,
        walk_s=round(walk_s, 2),
        open_ms=open_ms,
        reopened=reopened,
    )


async def main(args: argparse.Namespace) -> None:
    base = tempfile.mkdtemp(prefix="octavo-bench-", dir=args.folder)
    try:
        for ledgers in (1, 100, 1000, 10_000):
            await size(args, f"{base}/size-{ledgers}", ledgers)
        for ledgers in (1000, args.ledgers):
            lookups(args, f"{base}/lookups-{ledgers}", ledgers)
        deletes(args, f"{base}/deletes")
    finally:
        shutil.rmtree(base)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--ledgers", type=int, default=100_000)
    parser.add_argument("--lookups", type=int, default=20_000)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--folder", default=None)
    parsed = parser.parse_args()
    asyncio.run(main(parsed))
    end(parsed, "index", cases=_cases)
