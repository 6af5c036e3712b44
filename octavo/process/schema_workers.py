"""Read and check schemas in worker processes: one for messages, one for registrations.

A question that exceeds its processor time or memory kills its worker and is answered with
`TooCostly`; its subject or caller is paused. If a worker ends for another reason, the question
fails with `SchemaCheckUnavailable`. The queue is bounded; subjects and callers take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog

from octavo.broker.errors import SchemaCheckUnavailable
from octavo.broker.schemas.engine import Answer, Check, Question, TooCostly
from octavo.process.schema_server import HEAD, LENGTH, MEMORY_BYTES_MAX, PACKET_BYTES_MAX
from octavo.protocol.fair_queue import FairQueue

log = structlog.get_logger()

CHECK_MS_MAX = 1_000
"""Processor time to check the messages of a question."""
READ_MS_MAX = 2_000
"""Processor time to read a schema, or to compare it with versions."""
WAITING_MAX = 1_000
"""Questions that may wait for each subject or caller."""
WAITING_BYTES_MAX = 64 << 20
"""Bytes of all questions that wait for a worker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    check_ms: int = CHECK_MS_MAX
    read_ms: int = READ_MS_MAX
    answer_s: float = 30.0
    """A worker without an answer after this long counts as hung; generous, for busy machines."""
    start_s: float = 60.0
    waiting_max: int = WAITING_MAX
    waiting_bytes_max: int = WAITING_BYTES_MAX
    pause_s: float = 1.0
    """The pause after a question that costs too much; each such question doubles it."""
    pause_s_max: float = 30.0
    paused_max: int = 1_000


_PAUSES = "work on schemas of this subject, or for this caller, pauses for"
_RECEIVE_BYTES = 1 << 16
_TOLD_S = 5.0


class _Asked(NamedTuple):
    data: bytes
    processor_ms: int
    answered: asyncio.Future[Answer]


