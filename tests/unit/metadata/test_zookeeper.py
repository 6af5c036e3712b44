"""The ZooKeeper store's calls and connections; watches and claims in any store."""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.states import EventType, KeeperState, WatchedEvent

from octavo.metadata import zookeeper_server
from octavo.metadata.election import Ownership
from octavo.metadata.store import (
    MetadataUnavailable,
    Record,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    SessionState,
)
from octavo.metadata.watching import StandingWatch, WatchKey, WatchTable
from octavo.metadata.zookeeper import CALLS_IN_FLIGHT_MAX, ZooKeeperStore
from octavo.metadata.zookeeper_connections import ConnectionHandler
from octavo.metadata.zookeeper_server import (
    ZooKeeperNotInstalled,
    find_class_path,
    find_java,
    server_command,
    write_config,
)
from octavo.metadata.zookeeper_watches import PlacedWatches


class Slow:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = ZooKeeperStore(["127.0.0.1:1"], call_timeout_ms=200)
        self.sent: list[asyncio.Future[Any]] = []
        monkeypatch.setattr(self.store, "_bridge", self._bridge)
        self.store._connected.set()

    async def _bridge(self, made: Any) -> Any:
        future = asyncio.get_running_loop().create_future()
        self.sent.append(future)
        return await future

    def ask(self, count: int) -> list[asyncio.Task[Any]]:
        store = self.store
        deadline = asyncio.get_running_loop().time() + 60
        return [
            asyncio.create_task(store._call("read", f"/{n}", lambda path: path, deadline=deadline))
            for n in range(count)
        ]


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_as_many_as_may_be_are_on_the_way(monkeypatch: pytest.MonkeyPatch, more: int) -> None:
    slow = Slow(monkeypatch)
    calls = slow.ask(CALLS_IN_FLIGHT_MAX + more)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == min(len(calls), CALLS_IN_FLIGHT_MAX)
    slow.sent[0].set_result("first")
    assert await calls[0] == "first"
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == len(calls), "its place was given to the next"
    for future in slow.sent[1:]:
        future.set_result("later")
    await asyncio.gather(*calls)


async def test_calls_that_ended_otherwise_give_their_places_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slow = Slow(monkeypatch)
    for _ in range(3):
        calls = slow.ask(CALLS_IN_FLIGHT_MAX + 2)
        for _ in range(3):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
    late = asyncio.get_running_loop().time()
    with pytest.raises(MetadataUnavailable, match="in time"):
        await slow.store._call("read", "/late", lambda path: path, deadline=late)
    slow.sent.clear()
    calls = slow.ask(CALLS_IN_FLIGHT_MAX)
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(slow.sent) == CALLS_IN_FLIGHT_MAX
    for future in slow.sent:
        future.set_result(None)
    await asyncio.gather(*calls)


# ZooKeeper does not watch the names of a missing folder, so the store waits for its creation. If
# the folder was made between the two calls, the watch was on its value, which no change of its
# names fires: a broker never heard that another died.

FOLDER = "/octavo/brokers"


class Result:
    def __init__(self, value: object = None, exception: Exception | None = None) -> None:
        self.value, self.exception = value, exception

    def rawlink(self, done: Callable[[object], None]) -> None:
        done(self)


class Server:
    """One folder of ZooKeeper's, and its watches: each fires once, for its own kind of change."""

    def __init__(self) -> None:
        self.names: set[str] | None = None
        self.of_names: list[Callable[[WatchedEvent], None]] = []
        self.of_value: list[Callable[[WatchedEvent], None]] = []

    def get_children_async(self, _: str, watch: Callable[[WatchedEvent], None]) -> Result:
        if self.names is None:
            return Result(exception=zk.NoNodeError())
        self.of_names.append(watch)
        return Result(sorted(self.names))

    def exists_async(self, _: str, watch: Callable[[WatchedEvent], None]) -> Result:
        self.of_value.append(watch)
        return Result(None if self.names is None else "its statistics")

    def make(self) -> None:
        self.names = set()
        self._fire(self.of_value, EventType.CREATED)

    def add(self, name: str) -> None:
        assert self.names is not None
        self.names.add(name)
        self._fire(self.of_names, EventType.CHILD)

    @staticmethod
    def _fire(watches: list[Callable[[WatchedEvent], None]], kind: str) -> None:
        for watch in [watches.pop() for _ in range(len(watches))]:
            watch(WatchedEvent(kind, KeeperState.CONNECTED, FOLDER))


