"""The simulated metadata store under faults never lies."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from octavo.metadata.store import (
    MetadataUnavailable,
    Record,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    SessionState,
)
from tests.sim.loop import SimLoop
from tests.sim.metadata import Cut, MetadataFaults, SimMetadata
from tests.sim.metadata_store import SimMetadataStore
from tests.sim.metadata_tree import Change, Tree
from tests.sim.process import Process
from tests.sim.trace import Trace

TIMEOUT_MS = 1000
CONNECTED, SUSPENDED, EXPIRED = SessionState


class World:
    def __init__(self, seed: int) -> None:
        self.loop = SimLoop(seed, trace=Trace())
        self.server = SimMetadata(self.loop, self.loop.trace)
        self.processes: dict[str, Process] = {}

    def open(self, name: str, **limits: Any) -> SimMetadataStore:
        process = self.processes[name] = Process(self.loop, name)
        store = self.server.store(process, session_timeout_ms=TIMEOUT_MS, **limits)
        self.run(name, store.start())
        return store

    def run(self, name: str, coro: Coroutine[Any, Any, Any]) -> Any:
        task = self.processes[name].spawn(coro, "test")
        self.loop.run_until(task, virtual_s_max=60)
        return task.result()

    def wait(self, s: float) -> None:
        passed = self.loop.create_future()
        self.loop.world_later(s, passed.set_result, None)
        self.loop.run_until(passed, virtual_s_max=s + 1)

    def until(self, condition: Callable[[], bool]) -> None:
        self.loop.run_until(condition, virtual_s_max=60)


@pytest.fixture(params=range(12))
def world(request):
    made = World(request.param)
    yield made
    made.loop.close()
    assert not made.loop.errors


def test_a_request_lost_has_no_effect_and_a_reply_lost_has(world: World) -> None:
    a, b = world.open("a"), world.open("b")
    world.server.faults = MetadataFaults(request_lost=1.0)
    with pytest.raises(MetadataUnavailable):
        world.run("a", a.create("/lost", b""))
    world.server.faults = MetadataFaults(reply_lost=1.0)
    with pytest.raises(MetadataUnavailable):
        world.run("a", a.create("/kept", b""))
    world.server.faults = MetadataFaults()
    assert world.run("b", b.children("/")) == ["kept"]
    with pytest.raises(RecordExists):
        world.run("a", a.create("/kept", b""))
    assert world.server.trace.faults["metadata.reply_lost"] == 1


@pytest.mark.parametrize("cut", [Cut.BOTH, Cut.REQUESTS])
def test_who_is_cut_off_too_long_loses_its_session(world: World, cut: Any) -> None:
    a, b = world.open("a"), world.open("b")
    states: list[SessionState] = []
    a.on_session(states.append)
    world.run("a", a.create("/e", b"", ephemeral=True))
    world.server.partition("a", cut)
    world.wait(3 * TIMEOUT_MS / 1000)
    assert states == [SUSPENDED]
    assert world.run("b", b.children("/")) == []
    with pytest.raises((MetadataUnavailable, SessionExpired)):
        world.run("a", a.create("/e", b"", ephemeral=True))
    world.server.heal("a")
    world.until(lambda: a.session_state is CONNECTED)
    assert states == [SUSPENDED, EXPIRED, CONNECTED]
    assert world.server.history[-1].value is None


def test_a_short_cut_leaves_the_session(world: World) -> None:
    a = world.open("a")
    states: list[SessionState] = []
    a.on_session(states.append)
    world.run("a", a.create("/e", b"", ephemeral=True))
    world.server.partition("a")
    world.until(lambda: states == [SUSPENDED])
    world.server.heal()
    world.until(lambda: states == [SUSPENDED, CONNECTED])
    assert world.run("a", a.get("/e")) == Record(b"", 0)


def test_who_is_heard_but_hears_nothing_is_not_sure_of_its_session(world: World) -> None:
    a, b = world.open("a", call_timeout_ms=500), world.open("b")
    world.run("a", a.create("/e", b"", ephemeral=True))
    world.server.partition("a", Cut.REPLIES)
    with pytest.raises(MetadataUnavailable):
        world.run("a", a.create("/f", b""))
    world.until(lambda: a.session_state is SUSPENDED)
    assert world.run("b", b.children("/")) in (["e", "f"], ["f"])


def test_who_was_paused_past_its_session_knows_by_its_own_clock(world: World) -> None:
    a, b = world.open("a"), world.open("b")
    states: list[SessionState] = []
    a.on_session(states.append)
    world.run("a", a.create("/e", b"mine", ephemeral=True))
    world.processes["a"].pause(60)
    world.wait(2 * TIMEOUT_MS / 1000)
    assert world.run("b", b.children("/")) == []
    assert a.session_state is not CONNECTED

    async def first_call() -> None:
        with pytest.raises((SessionExpired, MetadataUnavailable, RecordNotFound)):
            await a.put("/e", b"still mine?", 0)
        states_then.extend(states)

    states_then: list[SessionState] = []
    task = world.processes["a"].spawn(first_call(), "first call")
    world.processes["a"].resume()
    world.loop.run_until(task, virtual_s_max=10)
    assert EXPIRED in states_then or SUSPENDED in states_then
    world.until(lambda: states[-1] is CONNECTED)
    assert EXPIRED in states


def test_a_dead_process_keeps_its_records_until_its_session_ends(world: World) -> None:
    a, b = world.open("a"), world.open("b")
    world.run("a", a.create("/e", b"", ephemeral=True))
    world.processes["a"].crash()
    assert world.run("b", b.children("/")) == ["e"]
    world.wait(2 * TIMEOUT_MS / 1000)
    assert world.run("b", b.children("/")) == []


def test_what_a_dead_process_had_sent_may_still_take_effect(world: World) -> None:
    a = world.open("a")
    world.server.faults.delay_ms = 100
    world.processes["a"].spawn(a.create("/sent", b""), "create")
    world.wait(0.0005)
    world.processes["a"].crash()
    world.wait(1.5)
    assert list(world.server.tree.records()) == ["/sent"]


def test_no_session_ends_while_the_whole_store_is_away(world: World) -> None:
    a = world.open("a", call_timeout_ms=300)
    states: list[SessionState] = []
    a.on_session(states.append)
    world.run("a", a.create("/e", b"", ephemeral=True))
    world.server.go_away()
    world.wait(5 * TIMEOUT_MS / 1000)
    with pytest.raises(MetadataUnavailable):
        world.run("a", a.get("/e"))
    assert a.session_state is SUSPENDED
    world.server.come_back()
    world.until(lambda: states[-1] is CONNECTED)
    assert EXPIRED not in states
    assert world.run("a", a.get("/e")) == Record(b"", 0)


def test_a_connection_that_breaks_leaves_a_write_in_doubt_and_the_next_read_is_sure(
    world: World,
) -> None:
    a = world.open("a")
    world.server.faults = MetadataFaults(delay_ms=20, lag_ms=5000)
    outcomes = []

    async def write() -> None:
        try:
            await a.create("/w", b"")
            outcomes.append("made")
        except MetadataUnavailable:
            outcomes.append("unknown")
        try:
            await a.get("/w")
            outcomes.append("there")
        except RecordNotFound:
            outcomes.append("absent")

    task = world.processes["a"].spawn(write(), "write")
    world.loop.world_later(0.02, world.server.reset, "a")
    world.loop.run_until(task, virtual_s_max=30)
    assert outcomes in (["made", "there"], ["unknown", "there"], ["unknown", "absent"])
    assert (outcomes[1] == "there") == ("/w" in world.server.tree.records())


def test_a_server_that_lags_shows_the_past_until_synced_and_never_goes_back(world: World) -> None:
    a, b = world.open("a"), world.open("b")
    world.server.faults.lag_ms = 2000
    b.line._lag_share = 1.0
    world.run("a", a.create("/n", b"0"))
    with pytest.raises(RecordNotFound):
        world.run("b", b.get("/n"))
    assert world.run("b", b.children("/")) == []
    world.run("a", a.put("/n", b"1", 0))
    assert world.run("a", a.get("/n")) == Record(b"1", 1)
    world.run("b", b.sync())
    assert world.run("b", b.get("/n")) == Record(b"1", 1)
    world.run("a", a.put("/n", b"2", 1))
    assert world.run("b", b.get("/n")) == Record(b"1", 1)
    world.run("b", b.create("/own", b""))
    assert world.run("b", b.children("/")) == ["n", "own"]
    assert world.run("b", b.get("/n")) == Record(b"2", 2)


def test_whoever_watches_and_then_reads_ends_with_the_last_value(world: World) -> None:
    a, b = world.open("a"), world.open("b")
    world.server.faults = MetadataFaults(watch_delay_ms=50, lag_ms=300, reply_lost=0.1)
    seen: list[int] = []
    due = [True]
    b.watch("/n", lambda: due.append(True))

    async def read() -> None:
        while not seen or seen[-1] < 30:
            if not due:
                await world_sleep(0.003)
                continue
            due.clear()
            try:
                seen.append(int((await b.get("/n")).value))
            except RecordNotFound:
                pass
            except MetadataUnavailable:
                due.append(True)

    async def world_sleep(s: float) -> None:
        passed = world.loop.create_future()
        world.loop.call_later(s, passed.set_result, None)
        await passed

    async def write() -> None:
        await ensure(lambda: a.create("/n", b"0"))
        for n in range(1, 31):
            await ensure(lambda n=n: a.put("/n", str(n).encode(), -1))
            await world_sleep(0.02)

    async def ensure(call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        try:
            await call()
        except MetadataUnavailable:
            pass

    reading = world.processes["b"].spawn(read(), "read")
    world.run("a", write())
    world.server.heal()
    world.loop.run_until(reading, virtual_s_max=30)
    assert seen == sorted(seen)


def test_the_history_tells_every_change_in_order_and_observers_hear_it_at_once(
    world: World,
) -> None:
    heard: list[Change] = []
    world.server.observers.append(heard.append)
    a = world.open("a")
    world.run("a", a.create("/p/q", b"x", ephemeral=True))
    world.run("a", a.put("/p/q", b"y", 0))
    world.run("a", a.close())
    told = [(c.path, c.value, c.version, c.by) for c in world.server.history]
    assert told == [
        ("/p", b"", 0, "a"),
        ("/p/q", b"x", 0, "a"),
        ("/p/q", b"y", 1, "a"),
        ("/p/q", None, 1, "a"),
    ]
    assert heard == world.server.history


def test_a_start_without_a_server_says_so(world: World) -> None:
    world.server.go_away()
    with pytest.raises(MetadataUnavailable):
        world.open("a", call_timeout_ms=400)


def test_who_is_deaf_hears_of_changes_afterwards(world: World) -> None:
    a, b = world.open("a"), world.open("b")
    heard: list[float] = []
    world.run("a", watching(a, "/x", lambda: heard.append(world.loop.now)))
    world.server.deafen("a", 1.5)
    began_s = world.loop.now
    world.run("b", b.create("/x", b"1"))
    world.until(lambda: bool(heard))
    assert heard[0] >= began_s + 1.5
    assert world.run("a", a.get("/x")).value == b"1", "it may ask meanwhile"


async def watching(store: SimMetadataStore, path: str, on_change: Callable[[], None]) -> None:
    store.watch(path, on_change)


def test_a_slow_way_is_slow_for_one_and_for_a_while(world: World) -> None:
    a, b = world.open("a"), world.open("b")
    world.server.slow_down("a", 0.2, 1.0)
    for store, name, slow in ((a, "a", True), (b, "b", False)):
        began_s = world.loop.now
        world.run(name, store.create(f"/{name}", b""))
        assert (world.loop.now - began_s >= 0.2) is slow
    world.wait(1.0)
    began_s = world.loop.now
    world.run("a", a.get("/a"))
    assert world.loop.now - began_s < 0.2


def test_held_writes_are_done_in_turn_and_reads_go_on(world: World) -> None:
    a = world.open("a")
    world.run("a", a.create("/a", b"1"))
    world.server.resends_reads = False
    world.server.hold_writes(0.5)
    began_s = world.loop.now
    done = []

    async def both():
        write = asyncio.ensure_future(a.put("/a", b"2", 0))
        again = asyncio.ensure_future(a.put("/a", b"3", 1))
        await asyncio.sleep(0.1)
        done.append((await a.get("/a")).value)
        assert world.loop.now - began_s < 0.3
        await asyncio.gather(write, again)
        done.append((await a.get("/a")).value)

    world.run("a", both())
    assert 0.5 <= world.loop.now - began_s < 0.8
    assert done == [b"1", b"3"]


@pytest.mark.parametrize("end", ["killed", "closed"])
def test_a_held_write_ends_with_its_process(world: World, end: Any) -> None:
    a, b = world.open("a"), world.open("b")
    world.run("a", a.create("/a", b"1"))
    world.server.resends_reads = False
    world.server.hold_writes(0.5)

    async def write():
        with contextlib.suppress(MetadataUnavailable):
            await a.put("/a", b"2", 0)

    world.processes["a"].spawn(write(), "write")
    world.wait(0.1)
    if end == "killed":
        world.processes["a"].crash(power=False)
    else:
        world.processes["a"].spawn(a.close(), "close")
    world.wait(1.0)
    assert world.run("b", b.get("/a")).value == b"1"


# Putting a copy of the simulated metadata back restores all of it, and nothing later.
BY = ("w1", 1)


def made(tree: Tree, path: str, *, session: int | None = None, sequence: bool = False) -> str:
    return tree.create(path, b"one", session=session, sequence=sequence, by=BY)


def test_what_was_changed_made_and_deleted_is_as_it_was() -> None:
    tree = Tree(lambda: 0.0, lambda *_: None)
    made(tree, "/a/changed")
    made(tree, "/a/deleted")
    made(tree, "/a/of-a-session", session=7)
    first = made(tree, "/ids/n-", sequence=True)
    copy, before = tree.copy(), tree.seq
    tree.put("/a/changed", b"two", 0, by=BY)
    tree.delete("/a/deleted", 0, by=BY)
    made(tree, "/a/later/below")
    second = made(tree, "/ids/n-", sequence=True)
    tree.put_back(copy)
    assert tree.records() == {path: record for path, (record, _) in copy.items()}
    assert tree.get("/a/changed", tree.seq) == Record(b"one", 0)
    assert tree.children("/a", tree.seq) == ["changed", "deleted"]
    assert tree.children("/a", before) == ["changed", "deleted", "of-a-session"]
    with pytest.raises(RecordNotFound):
        tree.get("/a/later/below", tree.seq)
    assert made(tree, "/ids/n-", sequence=True) == second, "numbers are given a second time"
    assert first != second


def test_newer_ones_come_back_as_well() -> None:
    tree = Tree(lambda: 0.0, lambda *_: None)
    made(tree, "/a")
    older = tree.copy()
    made(tree, "/b")
    newest = tree.copy()
    tree.put_back(older)
    assert list(tree.records()) == ["/a"]
    tree.put_back(newest)
    assert sorted(tree.records()) == ["/a", "/b"]
    tree.put("/b", b"three", 0, by=BY)
