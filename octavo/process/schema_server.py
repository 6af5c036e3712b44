"""Fork the processes that read and check schemas: `python -m octavo.process.schema_server FD`.

The server loads the libraries once, and forks a worker for each socket that the broker sends. Each
question has a bound of processor time (the kernel's timer kills the worker) and memory (RLIMIT_AS).
The server parses no schema, so it always answers. All end with the broker.

Control packets from the broker: `F<name>` with a descriptor (fork), `K<name>` (kill); to it: `R`
(ready), `D<name> <signal>` (a worker has ended). A message on a worker's socket: length (four
bytes), in questions the processor time in ms (four bytes), MessagePack.
"""

from __future__ import annotations

import gc
import os
import resource
import select
import signal
import socket
import struct
import sys

import msgspec

from octavo.broker.schemas.engine import Answering, Check, Compare, Question, Read, TooCostly
from octavo.process.parent import die_with_parent

MEMORY_BYTES_MAX = 512 << 20
"""Address space of a worker, of which the interpreter and the libraries take 200 MB."""
PACKET_BYTES_MAX = 64
HEAD = struct.Struct(">II")
LENGTH = struct.Struct(">I")


def work(connection: socket.socket) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES_MAX, MEMORY_BYTES_MAX))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answering = Answering()
    questions = msgspec.msgpack.Decoder(Question)
    while (head := _read(connection, HEAD.size)) is not None:
        size, processor_ms = HEAD.unpack(head)
        signal.setitimer(signal.ITIMER_PROF, processor_ms / 1000)
        try:
            data = _read(connection, size)
            if data is None:
                return
            answer = answering.answer(questions.decode(data))
        except MemoryError:
            answer = TooCostly("it takes more memory than a worker may use")
        signal.setitimer(signal.ITIMER_PROF, 0)
        encoded = msgspec.msgpack.encode(answer)
        connection.sendall(LENGTH.pack(len(encoded)) + encoded)


def _read(connection: socket.socket, size: int) -> bytearray | None:
    found = bytearray(size)
    view = memoryview(found)
    while view:
        if not (count := connection.recv_into(view)):
            return None
        view = view[count:]
    return found


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._pids: dict[str, int] = {}
        self._names: dict[int, str] = {}
        """Names of workers by their pidfd, which becomes readable at their end."""
        self._ready = select.poll()  # `select` refuses descriptors from 1,024 on
        self._ready.register(control, select.POLLIN)

    def run(self) -> None:
        self._control.send(b"R")
        while True:
            control = self._control.fileno()
            ready = [descriptor for descriptor, _ in self._ready.poll()]
            for descriptor in ready:
                if descriptor != control:
                    self._tell_end(descriptor)
            if control in ready and not self._listen():
                return

    def _listen(self) -> bool:
        packet, descriptors, _, _ = socket.recv_fds(self._control, PACKET_BYTES_MAX, 1)
        name = packet[1:].decode()
        if packet[:1] == b"F":
            self._fork(name, descriptors[0])
        elif packet[:1] == b"K" and name in self._pids:
            os.kill(self._pids[name], signal.SIGKILL)
        return bool(packet)

    def _fork(self, name: str, descriptor: int) -> None:
        server = os.getpid()
        pid = os.fork()
        if pid == 0:
            die_with_parent(signal.SIGKILL, server)
            self._control.close()
            for other in self._names:
                os.close(other)
            code = 1
            try:
                work(socket.socket(fileno=descriptor))
                code = 0
            finally:
                os._exit(code)
        os.close(descriptor)
        self._pids[name] = pid
        ended = os.pidfd_open(pid)
        self._names[ended] = name
        self._ready.register(ended, select.POLLIN)

    def _tell_end(self, descriptor: int) -> None:
        name = self._names.pop(descriptor)
        self._ready.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(self._pids.pop(name), 0)
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        self._control.send(f"D{name} {number}".encode())


def main() -> int:
    die_with_parent(signal.SIGKILL)
    # A terminal sends these to all processes; only the broker decides to end.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    answering = Answering()
    for kind, text in (("json", b"true"), ("avro", b'"null"')):
        answering.answer(Read(kind, text))  # loads the library
        answering.answer(Compare(kind, text.decode(), "BACKWARD", [(1, text.decode())]))
        answering.answer(Check(kind, text.decode(), [b"1"]))
    gc.collect()
    gc.freeze()  # collections in workers would write to, and so copy, the shared memory
    _Server(socket.socket(fileno=int(sys.argv[1]))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