@pytest.mark.parametrize("made_after", range(5))
def test_each_change_of_the_names_is_heard(made_after: int) -> None:
    """Whenever the folder is made: `made_after` this many steps of placing the watch."""
    server, table = Server(), WatchTable()
    todo: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    heard: list[frozenset[str]] = []
    placed = PlacedWatches(
        cast(KazooClient, server), "", table, lambda work, *args: todo.append((work, args))
    )
    key = WatchKey(FOLDER, of_children=True)
    table.add(key, lambda: heard.append(frozenset(server.names or ())))
    placed.ensure(key)
    for step in range(10):
        if step == made_after:
            server.make()
        if todo:
            work, args = todo.pop(0)
            work(*args)
    for name in ("a", "b"):
        server.add(name)
        while todo:
            work, args = todo.pop(0)
            work(*args)
        assert heard[-1] == server.names


# How long a ZooKeeper store waits on a new connection before it tries another one.
_CONNECT = struct.Struct(">iqiq")
_REPLY = struct.Struct(">iqi")
_NO_NODE, _PING = -101, -2


class StartingServer:
    """Speaks as much of ZooKeeper's protocol as a session needs. Connections numbered in
    `silent` (from 1 on) are accepted and never answered, as by a server that is just starting."""

    def __init__(self, *silent: int) -> None:
        self._silent = silent
        self._writers: list[asyncio.StreamWriter] = []
        self._session_ends = float("inf")
        self.connections = 0
        self.sessions = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        self._server.close()
        self.drop()
        await self._server.wait_closed()

    def drop(self) -> None:
        while self._writers:
            self._writers.pop().close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.append(writer)
        loop = asyncio.get_running_loop()
        is_silent, is_open = self.connections in self._silent, False
        try:
            while True:
                frame = await reader.readexactly(
                    struct.unpack(">i", await reader.readexactly(4))[0]
                )
                if is_silent:
                    continue
                if is_open:
                    xid = struct.unpack_from(">i", frame)[0]
                    answer = _REPLY.pack(xid, 0, 0 if xid == _PING else _NO_NODE)
                else:
                    timeout_ms, session = _CONNECT.unpack_from(frame)[2:]
                    if session == 0:
                        self.sessions += 1
                        session = self.sessions
                    elif loop.time() >= self._session_ends:
                        session = timeout_ms = 0  # the answer of a server whose session is over
                    answer = struct.pack(">iiqi16sb", 0, timeout_ms, session, 16, b"", 0)
                    is_open = True
                    lasts_s = timeout_ms / 1000
                self._session_ends = loop.time() + lasts_s
                writer.write(struct.pack(">i", len(answer)) + answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


async def test_a_server_that_accepts_and_never_answers_costs_no_session() -> None:
    """The server breaks a connection, never answers on the next one, then serves again."""
    server = StartingServer(2)
    port = await server.start()
    store = ZooKeeperStore([f"127.0.0.1:{port}"], session_timeout_ms=8_000)
    states: list[SessionState] = []
    store.on_session(states.append)
    try:
        await store.start()
        server.drop()
        async with asyncio.timeout(30):
            while len(states) < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert states == [SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.CONNECTED]
        assert (server.connections, server.sessions) == (3, 1)
    finally:
        await store.close()
        await server.close()


class _Handler(ConnectionHandler):
    """Makes no connections; its waits end by time."""

    def __init__(self) -> None:
        super().__init__(8_000)
        self.waits: list[float | None] = []
        self.ready: list[Any] = []
        self.error: Exception | None = None

    def connect(self, *args: Any, **options: Any) -> Any:
        self.waits.append(options["timeout"])
        if self.error is not None:
            raise self.error
        return object()

    def wait(
        self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        self.waits.append(timeout)
        return [one for one in rlist if one in self.ready], [], []


def test_attempts_without_an_answer_wait_longer_until_a_connection_opens() -> None:
    """A slow server gets up to the time that kazoo asks for, until a connection is open."""
    handler = _Handler()
    for _ in range(5):
        made = handler.create_connection(("127.0.0.1", 1), timeout=8.0)
        assert handler.select([made], [], [], 8.0) == ([], [], [])
    assert handler.waits == [2, 2, 4, 4, 8, 8, 8, 8, 8, 8]
    made = handler.create_connection(("127.0.0.1", 1), timeout=8.0)
    handler.ready = [made]
    handler.select([made], [], [], 8.0)
    handler.select([made, object()], [], [], 5.0)
    handler.waits.clear()
    handler.select([made], [], [], 7.0)
    assert handler.waits == [7.0], "the rest of a frame on an open connection has kazoo's time"
    handler.create_connection(("127.0.0.1", 1), timeout=8.0)
    assert handler.waits[-1] == 2


def test_a_refused_connection_does_not_make_the_next_attempt_longer() -> None:
    """A server that is down refuses often; when it starts, the first wait is short all the same."""
    handler = _Handler()
    for error, waits in ((ConnectionRefusedError(), [2.0] * 20), (TimeoutError(), [2.0, 4.0, 8.0])):
        handler.error = error
        handler.waits.clear()
        for _ in waits:
            with pytest.raises(type(error)):
                handler.create_connection(("127.0.0.1", 1), timeout=8.0)
        assert handler.waits == waits


def test_the_bound_never_exceeds_what_kazoo_asks_for() -> None:
    """With three hosts kazoo waits a third of a session timeout for each."""
    handler = _Handler()
    made = handler.create_connection(("127.0.0.1", 1), timeout=1.0)
    handler.select([made], [], [], 1.0)
    assert handler.waits == [1.0, 1.0]
    assert isinstance(handler, SequentialThreadingHandler), "kazoo accepts its own handlers"


# Finding Java and ZooKeeper's code, and the messages when they are missing.
@pytest.fixture
def no_debian(monkeypatch, tmp_path):
    monkeypatch.setattr(zookeeper_server, "_DEBIAN_JAR", tmp_path / "absent.jar")


def add_pyspark(folder, monkeypatch, *jars: str) -> str:
    monkeypatch.delitem(sys.modules, "pyspark", raising=False)  # imported by another test
    package = folder / "pyspark"
    (package / "jars").mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('never imported, only found')")
    for jar in jars:
        (package / "jars" / jar).write_bytes(b"")
    monkeypatch.syspath_prepend(str(folder))
    return f"{package}/jars/*"


def test_java_is_found_by_java_home_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(java)


def test_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ZooKeeperNotInstalled, match="default-jre-headless"):
        find_java()


def test_the_jars_of_pyspark_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    expected = add_pyspark(tmp_path, monkeypatch, "zookeeper-3.9.5.jar", "zookeeper-jute-3.9.5.jar")
    assert find_class_path() == expected


def test_a_pyspark_without_zookeeper_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_debian: Any
) -> None:
    add_pyspark(tmp_path, monkeypatch, "zookeeper-jute-3.9.5.jar")
    with pytest.raises(ZooKeeperNotInstalled, match="apt-get install zookeeper"):
        find_class_path()