class _WorkerEnded(Exception):
    """A worker was ended by this signal; 0: it exited by itself, or does not answer."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


_COSTLY: Mapping[int, str] = {
    signal.SIGPROF: "processor time",
    signal.SIGABRT: "memory",  # libraries abort when they cannot allocate
    signal.SIGSEGV: "memory",
    signal.SIGBUS: "memory",
}


class SchemaWorkers:
    def __init__(self, bounds: Bounds = Bounds(), command: Sequence[str] = ()) -> None:
        self._bounds = bounds
        self._server = _Server(
            command or (sys.executable, "-m", "octavo.process.schema_server"), bounds
        )
        self._messages = _Lane("messages", self._server, bounds)
        self._registrations = _Lane("registrations", self._server, bounds)

    async def ask(self, key: Hashable, question: Question) -> Answer:
        """Answer a question within the bounds. Raises `SchemaCheckUnavailable`."""
        if isinstance(question, Check):
            return await self._messages.ask(key, question, self._bounds.check_ms)
        return await self._registrations.ask(key, question, self._bounds.read_ms)

    async def aclose(self) -> None:
        for lane in (self._messages, self._registrations):
            await lane.close()
        await self._server.close()

    @property
    def waiting(self) -> int:
        return self._messages.waiting + self._registrations.waiting

    @property
    def waiting_bytes(self) -> int:
        return self._messages.waiting_bytes + self._registrations.waiting_bytes

    @property
    def server_pid(self) -> int:
        return self._server.pid


class _Lane:
    def __init__(self, name: str, server: _Server, bounds: Bounds) -> None:
        self._name = name
        self._server = server
        self._bounds = bounds
        self._line: FairQueue[Hashable, _Asked] = FairQueue()
        self.waiting_bytes = 0
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._worker: _Worker | None = None
        self._pauses: dict[Hashable, tuple[float, float]] = {}
        """For each subject or caller, the pause's end (loop time) and its length in seconds."""
        self._answers = msgspec.msgpack.Decoder(Answer)
        self._closed = False

    @property
    def waiting(self) -> int:
        return len(self._line)

    async def ask(self, key: Hashable, question: Question, processor_ms: int) -> Answer:
        loop = asyncio.get_running_loop()
        if self._closed:
            raise SchemaCheckUnavailable("this broker is stopping")
        until_s, _ = self._pauses.get(key, (0.0, 0.0))
        if loop.time() < until_s:
            raise SchemaCheckUnavailable(
                f"{_PAUSES} {until_s - loop.time():.1f} s: the last check took too much processor "
                "time or memory"
            )
        asked = _Asked(msgspec.msgpack.encode(question), processor_ms, loop.create_future())
        bounds = self._bounds
        full = self._line.waiting(key) >= bounds.waiting_max
        if full or self.waiting_bytes + len(asked.data) > bounds.waiting_bytes_max:
            raise SchemaCheckUnavailable("too many schema checks wait; try again")
        self._line.push(key, asked)
        self.waiting_bytes += len(asked.data)
        self._came.set()
        if self._task is None:
            self._task = loop.create_task(self._serve())
        try:
            return await asked.answered
        finally:  # also if the caller is cancelled while the question waits
            for _ in self._line.take(key, lambda one: one is asked):
                self.waiting_bytes -= len(asked.data)

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for asked in self._line.clear():
            self.waiting_bytes -= len(asked.data)
            _refuse(asked, "this broker is stopping")
        self._forget_worker()

    async def _serve(self) -> None:
        while True:
            while not self._line:
                self._came.clear()
                await self._came.wait()
            key, asked = self._line.pop()
            self.waiting_bytes -= len(asked.data)
            if asked.answered.done():
                continue  # the caller gave up
            try:
                answer = await self._answered(asked)
            except asyncio.CancelledError:
                _refuse(asked, "this broker is stopping")
                raise
            except _WorkerEnded as ended:
                self._ended_over(key, asked, ended.number)
            except (OSError, TimeoutError, msgspec.MsgspecError, EOFError) as error:
                log.warning("schema_worker_away", lane=self._name, reason=repr(error))
                self._forget_worker()
                _refuse(asked, "the schema worker did not start, or is gone; try again")
            else:
                self._pauses.pop(key, None)
                if not asked.answered.done():
                    asked.answered.set_result(answer)

    async def _answered(self, asked: _Asked) -> Answer:
        if self._worker is None:
            self._worker = await self._server.fork(self._name)
        data = await self._worker.ask(asked.data, asked.processor_ms, self._bounds.answer_s)
        answer: Answer = self._answers.decode(data)
        return answer

    def _ended_over(self, key: Hashable, asked: _Asked, number: int) -> None:
        self._forget_worker()
        what = _COSTLY.get(number)
        if what is None:
            _refuse(asked, "the schema worker ended during the check; try again")
            return
        now_s = asyncio.get_running_loop().time()
        _, last_s = self._pauses.pop(key, (0.0, 0.0))
        pause_s = min(max(self._bounds.pause_s, 2 * last_s), self._bounds.pause_s_max)
        self._pauses[key] = (now_s + pause_s, pause_s)
        if len(self._pauses) > self._bounds.paused_max:
            del self._pauses[next(iter(self._pauses))]
        log.warning("schema_too_costly", lane=self._name, key=str(key)[:200], took=what)
        bound = (
            f"{asked.processor_ms} ms of processor time"
            if what == "processor time"
            else f"{MEMORY_BYTES_MAX >> 20} MiB of memory"
        )
        if not asked.answered.done():
            asked.answered.set_result(TooCostly(f"it takes more than {bound}"))
        for waiting in self._line.take(key, lambda _: True):
            self.waiting_bytes -= len(waiting.data)
            _refuse(waiting, f"{_PAUSES} {pause_s:g} s: a check took too much")

    def _forget_worker(self) -> None:
        if self._worker is not None:
            self._worker.close()
            self._worker = None


