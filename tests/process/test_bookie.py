"""A bookie process: kill −9 at any moment, at every step of its start, its memory, its long
polls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.opening import open_store
from octavo.process.spec import ProcessSpec
from octavo.protocol.answers import Added
from octavo.protocol.codes import Code
from octavo.protocol.frames import LENGTH
from octavo.protocol.v3 import STATUS
from octavo.protocol.v3_schema import ResponseMessage
from octavo.security.policy import PolicyStore, secured
from octavo.standalone.child import ChildFailed
from octavo.standalone.ports import free_port
from tests.attack.memory import BOOKIE_CONNECTION_BYTES, LONG_POLL_BYTES
from tests.attack.memory import MIB as MIB_POLLS
from tests.support.processes.failpoints import (
    FIRST_START_FAILPOINTS,
    Armed,
    Failpoint,
    Trigger,
    hits,
)
from tests.support.processes.kills import TINY_BOOKIE, LaunchedChild
from tests.support.processes.seams import record_kind
from tests.support.processes.standalone import environment, octavo, standalone, until
from tests.support.raw_bookie import KEY, RawClient, add_of, adds_of, entry_of
from tests.support.v3_frames import FENCE, V3Client, add_frame, read_frame

ROUNDS = 6
PAYLOAD = b"p" * 300
OCTAVO = str(Path(sys.executable).parent / "octavo")
SMALL = {
    "flush_interval_ms": 30,
    "write_cache_bytes_max": 200_000,
    "journal_file_bytes_max": 1_000_000,
    "journal_preallocate_bytes": 262_144,
    "entry_log_bytes_max": 2_000_000,
    "disk_free_bytes_min": 2,
    "disk_free_bytes_resume": 3,
    "disk_free_bytes_reserve": 1,
}


def command(
    folder: Path, port: int = 0, bookie_id: str = "b1", settings: Mapping[str, int] = SMALL
) -> list[str]:
    told = [f"--set={name}={value}" for name, value in settings.items()]
    return [
        *(OCTAVO, "bookie", "--data", f"{folder}/data", "--metadata", f"file://{folder}/meta.db"),
        *("--port", str(port), "--bookie-id", bookie_id, *told),
    ]


@contextlib.contextmanager
def bookie_process(folder: Path, **settings: int) -> Iterator[tuple[subprocess.Popen[str], int]]:
    log = folder / "log"
    with open(log, "a") as out:
        start = out.tell()
        process = subprocess.Popen(
            command(folder, settings=SMALL | settings), stdout=out, stderr=out, text=True
        )
    try:
        deadline = time.monotonic() + 30
        while True:
            lines = log.read_text()[start:].splitlines()
            ready = [line for line in lines if '"bookie_ready"' in line]
            if ready:
                break
            assert process.poll() is None, "\n".join(lines)
            assert time.monotonic() < deadline, "\n".join(lines)
            time.sleep(0.02)
        yield process, int(json.loads(ready[0])["address"].rpartition(":")[2])
    finally:
        process.kill()
        process.wait()


async def add_until_killed(
    port: int, process: subprocess.Popen[str], first: int, kill_after: int
) -> int:
    """Pipeline adds to ledger 1 and kill the bookie once `kill_after` are acked; return the last
    acked entry."""
    client = await RawClient.connect_to(port)
    acked = first - 1
    sent = first
    answered: dict[int, int] = {}
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            while sent - acked < 3000 and process.poll() is None:
                client.send(adds_of(1, range(sent, sent + 500), PAYLOAD))
                sent += 500
            answer = await client.answer()
            assert isinstance(answer, Added)
            # An unacked entry that was stored before a kill is compared, and acked after new
            # entries.
            assert acked < answer.first <= answer.last < sent, "only what was sent, and each once"
            assert answer.first not in answered
            answered[answer.first] = answer.last
            while acked + 1 in answered:
                acked = answered.pop(acked + 1)
            if acked - first >= kill_after:
                process.kill()
    client.close()
    return acked


@pytest.mark.timeout(600)
async def test_what_was_acked_survives_kill_9(tmp_path: Path) -> None:
    rng = random.Random(20261121)
    acked = -1
    for _ in range(ROUNDS):
        with bookie_process(tmp_path) as (process, port):
            client = await RawClient.connect_to(port)
            expected = [entry_of(1, entry_id, PAYLOAD) for entry_id in range(acked + 1)]
            assert await client.read_all(1, acked) == expected
            client.close()
            acked = await add_until_killed(port, process, acked + 1, rng.randrange(1, 12_000))
    with bookie_process(tmp_path) as (_, port):
        client = await RawClient.connect_to(port)
        expected = [entry_of(1, entry_id, PAYLOAD) for entry_id in range(acked + 1)]
        assert await client.read_all(1, acked) == expected
        client.close()


@pytest.mark.timeout(600)
async def test_fence_and_key_survive_kill_9(tmp_path: Path) -> None:
    with bookie_process(tmp_path) as (process, port):
        client = await RawClient.connect_to(port)
        assert await client.add(add_of(1, 0)) is Code.OK
        assert await client.fence(1) == entry_of(1, 0)
        assert await client.fence(2) is Code.NO_ENTRY
        process.kill()
    with bookie_process(tmp_path) as (process, port):
        client = await RawClient.connect_to(port)
        assert await client.add(add_of(1, 1)) is Code.FENCED
        assert await client.add(add_of(2, 0)) is Code.FENCED
        assert await client.add(add_of(1, 1, key=b"x" * 20)) is Code.UNAUTHORIZED
        process.kill()


@pytest.mark.timeout(600)
async def test_sigterm_ends_in_good_order(tmp_path: Path) -> None:
    with bookie_process(tmp_path) as (process, port):
        client = await RawClient.connect_to(port)
        client.send(adds_of(1, range(1000), PAYLOAD))
        assert len(await client.acked(1000)) == 1000
        process.terminate()
        assert await client.is_closed()
        assert process.wait(20) == 0
    with bookie_process(tmp_path) as (_, port):
        client = await RawClient.connect_to(port)
        assert await client.read(1, -1) == entry_of(1, 999, PAYLOAD)
        client.close()
    assert "journal_replayed" not in (tmp_path / "log").read_text(), "all was flushed at the end"


SHORT_CYCLES, CYCLES = 4, 24
OK, FENCED = STATUS[Code.OK], STATUS[Code.FENCED]
AHEAD = 2_000
Ids = tuple[int, int]


def body_of(ledger: int, entry: int, lengths: tuple[int, ...]) -> bytes:
    return entry_of(ledger, entry, b"%d" % (entry % 10) * lengths[entry % len(lengths)])


async def answers(client: V3Client) -> AsyncIterator[Any]:
    data = b""
    while more := await client.reader.read(1 << 18):
        data, position = data + more, 0
        while len(data) - position >= LENGTH.size:
            end = position + LENGTH.size + LENGTH.unpack_from(data, position)[0]
            if end > len(data):
                break
            yield ResponseMessage.FromString(data[position + LENGTH.size : end])
            position = end
        data = data[position:]


class Victim:
    """The bookie, which is killed once enough adds are acked, some of each writer among them."""

    def __init__(
        self, process: subprocess.Popen[str], kill_after: int, writers: Iterable[Writer]
    ) -> None:
        self._process = process
        self._left = kill_after
        self._writers = writers

    def acked(self) -> None:
        self._left -= 1
        if self._left <= 0 and all(writer.acked for writer in self._writers):
            self._process.kill()


class Writer:
    """Adds to its own ledgers, in turn; after a kill it continues at the first unacked entry."""

    def __init__(
        self, first: int, ledgers: int, lengths: tuple[int, ...], step: int, **how: Any
    ) -> None:
        self._ledgers = range(first, first + ledgers)
        self._lengths = lengths
        self._step = step
        self._how = how
        self.acked: set[Ids] = set()
        self._tried: dict[Ids, None] = {}
        self._number = 0

    def body(self, ids: Ids) -> bytes:
        return body_of(*ids, self._lengths)

    def _next(self) -> Iterator[Ids]:
        yield from [ids for ids in self._tried if ids not in self.acked]
        while True:
            ledger = self._ledgers[self._number % len(self._ledgers)]
            yield ledger, self._number // len(self._ledgers) * self._step
            self._number += 1

    async def write(self, port: int, victim: Victim) -> None:
        client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
        under_way: dict[int, Ids] = {}
        following, txn = self._next(), 1
        with contextlib.suppress(ConnectionError):
            arriving = answers(client)
            while True:
                while len(under_way) < AHEAD:
                    some = []
                    for _ in range(100):
                        ids = next(following)
                        under_way[txn] = ids
                        self._tried[ids] = None
                        some.append(add_frame(*ids, txn=txn, body=self.body(ids), **self._how))
                        txn += 1
                    client.send(b"".join(some))
                for _ in range(100):
                    answer = await anext(arriving, None)
                    if answer is None:
                        client.close()
                        return
                    ids = under_way.pop(answer.header.txnId)
                    assert answer.status == OK, (ids, answer)
                    assert (answer.addResponse.ledgerId, answer.addResponse.entryId) == ids
                    self.acked.add(ids)
                    victim.acked()
        client.close()

    async def check(self, port: int, wanted: Iterable[Ids]) -> None:
        client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
        arriving, asked = answers(client), list(wanted)
        for start in range(0, len(asked), 200):
            some = asked[start : start + 200]
            client.send(b"".join(read_frame(*ids, txn=n) for n, ids in enumerate(some)))
            for _ in some:
                answer = await anext(arriving)
                ids = some[answer.header.txnId]
                assert answer.status == OK, f"acked {ids}: {answer.status}"
                assert answer.readResponse.body == self.body(ids)
        client.close()

    async def check_tried(self, port: int) -> int:
        """Check that each unacked entry is there as written, or absent; return how many are
        there."""
        client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
        found = 0
        for ids in [one for one in self._tried if one not in self.acked][:300]:
            answer = await client.read(*ids)
            assert answer.status in (OK, STATUS[Code.NO_ENTRY], STATUS[Code.NO_LEDGER])
            assert answer.status != OK or answer.body == self.body(ids)
            found += answer.status == OK
        client.close()
        return found


async def fence(port: int, ledger: int) -> None:
    client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
    assert await client.add(ledger, 0) == OK
    assert (await client.read(ledger, -1, flag=FENCE, masterKey=KEY)).status == OK
    client.close()


async def still_fenced(port: int, ledgers: Iterable[int]) -> None:
    client = V3Client(*await asyncio.open_connection("127.0.0.1", port))
    for ledger in ledgers:
        assert await client.add(ledger, 1) == FENCED
        assert (await client.read(ledger, 0)).body == entry_of(ledger, 0)
    client.close()


@pytest.mark.parametrize(
    "cycles",
    [
        pytest.param(SHORT_CYCLES, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
        pytest.param(CYCLES, marks=[pytest.mark.long, pytest.mark.timeout(900)]),
    ],
)
async def test_what_was_acked_in_v3_survives_kill_9(tmp_path: Path, cycles: int) -> None:
    rng = random.Random(20261124)
    writers = [
        Writer(100, 1, (300,), 1),
        Writer(200, 5, (10, 1000, 0, 40_000, 77), 1, recovery=True, priority=100),
        Writer(300, 3, (50,), 3, write_flags=0),
    ]
    fenced: list[int] = []
    unacked = 0
    for cycle in range(cycles):
        before = [set(writer.acked) for writer in writers]
        with bookie_process(tmp_path) as (process, port):
            await still_fenced(port, fenced)
            await fence(port, 1000 + cycle)
            fenced.append(1000 + cycle)
            victim = Victim(process, rng.randrange(1, 9_000), writers)
            await asyncio.gather(*(writer.write(port, victim) for writer in writers))
        with bookie_process(tmp_path) as (process, port):
            for writer, known in zip(writers, before, strict=True):
                await writer.check(port, sorted(writer.acked - known))
                unacked += await writer.check_tried(port)
            process.kill()
    with bookie_process(tmp_path) as (_, port):
        await still_fenced(port, fenced)
        for writer in writers:
            await writer.check(port, sorted(writer.acked))
    counts = [len(writer.acked) for writer in writers]
    print(f"{cycles} kills, {counts} adds acked, {unacked} stored and not acked")
    assert all(counts)


class Bookie:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"file://{folder}/metadata.db"
        self.port = free_port()
        section: dict[str, Any] = {
            **TINY_BOOKIE,
            "port": self.port,
            "bookie_id": "bookie-1",
            "journal_directories": [f"{folder}/data/journal"],
            "ledger_directories": [f"{folder}/data/ledgers"],
        }
        spec = ProcessSpec(name="bookie-1", metadata_url=self.url, sections={"bookie": section})
        self.child = LaunchedChild("bookie", spec, folder)

    async def dies_starting(self, failpoint: Failpoint) -> None:
        self.child.trigger.arm(failpoint)
        with pytest.raises(ChildFailed, match="killed by SIGKILL before it was ready"):
            await self.child.start()
        assert not self.child.trigger.is_armed, f"{failpoint} was not what killed it"

    async def kill(self) -> None:
        self.child.signal(signal.SIGKILL)
        await self.child.wait()

    async def adds_until_dead(self, first: int) -> int:
        client = await RawClient.connect_to(self.port)
        acked = sent = first - 1
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                if sent - acked < 400:
                    client.send(adds_of(1, range(sent + 1, sent + 101), PAYLOAD))
                    sent += 100
                answer = await client.answer()
                assert isinstance(answer, Added)
                acked = answer.last
        client.close()
        await self.child.wait()
        return acked

    async def holds(self, last: int) -> bool:
        client = await RawClient.connect_to(self.port)
        expected = [entry_of(1, number, PAYLOAD) for number in range(last + 1)]
        found = await client.read_all(1, last)
        client.close()
        return found == expected


@pytest.mark.long
async def test_every_step_of_a_first_start(tmp_path: Path) -> None:
    for number, name in enumerate(FIRST_START_FAILPOINTS):
        step, _, phase = name.partition(":")
        bookie = Bookie(tmp_path / str(number))
        await bookie.dies_starting(Failpoint(step, phase))
        if name in ("cookie.create:after", "cookie.rename:before"):
            await bookie.dies_starting(Failpoint("cookie.unlink", "before"))
            await bookie.dies_starting(Failpoint("cookie.unlink", "after"))
        await bookie.child.start()
        client = await RawClient.connect_to(bookie.port)
        client.send(adds_of(1, range(10), PAYLOAD))
        assert len(await client.acked(10)) == 10
        client.close()
        assert await bookie.holds(9), name
        await bookie.kill()
        assert name in hits(bookie.folder / "failpoints")


@pytest.mark.long
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("mark.create:after", "mark.unlink"),
        ("mark.rename:before", "mark.unlink"),
        ("log.create:after", "log.unlink"),
    ],
)
async def test_a_death_while_it_clears_away_what_another_left(
    tmp_path: Path, first: str, second: str
) -> None:
    """It dies while it writes a file, and again when it removes the rest."""
    bookie = Bookie(tmp_path)
    store = open_store(bookie.url)
    await store.start()
    await LedgerStore(store).initialize()
    await store.close()
    acked = -1
    for phase in ("before", "after"):
        step, _, moment = first.partition(":")
        bookie.child.trigger.arm(Failpoint(step, moment, 2))
        await bookie.child.start()
        acked = await bookie.adds_until_dead(acked + 1)
        bookie.child.trigger.arm(Failpoint(second, phase))
        with contextlib.suppress(ChildFailed):
            await bookie.child.start()
            await asyncio.wait_for(bookie.adds_until_dead(acked + 1), 30)
        assert not bookie.child.trigger.is_armed, f"{second} was not reached after {first}"
        await bookie.child.start()
        assert await bookie.holds(acked)
        await bookie.kill()


def test_a_failpoint_fires_at_its_time_and_once(tmp_path: Path) -> None:
    armed, trigger = Armed(tmp_path / "b", tmp_path), Trigger(tmp_path / "b")
    assert not armed.reaches("mark.rename", "before")
    trigger.arm(Failpoint("mark.rename", "after", 2))
    assert not armed.reaches("mark.rename", "before")
    assert not armed.reaches("mark.rename", "after")
    assert armed.reaches("mark.rename", "after")
    trigger.disarm()
    assert not armed.reaches("mark.rename", "after")
    trigger.arm(Failpoint("mark.rename", "after", 1))
    assert armed.reaches("mark.rename", "after"), "armed anew it counts anew"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/ledgers/00/0000/L0007", "ledger"),
        ("/ledgers/idgen/ID-", "ledger-id"),
        ("/ledgers/available/bookie-1", "registration"),
        ("/ledgers/available/readonly/bookie-1", "registration"),
        ("/ledgers/cookies/bookie-1", "cookie-record"),
        ("/octavo/owners/public/t/0", "owner"),
        ("/octavo/topics/public/partitions", "topic"),
        ("/octavo/topics/public/t/partitions/0", "partition"),
        ("/octavo/topics/public/t/subscriptions/s", "subscription"),
    ],
)
def test_records_are_told_apart(path: str, kind: str) -> None:
    assert record_kind(path) == kind


MIB = 1024 * 1024
CONNECTIONS = 4
ROUNDS_MEMORY = 8
ADDS = 5_000
PAYLOAD_MEMORY = b"m" * 1_000
SENT_MIB = CONNECTIONS * ROUNDS_MEMORY * ADDS * len(PAYLOAD_MEMORY) // MIB
GROWTH_MIB_MAX = 64
"""Twice the sum of the bounds below: the interpreter and the allocator take their share."""
BOUNDS = {
    "connection_add_bytes_max": MIB,
    "journal_queue_bytes_max": 4 * MIB,
    "journal_group_bytes_max": MIB,
    "write_cache_bytes_max": 8 * MIB,
    "read_cache_bytes_max": 4 * MIB,
}
BOOKIE = textwrap.dedent(
    """
    import asyncio, sys, time, json
    from pathlib import Path
    import uvloop
    from tests.support.raw_bookie import TroubledDisk, running_bookie

    async def main():
        disk = TroubledDisk()
        disk.hook = lambda call, path: time.sleep(0.02) if call == "datasync" else None
        async with running_bookie(Path(sys.argv[1]), disk=disk, **json.loads(sys.argv[2])) as node:
            print(node.port, flush=True)
            await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)

    uvloop.run(main())
    """
)


def peak_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


async def flood(client: RawClient, ledger_id: int) -> None:
    async def send() -> None:
        for number in range(ROUNDS_MEMORY):
            client.send(
                adds_of(ledger_id, range(number * ADDS, (number + 1) * ADDS), PAYLOAD_MEMORY)
            )
            await client.writer.drain()

    sending = asyncio.create_task(send())
    expected = [(ledger_id, entry_id) for entry_id in range(ROUNDS_MEMORY * ADDS)]
    assert await client.acked(ROUNDS_MEMORY * ADDS) == expected
    await sending


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads VmHWM from /proc")
async def test_a_slow_disk_does_not_fill_the_memory(tmp_path: Path) -> None:
    process = subprocess.Popen(  # noqa: ASYNC220 (it starts once, nothing else runs yet)
        [sys.executable, "-c", BOOKIE, str(tmp_path), json.dumps(BOUNDS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        while not (line := process.stdout.readline().strip()).isdigit():
            assert line, "the bookie did not start"
        clients = [await RawClient.connect_to(int(line)) for _ in range(CONNECTIONS)]
        assert await clients[0].add(adds_of(99, [0])) == 0
        before = peak_mib(process.pid)
        await asyncio.gather(*(flood(client, n) for n, client in enumerate(clients, 1)))
        grown = peak_mib(process.pid) - before
        assert grown < GROWTH_MIB_MAX < SENT_MIB / 2, f"{grown:.0f} MiB of {SENT_MIB} MiB sent"
        last = ROUNDS_MEMORY * ADDS - 1
        assert await clients[0].read(1, last) == entry_of(1, last, PAYLOAD_MEMORY)
        for client in clients:
            client.close()
    finally:
        process.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait(10)
            process.stdout.close()


SHORT_POLLS, POLLS = 1_000, 10_000
LEDGER = 1
OK_POLLS, TOO_MANY = STATUS[Code.OK], STATUS[Code.TOO_MANY_REQUESTS]
LAST = 2**40
ANSWERED_S_MAX = 60.0
"""Far more than the usual time, for a busy machine."""


async def clients_of(port: int, count: int) -> list[V3Client]:
    made: list[V3Client] = []
    for start in range(0, count, 200):
        some = (asyncio.open_connection("127.0.0.1", port) for _ in range(min(200, count - start)))
        made += [V3Client(*one) for one in await asyncio.gather(*some)]
    return made


async def answer_of(client: V3Client) -> Any:
    length = LENGTH.unpack(await client.reader.readexactly(LENGTH.size))[0]
    return ResponseMessage.FromString(await client.reader.readexactly(length))


def poll(client: V3Client, lac: int) -> None:
    client.send(read_frame(LEDGER, lac + 1, previousLAC=lac, timeOut=60_000))


async def taken(client: V3Client) -> list[int]:
    """Return the statuses of refusals so far: its earlier polls have been accepted now."""
    client.send(read_frame(404, 0, txn=LAST))
    refused = []
    while (answer := await answer_of(client)).header.txnId != LAST:
        refused.append(int(answer.status))
    return refused


async def until_all_are_free(port: int, count: int, lac: int) -> None:
    """Wait until this many polls find a place: no gone client keeps a place."""
    async with asyncio.timeout(60):
        while True:
            (client,) = await clients_of(port, 1)
            for _ in range(count):
                poll(client, lac)
            refused = await taken(client)
            client.writer.transport.abort()
            if not refused:
                return
            assert set(refused) == {TOO_MANY}


@pytest.mark.parametrize(
    "count",
    [
        pytest.param(SHORT_POLLS, marks=pytest.mark.timeout(600)),
        pytest.param(POLLS, marks=[pytest.mark.long, pytest.mark.timeout(600)]),
    ],
)
async def test_what_they_cost_and_that_it_is_given_back(tmp_path: Path, count: int) -> None:
    settings = {"long_polls_max": count, "connections_max": count + 100}
    with bookie_process(tmp_path, **settings) as (process, port):
        writer, other = await clients_of(port, 2)
        for entry in range(2):
            assert await writer.add(LEDGER, entry) == OK_POLLS
        size = psutil.Process(process.pid).memory_info
        before = size().rss
        allocator = 2 * MIB_POLLS
        bound = before + count * (BOOKIE_CONNECTION_BYTES + LONG_POLL_BYTES) + allocator
        took, peaks = [], []
        for lac in range(4):
            clients = await clients_of(port, count)
            for client in clients:
                poll(client, lac)
            assert not any(await asyncio.gather(*map(taken, clients)))
            poll(other, lac)
            assert await taken(other) == [TOO_MANY]
            began = time.monotonic()
            assert await writer.add(LEDGER, lac + 2) == OK_POLLS
            answers = await asyncio.gather(*(map(answer_of, clients)))
            took.append(time.monotonic() - began)
            assert {(one.status, one.readResponse.maxLAC) for one in answers} == {
                (OK_POLLS, lac + 1)
            }
            for client in clients:
                poll(client, lac + 1)
            assert not any(await asyncio.gather(*map(taken, clients)))
            peaks.append(size().rss)
            for client in clients:
                client.writer.transport.abort()
            await until_all_are_free(port, count, lac + 1)
        grown = [f"{(one - before) / MIB_POLLS:.0f}" for one in peaks]
        print(f"{count} polls: {grown} MiB more, answered in {max(took):.2f} s")
        assert max(peaks) <= bound, (
            f"{max(peaks) / MIB_POLLS:.0f} MiB; allowed: {bound / MIB_POLLS:.0f}"
        )
        assert max(took) < ANSWERED_S_MAX
        process.terminate()
        assert process.wait(30) == 0


async def change_policy(url: str) -> None:
    store = open_store(url)
    await store.start()
    try:
        await PolicyStore(store).change(lambda record: secured(record, "user:admin"))
    finally:
        await store.close()


async def read_as_stranger(port: int, ledger: int) -> object:
    client = await RawClient.connect_to(port)
    try:
        return await client.read(ledger, 0)
    except (ConnectionError, EOFError) as error:
        return error
    finally:
        client.close()


@pytest.mark.long
def test_securing_a_running_cluster_shuts_strangers_out_and_nobody_else(tmp_path: Path) -> None:
    with standalone(tmp_path / "data") as one:
        data = ("--data", str(one.folder))
        assert octavo("topic", "create", "t", *data).returncode == 0
        assert octavo("publish", "t", "before", *data).returncode == 0
        listed = octavo("ledger", "list", *data, "--json")
        assert listed.returncode == 0, listed.stderr
        ledger = json.loads(listed.stdout)[0]["ledger_id"]
        bookies = [member for member in one.cluster.members if member.kind == "bookie"]

        def answers() -> list[object]:
            return [asyncio.run(read_as_stranger(one.port, ledger)) for one in bookies]

        assert any(isinstance(found, bytes) for found in answers())
        asyncio.run(change_policy(one.cluster.metadata_url))
        until(lambda: answers() == [Code.UNAUTHORIZED] * 3, "strangers are refused", 10.0)
        # Processes with access to the metadata are nodes, and so are brokers: their work continues.
        read = octavo("ledger", "read", str(ledger), *data)
        assert read.returncode == 0, read.stderr
        recovered = octavo("ledger", "recover", str(ledger), "--force", *data)
        assert recovered.returncode == 0, recovered.stderr
        logs = {member.name: Path(member.log).read_text() for member in one.cluster.members}
        assert all("caller_refused" in logs[member.name] for member in bookies)
        assert not any("bookie_doubts_us" in log for log in logs.values())