def test_a_configuration_is_written_and_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    add_pyspark(tmp_path / "lib", monkeypatch, "zookeeper-3.9.5.jar")
    monkeypatch.setattr(zookeeper_server, "find_java", lambda: "/opt/java")
    config = write_config(str(tmp_path / "zk"), port=2999, tick_ms=123)
    text = (tmp_path / "zk" / "zoo.cfg").read_text()
    assert config == str(tmp_path / "zk" / "zoo.cfg")
    for line in ("clientPort=2999", "tickTime=123", f"dataDir={tmp_path}/zk/data"):
        assert line in text.splitlines()
    assert "maxSessionTimeout=40000" in text.splitlines(), "20 ticks would be less than a session"
    assert (tmp_path / "zk" / "data").is_dir()
    command = server_command(config)
    assert command[0] == "/opt/java"
    assert command[-1] == config
    assert "-Dzookeeper.forceSync=no" not in command
    assert "-Dzookeeper.forceSync=no" in server_command(config, durable=False)


# Every watcher is called, whatever other callbacks do with their watches meanwhile.
KEYS = [WatchKey("/a", False), WatchKey("/a", True), WatchKey("/b", False)]


@pytest.mark.parametrize("seed", range(30))
def test_who_watches_all_the_time_hears_of_every_change(seed: int) -> None:
    """Callbacks cancel and add watches, of their own key and of others."""
    rng = random.Random(seed)
    table = WatchTable()
    heard: dict[int, int] = {}
    standing: dict[int, StandingWatch] = {}
    key_of: dict[int, WatchKey] = {}

    def watching(number: int) -> Callable[[], None]:
        def on_change() -> None:
            assert number in standing, "no callback comes after a cancel"
            heard[number] = heard.get(number, 0) + 1
            act()

        return on_change

    def act() -> None:
        what = rng.random()
        if what < 0.2 and standing:
            gone = rng.choice(sorted(standing))
            standing.pop(gone).cancel()
        elif what < 0.3:
            add()

    def add() -> None:
        number = len(key_of)
        key_of[number] = rng.choice(KEYS)
        standing[number] = table.add(key_of[number], watching(number))

    for _ in range(12):
        add()
    for _ in range(20):
        wanted = rng.sample(KEYS, rng.randint(1, len(KEYS)))
        there = {number for number in standing if key_of[number] in wanted}
        heard.clear()
        table.notify(wanted)
        for number in there & standing.keys():
            assert heard.get(number) == 1, f"seed {seed}: watch {number} of {key_of[number]}"
        while len(standing) < 8:
            add()
    for watch in standing.values():
        watch.cancel()
        watch.cancel()
    assert not list(table)