def _refuse(asked: _Asked, why: str) -> None:
    if not asked.answered.done():
        asked.answered.set_exception(SchemaCheckUnavailable(why))
        asked.answered.exception()  # if the caller is gone, asyncio must not log it


class _Server:
    def __init__(self, command: Sequence[str], bounds: Bounds) -> None:
        self._command = command
        self._bounds = bounds
        self._starting = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._control: socket.socket | None = None
        self._listening: asyncio.Task[None] | None = None
        self._workers: dict[str, _Worker] = {}
        self._forked = 0

    @property
    def pid(self) -> int:
        process = self._process
        return process.pid if process is not None and process.returncode is None else 0

    async def fork(self, lane: str) -> _Worker:
        async with self._starting:
            if self._control is None:
                await self._start()
        assert self._control is not None
        ours, theirs = socket.socketpair()
        self._forked += 1
        name = f"{lane}-{self._forked}"
        with theirs:
            ours.setblocking(False)
            worker = self._workers[name] = _Worker(ours, lambda: self._kill(name))
            socket.send_fds(self._control, [b"F" + name.encode()], [theirs.fileno()])
        return worker

    async def close(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)
        await self._end()

    async def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        loop = asyncio.get_running_loop()
        try:
            with theirs:
                kept = {k: v for k, v in os.environ.items() if not k.startswith("OCTAVO_")}
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    str(theirs.fileno()),
                    pass_fds=(theirs.fileno(),),
                    stdin=asyncio.subprocess.DEVNULL,
                    env={**kept, "MALLOC_ARENA_MAX": "2"},
                )
            async with asyncio.timeout(self._bounds.start_s):
                said = await loop.sock_recv(ours, PACKET_BYTES_MAX)
            if said != b"R":
                raise EOFError(f"the schema server ended during its start: {said!r}")
        except BaseException:
            ours.close()
            await self._end()
            raise
        self._control = ours
        self._listening = loop.create_task(self._listen(ours))

    async def _listen(self, control: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while packet := await loop.sock_recv(control, PACKET_BYTES_MAX):
                name, _, number = packet[1:].decode().partition(" ")
                if (worker := self._workers.pop(name, None)) is not None:
                    worker.has_ended(int(number))
        except OSError as error:
            log.warning("schema_server_away", reason=str(error))
        await self._end()

    async def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        for worker in tuple(self._workers.values()):
            worker.has_ended(0)
        self._workers.clear()
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    def _kill(self, name: str) -> None:
        if self._control is not None:
            with contextlib.suppress(OSError):
                self._control.send(b"K" + name.encode())


class _Worker:
    def __init__(self, connection: socket.socket, kill: Callable[[], None]) -> None:
        self._connection = connection
        self._kill = kill
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()

    def has_ended(self, number: int) -> None:
        if not self._ended.done():
            self._ended.set_result(number)

    def close(self) -> None:
        self.has_ended(0)
        self._connection.close()

    async def ask(self, data: bytes, processor_ms: int, answer_s: float) -> bytes:
        try:
            async with asyncio.timeout(answer_s):
                await self._loop.sock_sendall(
                    self._connection, HEAD.pack(len(data), processor_ms) + data
                )
                return await self._answer()
        except TimeoutError:
            self._kill()
            raise _WorkerEnded(0) from None
        except (EOFError, OSError):  # the worker has ended; the server reports how in a moment
            async with asyncio.timeout(_TOLD_S):
                raise _WorkerEnded(await asyncio.shield(self._ended)) from None

    async def _answer(self) -> bytes:
        found = bytearray()
        wanted = LENGTH.size
        while len(found) < wanted:
            if not (part := await self._loop.sock_recv(self._connection, _RECEIVE_BYTES)):
                raise EOFError
            found += part
            if wanted == LENGTH.size and len(found) >= wanted:
                wanted += LENGTH.unpack_from(found)[0]
        return bytes(found[LENGTH.size :])
