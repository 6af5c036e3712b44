"""The process that works on schemas for a broker: `python -m octavo.process.schema_server FD`.

It loads the libraries once and forks a worker for each socket that the broker sends it over the
control socket FD: a worker that was killed is replaced in milliseconds. A worker answers one
question after the other. Each question has a bound of processor time (a timer of the kernel, which
ends the process: a library that keeps the interpreter cannot put that off) and of memory
(RLIMIT_AS). The server itself never touches a schema, so it always hears the broker.

The kernel kills the server with its broker, and the workers with the server.

Control messages, each one packet. From the broker: `F<name>` with a descriptor (fork a worker for
it), `K<name>` (kill it). To the broker: `R` (ready), `D<name> <signal>` (a worker has ended). On a
worker's socket: a length of four bytes, processor time in milliseconds (four bytes, of questions
only), MessagePack.
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
"""Of addresses, that is with the interpreter and the libraries: 200 MB of them."""
PACKET_BYTES_MAX = 64
HEAD = struct.Struct(">II")
"""Of a question: how many bytes follow, and the processor time for it, in milliseconds."""
LENGTH = struct.Struct(">I")
"""Of an answer."""


def work(connection: socket.socket) -> None:
    """Answer the questions that come, until the broker closes the socket."""
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
            answer = TooCostly("it takes more memory than there is for it")
        signal.setitimer(signal.ITIMER_PROF, 0)
        encoded = msgspec.msgpack.encode(answer)
        connection.sendall(LENGTH.pack(len(encoded)) + encoded)


def _read(connection: socket.socket, size: int) -> bytearray | None:
    """So many bytes; None when the broker has closed the socket."""
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
        """Of workers, by the descriptor that tells of their end."""
        self._ready = select.poll()  # `select` refuses descriptors from 1,024 on
        self._ready.register(control, select.POLLIN)

    def run(self) -> None:
        """Serve until the broker is gone."""
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
    """Entry point."""
    die_with_parent(signal.SIGKILL)
    for number in (signal.SIGINT, signal.SIGTERM):  # from a terminal, to all: the broker decides
        signal.signal(number, signal.SIG_IGN)
    answering = Answering()
    for kind, text in (("json", b"true"), ("avro", b'"null"')):
        answering.answer(Read(kind, text))  # loads its library
        answering.answer(Compare(kind, text.decode(), "BACKWARD", [(1, text.decode())]))
        answering.answer(Check(kind, text.decode(), [b"1"]))
    gc.collect()
    gc.freeze()  # what workers share with the server stays shared
    _Server(socket.socket(fileno=int(sys.argv[1]))).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
