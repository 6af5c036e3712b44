"""The simulated network: TCP's promises kept, everything else broken on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.loop import SimLoop, SimStuck
from tests.sim.network import NetworkOptions, SimNetwork
from tests.sim.process import Process
from tests.sim.trace import Trace


class Ear(asyncio.BufferedProtocol):
    def __init__(self, room: int = 4096) -> None:
        self.transport: Any = None
        self.heard = bytearray()
        self.pieces: list[int] = []
        self.paused = 0
        self.resumed = 0
        self.eof = False
        self.lost: list[Exception | None] = []
        self._buffer = bytearray(room)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.heard += self._buffer[:nbytes]
        self.pieces.append(nbytes)

    def eof_received(self) -> bool:
        self.eof = True
        return False

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.resumed += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Pair:
    def __init__(self, seed: int = 1, room: int = 4096, **options: Any) -> None:
        self.loop = SimLoop(seed, trace=Trace())
        self.network = SimNetwork(self.loop, NetworkOptions(**options))
        self.client, self.server = Process(self.loop, "c"), Process(self.loop, "s")
        self.accepted: list[Ear] = []

        def accept() -> Ear:
            self.accepted.append(Ear(room))
            return self.accepted[-1]

        self.listener = self.run(self.server, self.loop.create_server(accept, "s", 1))
        self.ear = self.connect()
        self.wait(lambda: bool(self.accepted and self.accepted[0].transport))
        self.other = self.accepted[0]

    def connect(self) -> Ear:
        return self.run(self.client, self.loop.create_connection(Ear, "s", 1))[1]

    def run(self, process: Process, coro: Any, s: float = 10) -> Any:
        task = process.spawn(coro, "test")
        self.loop.run_until(task, virtual_s_max=s)
        return task.result()

    def wait(self, condition: Callable[[], bool], s: float = 10) -> None:
        self.loop.world_later(s, lambda: None)
        self.loop.run_until(condition, virtual_s_max=s + 1)
        assert condition()

    def idle(self, s: float = 1) -> None:
        task = self.loop.create_task(asyncio.sleep(s))
        self.loop.run_until(task, virtual_s_max=s + 1)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_arrive_in_order_whatever_their_pieces(seed: int) -> None:
    pair = Pair(seed, fragment_p=0.5, tail_p=0.3, window_bytes=3000)
    sent = bytes(n % 251 for n in range(40_000))
    for at in range(0, len(sent), 997):
        pair.client.run(pair.ear.transport.write, sent[at : at + 997])
    pair.wait(lambda: len(pair.other.heard) == len(sent))
    assert bytes(pair.other.heard) == sent
    assert len(set(pair.other.pieces)) > 3
    assert pair.loop.errors == []


def test_names_are_told() -> None:
    pair = Pair()
    assert pair.ear.transport.get_extra_info("peername") == ("s", 1)
    assert pair.other.transport.get_extra_info("peername")[0] == "c"
    assert pair.other.transport.get_extra_info("socket") is None
    assert pair.listener.sockets[0].getsockname() == ("s", 1)


def test_a_reader_that_pauses_stops_the_writer() -> None:
    pair = Pair(window_bytes=1000)
    pair.server.run(pair.other.transport.pause_reading)
    pair.ear.transport.set_write_buffer_limits(high=500)
    pair.client.run(pair.ear.transport.write, b"x" * 1400)
    assert pair.ear.paused == 0
    pair.client.run(pair.ear.transport.writelines, [b"y" * 200, b"z"])
    assert pair.ear.paused == 1
    assert pair.ear.transport.get_write_buffer_size() == 601
    pair.idle()
    assert pair.other.heard == b""
    pair.server.run(pair.other.transport.resume_reading)
    pair.wait(lambda: len(pair.other.heard) == 1601)
    assert pair.ear.resumed == 1
    assert pair.ear.transport.get_write_buffer_size() == 0


def test_close_flushes_and_abort_does_not() -> None:
    pair = Pair(window_bytes=1000)
    pair.client.run(pair.ear.transport.write, b"x" * 5000)
    pair.client.run(pair.ear.transport.close)
    pair.client.run(pair.ear.transport.write, b"late")
    pair.wait(lambda: pair.other.eof and bool(pair.ear.lost))
    assert pair.other.heard[:5000] == b"x" * 5000
    pair.wait(lambda: bool(pair.other.lost))
    assert pair.ear.lost == [None]
    again = Pair(window_bytes=1000)
    again.client.run(again.ear.transport.write, b"x" * 5000)
    again.client.run(again.ear.transport.abort)
    again.wait(lambda: bool(again.other.lost))
    assert len(again.other.heard) <= 1000


def test_who_writes_to_a_closed_socket_is_reset() -> None:
    pair = Pair()
    pair.server.run(pair.other.transport.abort)
    pair.client.run(pair.ear.transport.write, b"anyone?")
    pair.wait(lambda: bool(pair.ear.lost))


def test_streams_work() -> None:
    pair = Pair()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readuntil(b"\n")).upper())
        await writer.drain()
        writer.close()

    async def ask() -> bytes:
        reader, writer = await asyncio.open_connection("s", 80)
        writer.write(b"hello\n")
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    pair.run(pair.server, asyncio.start_server(serve, "s", 80))
    assert pair.run(pair.client, ask()) == b"HELLO\n"
    assert pair.loop.errors == []


def test_a_port_is_taken_until_its_process_is_gone() -> None:
    pair = Pair()
    with pytest.raises(OSError, match="in use"):
        pair.run(pair.server, pair.loop.create_server(Ear, "s", 1))
    pair.server.crash()
    reborn = Process(pair.loop, "s")
    pair.run(reborn, pair.loop.create_server(Ear, "s", 1))


def test_nobody_listens_means_refused_and_no_power_means_silence() -> None:
    pair = Pair()
    with pytest.raises(ConnectionRefusedError):
        pair.run(pair.client, pair.loop.create_connection(Ear, "s", 2))
    with pytest.raises(ConnectionRefusedError):
        pair.run(pair.client, pair.loop.create_connection(Ear, "nowhere", 1))
    pair.network.refuse("s", 1)
    with pytest.raises(ConnectionRefusedError):
        pair.connect()
    pair.idle(1)
    pair.connect()
    pair.server.crash(power=False)
    with pytest.raises(ConnectionRefusedError):
        pair.connect()
    dark = Pair()
    dark.server.crash()
    with pytest.raises(SimStuck):
        dark.connect()


def test_a_killed_process_is_missed_at_once_and_a_dark_machine_is_not() -> None:
    pair = Pair()
    pair.server.crash(power=False)
    pair.wait(lambda: bool(pair.ear.lost))
    dark = Pair()
    dark.server.crash(power=True)
    dark.client.run(dark.ear.transport.write, b"anyone?")
    dark.idle(5)
    assert dark.ear.lost == []
    reborn = Process(dark.loop, "s")
    dark.network.attach(reborn)
    dark.wait(lambda: bool(dark.ear.lost))
    assert isinstance(dark.ear.lost[0], ConnectionResetError)


def test_a_cut_holds_bytes_back_until_it_is_healed() -> None:
    pair = Pair()
    pair.network.cut("c", "s", one_way=True)
    pair.client.run(pair.ear.transport.write, b"one")
    pair.server.run(pair.other.transport.write, b"two")
    pair.idle(5)
    assert (pair.other.heard, pair.ear.heard) == (b"", b"two")
    with pytest.raises(SimStuck):
        pair.connect()
    pair.network.heal("c", "s")
    pair.wait(lambda: pair.other.heard == b"one")
    pair.network.isolate("s")
    pair.server.run(pair.other.transport.write, b"three")
    pair.idle(5)
    assert pair.ear.heard == b"two"
    pair.network.heal()
    pair.wait(lambda: pair.ear.heard == b"twothree")


def test_a_connect_goes_through_once_the_cut_is_healed() -> None:
    pair = Pair()
    pair.network.cut("c", "s")
    pair.loop.world_later(3, pair.network.heal)
    pair.connect()
    assert 3 < pair.loop.time() < 10


def test_a_connect_given_up_leaves_nothing_behind() -> None:
    pair = Pair()
    pair.network.clog("s", "c", 2)

    async def connect() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await pair.loop.create_connection(Ear, "s", 1)

    pair.run(pair.client, connect())
    pair.wait(lambda: bool(pair.accepted[-1].lost))
    assert len(pair.accepted) == 2
    assert pair.accepted[0].lost == []


def test_a_clog_delays() -> None:
    pair = Pair()
    pair.network.clog("c", "s", 4)
    started = pair.loop.time()
    pair.client.run(pair.ear.transport.write, b"slow")
    pair.wait(lambda: bool(pair.other.heard))
    assert pair.loop.time() - started >= 4


def test_half_open_says_nothing_in_one_direction() -> None:
    pair = Pair()
    assert pair.network.silence("s", "c") == 1
    pair.server.run(pair.other.transport.write, b"unheard")
    pair.client.run(pair.ear.transport.write, b"heard")
    pair.idle(5)
    assert (pair.other.heard, pair.ear.heard, pair.ear.lost) == (b"heard", b"", [])
    pair.network.heal()
    pair.wait(lambda: pair.ear.heard == b"unheard")


def test_a_reset_may_deliver_nothing_all_or_a_part() -> None:
    lengths = set()
    for seed in range(60):
        pair = Pair(seed)
        pair.client.run(pair.ear.transport.write, bytes(range(100)))
        assert pair.network.reset("c", "s") == 1
        pair.wait(lambda pair=pair: bool(pair.ear.lost and pair.other.lost))
        assert bytes(pair.other.heard) == bytes(range(100))[: len(pair.other.heard)]
        lengths.add(len(pair.other.heard))
    assert {0, 100} < lengths


def test_connections_are_reset_by_chance() -> None:
    pair = Pair(reset_p=0.2)
    for _ in range(50):
        pair.client.run(pair.ear.transport.write, b"x")
    pair.wait(lambda: bool(pair.ear.lost and pair.other.lost))
    assert pair.loop.trace.faults["net reset"] >= 1


def test_what_was_sent_before_a_pause_is_read_after_it() -> None:
    pair = Pair()
    pair.server.pause(3)
    pair.client.run(pair.ear.transport.write, b"a")
    pair.connect()  # the kernel accepts it
    pair.wait(lambda: pair.other.heard == b"a" and len(pair.accepted) == 2)
    assert pair.loop.time() >= 3


def test_a_call_runs_in_the_other_process() -> None:
    pair = Pair()
    ran: list[float] = []

    async def work() -> str:
        await asyncio.sleep(1)
        ran.append(pair.loop.time())
        if len(ran) > 1:
            raise ValueError("twice")
        return "done"

    async def call(s: float = 5) -> str:
        return await pair.network.call(pair.client, pair.server, work, s)

    assert pair.run(pair.client, call()) == "done"
    with pytest.raises(ValueError, match="twice"):
        pair.run(pair.client, call())
    with pytest.raises(TimeoutError):
        pair.run(pair.client, call(0.5))
    pair.loop.world_later(0.5, lambda: pair.server.crash(power=False))
    with pytest.raises(ConnectionResetError):
        pair.run(pair.client, call())
    with pytest.raises(ConnectionRefusedError):
        pair.run(pair.client, call())
    reborn = Process(pair.loop, "s")
    pair.network.attach(reborn)
    with pytest.raises(ValueError, match="twice"):
        pair.run(pair.client, call())
    reborn.crash()
    with pytest.raises(TimeoutError):
        pair.run(pair.client, call())


@pytest.mark.parametrize(
    ("option", "answered", "times"),
    [("call_lost_p", False, 0), ("reply_lost_p", False, 1), ("duplicate_p", True, 2)],
)
def test_a_call_can_be_lost_half_lost_or_doubled(option: str, answered: bool, times: int) -> None:
    pair = Pair(**{option: 1.0})  # type: ignore[arg-type]
    ran: list[int] = []

    async def work() -> None:
        ran.append(1)

    async def call() -> bool:
        try:
            await pair.network.call(pair.client, pair.server, work, 2)
        except TimeoutError:
            return False
        return True

    assert pair.run(pair.client, call()) is answered
    pair.idle()
    assert len(ran) == times


def test_a_call_can_come_when_nobody_waits_for_it_any_more() -> None:
    pair = Pair(late_p=1.0)
    ran: list[int] = []

    async def work() -> None:
        ran.append(1)

    async def call() -> None:
        with pytest.raises(TimeoutError):
            await pair.network.call(pair.client, pair.server, work, 0.001)

    pair.run(pair.client, call())
    pair.client.crash()
    assert not ran
    pair.idle()
    assert ran == [1]


def test_the_same_seed_is_the_same_run() -> None:
    def one(seed: int) -> str:
        pair = Pair(seed, fragment_p=0.3, reset_p=0.02)
        for number in range(50):
            pair.client.run(pair.ear.transport.write, b"%d" % number)
        pair.idle(5)
        return pair.loop.trace.hash()

    assert one(3) == one(3)
    assert len({one(seed) for seed in range(10)}) == 10
