"""Hosts of a cluster on one machine: network namespaces, and links that lose or delay packets.
`enter_sandbox` runs the program again in its own namespaces: the outside is neither visible nor
changed, and the kernel kills every remaining process at the end. A link is directed, (from, to);
packets are dropped or held (delays.py) where they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import heapq
import os
import random
import selectors
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

QUEUE_PACKETS_MAX = 200_000
_RECEIVE_BUFFER_BYTES = 16 << 20
_MESSAGES_BYTES = 1 << 20

_NETLINK_NETFILTER = 12
_REQUEST, _REQUEST_ACK = 1, 1 | 4
_ERROR = 2
_PACKET, _VERDICT, _CONFIG = 0x300, 0x301, 0x302
_CONFIG_COMMAND, _CONFIG_PARAMETERS, _CONFIG_LENGTH = 1, 2, 3
_PACKET_HEADER, _VERDICT_HEADER = 1, 2
_BIND, _COPY_META, _ACCEPT = 1, 1, 1
_HEAD = struct.Struct("=IHHIIBB")  # The queue's number follows, in network order.
_HEAD_BYTES = 20
_SO_RCVBUFFORCE = 33


class Lateness(NamedTuple):
    """How late the packets of a link come: `ms`, and up to `jitter_ms` more or less."""

    ms: float
    jitter_ms: float = 0.0


class NoQueues(Exception):
    pass


class Delays:
    """A queue's number is its sender's; a socket is a receiver's."""

    def __init__(self, sockets: Mapping[str, socket.socket], senders: Sequence[str]) -> None:
        """`sockets`: for each host a `queue_socket` that was made there. Raises `NoQueues`."""
        self._senders = senders
        self._late: Mapping[tuple[str, str], Lateness] = {}
        self._rng = random.Random()
        self._last: dict[tuple[str, int], float] = {}
        self._held: list[tuple[float, int, socket.socket, int, int]] = []
        """Due time, a number, the verdict's socket, the queue, the packet."""
        self._count = 0
        self._selector = selectors.DefaultSelector()
        for name, one in sockets.items():
            for queue in range(len(senders)):
                _bind(one, queue)
            one.setblocking(False)
            self._selector.register(one, selectors.EVENT_READ, name)
        threading.Thread(target=self._run, name="delays", daemon=True).start()

    def set(self, late: Mapping[tuple[str, str], Lateness]) -> None:
        self._late = dict(late)

    def _run(self) -> None:
        while True:
            wait_s = max(0.0, self._held[0][0] - time.monotonic()) if self._held else None
            for key, _ in self._selector.select(wait_s):
                assert isinstance(key.fileobj, socket.socket)
                self._receive(key.data, key.fileobj)
            while self._held and self._held[0][0] <= time.monotonic():
                _, _, to, queue, packet = heapq.heappop(self._held)
                to.send(_message(_VERDICT, queue, _VERDICT_HEADER, _verdict(packet)))

    def _receive(self, receiver: str, one: socket.socket) -> None:
        try:
            data = one.recv(_MESSAGES_BYTES)
        except BlockingIOError:
            return
        now = time.monotonic()
        at = 0
        while at < len(data):
            length, kind, _, _, _, _, _ = _HEAD.unpack_from(data, at)
            if kind == _PACKET:
                (queue,) = struct.unpack_from("!H", data, at + _HEAD.size)
                # The first attribute is the packet's header; its number comes first there.
                (packet,) = struct.unpack_from("!I", data, at + _HEAD_BYTES + 4)
                self._hold(receiver, queue, packet, one, now)
            at += (length + 3) & ~3

    def _hold(self, receiver: str, queue: int, packet: int, to: socket.socket, now: float) -> None:
        late = self._late.get((self._senders[queue], receiver), Lateness(0))
        jitter_ms = self._rng.uniform(-late.jitter_ms, late.jitter_ms)
        due = now + max(0.0, late.ms + jitter_ms) / 1000
        due = self._last[receiver, queue] = max(due, self._last.get((receiver, queue), 0.0))
        self._count += 1
        heapq.heappush(self._held, (due, self._count, to, queue, packet))


def queue_socket() -> socket.socket:
    one = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER)
    one.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _RECEIVE_BUFFER_BYTES)
    one.bind((0, 0))
    return one


def _bind(one: socket.socket, queue: int) -> None:
    for attribute, value in (
        (_CONFIG_COMMAND, struct.pack("!BBH", _BIND, 0, socket.AF_INET)),
        (_CONFIG_PARAMETERS, struct.pack("!IB", 0, _COPY_META)),
        (_CONFIG_LENGTH, struct.pack("!I", QUEUE_PACKETS_MAX)),
    ):
        one.send(_message(_CONFIG, queue, attribute, value, flags=_REQUEST_ACK))
        answer = one.recv(4096)
        (kind,) = struct.unpack_from("=H", answer, 4)
        (error,) = struct.unpack_from("=i", answer, 16)
        if kind != _ERROR or error:
            raise NoQueues(f"nfnetlink_queue refuses queue {queue}: {os.strerror(-error)}")


def _verdict(packet: int) -> bytes:
    return struct.pack("!II", _ACCEPT, packet)


def _message(kind: int, queue: int, attribute: int, value: bytes, flags: int = _REQUEST) -> bytes:
    attributes = struct.pack("=HH", 4 + len(value), attribute) + value
    attributes += bytes(-len(attributes) % 4)
    head = _HEAD.pack(_HEAD_BYTES + len(attributes), kind, flags, 0, 0, socket.AF_UNSPEC, 0)
    return head + struct.pack("!H", queue) + attributes


