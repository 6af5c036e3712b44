"""A cluster of real processes over a real ZooKeeper that goes away and comes back. `run_round`
keeps publishers and consumers at work, and checks that no acked message is lost, doubled or
reordered."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from octavo import AsyncClient, Client
from octavo.client.errors import ApiError
from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled
from tests.support.processes.chaos import SESSION_MS, Breaker, run_round
from tests.support.processes.standalone import OCTAVO, environment, octavo, standalone, until
from tests.support.processes.users import TOPIC, Record
from tests.support.processes.waiting import everybody_registered, more_acked, owners_of
from tests.support.zookeeper_server import ZooKeeperRun, ZooKeeperServer

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(600)]
METADATA_ANSWER_S = 20.0


async def check(folder: Path, url: str, trouble: Callable[[Breaker, Record], object]) -> None:
    outcome = await run_round(folder, random.Random(7), trouble, url)  # type: ignore[arg-type]
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.record.acked == outcome.record.sent > 100


@pytest.mark.long
async def test_kill_9_of_a_bookie_and_of_the_owner(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    async def trouble(breaker: Breaker, record: Record) -> None:
        supervisor = breaker.supervisor
        await more_acked(record, 300)
        async with AsyncClient(supervisor.cluster.urls) as client:
            stats = (await client.topic(TOPIC)).stats
            ledger = await client.ledger(stats["partitions"][0]["ledgers"][-1]["id"])
        owner = stats["partitions"][0]["owner"]
        bookie = ledger["fragments"][-1]["bookies"][0]
        for name in (owner, bookie):
            supervisor.signal(name, signal.SIGKILL)
        await more_acked(record, 300)
        left = [m.address for m in supervisor.cluster.of_kind("broker") if m.name != owner]
        async with AsyncClient(left) as client:
            stats = (await client.topic(TOPIC)).stats
            assert {one["owner"] for one in stats["partitions"]} == {
                m.name for m in supervisor.cluster.of_kind("broker") if m.name != owner
            }, "the broker that is left took everything over"
        for name in (owner, bookie):
            await supervisor.resume(name)
        await everybody_registered(supervisor.cluster.urls)

    await check(tmp_path / "data", zookeeper.new_url(), trouble)


@pytest.fixture
def own(
    zookeeper_of_ones_own: Callable[[], ZooKeeperRun],
) -> Iterator[tuple[contextlib.ExitStack, Callable[[], ZooKeeperServer]]]:
    """A server that the test may break; call again to start it again on the same data."""
    with contextlib.ExitStack() as stack:
        yield stack, lambda: stack.enter_context(zookeeper_of_ones_own())


Own = tuple[contextlib.ExitStack, Callable[[], ZooKeeperServer]]


def start(run: Callable[[], ZooKeeperServer]) -> ZooKeeperServer:
    try:
        return run()
    except ZooKeeperNotInstalled as error:
        pytest.skip(str(error))


@pytest.mark.long
async def test_zookeeper_silent_for_less_than_a_session(tmp_path: Path, own: Own) -> None:
    """Publishing to open ledgers continues, and every session survives."""
    server = start(own[1])

    async def trouble(breaker: Breaker, record: Record) -> None:
        await more_acked(record, 200)
        owners = await owners_of(breaker.supervisor.cluster.urls)
        server.process.send_signal(signal.SIGSTOP)
        try:
            before = record.acked
            await asyncio.sleep(SESSION_MS / 1000 * 0.4)
            during = record.acked - before
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert during > 20, f"only {during} acked while ZooKeeper was silent"
        await more_acked(record, 200)
        assert await owners_of(breaker.supervisor.cluster.urls) == owners, "no partition moved"

    await check(tmp_path / "data", server.new_url(), trouble)


@pytest.mark.long
@pytest.mark.parametrize("how", ["stopped", "killed"])
async def test_zookeeper_away_for_longer_than_every_session(
    tmp_path: Path, own: Own, how: str
) -> None:
    """SIGSTOP lets every session expire at once when it wakes; a new process restores them.
    Calls that need metadata are refused in bounded time; afterwards all members are registered,
    and publishing continues."""
    _, run = own
    server = start(run)

    async def trouble(breaker: Breaker, record: Record) -> None:
        await more_acked(record, 200)
        urls = breaker.supervisor.cluster.urls
        number = signal.SIGSTOP if how == "stopped" else signal.SIGKILL
        server.process.send_signal(number)
        try:
            await asyncio.sleep(SESSION_MS / 1000 * 1.5)
            await metadata_is_called_unavailable(urls)
        finally:
            if how == "stopped":
                server.process.send_signal(signal.SIGCONT)
            else:
                server.process.wait(10)
                await asyncio.to_thread(run)
        await more_acked(record, 300)
        await everybody_registered(urls)
        assert all(one.state == "running" for one in breaker.supervisor.cluster.members)

    await check(tmp_path / "data", server.new_url(), trouble)


async def metadata_is_called_unavailable(urls: list[str]) -> None:
    started = time.monotonic()
    async with AsyncClient(urls[0], retry_s=0, attempt_s=METADATA_ANSWER_S) as client:
        with pytest.raises(ApiError) as refused:
            await client.create_topic("while-away")
    assert refused.value.status == 503, refused.value
    assert refused.value.can_retry
    assert refused.value.code == "metadata-unavailable", refused.value.problem
    assert "zk://127.0.0.1" in str(refused.value), "it names who did not answer"
    assert time.monotonic() - started < METADATA_ANSWER_S


@pytest.mark.long
def test_standalone_by_one_command(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    with standalone(tmp_path / "data", "--metadata", zookeeper.new_url()) as one:
        with Client(one.cluster.urls) as client:
            client.create_topic("zk", partitions=2)
            client.publish_many("zk", [(f"k{n % 9}", f"m{n}") for n in range(500)])
        one.kill_everything()
        one.start()
        with Client(one.cluster.urls) as client:
            client.publish_many("zk", [(f"k{n % 9}", f"m{n}") for n in range(500, 600)])
            subscription = client.subscribe("zk", "all")
            found: list[str] = []
            while len(found) < 600:
                received = subscription.receive(200, wait_s=20)
                assert received, f"{len(found)} of 600 came"
                subscription.ack(received)
                found += [message.text() for message in received]
        assert sorted(found) == sorted(f"m{n}" for n in range(600))
        said = one.stop()
        assert "Traceback" not in said


@pytest.mark.long
def test_single_processes_by_command(tmp_path: Path, zookeeper: ZooKeeperServer) -> None:
    url = zookeeper.new_url()
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(name: str, *arguments: str) -> None:
        with open(tmp_path / f"{name}.log", "ab") as log:
            processes[name] = subprocess.Popen(
                [*OCTAVO, *arguments, "--metadata", url, "--port", "0"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment(), "OCTAVO_SESSION_TIMEOUT_MS": str(SESSION_MS)},
            )

    def fact(name: str, event: str, field: str) -> str | None:
        lines = (tmp_path / f"{name}.log").read_text().splitlines()
        events = [json.loads(line) for line in lines if line.startswith("{")]
        return next((str(e[field]) for e in reversed(events) if e["event"] == event), None)

    def bookie(name: str) -> None:
        launch(name, "bookie", "--data", str(tmp_path / name), "--bookie-id", name)

    try:
        for name in ("b1", "b2", "b3"):
            bookie(name)
        for name in ("broker-a", "broker-b"):
            launch(name, "broker", "--set", f"broker_id={name}")
        for name in ("broker-a", "broker-b"):
            until(lambda name=name: fact(name, "broker_ready", "url") is not None, name)  # type: ignore[misc]
        until(
            lambda: "3 of 3 up" in octavo("bookies", "--metadata", url).stderr,
            "three bookies are up",
        )
        urls = {name: str(fact(name, "broker_ready", "url")) for name in ("broker-a", "broker-b")}
        with Client([*urls.values()]) as client:
            client.create_topic("hand")
            expected = [f"m{n}" for n in range(200)]
            client.publish_many("hand", [(None, text) for text in expected[:100]])
            owner = client.topic("hand").stats["partitions"][0]["owner"]
            for victim in (owner, "b2"):
                os.kill(processes[victim].pid, signal.SIGKILL)
                processes[victim].wait(10)
            bookie("b2")
            client.publish_many("hand", [(None, text) for text in expected[100:]])
            assert [message.text() for message in client.messages("hand")] == expected
            assert client.topic("hand").stats["partitions"][0]["owner"] != owner
        for name, process in processes.items():
            process.terminate()
            assert process.wait(40) == (-signal.SIGKILL if name == owner else 0), name
        logs = "".join((tmp_path / f"{name}.log").read_text() for name in processes)
        assert "Traceback" not in logs
    finally:
        for process in processes.values():
            process.kill()
            process.wait(10)
