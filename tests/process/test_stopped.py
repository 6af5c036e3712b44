"""Processes that sleep (SIGSTOP) or hang, and wake or are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from octavo import AsyncClient
from octavo.client.producer import Producer
from octavo.metadata.embedded import LOCK_TIMEOUT_MS, EmbeddedStore
from octavo.metadata.lock_holder import describe_holder
from octavo.metadata.store import MetadataUnavailable, SessionState
from tests.support.processes.chaos import SESSION_MS, Breaker, run_round
from tests.support.processes.failpoints import Failpoint
from tests.support.processes.kills import LaunchedSupervisor, is_stopped
from tests.support.processes.standalone import until
from tests.support.processes.users import Record
from tests.support.processes.waiting import DEADLINE_S, everybody_registered, more_acked, owners_of
from tests.support.zookeeper_server import ZooKeeperServer


async def check(folder: Path, metadata_url: str = "") -> None:
    async def trouble(breaker: Breaker, record: Record) -> None:
        supervisor = breaker.supervisor
        assert isinstance(supervisor, LaunchedSupervisor)
        await more_acked(record, 200)
        for kind in ("broker", "bookie", "broker", "bookie"):
            await sleep_past_session(supervisor, record, kind)
        await everybody_registered(supervisor.cluster.urls)

    outcome = await run_round(
        folder, random.Random(5), trouble, metadata_url, make_supervisor=LaunchedSupervisor
    )
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.record.acked == outcome.record.sent > 1_000


async def stop_between_writes(supervisor: LaunchedSupervisor, name: str) -> None:
    """Stop it, but not while it holds the embedded store's write lock: then it would hold up the
    others, which GUARANTEES.md admits."""
    member = supervisor.cluster.member(name)
    assert member is not None
    database = supervisor.cluster.metadata_url.removeprefix("file://")
    while True:
        supervisor.signal(name, signal.SIGSTOP)
        async with asyncio.timeout(DEADLINE_S):
            while not is_stopped(member.pid):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        if f"process {member.pid} " not in describe_holder(database):
            return
        supervisor.signal(name, signal.SIGCONT)
        await asyncio.sleep(0.05)


async def sleep_past_session(supervisor: LaunchedSupervisor, record: Record, kind: str) -> None:
    urls = supervisor.cluster.urls
    name = (await owners_of(urls))[0][0] if kind == "broker" else "bookie-1"
    others = [one.address for one in supervisor.cluster.of_kind("broker") if one.name != name]
    await stop_between_writes(supervisor, name)
    try:
        await more_acked(record, 300)
        if kind == "broker":
            async with asyncio.timeout(DEADLINE_S):
                while any(owner == name for owner, _ in await owners_of(others)):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
        else:
            await more_acked(record, int(1.5 * SESSION_MS / 1000 * 300))
    finally:
        supervisor.signal(name, signal.SIGCONT)
    await more_acked(record, 200)


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_with_the_embedded_store(tmp_path: Path) -> None:
    await check(tmp_path / "data")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.zookeeper
async def test_with_zookeeper(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    await check(tmp_path / "data", zookeeper.new_url())


STOPS = [
    ("ledger.create", "after"),
    ("partition.put", "before"),
    ("partition.put", "after"),
    ("ledger.close", "before"),
    ("ledger.close", "after"),
    ("ledger.delete", "before"),
]


async def stopped_owner(supervisor: LaunchedSupervisor, moment: Failpoint) -> str:
    """An owner of partitions that fell asleep at that moment; the owner may change meanwhile."""
    while True:
        name = (await owners_of(supervisor.cluster.urls))[0][0]
        child = supervisor.launched[name]
        child.trigger.arm(moment)
        for _ in range(300):
            if is_stopped(child.pid):
                return name
            await asyncio.sleep(0.01)
        child.trigger.disarm()
        if is_stopped(child.pid):
            return name


async def check_middle(folder: Path, metadata_url: str = "") -> None:
    async def trouble(breaker: Breaker, record: Record) -> None:
        supervisor = breaker.supervisor
        assert isinstance(supervisor, LaunchedSupervisor)
        for step, phase in STOPS:
            await more_acked(record, 100)
            async with asyncio.timeout(DEADLINE_S):
                name = await stopped_owner(supervisor, Failpoint(step, phase, action="stop"))
            breaker.log.append(f"{name} stopped at {step}:{phase}")
            try:
                await asyncio.sleep(1.5 * SESSION_MS / 1000)
                if metadata_url:
                    await more_acked(record, 100)
            finally:
                supervisor.signal(name, signal.SIGCONT)
        await everybody_registered(supervisor.cluster.urls)

    outcome = await run_round(
        folder, random.Random(6), trouble, metadata_url, make_supervisor=LaunchedSupervisor
    )
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])


@pytest.mark.long
@pytest.mark.timeout(600)
async def test_in_the_middle_of_a_change_of_metadata(tmp_path: Path) -> None:
    """The owner falls asleep right before or after it changed a record, and wakes replaced. It
    may hold the embedded store's lock: then the others wait for it."""
    await check_middle(tmp_path / "data")


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.zookeeper
async def test_in_the_middle_of_a_change_in_zookeeper(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    await check_middle(tmp_path / "data", zookeeper.new_url())


# Heartbeats needed the write lock of the embedded store: a process that was stopped inside a
# transaction ended the sessions of healthy processes.

ROOT = Path(__file__).parents[2]
LOCK_SESSION_MS = 2000
SLEEPER = textwrap.dedent(
    """
    import asyncio, contextlib, os, signal, sys
    from octavo.metadata.embedded import EmbeddedStore
    from octavo.metadata.record_file import RecordFile
    from octavo.metadata.store import MetadataError

    log = RecordFile._log

    def log_then_sleep(self, path, *, names_changed):
        log(self, path, names_changed=names_changed)
        if path == "/sleep":
            os.kill(os.getpid(), signal.SIGSTOP)

    RecordFile._log = log_then_sleep

    async def main():
        store = EmbeddedStore(sys.argv[1], session_timeout_ms=600)
        store.on_session(lambda state: print(state.value, flush=True))
        await store.start()
        await store.create("/e/sleeper", b"", ephemeral=True)
        with contextlib.suppress(MetadataError):  # it may hear of it by this call first
            await store.create("/sleep", b"")
        print("awake", flush=True)
        await asyncio.sleep(60)

    asyncio.run(main())
    """
)


def lock_is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextlib.asynccontextmanager
async def asleep_inside_a_transaction(path: Path) -> AsyncIterator[subprocess.Popen[str]]:
    """A process that stops; the loop turns meanwhile, for the sessions that live on it."""
    process = subprocess.Popen(  # noqa: ASYNC220
        [sys.executable, "-c", SLEEPER, str(path)], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    try:
        while not lock_is_stopped(process.pid):
            assert process.poll() is None
            await asyncio.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(str(tmp_path / "metadata.db"), session_timeout_ms=LOCK_SESSION_MS)
    await store.start()
    yield store
    await store.close()


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ends_by", [signal.SIGCONT, signal.SIGKILL], ids=lambda s: s.name)
async def test_the_others_keep_their_sessions_and_read(
    tmp_path: Path, store: EmbeddedStore, ends_by: signal.Signals
) -> None:
    states: list[SessionState] = []
    await store.create("/e/healthy", b"x", ephemeral=True)
    store.on_session(states.append)
    async with asleep_inside_a_transaction(tmp_path / "metadata.db") as sleeper:
        writing = asyncio.create_task(store.create("/mine", b""))
        end = time.monotonic() + 4 * LOCK_SESSION_MS / 1000
        slowest_s = 0.0
        while time.monotonic() < end:
            begun = time.monotonic()
            assert (await store.get("/e/healthy")).value == b"x"
            slowest_s = max(slowest_s, time.monotonic() - begun)
            await asyncio.sleep(0.01)
        assert slowest_s < LOCK_TIMEOUT_MS / 1000, "reads stood behind a write that waited"
        with pytest.raises(MetadataUnavailable, match=rf"process {sleeper.pid} \(.*, stopped\)"):
            await writing
        assert await store.children("/e") == ["healthy", "sleeper"]
        os.kill(sleeper.pid, ends_by)
        async with asyncio.timeout(60):
            # The dead process's session ends; the process that woke has lost its own, and says
            # so.
            while "sleeper" in await store.children("/e"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await store.create("/mine", b"")
        if ends_by is signal.SIGCONT:
            assert sleeper.stdout is not None
            async with asyncio.timeout(60):
                while await asyncio.to_thread(sleeper.stdout.readline) != "expired\n":
                    pass
    assert states == []
    assert store.session_state is SessionState.CONNECTED


STEADY = "steady"
"""A topic with long ledgers, which needs no change of metadata."""
PAUSE_S_MAX = SESSION_MS / 1000
"""A session, of which the bug cost several: most of it is for a busy machine."""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("ends_by", [signal.SIGCONT, signal.SIGKILL], ids=lambda s: s.name)
async def test_a_healthy_broker_keeps_its_partitions_and_acks(
    tmp_path: Path, ends_by: signal.Signals
) -> None:
    async def trouble(breaker: Breaker, record: Record) -> None:
        supervisor = breaker.supervisor
        assert isinstance(supervisor, LaunchedSupervisor)
        brokers = supervisor.cluster.of_kind("broker")
        async with contextlib.AsyncExitStack() as stack:
            clients = {
                one.name: await stack.enter_async_context(AsyncClient(one.address))
                for one in brokers
            }
            any_client = clients[brokers[0].name]
            await any_client.create_topic(STEADY, partitions=8)
            for partition in range(8):
                await any_client.publish(STEADY, b"", partition=partition)
            producers = {name: await one.producer(STEADY) for name, one in clients.items()}
            await more_acked(record, 100)
            name = await stopped_owner(supervisor, Failpoint("transaction", "half", action="stop"))
            (healthy,) = (one.name for one in brokers if one.name != name)
            served = await publish_meanwhile(clients[healthy], producers[healthy])
            supervisor.signal(name, ends_by)
            if ends_by is signal.SIGKILL:
                assert await supervisor.until_dead(name)
                await supervisor.resume(name)
            assert served <= set((await clients[healthy].cluster())["partitions_here"])
        await more_acked(record, 200)
        await everybody_registered(supervisor.cluster.urls)

    outcome = await run_round(
        tmp_path / "data", random.Random(7), trouble, make_supervisor=LaunchedSupervisor
    )
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])


async def publish_meanwhile(client: AsyncClient, producer: Producer) -> set[str]:
    """Publish for three sessions to what this broker serves; return that."""
    served = set((await client.cluster())["partitions_here"])
    own = [int(one.rpartition("/")[2]) for one in served if f"/{STEADY}/" in one]
    assert own, f"it serves none of the steady ones, but {served}"
    end = time.monotonic() + 3 * SESSION_MS / 1000
    count = 0
    while time.monotonic() < end:
        begun = time.monotonic()
        await (await producer.send(b"x", partition=own[count % len(own)]))
        assert time.monotonic() - begun < PAUSE_S_MAX, f"message {count}"
        assert served <= set((await client.cluster())["partitions_here"]), "partitions were lost"
        await asyncio.sleep(0.01)
        count += 1
    return served


PROGRAM = """
import asyncio, re, sys
from octavo.process import life, outside_watch
from octavo.process.spec import ProcessSpec

outside_watch.STANDS_STILL_S = 3

async def hang(spec, life):
    life.ready()
    print("ready", flush=True)
    if sys.argv[1] == "hang":
        re.match("(a+)+$", "a" * 60 + "!")  # of C, and it keeps the interpreter
    await life.until_stopped()

control = int(sys.argv[2]) if len(sys.argv) > 2 else None
sys.exit(life.run_process(hang, ProcessSpec(name="x", metadata_url=""), control))
"""


@contextmanager
def process(*arguments: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    with log.open("w") as said:
        one = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *arguments],
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
        )
    try:
        assert one.stdout is not None
        assert one.stdout.readline() == "ready\n", log.read_text()
        yield one
    finally:
        one.kill()
        one.wait()
        assert one.stdout is not None
        one.stdout.close()