Link = tuple[str, str]
Loss = Mapping[Link, float]
"""The share of a link's packets that is dropped; unnamed links lose none."""

Late = Mapping[Link, Lateness]

CLIENT = "client"
"""This program's own host: the bridge's address."""
_SUBNET = "10.77.0"
_INSIDE = "OCTAVO_TEST_SANDBOX"
_CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


class NoNamespaces(Exception):
    pass


def check_namespaces() -> None:
    if os.geteuid() != 0:
        raise NoNamespaces("network namespaces need root")
    for tool, package in (
        ("ip", "iproute2"),
        ("iptables-restore", "iptables"),
        ("nsenter", "util-linux"),
        ("unshare", "util-linux"),
    ):
        if shutil.which(tool) is None:
            raise NoNamespaces(f"the command {tool} is missing (Debian: apt-get install {package})")
    rule = f"*filter\n:INPUT ACCEPT\n{_rule('127.0.0.9', 0.5)}\nCOMMIT\n"
    probe = subprocess.run(
        [*_UNSHARE, "iptables-restore"], input=rule, capture_output=True, text=True, check=False
    )
    if probe.returncode:
        raise NoNamespaces(f"the kernel refuses namespaces or rules: {probe.stderr.strip()}")


_UNSHARE = ("unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")


def sandboxed(*command: str) -> tuple[list[str], dict[str, str]]:
    return [*_UNSHARE, *command], {**os.environ, _INSIDE: "1"}


def enter_sandbox(module: str, arguments: Sequence[str]) -> None:
    """Return inside a sandbox: at once, or by running the program again. Raises `NoNamespaces`."""
    if os.environ.pop(_INSIDE, "") == "1":
        _run("mount", "-t", "tmpfs", "sandbox", "/run")
        return
    check_namespaces()
    command, environment = sandboxed(sys.executable, "-m", module, *arguments)
    os.execvpe(command[0], command, environment)


class Hosts:
    def __init__(self, names: Sequence[str]) -> None:
        self.names = (CLIENT, *names)
        self.addresses = {name: f"{_SUBNET}.{n}" for n, name in enumerate(self.names, 1)}
        self._impaired: set[str] = set()
        self._delays: Delays | None = None

    def make(self) -> None:
        os.makedirs("/run/netns", exist_ok=True)
        here = self.addresses[CLIENT]
        _batch(
            "link set lo up",
            "link add hub type bridge",
            "link set hub up",
            f"address add {here}/24 dev hub",
        )
        for name in self.names[1:]:
            _run("ip", "netns", "add", name)
            _batch(
                f"link add v-{name} type veth peer name eth0 netns {name}",
                f"link set v-{name} master hub up",
            )
            _batch(
                "link set lo up",
                f"address add {self.addresses[name]}/24 dev eth0",
                "link set eth0 up",
                namespace=name,
            )

    def command(self, name: str) -> list[str]:
        return [] if name == CLIENT else ["nsenter", f"--net={_path(name)}", "--"]

    @contextlib.contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Sockets made in the block belong to that host. For this thread alone; the block must
        not `await`."""
        if name == CLIENT:
            yield
            return
        with open("/proc/thread-self/ns/net") as back, open(_path(name)) as there:
            _set_namespace(there.fileno())
            try:
                yield
            finally:
                _set_namespace(back.fileno())

    def socket_of(self, name: str) -> socket.socket:
        with self.on(name):
            return socket.socket(socket.AF_INET, socket.SOCK_STREAM)

    async def impair(self, loss: Loss, late: Late | None = None) -> None:
        """From now on exactly these links lose packets, and exactly these delay them. Raises
        `NoQueues`."""
        at: defaultdict[str, list[str]] = defaultdict(list)
        for (sender, receiver), share in loss.items():
            assert sender != receiver, sender
            at[receiver].append(_rule(self.addresses[sender], share))
        for sender, receiver in late or ():
            assert sender != receiver, sender
            queue = self.names.index(sender)
            at[receiver].append(
                f"-A INPUT -s {self.addresses[sender]} -j NFQUEUE --queue-num {queue}"
            )
        if late and self._delays is None:
            self._delays = Delays({name: self._queues_of(name) for name in self.names}, self.names)
        if self._delays is not None:
            self._delays.set(late or {})
        await asyncio.gather(
            *(self._restore(name, at.get(name, ())) for name in sorted(self._impaired | set(at)))
        )
        self._impaired = set(at)

    def _queues_of(self, name: str) -> socket.socket:
        with self.on(name):
            return queue_socket()

    async def _restore(self, name: str, rules: Iterable[str]) -> None:
        process = await asyncio.create_subprocess_exec(
            *self.command(name),
            "iptables-restore",
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        text = "\n".join(["*filter", ":INPUT ACCEPT", *rules, "COMMIT", ""])
        _, said = await process.communicate(text.encode())
        if process.returncode:
            raise RuntimeError(f"iptables-restore on {name}: {said.decode().strip()}")


def _rule(sender: str, share: float) -> str:
    dice = "" if share >= 1 else f" -m statistic --mode random --probability {share:.3f}"
    return f"-A INPUT -s {sender}{dice} -j DROP"


def _path(name: str) -> str:
    return f"/run/netns/{name}"


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _batch(*lines: str, namespace: str = "") -> None:
    command = ["ip", *(["-n", namespace] if namespace else []), "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
