"""Restart: the time from a bookie's start to its first answers, with much data on its disks.

    python -m bench.restart                           # 1 GB of unflushed journal; 20 GB of entries
    python -m bench.restart --parts journal           # only the first (about a minute)

    journal   a bookie was killed with `--journal-mb` unflushed: it replays its whole journal
    entries   a bookie with `--entries-gb` in its entry logs was stopped: nothing to replay
    killed    the same, but killed after a last small add: it scans its last entry log

The clock stops when it has answered a read of the last entry and an ordinary add. `--cold` drops
the files from the page cache first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import structlog
import uvloop

from bench.program import arguments, end
from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.node import BookieNode
from octavo.clock import wall_clock_ms
from octavo.metadata.opening import open_store
from octavo.protocol.answers import Added, ReadAnswer, parse_answers
from octavo.protocol.codes import Code
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import add_prefix, read_request
from octavo.protocol.limits import FRAME_BYTES_MAX

PARTS = ["journal", "entries"]
KEY = master_key(b"")
DIGEST = digest_for(DigestType.CRC32C, b"")
RUN_BYTES = 256 * 1024
IN_FLIGHT_BYTES = 16 * 1024 * 1024
LEDGERS = 50
GIB = 1024**3
_HOUR_MS = 3_600_000


def folders(folder: str) -> dict[str, Any]:
    return {
        "bookie_id": "b1",
        "journal_directories": (f"{folder}/journal",),
        "ledger_directories": (f"{folder}/ledgers",),
    }


class Filler:
    def __init__(self, node: BookieNode, entry_bytes: int, bytes_wanted: int) -> None:
        self._storage = node.storage
        self._payload = random.Random(1).randbytes(entry_bytes)
        self._count = max(1, RUN_BYTES // entry_bytes)
        self._wanted = bytes_wanted
        self._next = [0] * LEDGERS
        self._turn = 0
        self._sent = self._in_flight = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Return when all is stored. Notices by polling when the storage takes adds again."""
        while not self.done.done():
            self.feed()
            await asyncio.wait([self.done], timeout=0.02)

    def feed(self) -> None:
        while (
            self._sent < self._wanted
            and self._in_flight < IN_FLIGHT_BYTES
            and not self._storage.pressure.level
        ):
            ledger = self._turn = self._turn % LEDGERS + 1
            first = self._next[ledger - 1]
            self._next[ledger - 1] += self._count
            run = make_run(ledger, first, self._count, self._payload)
            self._sent += len(run.frames)
            self._in_flight += len(run.frames)
            self._storage.add([run], self._acked)

    def _acked(self, results: Sequence[tuple[AddBatch, Code]]) -> None:
        for run, code in results:
            assert code is Code.OK, code
            self._in_flight -= len(run.frames)
        if self._sent < self._wanted:
            self.feed()
        elif self._in_flight == 0 and not self.done.done():
            self.done.set_result(None)

    @property
    def last_entry(self) -> tuple[int, int]:
        return self._turn, self._next[self._turn - 1] - 1


def make_run(ledger_id: int, first: int, count: int, payload: bytes) -> AddBatch:
    pieces = []
    for entry_id in range(first, first + count):
        entry = pack_entry(DIGEST, ledger_id, entry_id, entry_id - 1, 0, payload)
        pieces.append(add_prefix(KEY, len(entry)) + entry)
    frames = b"".join(pieces)
    offsets = range(0, len(frames), len(pieces[0]))
    return AddBatch(ledger_id, first, count, KEY, False, frames, offsets)


async def fill(args: argparse.Namespace) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    store = open_store(f"file://{args.folder}/metadata.db")
    await store.start()
    unflushed: dict[str, Any] = {
        "write_cache_bytes_max": 4 * args.fill_bytes,
        "flush_interval_ms": _HOUR_MS,
    }
    config = BookieConfig(
        port=0,
        scrub_interval_ms=0,
        gc_interval_ms=_HOUR_MS,
        journal_sync=args.fill == "journal",
        **folders(args.folder),
        **(unflushed if args.fill == "journal" else {}),
    )
    node = BookieNode(config, store, disk=RealDisk(), rng=random.Random(1), clock=wall_clock_ms)
    await node.start()
    filler = Filler(node, args.entry_bytes, args.fill_bytes)
    await filler.run()
    print(json.dumps(filler.last_entry), flush=True)
    if args.fill == "journal":
        os.kill(os.getpid(), signal.SIGKILL)
    await node.stop()
    await store.close()


def filled(folder: str, what: str, wanted_bytes: int, entry_bytes: int) -> tuple[int, int]:
    command = [sys.executable, "-m", "bench.restart", "--fill", what, "--folder", folder]
    command += ["--fill-bytes", str(wanted_bytes), "--entry-bytes", str(entry_bytes)]
    begun = time.perf_counter()
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if not child.stdout.strip():
        raise SystemExit("the disks could not be filled, see above")
    ledger, entry = json.loads(child.stdout.splitlines()[-1])
    print(f"filled {what} in {time.perf_counter() - begun:.0f} s", flush=True)
    return ledger, entry


