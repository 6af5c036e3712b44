"""A store over three real servers: its own server dies, the leader dies, the majority dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from octavo.metadata.opening import open_store
from octavo.metadata.store import MetadataUnavailable, Record, SessionState
from octavo.metadata.zookeeper import ZooKeeperStore
from tests.support.zookeeper_ensemble import Ensemble

pytestmark = [pytest.mark.zookeeper, pytest.mark.timeout(600)]
LONG_SESSION_MS = 60_000


def opened(ensemble: Ensemble, chroot: str, session_timeout_ms: int) -> Any:
    return open_store(f"zk://{ensemble.hosts}{chroot}", session_timeout_ms=session_timeout_ms)


def server_of(store: ZooKeeperStore, ensemble: Ensemble) -> str:
    port = store._client._connection._socket.getpeername()[1]
    return next(one.name for one in ensemble.places.values() if one.client_port == port)


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
