"""B1: pipelined adds of a ledger to a bookie, every ack after fdatasync.

    python -m bench.b1_one_bookie                          # 100 B, 1 KB, 64 KB against our bookie
    python -m bench.b1_one_bookie --bookie host:port --v2  # the same client against any bookie

The bookie runs in a child process. The client packs small entries before the clock starts, and a
window bounds entries and bytes in flight.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import structlog
import uvloop

from bench.program import arguments, end
from octavo.clock import wall_clock_ms
from octavo.protocol import v3
from octavo.protocol.answers import Added, AddRefused, parse_answers
from octavo.protocol.entry import HEADER_BYTES, DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import ADD_PREFIX_BYTES, LENGTH, Flag, FrameReceiver, add_prefix
from octavo.protocol.limits import FRAME_BYTES_MAX
from octavo.protocol.v3_schema import RequestMessage, ResponseMessage

KEY = master_key(b"")
DIGEST = digest_for(DigestType.CRC32C, b"")
PACKED_AHEAD_BYTES_MAX = 512 * 1024 * 1024
BURST_BYTES = 256 * 1024


class Workload:
    def __init__(self, ledger_id: int, size: int, count: int, flags: int) -> None:
        self.ledger_id = ledger_id
        self.size = size
        self.count = count
        self.frame_bytes = ADD_PREFIX_BYTES + HEADER_BYTES + DIGEST.size + size
        self._flags = flags
        self._payload = random.Random(size).randbytes(size)
        self._ahead: memoryview | None = None
        if self.frame_bytes * count <= PACKED_AHEAD_BYTES_MAX:
            self._ahead = memoryview(b"".join(self._frames(0, count)))

    def frames(self, first: int, count: int) -> memoryview | bytes:
        if self._ahead is not None:
            return self._ahead[first * self.frame_bytes : (first + count) * self.frame_bytes]
        return b"".join(self._frames(first, count))

    def _frames(self, first: int, count: int) -> Iterator[bytes]:
        prefix = add_prefix(KEY, self.frame_bytes - ADD_PREFIX_BYTES, self._flags)
        for entry_id in range(first, first + count):
            yield prefix
            yield pack_entry(
                DIGEST,
                self.ledger_id,
                entry_id,
                entry_id - 1,
                (entry_id + 1) * self.size,
                self._payload,
            )


class V3Workload(Workload):
    def __init__(self, ledger_id: int, size: int, count: int) -> None:
        self.ledger_id = ledger_id
        self.size = size
        self.count = count
        self._payload = random.Random(size).randbytes(size)
        frames = [self._frame(entry_id) for entry_id in range(count)]
        self._at = list(itertools.accumulate(map(len, frames), initial=0))
        self.frame_bytes = self._at[-1] // count
        self._all = memoryview(b"".join(frames))

    def frames(self, first: int, count: int) -> memoryview:
        return self._all[self._at[first] : self._at[first + count]]

    def _frame(self, entry_id: int) -> bytes:
        lengths = (entry_id + 1) * self.size
        entry = pack_entry(DIGEST, self.ledger_id, entry_id, entry_id - 1, lengths, self._payload)
        request = RequestMessage()
        header, add = request.header, request.addRequest
        header.version, header.operation, header.txnId = v3.VERSION, v3.Op.ADD, entry_id
        add.ledgerId, add.entryId, add.masterKey, add.body = self.ledger_id, entry_id, KEY, entry
        data: bytes = request.SerializeToString()
        return LENGTH.pack(len(data)) + data


class Client(asyncio.BufferedProtocol):
    """Keeps the window full; records the times of sends and acks."""

    def __init__(self, work: Workload, window: int) -> None:
        self._work = work
        self._window = window
        self._burst = max(1, min(window // 4, BURST_BYTES // work.frame_bytes))
        self._receiver = FrameReceiver(FRAME_BYTES_MAX, bytearray(1 << 20))
        self._sent = 0
        self._acked = 0
        self._bursts: deque[tuple[int, float]] = deque()
        self.latencies: list[tuple[float, int]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.started = time.perf_counter()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=64 << 20)
        self.started = time.perf_counter()
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the bookie closed the connection: {exc}"))

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        data = self._receiver.received(nbytes)
        self._receiver.keep(data, self._take(data))
        if self.done.done():
            return
        now = time.perf_counter()
        while self._bursts and self._bursts[0][0] <= self._acked:
            end_id, sent_at = self._bursts.popleft()
            self.latencies.append((now - sent_at, end_id))
        if self._acked == self._work.count:
            if not self.done.done():
                self.done.set_result(None)
            return
        self._send()

    def _take(self, data: memoryview) -> int:
        answers, end = parse_answers(data, FRAME_BYTES_MAX)
        for answer in answers:
            if isinstance(answer, Added):
                self._acked += answer.last - answer.first + 1
                assert answer.last == self._acked - 1, "acks out of order"
            elif isinstance(answer, AddRefused):
                self.done.set_exception(RuntimeError(f"refused: {answer}"))
        return end

    def _send(self) -> None:
        work = self._work
        while self._sent < work.count and self._sent - self._acked + self._burst <= self._window:
            count = min(self._burst, work.count - self._sent)
            self._transport.write(work.frames(self._sent, count))
            self._sent += count
            self._bursts.append((self._sent, time.perf_counter()))


class V3Client(Client):
    def _take(self, data: memoryview) -> int:
        position, last = 0, b""
        while len(data) - position >= LENGTH.size:
            following = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
            if following > len(data):
                break
            last = data[position + LENGTH.size : following]
            position = following
            self._acked += 1
        if last:  # check a single answer of each chunk, to keep the client cheap
            answer = ResponseMessage.FromString(last)
            if answer.status:
                self.done.set_exception(RuntimeError(f"refused: {answer}"))
            assert answer.addResponse.entryId == self._acked - 1, "acks out of order"
        return position


def percentile(latencies: list[tuple[float, int]], share: float) -> float:
    ordered = sorted(latency for latency, _ in latencies)
    return round(1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 3)


async def run_size(
    address: tuple[str, int],
    args: argparse.Namespace,
    size: int,
    work: Workload | None = None,
    *,
    in_v3: bool = False,
) -> dict[str, Any]:
    flags = 0 if args.v2 else int(Flag.CRC32C | Flag.RANGE_ACK)
    if work is None:
        count = max(50, min(args.entries, args.bytes_max // size))
        ledger_id = random.getrandbits(31)
        work = (
            V3Workload(ledger_id, size, count) if in_v3 else Workload(ledger_id, size, count, flags)
        )
    count = work.count
    client_of = V3Client if in_v3 else Client
    window = max(1, min(args.window, args.window_bytes // work.frame_bytes))
    loop = asyncio.get_running_loop()
    transport, client = await loop.create_connection(lambda: client_of(work, window), *address)
    await asyncio.wait_for(client.done, args.timeout_s)
    elapsed = time.perf_counter() - client.started
    transport.close()
    return {
        "frames": "v3" if in_v3 else "v2" if args.v2 else "v2 with CRC32C and RANGE_ACK",
        "payload_bytes": size,
        "entries": count,
        "window": window,
        "seconds": round(elapsed, 3),
        "entries_per_s": round(count / elapsed),
        "mb_per_s": round(count * size / elapsed / 1e6, 1),
        "p50_ms": percentile(client.latencies, 0.50),
        "p99_ms": percentile(client.latencies, 0.99),
    }


async def measure(address: tuple[str, int], args: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    kinds = (False, True) if args.v3 else (False,)
    for round_number, size, in_v3 in itertools.product(range(args.rounds), args.sizes, kinds):
        result = await run_size(address, args, size, in_v3=in_v3)
        results.append({"round": round_number, **result})
        print(
            f"{size:>7} B  {'v3' if in_v3 else 'v2'}  {result['entries_per_s']:>9,} entries/s  "
            f"{result['mb_per_s']:>7} MB/s  p50 {result['p50_ms']:>8} ms  "
            f"p99 {result['p99_ms']:>8} ms  window {result['window']}",
            flush=True,
        )
    return results


async def serve(folder: str, settings: dict[str, Any]) -> None:
    from octavo.bookie.config import BookieConfig
    from octavo.bookie.disk.files import RealDisk
    from octavo.bookie.node import BookieNode
    from octavo.metadata.opening import open_store

    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    store = open_store(f"file://{folder}/metadata.db")
    await store.start()
    config = BookieConfig(
        port=0,
        bookie_id="b1",
        journal_directories=(f"{folder}/journal",),
        ledger_directories=(f"{folder}/ledgers",),
        admin_port=0,
        **settings,
    )
    node = BookieNode(config, store, disk=RealDisk(), rng=random.Random(1), clock=wall_clock_ms)
    await node.start()
    print(node.port, node.admin.port, flush=True)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()
    await node.stop()
    await store.close()


class OwnBookie(NamedTuple):
    address: tuple[str, int]
    admin_port: int
    pid: int


@contextlib.contextmanager
def own_bookie(folder: str, **settings: Any) -> Iterator[OwnBookie]:
    command = [sys.executable, "-m", "bench.b1_one_bookie", "--serve", folder]
    command += ["--settings", json.dumps(settings)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        ports: list[str] = []
        for line in child.stdout:
            ports = line.split()
            if len(ports) == 2 and all(port.isdigit() for port in ports):
                break
        else:
            raise SystemExit("the bookie did not start, see above")
        yield OwnBookie(("127.0.0.1", int(ports[0])), int(ports[1]), child.pid)
    finally:
        child.terminate()
        child.wait(30)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1024, 65536])
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--bytes-max", type=int, default=1 << 30, help="payload bytes per run")
    parser.add_argument("--window", type=int, default=5_000, help="entries in flight")
    parser.add_argument("--window-bytes", type=int, default=16 << 20, help="bytes in flight")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bookie", help="host:port of a running bookie; default: start one")
    parser.add_argument("--v2", action="store_true", help="BookKeeper's frames only")
    parser.add_argument("--v3", action="store_true", help="v3 frames too, alternately")
    parser.add_argument("--folder", help="the own bookie's folder; default: a temporary folder")
    parser.add_argument("--timeout-s", type=float, default=300)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    parser.add_argument("--settings", type=json.loads, default={}, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        uvloop.run(serve(args.serve, args.settings))
        return
    with contextlib.ExitStack() as stack:
        if args.bookie:
            host, _, port = args.bookie.rpartition(":")
            address = (host, int(port))
        else:
            folder = args.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="b1-"))
            Path(folder).mkdir(parents=True, exist_ok=True)
            bookie = stack.enter_context(own_bookie(folder))
            address = bookie.address
            print(f"bookie process {bookie.pid}, data in {folder}", flush=True)
        results = uvloop.run(measure(address, args))
    end(args, "b1_one_bookie", results=results)


if __name__ == "__main__":
    main()
