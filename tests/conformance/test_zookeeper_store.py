"""Situations of the ZooKeeper store only: lost replies, refused connections, foreign writers."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from octavo.metadata.election import Ownership
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerStore
from octavo.metadata.opening import open_store
from octavo.metadata.store import (
    MetadataUnavailable,
    Record,
    RecordExists,
    RecordNotFound,
    SessionState,
    VersionConflict,
)
from octavo.metadata.zookeeper import ZooKeeperStore
from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled
from tests.support.metadata_trees import Eventually, ZooKeeperTree
from tests.support.zookeeper_server import ZooKeeperServer

pytestmark = pytest.mark.zookeeper


@pytest.fixture
def tree(zookeeper_tree):
    return zookeeper_tree


@pytest.fixture
def kazoo(zookeeper):
    client = KazooClient(f"127.0.0.1:{zookeeper.port}")
    client.start()
    yield client
    client.stop()
    client.close()


@contextlib.asynccontextmanager
async def replies_lost(tree, store):
    """Requests reach the server; their replies do not come back, then the connection ends."""
    proxy = tree.proxies[id(store)]
    proxy.answers_pass.clear()
    yield
    dropped = [*proxy.tasks]
    proxy.drop()
    await asyncio.gather(*dropped, return_exceptions=True)  # else a reply might still pass
    proxy.answers_pass.set()


async def test_a_lost_reply_to_a_write_is_an_unknown_outcome(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    await a.create("/r", b"old")

    async def changed() -> bool:
        return (await b.get("/r")).value == b"new"

    async with replies_lost(tree, a):
        write = asyncio.create_task(a.put("/r", b"new", 0))
        await eventually(changed)
        assert not write.done()
    with pytest.raises(MetadataUnavailable):
        await write
    assert await a.get("/r") == Record(b"new", 1)


async def test_a_lost_reply_to_a_create_does_not_make_two_ledgers(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    ledgers = LedgerStore(a, rng=random.Random(1))
    metadata = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("b:1",)),))

    # A neighbour, so that the create below is one request: the folders exist.
    await ledgers.create(LedgerMetadata(6, 1, 1, 1, (Fragment(0, ("b:1",)),)))

    async def made() -> bool:
        return await LedgerStore(b).list() == [6, 7]

    async with replies_lost(tree, a):
        create = asyncio.create_task(ledgers.create(metadata))
        await eventually(made)
    created, version = await create
    assert (created, version) == await LedgerStore(b).read(7)
    # Another client that wants the same id learns that it is taken.
    with pytest.raises(RecordExists):
        await LedgerStore(b, rng=random.Random(2)).create(metadata)


async def test_a_claim_whose_reply_was_lost_is_found_out_by_claiming_again(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    ours, theirs = Ownership(a), Ownership(b)
    await a.create("/o", b"")

    async def made() -> bool:
        return await theirs.owner("/o/1") == b"ours"

    async with replies_lost(tree, a):
        claim = asyncio.create_task(ours.claim("/o/1", b"ours"))
        await eventually(made)
    with pytest.raises(MetadataUnavailable):
        await claim
    assert not ours.held("/o/1")
    version_before = (await b.get("/o/1")).version
    assert (await ours.claim("/o/1", b"ours")).held
    assert (await b.get("/o/1")).version == version_before
    assert not (await theirs.claim("/o/1", b"theirs")).held


async def test_a_read_survives_the_loss_of_its_reply(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a = await tree.open()
    await a.create("/r", b"x")
    async with replies_lost(tree, a):
        read = asyncio.create_task(a.get("/r"))
        await asyncio.sleep(0)
        await asyncio.sleep(0.02)
        assert not read.done()
    assert await read == Record(b"x", 0)


async def test_the_first_read_after_a_write_that_failed_is_synced(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a = await tree.open()
    sent = []
    sync, get = a._client.sync_async, a._client.get_async
    a._client.sync_async = lambda *args: (sent.append("sync"), sync(*args))[1]
    a._client.get_async = lambda *args: (sent.append("get"), get(*args))[1]
    await a.create("/r", b"")
    await a.get("/r")
    with pytest.raises(VersionConflict):
        await a.put("/r", b"", 5)
    await a.get("/r")
    await a.get("/r")
    assert sent == ["get", "sync", "get", "get"]
    sent.clear()
    async with replies_lost(tree, a):
        write = asyncio.create_task(a.put("/r", b"new", 0))
        await asyncio.sleep(0.02)
    with pytest.raises(MetadataUnavailable):
        await write
    assert (await a.get("/r")).value == b"new"
    assert sent[-2:] == ["sync", "get"]


async def test_a_change_made_while_cut_off_is_heard_after(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    changed = asyncio.Event()
    a.watch("/w", changed.set)
    async with tree.cut(a):
        await eventually(lambda: a.session_state is SessionState.SUSPENDED)
        changed.clear()
        await b.create("/w", b"x")
    async with asyncio.timeout(5):
        await changed.wait()
    assert (await a.get("/w")).value == b"x"


async def test_a_call_that_timed_out_without_a_connection_has_no_effect_later(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a, b = await tree.open(impatient=True), await tree.open()
    async with tree.cut(a):
        await eventually(lambda: a.session_state is SessionState.SUSPENDED)
        with pytest.raises(MetadataUnavailable):
            await a.create("/late", b"")
    await eventually(lambda: a.session_state is SessionState.CONNECTED)
    await a.create("/now", b"")
    with pytest.raises(RecordNotFound):
        await b.get("/late")


async def test_a_silent_connection_is_not_called_connected(tree: ZooKeeperTree) -> None:
    a = await tree.open()
    assert a.session_state is SessionState.CONNECTED
    now_ms = a._clock()
    a._clock = lambda: now_ms + a.session_timeout_ms
    assert a.session_state is SessionState.SUSPENDED


async def test_watches_of_many_paths_stand_again_after_a_reconnect(
    tree: ZooKeeperTree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    heard: set[int] = set()
    for n in range(400):
        a.watch(f"/many/{n}", lambda n=n: heard.add(n))
    await eventually(lambda: len(heard) == 400)
    async with tree.cut(a):
        await eventually(lambda: a.session_state is SessionState.SUSPENDED)
        heard.clear()
    await eventually(lambda: len(heard) == 400)
    heard.clear()
    for n in range(0, 400, 40):
        await b.create(f"/many/{n}", b"")
    await eventually(lambda: heard == set(range(0, 400, 40)))


async def test_a_refused_connection_is_named_within_bounds(zookeeper: ZooKeeperServer) -> None:
    store = ZooKeeperStore(
        ["127.0.0.1:1", "localhost:2"], "/x", session_timeout_ms=1000, connect_timeout_ms=300
    )
    started = asyncio.get_running_loop().time()
    with pytest.raises(MetadataUnavailable) as caught:
        await store.start()
    assert asyncio.get_running_loop().time() - started < 4
    text = str(caught.value)
    assert "127.0.0.1:1" in text
    assert "localhost:2" in text
    assert "refused" in text
    await store.close()


async def test_a_port_that_is_no_zookeeper_is_named_as_such() -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    store = ZooKeeperStore([f"127.0.0.1:{port}"], session_timeout_ms=1000, connect_timeout_ms=300)
    with pytest.raises(MetadataUnavailable, match="no ZooKeeper"):
        await store.start()
    server.close()


async def test_the_chroot_is_made_and_hides_what_is_above(
    zookeeper: ZooKeeperServer, kazoo: Any
) -> None:
    url = zookeeper.new_url() + "/deeper"
    store = open_store(url)
    assert store.url == url
    await store.start()
    await store.create("/a/b", b"x")
    assert await store.children("/") == ["a"]
    chroot = url.partition(f":{zookeeper.port}")[2]
    assert kazoo.get(f"{chroot}/a/b")[0] == b"x"
    await store.close()


async def test_records_of_foreign_programs_are_read(tree: ZooKeeperTree, kazoo: Any) -> None:
    a = await tree.open()
    await a.create("/f", b"")
    kazoo.create(f"{tree.chroot}/f/null", None)
    assert (await a.get("/f/null")) == Record(b"", 0)


async def test_a_server_that_is_killed_and_comes_back(
    zookeeper_of_ones_own: Any, eventually: Eventually
) -> None:
    try:
        run = zookeeper_of_ones_own()
        server = run.__enter__()
    except ZooKeeperNotInstalled as error:
        pytest.skip(str(error))
    hosts = [f"127.0.0.1:{server.port}"]
    store = ZooKeeperStore(hosts, session_timeout_ms=40_000, connect_timeout_ms=60_000)
    states: list[SessionState] = []
    heard: list[int] = []
    store.on_session(states.append)
    await store.start()
    await store.create("/stays", b"x")
    await store.create("/mine", b"", ephemeral=True)
    store.watch("/stays", lambda: heard.append(1))
    await asyncio.to_thread(run.__exit__, None, None, None)
    await eventually(lambda: states[-1] is SessionState.SUSPENDED)
    heard.clear()
    with await asyncio.to_thread(enter, zookeeper_of_ones_own()) as _:
        # The records, the session and its ephemeral records survived the server.
        await eventually(lambda: states[-1] is SessionState.CONNECTED)
        assert await store.get("/stays") == Record(b"x", 0)
        assert await store.get("/mine") == Record(b"", 0)
        await eventually(lambda: heard)
        assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
        await store.close()


def enter(run):
    """A context that is entered in a thread and left in the test."""
    stack = contextlib.ExitStack()
    stack.enter_context(run)
    return stack


CHILD = textwrap.dedent(
    """
    import asyncio, sys
    from octavo.metadata.opening import open_store
    from octavo.metadata.store import MetadataUnavailable, SessionExpired

    async def main():
        store = open_store(sys.argv[1], session_timeout_ms=1000)
        store.on_session(lambda state: print(state.value, flush=True))
        await store.start()
        await store.create("/child", b"", ephemeral=True)
        print("ready", flush=True)
        while True:
            await asyncio.sleep(0.001)
            try:
                await store.get("/child")
            except (MetadataUnavailable, SessionExpired):
                continue  # it is not known, and nobody says that the record is gone
            except Exception as error:
                print(error.name, flush=True)
                break
        sys.stdin.readline()

    asyncio.run(main())
    """
)


async def test_a_stopped_process_learns_that_it_expired_before_it_misses_its_records(
    zookeeper: ZooKeeperServer, eventually: Eventually
) -> None:
    url = zookeeper.new_url()
    store = open_store(url)
    await store.start()
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, url, stdin=pipe, stdout=pipe, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    try:
        while await process.stdout.readline() != b"ready\n":
            pass
        process.send_signal(signal.SIGSTOP)

        async def gone() -> bool:
            return await store.children("/") == []

        await eventually(gone)
        process.send_signal(signal.SIGCONT)
        said: list[str] = []
        try:
            async with asyncio.timeout(60):
                while said[-1:] != ["record-not-found"]:
                    said.append((await process.stdout.readline()).decode().strip())
                    assert said[-1], f"the child ended after {said}"
        except TimeoutError:
            pytest.fail(f"the child says no more than {said}")
        assert said[-3:-1] == ["expired", "connected"]
    finally:
        process.kill()
        await process.wait()
        await store.close()
