"""A store over three real servers: its own server dies, the leader dies, the majority dies."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from octavo import AsyncClient
from octavo.client.errors import ApiError
from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataUnavailable, Record, SessionState
from octavo.metadata.zookeeper import ZooKeeperStore
from tests.support.kit.history import Call
from tests.support.processes.chaos import SESSION_MS, Breaker, run_round
from tests.support.processes.users import TOPIC
from tests.support.processes.users import Record as UserRecord
from tests.support.processes.waiting import DEADLINE_S, everybody_registered, more_acked, owners_of
from tests.support.zookeeper_ensemble import Ensemble

LONG_SESSION_MS = 60_000


def opened(ensemble: Ensemble, chroot: str, session_timeout_ms: int) -> Any:
    return open_store(f"zk://{ensemble.hosts}{chroot}", session_timeout_ms=session_timeout_ms)


def server_of(store: ZooKeeperStore, ensemble: Ensemble) -> str:
    port = store._client._connection._socket.getpeername()[1]
    return next(one.name for one in ensemble.places.values() if one.client_port == port)


@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@pytest.mark.long
async def test_session_records_and_watches_outlive_any_one_server(
    ensemble: Ensemble, eventually: Callable[..., Any]
) -> None:
    """Kill the server of a store, which may be the leader, then the leader: the others go on."""
    one, other = (opened(ensemble, "/deep/er", LONG_SESSION_MS) for _ in range(2))
    await one.start()
    await other.start()
    await one.create("/held", b"mine", ephemeral=True)
    await one.create("/seen", b"0")
    heard: list[str] = []
    states: list[SessionState] = []
    one.on_session(states.append)
    one.watch("/seen", lambda: heard.append("seen"))
    one.watch_children("/", lambda: heard.append("children"))
    await eventually(lambda: len(heard) >= 2)
    for round_number, pick in enumerate((server_of, leader_of)):
        victim = await asyncio.to_thread(pick, one, ensemble)
        heard.clear()
        await asyncio.to_thread(ensemble.kill, victim)
        await persist(lambda n=round_number: other.put("/seen", b"%d" % (n + 1), n), other, "/seen")
        await eventually(lambda: "seen" in heard)
        await eventually(lambda: one.session_state is SessionState.CONNECTED)
        await one.sync()
        assert await one.get("/seen") == Record(b"%d" % (round_number + 1), round_number + 1)
        await other.sync()
        assert await other.get("/held") == Record(b"mine", 0), "its session lives"
        heard.clear()
        await other.create(f"/new-{round_number}", b"")
        await eventually(lambda: "children" in heard)
        await asyncio.to_thread(ensemble.start_all)
    assert SessionState.EXPIRED not in states
    await one.close()
    await other.close()


def leader_of(store: ZooKeeperStore, ensemble: Ensemble) -> str:
    return ensemble.leader()


async def persist(write: Callable[[], Any], store: Any, path: str) -> None:
    """Write; when the outcome is unknown, look, and write again if it did not happen."""
    before = await store.get(path)
    while True:
        try:
            await write()
            return
        except MetadataUnavailable:
            if await looked(store, path) != before:
                return


async def looked(store: Any, path: str) -> Record:
    while True:
        try:
            await store.sync()  # A server that is behind answers from before the write.
            found: Record = await store.get(path)
            return found
        except MetadataUnavailable:
            await asyncio.sleep(0.1)


@pytest.mark.zookeeper
@pytest.mark.timeout(600)
@pytest.mark.long
async def test_without_a_majority_nothing_is_answered_and_nothing_is_guessed(
    ensemble: Ensemble, eventually: Callable[..., Any]
) -> None:
    """Then a server comes back, and with it the records, a session and the watches."""
    store = opened(ensemble, "/majority", 2_000)
    await store.start()
    await store.create("/kept", b"x")
    heard: list[int] = []
    store.watch("/kept", lambda: heard.append(1))
    await eventually(lambda: heard)
    dead = [name for name in ensemble.places if name != "zk-0"][:2]
    for name in dead:
        await asyncio.to_thread(ensemble.kill, name)
    await eventually(lambda: store.session_state is not SessionState.CONNECTED)
    late = opened(ensemble, "/majority", 2_000)
    calls = (store.get("/kept"), store.put("/kept", b"y", 0), store.sync(), late.start())
    for answer in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(answer, MetadataUnavailable), answer
        assert ensemble.hosts.split(",")[0] in str(answer), "it names who did not answer"
    heard.clear()
    await asyncio.to_thread(ensemble.start, dead[0])
    await eventually(lambda: store.session_state is SessionState.CONNECTED)
    assert await store.get("/kept") == Record(b"x", 0), "the write without an answer did not happen"
    await eventually(lambda: heard)
    heard.clear()
    assert await store.put("/kept", b"z", 0) == 1
    await eventually(lambda: heard)
    await store.close()


RATE = 8.0
"""Low: messages that wait for a dead broker's partition must not fill its producer meanwhile."""


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.timeout(600)
async def test_leader_killed_then_a_long_outage(tmp_path: Path, ensemble: Ensemble) -> None:
    async def trouble(breaker: Breaker, record: UserRecord) -> None:
        await more_acked(record, 200)
        await leader_killed(ensemble, breaker, record)
        await majority_away(ensemble, breaker, record)

    outcome = await run_round(
        tmp_path / "data",
        random.Random(11),
        trouble,
        f"zk://{ensemble.hosts}/under/load",
        rate=RATE,
        quorums=((3, 3, 2),),
    )
    assert not outcome.wrong, "\n".join(outcome.wrong[:20])
    assert outcome.record.acked == outcome.record.sent > 300


