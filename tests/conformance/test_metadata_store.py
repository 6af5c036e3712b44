"""The promises of every metadata store, with two sessions open at once."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable
from typing import Any

import pytest

from octavo.metadata.store import (
    ANY_VERSION,
    RECORD_BYTES_MAX,
    MetadataError,
    MetadataStore,
    MetadataUnavailable,
    Record,
    RecordExists,
    RecordNotFound,
    RecordTooLong,
    SessionExpired,
    SessionState,
    VersionConflict,
)
from tests.support.metadata_trees import Eventually, Tree

# Records


async def test_a_record_is_made_read_changed_and_deleted(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    with pytest.raises(RecordNotFound):
        await a.get("/r")
    assert await a.create("/r", b"one") == "/r"
    assert await b.get("/r") == Record(b"one", 0)
    assert await b.put("/r", b"two", 0) == 1
    assert await a.get("/r") == Record(b"two", 1)
    await a.delete("/r", 1)
    with pytest.raises(RecordNotFound):
        await b.get("/r")


async def test_errors_name_what_stood_in_the_way(tree: Tree) -> None:
    a = await tree.open()
    await a.create("/r/child", b"")
    with pytest.raises(RecordExists, match="/r"):
        await a.create("/r", b"")
    with pytest.raises(RecordExists, match="/r"):
        await a.delete("/r")
    with pytest.raises(VersionConflict, match="/r"):
        await a.put("/r", b"", 7)
    with pytest.raises(VersionConflict, match="/r"):
        await a.delete("/r/child", 7)
    with pytest.raises(RecordNotFound, match="/absent"):
        await a.put("/absent", b"", 0)
    with pytest.raises(RecordNotFound, match="/absent"):
        await a.delete("/absent")
    assert await a.get("/r/child") == Record(b"", 0)


async def test_the_time_of_a_change_is_the_stores_or_unknown(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    with pytest.raises(RecordNotFound):
        await a.changed_at("/r")
    await a.create("/r", b"one")
    made_ms = await b.changed_at("/r")
    await asyncio.sleep(0.01)
    await a.put("/r", b"one", 0)
    changed_ms = await a.changed_at("/r")
    if made_ms is None:
        assert changed_ms is None
    else:
        assert changed_ms is not None
        assert changed_ms > made_ms > 1_500_000_000_000


async def test_any_version_fits(tree: Tree) -> None:
    a = await tree.open()
    await a.create("/r", b"")
    await a.put("/r", b"x", 0)
    assert await a.put("/r", b"y", ANY_VERSION) == 2
    await a.delete("/r")


async def test_a_record_made_anew_starts_at_version_0(tree: Tree) -> None:
    a = await tree.open()
    await a.create("/r", b"")
    await a.put("/r", b"", 0)
    await a.delete("/r")
    await a.create("/r", b"again")
    assert await a.get("/r") == Record(b"again", 0)


async def test_a_record_beside_another_comes_and_goes_with_it_and_guards_it(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    assert await a.create("/r/x", b"one", beside="/lives/1") == "/r/x"
    assert await b.get("/lives/1") == Record(b"", 0)
    assert await b.put("/r/x", b"two", 0, beside="/lives/1") == 1
    with pytest.raises(RecordNotFound):
        await a.put("/r/x", b"three", 1, beside="/lives/2")
    with pytest.raises(VersionConflict):
        await a.put("/r/x", b"three", 0, beside="/lives/1")
    with pytest.raises(RecordExists):
        await a.create("/r/x", b"three", beside="/lives/2")
    with pytest.raises(VersionConflict):
        await a.delete("/r/x", 0, beside="/lives/1")
    with pytest.raises(RecordNotFound):
        await a.delete("/r/x", 1, beside="/lives/2")
    assert await a.children("/lives") == ["1"], "what fails, fails as a whole"
    assert await b.get("/r/x") == Record(b"two", 1)
    await a.delete("/r/x", 1, beside="/lives/1")
    assert await b.children("/lives") == await b.children("/r") == []
    await b.create("/r/x", b"again", beside="/lives/2")
    await b.put("/r/x", b"again", 0, beside="/lives/2")
    with pytest.raises(RecordNotFound):  # the version fits, the life does not
        await a.put("/r/x", b"late", 1, beside="/lives/1")
    assert (await a.get("/r/x")).value == b"again"


@pytest.mark.parametrize("value", [b"", b"\0", bytes(range(256)) * 2048], ids=len)
async def test_values_are_bytes(tree: Tree, value: Any) -> None:
    a, b = await tree.open(), await tree.open()
    await a.create("/r", value)
    assert (await b.get("/r")).value == value


@pytest.mark.parametrize("path", ["r", "/a//b", "/a/", "/a/../b", "/a/.", "/a\0b", "/", ""])
async def test_a_malformed_path_is_a_mistake_in_the_program(tree: Tree, path: str) -> None:
    a = await tree.open()
    calls = [
        lambda: a.create(path, b""),
        lambda: a.get(path),
        lambda: a.put(path, b"", 0),
        lambda: a.delete(path),
    ]
    if path != "/":
        calls.append(lambda: a.children(path))
    for call in calls:
        with pytest.raises(AssertionError):
            await call()
    with pytest.raises(AssertionError):
        a.watch(path, lambda: None)


async def test_names_may_hold_more_than_letters(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    for name in ("host:3181", "a b", "ü", "%00", "..."):
        await a.create(f"/names/{name}", name.encode())
        assert (await b.get(f"/names/{name}")).value == name.encode()
    assert await b.children("/names") == sorted(["host:3181", "a b", "ü", "%00", "..."])


async def test_children_are_names_sorted_and_only_one_step_down(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    for path in ("/p/b", "/p/a/deep/deeper", "/p/c", "/pq"):
        await a.create(path, b"")
    assert await b.children("/p") == ["a", "b", "c"]
    assert await b.children("/p/a") == ["deep"]
    assert await b.children("/absent/deep") == []
    assert {"p", "pq"} <= set(await b.children("/"))
    assert (await b.get("/p/a/deep")) == Record(b"", 0)


async def test_of_many_who_create_one_wins(tree: Tree) -> None:
    stores = [await tree.open(), await tree.open()]
    results = await asyncio.gather(
        *(stores[n % 2].create("/won", str(n).encode()) for n in range(20)), return_exceptions=True
    )
    winners = [n for n, result in enumerate(results) if result == "/won"]
    assert len(winners) == 1
    assert sum(isinstance(result, RecordExists) for result in results) == 19
    assert (await stores[0].get("/won")).value == str(winners[0]).encode()


async def test_compare_and_set_loses_no_increment(tree: Tree) -> None:
    stores = [await tree.open(), await tree.open()]
    await stores[0].create("/n", b"0")

    async def add_one(store) -> None:
        while True:
            value, version = await store.get("/n")
            with contextlib.suppress(VersionConflict):
                await store.put("/n", str(int(value) + 1).encode(), version)
                return

    await asyncio.gather(*(add_one(stores[n % 2]) for n in range(40)))
    assert await stores[0].get("/n") == Record(b"40", 40)


async def test_parents_are_made_and_unmade_by_many_at_once(tree: Tree) -> None:
    stores = [await tree.open(), await tree.open()]

    async def churn(store, name: str) -> None:
        for _ in range(10):
            await store.create(f"/deep/er/{name}", b"")
            await store.delete(f"/deep/er/{name}")
            with contextlib.suppress(RecordExists, RecordNotFound):
                await store.delete("/deep/er")

    await asyncio.gather(churn(stores[0], "a"), churn(stores[1], "b"))
    assert await stores[0].children("/deep/er") == []


@pytest.mark.parametrize("seed", range(3))
async def test_random_calls_by_two_agree_with_a_dictionary(tree: Tree, seed: Any) -> None:
    stores = [await tree.open(), await tree.open()]
    rng = random.Random(seed)
    paths = ["/t/" + "/".join(rng.choices("abc", k=rng.randint(1, 3))) for _ in range(8)]
    model: dict[str, Record] = {}
    for step in range(150):
        store, path = rng.choice(stores), rng.choice(paths)
        version = rng.choice([ANY_VERSION, 0, 1, 2])
        value = str(step).encode()
        call = rng.choice(["get", "create", "put", "delete", "children"])
        given: Awaitable[object]
        match call:
            case "get":
                given = store.get(path)
            case "create":
                given = store.create(path, value)
            case "put":
                given = store.put(path, value, version)
            case "delete":
                given = store.delete(path, version)
            case _:
                given = store.children(path)
        try:
            result: object = await given
        except MetadataError as error:
            result = type(error)
        wanted = apply_to_model(model, call, path, value, version)
        assert result == wanted, f"seed {seed} step {step}: {call} {path} {version}"


def apply_to_model(model, call, path, value, version):
    below = {other for other in model if other.startswith(path + "/")}
    if call == "children":
        return sorted({other[len(path) + 1 :].split("/")[0] for other in below})
    if call == "create":
        if path in model:
            return RecordExists
        steps = path.split("/")
        for count in range(2, len(steps)):
            model.setdefault("/".join(steps[:count]), Record(b"", 0))
        model[path] = Record(value, 0)
        return path
    if path not in model:
        return RecordNotFound
    record = model[path]
    if call == "get":
        return record
    if version not in (ANY_VERSION, record.version):
        return VersionConflict
    if call == "put":
        model[path] = Record(value, record.version + 1)
        return record.version + 1
    if below:
        return RecordExists
    del model[path]
    return None


async def test_a_value_that_is_too_long_is_refused_before_it_is_sent(tree: Tree) -> None:
    a = await tree.open()
    await a.create("/r", b"x" * RECORD_BYTES_MAX)
    with pytest.raises(RecordTooLong, match=str(RECORD_BYTES_MAX)):
        await a.create("/s", b"x" * (RECORD_BYTES_MAX + 1))
    with pytest.raises(RecordTooLong):
        await a.put("/r", b"x" * (RECORD_BYTES_MAX + 1), 0)
    assert await a.put("/r", b"y" * RECORD_BYTES_MAX, 0) == 1


async def test_a_synced_read_sees_what_another_was_told(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    for n in range(20):
        await a.create(f"/s/{n}", b"")
        await b.sync()
        assert len(await b.children("/s")) == n + 1


# Sequences


async def test_sequence_numbers_ascend_and_never_repeat(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    made = []
    for n in range(12):
        path = await (a, b)[n % 2].create("/seq/n-", b"", sequence=True)
        assert path.startswith("/seq/n-")
        assert len(path) == len("/seq/n-") + 10
        made.append(int(path.removeprefix("/seq/n-")))
        if n % 3 == 0:
            await b.delete(path)
    assert made == sorted(set(made))
    first = await a.create("/other/n-", b"", sequence=True)
    assert first == "/other/n-0000000000"


async def test_sequence_numbers_of_many_at_once_differ(tree: Tree) -> None:
    stores = [await tree.open(), await tree.open()]
    made = await asyncio.gather(
        *(
            stores[n % 2].create("/seq/n-", b"", sequence=True, ephemeral=n % 3 == 0)
            for n in range(30)
        )
    )
    assert len(set(made)) == 30
    assert await stores[0].children("/seq") == sorted(path.rpartition("/")[2] for path in made)


# Ephemeral records


async def test_an_ephemeral_record_goes_with_close_at_once(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    await a.create("/e/a", b"", ephemeral=True)
    await b.create("/e/b", b"", ephemeral=True)
    await a.create("/e/stays", b"")
    seen = []
    b.watch_children("/e", lambda: seen.append(1))
    assert await b.children("/e") == ["a", "b", "stays"]
    await a.close()
    assert await b.children("/e") == ["b", "stays"]
    await eventually(lambda: seen)


async def test_nothing_stands_below_an_ephemeral_record(tree: Tree) -> None:
    a = await tree.open()
    await a.create("/e", b"", ephemeral=True)
    with pytest.raises(MetadataError):
        await a.create("/e/child", b"")


async def test_an_ephemeral_record_can_be_changed_and_deleted_by_others(tree: Tree) -> None:
    a, b = await tree.open(), await tree.open()
    await a.create("/e", b"", ephemeral=True)
    assert await b.put("/e", b"x", 0) == 1
    await b.delete("/e")
    await a.create("/e", b"", ephemeral=True)


# Watches


async def test_a_watch_hears_creation_change_and_deletion(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    heard = []
    b.watch("/w/r", lambda: heard.append(1))

    for change in (
        lambda: a.create("/w/r", b""),
        lambda: a.put("/w/r", b"x", 0),
        lambda: a.delete("/w/r"),
        lambda: a.create("/w/r", b"", ephemeral=True),
        lambda: a.close(),
    ):
        await settled(heard)
        await change()
        await eventually(lambda: heard)


async def settled(heard: list[int]) -> None:
    """Let alarms of earlier changes come in, then forget them."""
    while True:
        heard.clear()
        await asyncio.sleep(0.06)
        if not heard:
            return


async def test_a_watch_of_children_hears_names_come_and_go(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    heard = []
    b.watch_children("/w", lambda: heard.append(1))
    for change in (
        lambda: a.create("/w/one", b""),
        lambda: a.create("/w/two/below", b""),
        lambda: a.delete("/w/one"),
    ):
        await settled(heard)
        await change()
        await eventually(lambda: heard)


async def test_a_change_of_ones_own_is_heard_too(tree: Tree, eventually: Eventually) -> None:
    a = await tree.open()
    heard = []
    a.watch("/w", lambda: heard.append(1))
    await settled(heard)
    await a.create("/w", b"")
    await eventually(lambda: heard)


async def test_a_cancelled_watch_is_silent(tree: Tree, eventually: Eventually) -> None:
    a, b = await tree.open(), await tree.open()
    silent, heard = [], []
    watch = b.watch("/w", lambda: silent.append(1))
    b.watch("/w", lambda: heard.append(1))
    await settled(heard)
    silent.clear()
    watch.cancel()
    watch.cancel()
    await a.create("/w", b"")
    await eventually(lambda: heard)
    assert not silent


async def test_a_callback_that_raises_is_reported_and_the_others_still_hear(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    reported, heard = [], []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

    def fail() -> None:
        raise ValueError("broken watcher")

    b.watch("/w", fail)
    b.watch("/w", lambda: heard.append(1))
    await a.create("/w", b"")
    await eventually(lambda: heard and reported)
    assert isinstance(reported[0]["exception"], ValueError)


async def test_no_change_is_missed_under_a_racing_writer(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    await a.create("/n", b"0")
    seen = []
    changed = asyncio.Event()
    b.watch("/n", changed.set)

    async def reader() -> None:
        while True:
            seen.append(int((await b.get("/n")).value))
            await changed.wait()
            changed.clear()

    async def writer() -> None:
        for n in range(200):
            await a.put("/n", str(n + 1).encode(), n)

    reading = asyncio.create_task(reader())
    await writer()
    await eventually(lambda: seen and seen[-1] == 200)
    reading.cancel()
    assert seen == sorted(seen)


async def test_a_watch_set_while_a_writer_races_hears_the_last_change(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    for round_ in range(15):
        path = f"/n{round_}"
        await a.create(path, b"")
        heard = asyncio.Event()
        latest = [await b.get(path)]
        write = asyncio.create_task(a.put(path, b"x", 0))
        b.watch(path, heard.set)
        await write

        async def catch_up(path=path, heard=heard, latest=latest) -> None:
            while latest[0].version != 1:
                await heard.wait()
                heard.clear()
                latest[0] = await b.get(path)

        async with asyncio.timeout(5):
            await catch_up()


async def test_children_under_a_racing_writer_end_complete(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(), await tree.open()
    changed = asyncio.Event()
    b.watch_children("/c", changed.set)
    names: list[str] = []

    async def reader() -> None:
        while True:
            names[:] = await b.children("/c")
            await changed.wait()
            changed.clear()

    reading = asyncio.create_task(reader())
    await asyncio.gather(*(a.create(f"/c/{n:03}", b"") for n in range(60)))
    await asyncio.gather(*(a.delete(f"/c/{n:03}") for n in range(0, 60, 2)))
    await eventually(lambda: names == [f"{n:03}" for n in range(1, 60, 2)])
    reading.cancel()


# Sessions


async def test_an_expired_session_is_told_and_replaced(tree: Tree, eventually: Eventually) -> None:
    a, b = await tree.open(), await tree.open()
    states: list[SessionState] = []
    heard: list[int] = []
    heard_by_b: list[int] = []
    a.on_session(states.append)
    await a.create("/e/a", b"", ephemeral=True)
    await b.create("/e/b", b"", ephemeral=True)
    a.watch("/later", lambda: heard.append(1))
    b.watch_children("/e", lambda: heard_by_b.append(1))
    assert a.session_state is SessionState.CONNECTED
    await settled(heard_by_b)
    await tree.expire(a)
    await eventually(lambda: states and states[-1] is SessionState.CONNECTED)
    assert SessionState.EXPIRED in states
    # Its records are gone, all watchers hear of it, and the others' records stay.
    await eventually(lambda: heard_by_b)
    assert await b.children("/e") == ["b"]
    assert await a.children("/e") == ["b"]
    # The new session and the old watches work.
    await a.create("/e/a", b"again", ephemeral=True)
    await settled(heard)
    await b.create("/later", b"")
    await eventually(lambda: heard)
    await a.close()
    assert await b.children("/e") == ["b"]


async def test_whoever_lost_the_session_hears_it_before_any_answer(tree: Tree) -> None:
    a = await tree.open()
    states: list[SessionState] = []
    a.on_session(states.append)
    await a.create("/e", b"mine", ephemeral=True)
    await tree.expire(a)
    seen = []
    for _ in range(40):
        try:
            await a.create("/e", b"new", ephemeral=True)
        except SessionExpired:
            seen.append("expired")
        except RecordExists:
            seen.append("old")
            assert SessionState.EXPIRED not in states
        except MetadataUnavailable:
            seen.append("unavailable")
        else:
            break
    assert SessionState.EXPIRED in states
    assert (await a.get("/e")).value == b"new"


async def test_a_reconnect_raises_a_false_alarm(tree: Tree, eventually: Eventually) -> None:
    a = await tree.open(impatient=True)
    states: list[SessionState] = []
    heard: list[int] = []
    names_heard: list[int] = []
    a.on_session(states.append)
    a.watch("/w", lambda: heard.append(1))
    a.watch_children("/w", lambda: names_heard.append(1))
    await settled(heard)
    names_heard.clear()
    async with tree.cut(a):
        await eventually(lambda: SessionState.SUSPENDED in states)
        assert a.session_state is not SessionState.CONNECTED
    await eventually(lambda: heard and names_heard)
    assert a.session_state is SessionState.CONNECTED


@pytest.mark.parametrize(
    "order",
    [
        "cancel again",
        "cancel change again",
        "cancel reconnect again",
        "cancel change reconnect again",
        "reconnect cancel again",
        "cancel again reconnect",
        "cut cancel mend again",
        "cut cancel again mend",
        "cancel cut again mend change cancel again",
    ],
)
async def test_a_watch_that_was_cancelled_and_is_placed_again_hears(
    tree: Tree, eventually: Eventually, order: str
) -> None:
    """A store remembered the cancelled watch as placed, and did not place the same one again."""
    a, b = await tree.open(impatient=True), await tree.open()
    states: list[SessionState] = []
    a.on_session(states.append)
    cuts = order.count("cut") + order.count("reconnect")
    for attempt in range(5):
        states.clear()
        await _hears_after(tree, eventually, a, b, order, f"/w{attempt}")
        if states.count(SessionState.SUSPENDED) == cuts:
            return
        # If the machine stood still, the store reconnected by itself too, which hides the mistake.


class _Placed:
    """A watch of a record and one of names, and how often each was called."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self.record = self.names = self.late = 0
        self._is_cancelled = False
        self._watches = (
            store.watch(f"{path}/r", self._on_record),
            store.watch_children(path, self._on_names),
        )

    def _on_record(self) -> None:
        self.record += 1
        self.late += self._is_cancelled

    def _on_names(self) -> None:
        self.names += 1
        self.late += self._is_cancelled

    def cancel(self) -> None:
        self._is_cancelled = True
        for watch in self._watches:
            watch.cancel()