class Probe:
    def __init__(self, port: int) -> None:
        self._port = port
        self._added = 0

    def wait(self, last: tuple[int, int], child: subprocess.Popen[bytes]) -> None:
        with self._connect(child) as connection:
            found = self._ask(connection, read_request(*last))
            assert isinstance(found, ReadAnswer), found
            assert found.code == 0, found
            assert len(found.entry) > 0, found
            self._added += 1
            ledger = 1_000_000 + child.pid
            entry = pack_entry(DIGEST, ledger, 0, -1, 1, b"x")
            added = self._ask(connection, add_prefix(KEY, len(entry)) + entry)
            assert isinstance(added, Added), added

    def _connect(self, child: subprocess.Popen[bytes]) -> socket.socket:
        while True:
            if child.poll() is not None:
                raise SystemExit("the bookie did not start, see its log above")
            try:
                return socket.create_connection(("127.0.0.1", self._port), 60)
            except ConnectionRefusedError:
                time.sleep(0.002)

    def _ask(self, connection: socket.socket, frame: bytes) -> Any:
        connection.sendall(frame)
        data = b""
        while True:
            more = connection.recv(1 << 20)
            assert more, "the bookie closed the connection"
            data += more
            answers, _ = parse_answers(memoryview(data), FRAME_BYTES_MAX)
            if answers:
                return answers[0]


@contextlib.contextmanager
def bookie(folder: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
    code = "import sys; from octavo.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", code, "bookie", "--port", str(port), "--bookie-id", "b1"]
    command += ["--metadata", f"file://{folder}/metadata.db"]
    command += ["--journal", f"{folder}/journal", "--ledgers", f"{folder}/ledgers"]
    with open(f"{folder}/bookie.log", "ab") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield child
    except SystemExit:
        print(Path(f"{folder}/bookie.log").read_text()[-2000:], file=sys.stderr)
        raise
    finally:
        if child.poll() is None:
            child.kill()
        child.wait(30)


def start_once(folder: str, last: tuple[int, int], *, stop: bool) -> dict[str, float]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begun = time.perf_counter()
    with bookie(folder, port) as child:
        Probe(port).wait(last, child)
        took = time.perf_counter() - begun
        process = psutil.Process(child.pid)
        usage = process.cpu_times()
        found = {
            "seconds": round(took, 3),
            "cpu_s": round(usage.user + usage.system, 3),
            "resident_mb": round(process.memory_info().rss / 2**20),
        }
        if stop:
            child.terminate()
            child.wait(60)
    return found


def forget(folder: str) -> None:
    for path in Path(folder).rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


def bytes_in(folder: str) -> int:
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def measure(
    name: str,
    args: argparse.Namespace,
    prepared: Callable[[], str],
    last: tuple[int, int],
    **how: Any,
) -> dict[str, Any]:
    starts = []
    for _ in range(args.rounds):
        folder = prepared()
        os.sync()  # write out the copy before the clock starts
        if args.cold:
            forget(folder)
        starts.append(start_once(folder, last, **how))
        one = starts[-1]
        print(
            f"{name:<8} {one['seconds']:>7.3f} s to serving  {one['cpu_s']:>7.3f} s of CPU  "
            f"{one['resident_mb']:>5} MB resident",
            flush=True,
        )
    return {
        "part": name,
        "median_s": statistics.median(one["seconds"] for one in starts),
        "starts": starts,
    }


def measure_all(args: argparse.Namespace, folder: str) -> list[dict[str, Any]]:
    results = []
    if "journal" in args.parts:
        live, kept = f"{folder}/live", f"{folder}/kept"  # all starts use the path in the cookie
        Path(live).mkdir()
        last = filled(live, "journal", args.journal_mb * 10**6, args.entry_bytes)
        os.rename(live, kept)

        def fresh() -> str:
            shutil.rmtree(live, ignore_errors=True)
            shutil.copytree(kept, live)
            return live

        found = measure("journal", args, fresh, last, stop=False)
        facts = {"journal_bytes": bytes_in(f"{kept}/journal"), "entry_bytes": args.entry_bytes}
        results.append({**found, **facts})
        shutil.rmtree(live)
        shutil.rmtree(kept)
    if "entries" in args.parts:
        held = f"{folder}/entries"
        Path(held).mkdir()
        last = filled(held, "entries", args.entries_gb * 10**9, args.entry_bytes)
        facts = {
            "log_bytes": sum(p.stat().st_size for p in Path(f"{held}/ledgers").glob("*.log")),
            "index_bytes": bytes_in(f"{held}/ledgers/index"),
            "entry_bytes": args.entry_bytes,
        }
        results.append({**measure("entries", args, lambda: held, last, stop=True), **facts})
        results.append({**measure("killed", args, lambda: held, last, stop=False), **facts})
    return results


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--journal-mb", type=int, default=1000)
    parser.add_argument("--entries-gb", type=int, default=20)
    parser.add_argument("--entry-bytes", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true", help="files not in memory at the start")
    parser.add_argument("--folder", help="the bookie's folder; default: a temporary folder")
    parser.add_argument("--fill", help=argparse.SUPPRESS)
    parser.add_argument("--fill-bytes", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.fill:
        sys.setswitchinterval(0.0005)
        uvloop.run(fill(args))
        return
    with tempfile.TemporaryDirectory(prefix="restart-", dir=args.folder) as folder:
        results = measure_all(args, folder)
    end(args, "restart", results=results)


if __name__ == "__main__":
    main()
