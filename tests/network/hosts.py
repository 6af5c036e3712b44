"""Hosts of a cluster on one machine: network namespaces, and links that lose or delay packets.
`enter_sandbox` runs the program again in its own namespaces: the outside is neither visible nor
changed, and the kernel kills every remaining process at the end. A link is directed, (from, to);
packets are dropped or held (delays.py) where they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tests.network.delays import Delays, Lateness, queue_socket

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