# A claim counts in the session that made it; a release takes back a claim that may be in force.
class Store:
    """Records of a path; the session may end at any call, before or after its effect."""

    def __init__(self, rng: random.Random) -> None:
        self.session_state = SessionState.CONNECTED
        self._rng = rng
        self._record: Record | None = None
        self._owner = self.session = 0
        self._listener: Callable[[SessionState], None] = lambda _: None

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        self._listener = listener

    @property
    def owner(self) -> int:
        return self._owner if self._record is not None else 0

    def _may_end(self) -> None:
        if self._owner < self.session and self._rng.random() < 0.3:
            self._record = None
        if self._rng.random() < 0.2:
            if self._owner == self.session and self._rng.random() < 0.5:
                self._record = None  # otherwise it goes a while later
            self.session += 1
            self._listener(SessionState.EXPIRED)

    async def create(self, _: str, value: bytes, *, ephemeral: bool) -> None:
        assert ephemeral
        self._may_end()
        if self._record is not None:
            raise RecordExists("there")
        self._record, self._owner = Record(value, 0), self.session
        self._may_end()

    async def get(self, _: str) -> Record:
        self._may_end()
        if self._record is None:
            raise RecordNotFound("none")
        return self._record

    async def delete(self, _: str, version: int) -> None:
        assert version == 0
        self._record = None


@pytest.mark.parametrize("seed", range(60))
async def test_what_is_held_is_the_present_sessions(seed: int) -> None:
    store: Any = Store(random.Random(seed))
    store.session = 1
    ownership = Ownership(store)
    for _ in range(20):
        try:
            claim = await ownership.claim("/o/1", b"us")
        except SessionExpired:
            assert not ownership.held("/o/1"), f"seed {seed}"
            continue
        if claim.held:
            assert store.owner == store.session, f"seed {seed}: a dead session's claim is believed"
        if store._rng.random() < 0.5:
            await ownership.release("/o/1")


class Silent(Store):
    """Loses the answer to each creation; no session ends."""

    def _may_end(self) -> None: ...

    async def create(self, path: str, value: bytes, *, ephemeral: bool) -> None:
        await super().create(path, value, ephemeral=ephemeral)
        raise MetadataUnavailable("no answer")


async def test_a_release_takes_a_claim_back_whose_answer_was_lost() -> None:
    """The record exists though its maker never heard so: other brokers could not get the
    partition."""
    store: Any = Silent(random.Random(0))
    store.session = 1
    ownership = Ownership(store)
    with pytest.raises(MetadataUnavailable):
        await ownership.claim("/o/1", b"us")
    assert store.owner == 1
    await ownership.release("/o/1")
    assert store.owner == 0
