"""SIGSTOP: a process that sleeps past its session, while others take what was its, and wakes.

It still believes what it knew: that it owns partitions, that its ledgers are open, that it is
registered. Nothing that it does after it woke may harm what happened meanwhile.
"""

from __future__ import annotations

import asyncio
import random
import signal
from pathlib import Path

import pytest

from octavo.metadata.lock_holder import describe_holder
from tests.support.processes.chaos import SESSION_MS, Breaker, run_round
from tests.support.processes.failpoints import Failpoint
from tests.support.processes.kills import LaunchedSupervisor, is_stopped
from tests.support.processes.users import Record
from tests.support.processes.waiting import DEADLINE_S, everybody_registered, more_acked, owners_of
from tests.support.zookeeper_server import ZooKeeperServer

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


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
    """Stop it, but not in the millisecond in which it holds the embedded store's write lock.

    Who does holds up the others, as GUARANTEES.md says: that is not what is tested here.
    """
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
    """Publishing goes on before it wakes; afterwards it takes part again."""
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


async def test_with_the_embedded_store(tmp_path: Path) -> None:
    await check(tmp_path / "data")


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
    """An owner of partitions that fell asleep at that moment; who owns may change meanwhile."""
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


async def test_in_the_middle_of_a_change_of_metadata(tmp_path: Path) -> None:
    """The owner falls asleep right before or after it changed a record, and wakes an ex-owner.

    It may take the embedded store's lock into its sleep: then the others wait for it.
    """
    await check_middle(tmp_path / "data")


@pytest.mark.zookeeper
async def test_in_the_middle_of_a_change_in_zookeeper(
    tmp_path: Path, zookeeper: ZooKeeperServer
) -> None:
    """Nobody waits for who sleeps."""
    await check_middle(tmp_path / "data", zookeeper.new_url())
