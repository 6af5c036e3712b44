"""Late packets: the kernel holds them until a thread of ours releases them, since not every
kernel has `netem`. A rule of the receiving host puts a sender's packets into an nfnetlink queue,
one for each link. Packets of a link keep their order, so jitter bunches them."""

from __future__ import annotations

import heapq
import os
import random
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping, Sequence
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
