"""B3: publish over HTTP to a standalone cluster: 3 copies, fsync before every ack.

    python -m bench.b3_publish                       # record batches and NDJSON, three rounds each
    python -m bench.b3_publish --modes batch --passed-on     # also through the other broker

Client processes keep `--connections` connections to the partitions' owners busy, each with one
request in flight, which is made once and sent again and again.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import psutil
import uvloop

from bench.program import arguments, end
from bench.standalone import as_typed
from octavo.keys import change_text
from octavo.protocol.records import Record, build_batch
from octavo.security.keys.key_file import NamespaceKey, with_key

MODES = ["batch", "ndjson"]
TOPIC = "/v1/topics/public/b3"
ENCRYPTED = "/v1/topics/encrypted/b3"
WARM_UP_S = 1.0


def make_body(mode: str, message_bytes: int, request_bytes: int) -> tuple[bytes, int]:
    value = (b"0123456789abcdef" * (message_bytes // 16 + 1))[:message_bytes]
    if mode == "batch":
        count = max(1, (request_bytes - 61) // (message_bytes + 7))
        return build_batch([Record(None, value, timestamp_ms=1)] * count), count
    line = b'{"value":"' + value + b'"}\n'
    count = max(1, request_bytes // len(line))
    return line * count, count


class Sender(asyncio.Protocol):
    def __init__(self, request: bytes, seconds: list[float]) -> None:
        self.request = request
        self.seconds = seconds
        self.answers = 0
        self.refusals: list[bytes] = []
        self.running = True
        self.received = b""
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self._send()

    def _send(self) -> None:
        self.started = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, rest = self.received.partition(b"\r\n\r\n")
        if not found:
            return
        low = head.lower()
        at = low.find(b"content-length:")
        length = int(low[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(rest) < length:
            return
        self.received = b""
        self.seconds.append(time.perf_counter() - self.started)
        if head.startswith(b"HTTP/1.1 200"):
            self.answers += 1
        else:
            self.refusals.append(head[:40] + b" " + rest[:300])
        if self.running:
            self._send()
        else:
            self.transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(error)


async def send(job: dict[str, Any]) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    body, count = make_body(job["mode"], job["message_bytes"], job["request_bytes"])
    kind = "application/x-ndjson" if job["mode"] == "ndjson" else (
        "application/vnd.kafka.recordbatch.v2"
    )  # fmt: skip
    seconds: list[float] = []
    senders = []
    for number in range(job["connections"]):
        url = urlsplit(job["targets"][number % len(job["targets"])])
        shown = f"Authorization: Bearer {job['token']}\r\n" if job["token"] else ""
        head = (
            f"POST {url.path} HTTP/1.1\r\nHost: {url.netloc}\r\nContent-Type: {kind}\r\n{shown}"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        request = head.encode() + body
        _, sender = await loop.create_connection(
            lambda request=request: Sender(request, seconds),
            url.hostname,
            url.port,
            ssl=ssl.create_default_context(cafile=job["ca"]) if job["ca"] else None,
        )
        senders.append(sender)
    await asyncio.sleep(WARM_UP_S)
    before, began = sum(s.answers for s in senders), time.perf_counter()
    seconds.clear()
    await asyncio.sleep(job["seconds"])
    answers = sum(s.answers for s in senders) - before
    took = time.perf_counter() - began
    measured = sorted(seconds)
    for sender in senders:
        sender.running = False
    await asyncio.wait([sender.closed for sender in senders], timeout=30)
    refusals = [one.decode(errors="replace") for s in senders for one in s.refusals]
    return {
        "messages": answers * count,
        "requests": answers,
        "bytes": answers * len(body),
        "seconds": took,
        "latency_ms": [measured[int(len(measured) * q)] * 1000 for q in (0.5, 0.99)]
        if measured
        else [],
        "refused": refusals[:5],
    }


class Where(NamedTuple):
    url: str
    pid: int | None = None
    ca: str = ""
    token: str = ""


@contextlib.contextmanager
def started(
    brokers: int, settings: list[str], *, encrypted: bool = False, secure: bool = False
) -> Iterator[Where]:
    options = ["--brokers", str(brokers), *(["--secure"] if secure else [])]
    for setting in settings:
        options += ["--set", setting]
    with tempfile.TemporaryDirectory(prefix="octavo-b3-") as folder:
        data = Path(folder) / "data"
        keys = _with_key(folder) if encrypted else ()
        with as_typed(data, *options, *keys) as cluster:
            where = Where(cluster.url, cluster.supervisor.pid)
            if secure:
                token = (data / "admin.token").read_text().strip()
                where = where._replace(ca=str(data / "tls/ca.pem"), token=token)
            yield where


def _with_key(folder: str) -> tuple[str, str]:
    path = Path(folder) / "keys"
    key = NamespaceKey(ENCRYPTED.split("/")[3], "k1", bytes(32))
    change_text(path, lambda text: with_key(text, key))
    return "--set", f"keys.file={path}"


def call(where: Where, method: str, path: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(where.url + path, body, method=method)
    if where.token:
        request.add_header("Authorization", f"Bearer {where.token}")
    if body is not None:
        request.add_header("Content-Type", "application/json")
    context = ssl.create_default_context(cafile=where.ca) if where.ca else None
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return json.loads(answer.read() or b"{}"), dict(answer.headers)


def targets(where: Where, partitions: int, topic: str = TOPIC) -> list[str]:
    call(where, "PUT", topic, json.dumps({"partitions": partitions}).encode())
    found = []
    for number in range(partitions):
        _, headers = call(where, "GET", f"{topic}/partitions/{number}")
        found.append(f"{headers['Octavo-Owner']}{topic}/partitions/{number}/messages")
    return found


def through_others(where: Where, urls: list[str]) -> list[str]:
    """Turn each publish URL at the owner into one at another broker, which passes batches on."""
    brokers = [one["url"] for one in call(where, "GET", "/v1/brokers")[0]["brokers"]]
    found = []
    for url in urls:
        path = urlsplit(url).path
        other = next(one for one in brokers if not url.startswith(one + "/"))
        found.append(other + path)
    return found


def one_round(job: dict[str, Any], clients: int, pid: int | None) -> dict[str, Any]:
    watched = _family(pid) if pid else []
    before = {one.pid: one.cpu_times() for one in watched}
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.b3_publish", "--client", json.dumps(job)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(clients)
    ]
    found = [json.loads(process.communicate()[0].splitlines()[-1]) for process in processes]
    for one in found:
        if one["refused"]:
            raise SystemExit(f"refused: {one['refused'][0]}")
    seconds = max(one["seconds"] for one in found)
    whole = WARM_UP_S + seconds
    cpu = {
        f"{_name(one)}": round((sum(one.cpu_times()[:2]) - sum(before[one.pid][:2])) / whole, 2)
        for one in watched
        if one.is_running()
    }
    return {
        "messages_per_s": round(sum(one["messages"] for one in found) / seconds),
        "requests_per_s": round(sum(one["requests"] for one in found) / seconds, 1),
        "mb_per_s": round(sum(one["bytes"] for one in found) / seconds / 1e6, 1),
        "latency_ms_p50": round(statistics.median(one["latency_ms"][0] for one in found), 2),
        "latency_ms_p99": round(max(one["latency_ms"][1] for one in found), 2),
        "cores": cpu,
    }


def _family(pid: int) -> list[psutil.Process]:
    try:
        parent = psutil.Process(pid)
        return [one for one in parent.children(recursive=True) if one.is_running()]
    except psutil.Error:
        return []


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        for part in process.cmdline():
            for word in ("bookie", "broker"):
                if word in part:
                    return f"{word}-{process.pid}"
    return str(process.pid)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--url", help="a broker of a running cluster; default: start one")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES)
    parser.add_argument("--message-bytes", type=int, default=100)
    parser.add_argument("--request-bytes", type=int, default=64 * 1024)
    parser.add_argument("--connections", type=int, default=8, help="per client process")
    parser.add_argument("--clients", type=int, default=1, help="client processes")
    parser.add_argument("--partitions", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--brokers", type=int, default=2, help="of the cluster that is started")
    parser.add_argument("--encrypted", action="store_true", help="each round also encrypted")
    parser.add_argument(
        "--secure", action="store_true", help="each round also at a second cluster, with --secure"
    )
    parser.add_argument(
        "--passed-on",
        action="store_true",
        help="each round also through a broker that is not the owner",
    )
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--client", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.client:
        print(json.dumps(uvloop.run(send(json.loads(options.client)))))
        return
    settings = {
        name: value for name, value in vars(options).items() if name not in ("client", "url")
    }
    results: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        plain = Where(options.url)
        if not options.url:
            own = started(options.brokers, options.set, encrypted=options.encrypted)
            plain = stack.enter_context(own)
        to = {"": (plain, targets(plain, options.partitions))}
        if options.passed_on:
            to[" passed on"] = plain, through_others(plain, to[""][1])
        if options.encrypted:
            body = json.dumps({"encrypted": True}).encode()
            call(plain, "PUT", f"/v1/namespaces/{ENCRYPTED.split('/')[3]}", body)
            to[" encrypted"] = plain, targets(plain, options.partitions, ENCRYPTED)
        if options.secure:
            other = stack.enter_context(started(options.brokers, options.set, secure=True))
            to[" secure"] = other, targets(other, options.partitions)
        for mode in options.modes:
            rounds: dict[str, list[dict[str, Any]]] = {how: [] for how in to}
            for how in [*to] * options.rounds:
                where, urls = to[how]
                job = {**settings, **where._asdict(), "mode": mode, "targets": urls}
                found = one_round(job, options.clients, where.pid)
                rounds[how].append(found)
                print(
                    f"{mode + how:7} {options.message_bytes} B: "
                    f"{found['messages_per_s']:>9,} messages/s "
                    f"{found['mb_per_s']:6.1f} MB/s  p50 {found['latency_ms_p50']} ms  "
                    f"p99 {found['latency_ms_p99']} ms  cores {found['cores']}",
                    flush=True,
                )
            for how, those in rounds.items():
                median = statistics.median(one["messages_per_s"] for one in those)
                results[mode + how] = {"messages_per_s_median": median, "rounds": those}
    end(options, "b3_publish", **results)


if __name__ == "__main__":
    main()
