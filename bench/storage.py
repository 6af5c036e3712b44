"""The speed of the storage engine alone: add batches, every ack after `fdatasync`.

    python -m bench.storage [--entry-bytes 100] [--run 256] [--seconds 5] [--window-mib 8]

Measures journal, write cache, flush and index, without sockets and digests.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence

import uvloop

from bench.program import arguments, end
from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code
from octavo.protocol.entry import HEADER
from octavo.protocol.frames import add_prefix

KEY = b"k" * 20


def make_run(ledger_id: int, first: int, count: int, entry_bytes: int) -> AddBatch:
    payload = b"crc!" + b"x" * entry_bytes
    prefix = add_prefix(KEY, HEADER.size + len(payload))
    frame_bytes = len(prefix) + HEADER.size + len(payload)
    frames = b"".join(
        prefix + HEADER.pack(ledger_id, entry_id, entry_id - 1, 0) + payload
        for entry_id in range(first, first + count)
    )
    offsets = range(0, frame_bytes * count, frame_bytes)
    return AddBatch(ledger_id, first, count, KEY, False, frames, offsets)


class Feeder:
    def __init__(self, storage: Storage, args: argparse.Namespace) -> None:
        self.storage = storage
        self.args = args
        self.entry_id = 0
        self.acked = 0
        self.in_flight = 0
        self.finished = asyncio.get_running_loop().create_future()
        self.end = 0.0
        self.template = make_run(1, 0, args.run, args.entry_bytes)

    def feed(self) -> None:
        run_bytes = len(self.template.frames)
        while self.in_flight < self.args.window_mib * 2**20 and not self.storage.pressure.level:
            template = self.template
            # All batches have the template's frames: the storage does not read their ids, and
            # making frames must not be measured.
            frames = bytes(bytearray(template.frames))  # a copy, as from a socket
            run = AddBatch(1, self.entry_id, template.count, KEY, False, frames, template.offsets)
            self.entry_id += template.count
            self.in_flight += run_bytes
            self.storage.add([run], self.done)

    def done(self, results: Sequence[tuple[AddBatch, Code]]) -> None:
        for run, code in results:
            assert code is Code.OK, code
            self.acked += run.count
            self.in_flight -= len(run.frames)
        if time.perf_counter() < self.end:
            self.feed()
        elif self.in_flight == 0 and not self.finished.done():
            self.finished.set_result(None)


async def watch_lag(lags: list[float]) -> None:
    """Measure the loop's lag: a flush must not delay the loop."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + 0.001
        await asyncio.sleep(0.001)
        lags.append((loop.time() - due) * 1000)


async def main(args: argparse.Namespace) -> None:
    folder = tempfile.mkdtemp(prefix="octavo-bench-", dir=args.folder)
    config = BookieConfig(
        journal_directories=(f"{folder}/journal",), ledger_directories=(f"{folder}/ledgers",)
    )
    storage = await Storage.open(config, disk=RealDisk())
    feeder = Feeder(storage, args)
    storage.pressure.on_change(lambda paused: None if paused else feeder.feed())
    lags: list[float] = []
    watcher = asyncio.create_task(watch_lag(lags))
    begin = time.perf_counter()
    feeder.end = begin + args.seconds
    feeder.feed()
    await feeder.finished
    took = time.perf_counter() - begin
    watcher.cancel()
    lags.sort()
    usage = resource.getrusage(resource.RUSAGE_SELF)
    end(
        args, "storage",
        entries_per_s=round(feeder.acked / took),
        payload_mb_per_s=round(feeder.acked * args.entry_bytes / took / 1e6, 1),
        cpu_per_wall=round((usage.ru_utime + usage.ru_stime) / took, 2),
        max_resident_mb=round(usage.ru_maxrss / 1024),
        loop_lag_ms_p99=round(lags[int(len(lags) * 0.99)], 2),
        loop_lag_ms_max=round(lags[-1], 2),
        journal_sync=config.journal_sync,
    )  # fmt: skip
    await storage.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    parser = arguments(__doc__)
    parser.add_argument("--entry-bytes", type=int, default=100)
    parser.add_argument("--run", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--window-mib", type=int, default=8)
    parser.add_argument("--folder", default=None)
    parsed = parser.parse_args()
    sys.setswitchinterval(0.0005)
    uvloop.run(main(parsed))