async def _hears_after(
    tree: Tree, eventually: Eventually, a: MetadataStore, b: MetadataStore, order: str, path: str
) -> None:
    placed: list[_Placed] = []
    version = 0
    await b.create(f"{path}/r", b"")

    def is_there() -> bool:
        return a.session_state is SessionState.CONNECTED

    async def quiet() -> None:
        while True:
            seen = sum(one.record + one.names for one in placed)
            await asyncio.sleep(0.06)
            if seen == sum(one.record + one.names for one in placed):
                return

    async def change() -> None:
        nonlocal version
        version = await b.put(f"{path}/r", b"x", version)
        await b.create(f"{path}/{version}", b"")

    async with contextlib.AsyncExitStack() as broken:
        placed.append(_Placed(a, path))
        await quiet()
        for step in order.split():
            if step == "cancel":
                placed[-1].cancel()
            elif step == "again":
                placed.append(_Placed(a, path))
            elif step == "change":
                await change()
            elif step == "mend":
                await broken.aclose()
                await eventually(is_there)
            else:
                await broken.enter_async_context(tree.cut(a))
                await eventually(lambda: not is_there())
                if step == "reconnect":
                    await broken.aclose()
                    await eventually(is_there)
        last = placed[-1]
        # The alarms of a placement and of a reconnect may be late: one of them can pass for the
        # answer to a change, but not for those to five in a row.
        for _ in range(5):
            await quiet()
            record, names = last.record, last.names
            await change()
            await eventually(lambda r=record, n=names: last.record > r and last.names > n)
    last.cancel()
    assert not any(one.late for one in placed), "no callback comes after a cancel"