async def leader_killed(ensemble: Ensemble, breaker: Breaker, record: UserRecord) -> None:
    first = await asyncio.to_thread(ensemble.leader)
    await asyncio.to_thread(ensemble.kill, first)
    await more_acked(record, 100)
    assert await asyncio.to_thread(ensemble.leader) != first
    async with AsyncClient(breaker.supervisor.cluster.urls, retry_s=DEADLINE_S) as client:
        await client.create_topic("after-the-leader")
        await client.delete_topic("after-the-leader")
    await asyncio.to_thread(ensemble.start_all)
    await everybody_registered(breaker.supervisor.cluster.urls)


async def majority_away(ensemble: Ensemble, breaker: Breaker, record: UserRecord) -> None:
    supervisor = breaker.supervisor
    urls = supervisor.cluster.urls
    async with AsyncClient(urls) as client:
        # No ledger may be ending when the majority goes: an end in progress holds answers back.
        await client.update_topic(TOPIC, rollover={"entries": 1_000_000})
        owners = [owner for owner, _ in await owners_of(urls)]
        for _ in range(2):
            await acked_in(record, {str(n) for n in range(len(owners))}, 5)
        owners = [owner for owner, _ in await owners_of(urls)]
        ledgers = (await client.topic(TOPIC)).stats["partitions"][0]["ledgers"]
        bookie = (await client.ledger(ledgers[-1]["id"]))["fragments"][-1]["bookies"][0]
    survivor = supervisor.cluster.member(owners[0])
    dead = next(m.name for m in supervisor.cluster.of_kind("broker") if m.name != owners[0])
    assert survivor is not None
    log = Log(Path(survivor.log))
    for name in [*ensemble.places][:2]:
        await asyncio.to_thread(ensemble.kill, name)
    await until_not_ready(survivor.address)
    await log.tells("metadata_session", broker=survivor.name)
    supervisor.signal(dead, signal.SIGKILL)
    code, _ = await asyncio.gather(
        takes_no_new_topic(survivor.address), goes_on(record, owners, survivor.name)
    )
    assert code == "metadata-unavailable"
    assert not log.events("partition_taken_over"), "nobody takes over without metadata"
    supervisor.signal(bookie, signal.SIGKILL)
    await log.tells("ledger_change_waits")
    await asyncio.to_thread(ensemble.start_all)
    for name in (bookie, dead):
        await supervisor.resume(name)
    await acked_in(record, {str(n) for n in range(len(owners))}, 5)
    await everybody_registered(urls)


async def goes_on(record: UserRecord, owners: list[str], owner: str) -> None:
    served = {str(n) for n, name in enumerate(owners) if name == owner}
    await acked_in(record, served, 10)
    await asyncio.sleep(1.5 * SESSION_MS / 1000)
    await acked_in(record, served, 10)


async def until_not_ready(url: str) -> None:
    async with aiohttp.ClientSession() as session, asyncio.timeout(DEADLINE_S):
        while True:
            async with session.get(f"{url}/readyz") as response:
                if response.status == 503:
                    reason = (await response.json())["detail"]
                    assert "out of reach" in reason
                    assert "zk://" in reason
                    return
            await asyncio.sleep(0.05)


async def takes_no_new_topic(url: str) -> str:
    async with AsyncClient(url, retry_s=0, attempt_s=DEADLINE_S) as client:
        with pytest.raises(ApiError) as refused:
            await client.create_topic("while-away")
    assert refused.value.status == 503
    return refused.value.code


async def acked_in(record: UserRecord, partitions: set[str], count: int) -> None:
    since = time.monotonic()
    async with asyncio.timeout(DEADLINE_S):
        while True:
            found = [
                one.log
                for one in record.history
                if one.call is Call.SEND and one.is_ok and one.invoked_at > since
            ]
            if all(found.count(partition) >= count for partition in partitions):
                return
            await asyncio.sleep(0.1)


class Log:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def events(self, event: str, **fields: str) -> list[dict[str, Any]]:
        lines = self._path.read_bytes()[self._start :].splitlines()
        found = [json.loads(one) for one in lines if one.startswith(b"{") and one.endswith(b"}")]
        return [one for one in found if {"event": event, **fields}.items() <= one.items()]

    async def tells(self, event: str, **fields: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not self.events(event, **fields):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