def is_gone(one: psutil.Process) -> bool:
    try:
        return one.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def test_a_loop_that_hangs_in_a_library_is_killed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with process("hang", log=log) as hung:
        watch = psutil.Process(hung.pid).children()
        assert len(watch) == 1
        assert hung.wait(60) in (-signal.SIGABRT, -signal.SIGKILL)
        until(lambda: is_gone(watch[0]), "the watching process is gone")
    said = log.read_text()
    assert "stands still" in said
    assert "re/__init__.py" in said, "the log says where it stood"


def test_a_stopped_process_is_left_alone(tmp_path: Path) -> None:
    with process("serve", log=tmp_path / "log") as one:
        one.send_signal(signal.SIGSTOP)
        time.sleep(5)
        one.send_signal(signal.SIGCONT)
        one.send_signal(signal.SIGTERM)
        assert one.wait(30) == 0, (tmp_path / "log").read_text()


def test_the_watching_process_ends_with_its_parent(tmp_path: Path) -> None:
    with process("serve", log=tmp_path / "log") as one:
        [watch] = psutil.Process(one.pid).children()
        one.kill()
        until(lambda: is_gone(watch), "the watching process is gone")


@pytest.mark.parametrize(("mode", "gone_s"), [("serve", 30.0), ("hang", 60.0)])
def test_no_process_outlives_its_supervisor(mode: str, gone_s: float, tmp_path: Path) -> None:
    """Also where another process holds the supervisor's end of the socket open."""
    supervisor = textwrap.dedent(
        f"""
        import os, socket, subprocess, sys, time
        ours, theirs = socket.socketpair()
        os.set_inheritable(ours.fileno(), True)
        keeper = subprocess.Popen(["sleep", "300"], close_fds=False)
        child = subprocess.Popen(
            [sys.executable, "-c", {PROGRAM!r}, {mode!r}, str(theirs.fileno())],
            pass_fds=[theirs.fileno()], stdout=subprocess.PIPE, start_new_session=True,
        )
        assert child.stdout.readline() == b"ready\\n"
        print(child.pid, keeper.pid, flush=True)
        time.sleep(300)
        """
    )
    with subprocess.Popen([sys.executable, "-c", supervisor], stdout=subprocess.PIPE) as one:
        assert one.stdout is not None
        child, keeper = (psutil.Process(int(pid)) for pid in one.stdout.readline().split())
        os.kill(one.pid, signal.SIGKILL)
        try:
            until(lambda: is_gone(child), "the process is gone", gone_s)
        finally:
            keeper.kill()
            if not is_gone(child):
                child.kill()