async def test_no_session_ends_while_the_store_itself_cannot_be_written(
    tree: Tree, eventually: Eventually
) -> None:
    """A session ends only if its process could have been heard and was not."""
    a, b = [await tree.open(session_timeout_ms=600, impatient=True) for _ in range(2)]
    states: list[SessionState] = []
    a.on_session(states.append)
    await a.create("/e/a", b"", ephemeral=True)
    await b.create("/e/b", b"", ephemeral=True)
    async with tree.unwritable():
        with pytest.raises(MetadataUnavailable):
            await a.create("/during", b"")
        await asyncio.sleep(2.0)
    await eventually(lambda: a.session_state is SessionState.CONNECTED)
    await a.create("/after", b"")
    assert await a.children("/e") == ["a", "b"]
    assert SessionState.EXPIRED not in states


async def test_a_store_that_does_not_answer_is_unavailable(
    tree: Tree, eventually: Eventually
) -> None:
    a, b = await tree.open(impatient=True), await tree.open()
    await a.create("/r", b"")
    async with tree.cut(a):
        with pytest.raises(MetadataUnavailable, match=a.url):
            await a.put("/r", b"x", 0)
    await eventually(lambda: a.session_state is SessionState.CONNECTED)
    # The store serves again; the caller reads before it decides.
    value, version = await a.get("/r")
    assert (value, version) in ((b"", 0), (b"x", 1))
    await a.put("/r", b"y", version)
    assert (await b.get("/r")).value == b"y"


async def test_a_cancelled_call_leaves_the_store_usable(tree: Tree) -> None:
    a = await tree.open()
    calls = [asyncio.create_task(a.create(f"/c/{n}", b"")) for n in range(20)]
    await asyncio.sleep(0)
    for call in calls[::2]:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    made = await a.children("/c")
    assert {str(n) for n in range(1, 20, 2)} <= set(made)


async def test_a_closed_store_says_so(tree: Tree) -> None:
    a = await tree.open()
    await a.close()
    await a.close()
    with pytest.raises(MetadataUnavailable, match="closed"):
        await a.get("/r")
    assert a.session_state is not SessionState.CONNECTED
