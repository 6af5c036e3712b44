"""Situations of the embedded store only: bad files, busy files, stopped processes, reboots."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo.cli.main import run
from octavo.ledger.rereplication.forgetting import BookieStillNeeded, BookieUnknown, forget_bookie
from octavo.metadata import embedded, record_file, record_schema
from octavo.metadata.bookies import BookieInfo, BookieRegistry, Cookie
from octavo.metadata.embedded import TOGETHER_MAX, EmbeddedStore
from octavo.metadata.gather_all import gather_all
from octavo.metadata.ledger_record import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.record_file import SWEEP_INTERVAL_MS, FileLocked, RecordFile
from octavo.metadata.store import (
    MetadataUnavailable,
    MetadataUnusable,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    SessionState,
    VersionConflict,
)
from octavo.metadata.watching import WatchKey
from octavo.protocol.entry import DigestType


class Clock:
    def __init__(self) -> None:
        self.now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def path(tmp_path):
    return tmp_path / "octavo.db"


@contextlib.contextmanager
def opened(path, clock=None, *, boot_id="boot", timeout_ms=1000):
    file = RecordFile(str(path), clock=clock or Clock(), boot_id=boot_id)
    file.open()
    file.open_session(timeout_ms)
    yield file
    with contextlib.suppress(sqlite3.ProgrammingError):
        file.end_session()
        file.close()


# Owner of the file


def test_the_file_is_its_owners_alone(path):
    """It holds the cluster's secret, and so do the files that SQLite makes next to it."""
    before = os.umask(0)
    try:
        with opened(path) as file:
            file.create("/a", b"x", ephemeral=False, sequence=False)
            kinds = {one.name: one.stat().st_mode & 0o777 for one in path.parent.glob("octavo.db*")}
    finally:
        os.umask(before)
    del kinds["octavo.db-beats"]  # it has only numbers
    assert kinds == dict.fromkeys(("octavo.db", "octavo.db-wal", "octavo.db-shm"), 0o600)


def test_a_file_that_is_there_keeps_its_rights(path):
    with opened(path):
        pass
    path.chmod(0o640)
    with opened(path):
        assert path.stat().st_mode & 0o777 == 0o640


# Unusable files


async def refused(path) -> str:
    store = EmbeddedStore(str(path))
    with pytest.raises(MetadataUnusable) as caught:
        await store.start()
    await store.close()
    assert str(path) in str(caught.value)
    return str(caught.value)


async def test_a_file_that_is_no_database(path: Any) -> None:
    path.write_bytes(b"this is a text file, and a rather long one at that" * 100)
    assert "not a database" in await refused(path)
    assert path.read_bytes().startswith(b"this is")


async def test_another_programs_database(path: Any) -> None:
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("CREATE TABLE theirs (x)")
    assert "not Octavo's" in await refused(path)


async def test_a_newer_schema(path: Any) -> None:
    with opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path)) as other, other:
        other.execute("PRAGMA user_version = 99")
    assert "version 99" in await refused(path)


async def test_a_folder_that_is_missing_and_a_folder_for_a_file(tmp_path: Any) -> None:
    assert "does not exist" in await refused(tmp_path / "absent" / "octavo.db")
    assert "is a folder" in await refused(tmp_path)


async def test_a_folder_that_is_not_writable(tmp_path: Any) -> None:
    # Root may write everywhere but in /proc.
    folder = Path("/proc") if os.geteuid() == 0 else tmp_path
    tmp_path.chmod(0o500)
    try:
        assert "may write" in await refused(folder / "octavo.db")
    finally:
        tmp_path.chmod(0o700)


async def test_a_path_whose_parent_is_a_file(tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    await refused(tmp_path / "file" / "octavo.db")


async def test_a_file_locked_by_others_is_unavailable_not_unusable(path: Any) -> None:
    with opened(path):
        pass
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        store = EmbeddedStore(str(path), session_timeout_ms=150, connect_timeout_ms=200)
        with pytest.raises(MetadataUnavailable, match="locked"):
            await store.start()


# Sessions by the clock


def test_a_session_lives_by_its_beats(path: Any) -> None:
    clock = Clock()
    with opened(path, clock) as a, opened(path, clock) as b:
        a.create("/a", b"", True, False)
        for _ in range(5):
            clock.now_ms += 900
            a.beat()
            b.beat()
            b.sweep_if_due()
        assert b.children("/") == ["a"]


def test_a_session_lives_on_while_another_process_holds_the_write_lock(path: Any) -> None:
    clock = Clock()
    with opened(path, clock) as a, opened(path, clock) as b:
        a.create("/a", b"", True, False)
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as stopped:
            stopped.execute("BEGIN IMMEDIATE")
            for _ in range(20):
                clock.now_ms += 600
                a.beat()
                assert a.get("/a").version == 0
                with pytest.raises(FileLocked):
                    a.put("/a", b"", 0)
        # b slept meanwhile: no process could end its session, but it is over.
        a.sweep_if_due()
        with pytest.raises(SessionExpired):
            b.get("/a")
        assert a.put("/a", b"", 0) == 1


def test_a_beat_that_is_late_does_not_count(path: Any) -> None:
    clock = Clock()
    with opened(path, clock) as a, opened(path, clock) as b:
        a.create("/a", b"", True, False)
        write = a._beats.write

        def stopped_before_the_write(session_id, ends_ms):
            clock.now_ms += 1000
            write(session_id, ends_ms)

        a._beats.write = stopped_before_the_write
        a.beat()
        a._beats.write = write
        assert not a.is_leased
        a.beat()
        with pytest.raises(SessionExpired):
            a.put("/a", b"", 0)
        a.forget_session()
        b.forget_session()
        b.open_session(1000)
        a.open_session(1000)
        # Its late beat deceived the others, and the next session removed the record.
        assert a.children("/") == []


def test_a_session_of_an_older_version_keeps_its_end_in_the_table(path: Any) -> None:
    clock = Clock()
    with opened(path, clock) as a:
        a._db.execute(
            "INSERT INTO sessions (boot_id, deadline_ms) VALUES ('boot', ?)", (1_000_500,)
        )
        a._db.execute("INSERT INTO records VALUES ('/old', '/', x'', 0, last_insert_rowid(), 0)")
        clock.now_ms += 499
        a.sweep_if_due()
        assert a.children("/") == ["old"]
        a.beat()
        clock.now_ms += SWEEP_INTERVAL_MS
        a.sweep_if_due()
        assert a.children("/") == []


def test_a_file_of_the_version_before_is_taken_over(path: Any) -> None:
    with opened(path) as a:
        a.create("/kept", b"x", False, False)
        a._db.execute("PRAGMA user_version = 1")
    with opened(path) as a:
        assert a.get("/kept").value == b"x"
        assert a._db.execute("PRAGMA user_version").fetchone()[0] == 2


def test_the_session_of_a_silent_process_is_ended_by_others(path: Any) -> None:
    clock = Clock()
    with opened(path, clock) as a, opened(path, clock) as b:
        a.create("/a", b"", True, False)
        b.create("/b", b"", True, False)
        b.take_changes()
        clock.now_ms += 600
        b.beat()
        clock.now_ms += 400
        b.sweep_if_due()
        assert b.children("/") == ["b"]
        assert set(b.take_changes().keys) == {WatchKey("/a", False), WatchKey("/", True)}


@pytest.mark.parametrize("swept", [False, True], ids=["unnoticed", "swept by another"])
def test_a_process_that_wakes_past_its_session_can_neither_read_nor_write(
    path: Any, swept: Any
) -> None:
    clock = Clock()
    with opened(path, clock) as a, opened(path, clock) as b:
        a.create("/a", b"", True, False)
        clock.now_ms += 999
        a.get("/a")
        b.beat()
        clock.now_ms += 1
        if swept:
            b.sweep_if_due()
        for call in (
            lambda: a.get("/a"),
            lambda: a.children("/"),
            lambda: a.create("/x", b"", False, False),
            lambda: a.put("/a", b"", 0),
            lambda: a.delete("/a", 0),
            a.check_lease,
        ):
            with pytest.raises(SessionExpired):
                call()
        a.forget_session()
        a.open_session(1000)
        with pytest.raises(RecordNotFound):
            a.get("/a")


@pytest.mark.parametrize("read", ["get", "children"])
def test_a_process_stopped_in_the_middle_of_a_read_learns_the_truth(path: Any, read: Any) -> None:
    clock = Clock()
    with opened(path, clock) as a, opened(path, clock) as b:
        a.create("/a", b"", True, False)

        def stop_here(_: str) -> None:
            # The read has begun; before SQLite does it, a session timeout passes.
            a._db.set_trace_callback(None)
            clock.now_ms += 1000
            b.forget_session()
            b.open_session(1000)

        a._db.set_trace_callback(stop_here)
        with pytest.raises(SessionExpired):
            getattr(a, read)("/a")
        assert b.children("/") == []


def test_a_reboot_ends_all_sessions_whatever_the_clock_says(path: Any) -> None:
    clock = Clock()
    with opened(path, clock) as before:
        before.create("/a", b"", True, False)
        before._db.close()
    clock.now_ms = 5  # the machine has just started
    with opened(path, clock, boot_id="next boot") as after:
        assert after.children("/") == []


def test_the_end_of_a_session_and_of_its_records_is_one_transaction(path: Any) -> None:
    clock = Clock()
    with opened(path, clock) as a, opened(path, clock) as b:
        for n in range(5):
            a.create(f"/{n}", b"", True, False)
        clock.now_ms += 600
        b.beat()
        clock.now_ms += 600
        executed: list[str] = []
        b._db.set_trace_callback(executed.append)
        b.sweep_if_due()
        words = [statement.split()[0] for statement in executed if "records" in statement]
        assert words.count("DELETE") == 5
        assert [
            statement for statement in executed if statement.startswith(("BEGIN", "COMMIT"))
        ] == ["BEGIN IMMEDIATE", "COMMIT"]


# A file that is taken away


async def test_a_file_removed_or_replaced_under_a_running_store_is_noticed(
    path: Any, tmp_path: Any
) -> None:
    store = EmbeddedStore(str(path))
    await store.start()
    path.rename(tmp_path / "moved")
    with opened(path):
        pass
    for _ in range(2):
        with pytest.raises(MetadataUnusable, match="removed or replaced"):
            await store.create("/x", b"")
        if store._file._lease is not None:
            store._file._lease.ends_ms = 0
    with pytest.raises(MetadataUnusable, match="removed or replaced"):
        await store.get("/x")
    assert store.session_state is not SessionState.CONNECTED
    await store.close()


async def test_a_full_disk_is_unavailable_and_loses_nothing(path: Any) -> None:
    store = EmbeddedStore(str(path))
    await store.start()
    await store.create("/kept", b"x")

    def limit(pages: int) -> None:
        store._file._db.execute(f"PRAGMA max_page_count = {pages}")

    await store._call(limit, 20)
    with pytest.raises(MetadataUnavailable, match="full"):
        await store.create("/big", b"x" * 500_000)
    assert await store.get("/kept") == (b"x", 0)
    await store._call(limit, 10_000)
    await store.create("/big", b"x" * 500_000)
    await store.close()


# Writes that wait together


async def test_writes_that_wait_together_share_transactions(path: Any) -> None:
    store = EmbeddedStore(str(path))
    await store.start()
    await store.create("/there", b"")
    executed: list[str] = []
    await store._call(lambda: store._file._db.set_trace_callback(executed.append))
    found = await asyncio.gather(
        *(store.create(f"/{n}", b"x") for n in range(200)),
        store.create("/there", b""),
        store.put("/there", b"new", 7),
        store.delete("/absent"),
        return_exceptions=True,
    )
    await store._call(lambda: store._file._db.set_trace_callback(None))
    assert found[:200] == [f"/{n}" for n in range(200)]
    assert [type(one) for one in found[200:]] == [RecordExists, VersionConflict, RecordNotFound]
    assert await store.children("/") == sorted(["there", *map(str, range(200))])
    assert executed.count("COMMIT") <= 203 // TOGETHER_MAX + 2
    await store.close()


def test_one_of_several_writes_that_is_refused_leaves_nothing(path: Any) -> None:
    with opened(path) as file:
        file.create("/taken", b"", False, False)
        file.take_changes()
        found = file.together(
            [
                lambda: file.create("/a/b", b"", False, False),
                lambda: file.create("/half/made", b"", False, False, "/taken"),
                lambda: file.put("/a/b", b"x", 0),
            ]
        )
        assert found[0] == "/a/b"
        assert isinstance(found[1], RecordExists)
        assert found[2] == 1
        assert file.children("/") == ["a", "taken"]
        assert {key.path for key in file.take_changes().keys} == {"/", "/a", "/a/b"}


def test_several_writes_that_the_disk_refuses_take_no_effect(path: Any) -> None:
    with opened(path) as file:
        file._db.execute("PRAGMA max_page_count = 20")
        with pytest.raises(sqlite3.OperationalError, match="full"):
            file.together(
                [
                    lambda: file.create("/small", b"", False, False),
                    lambda: file.create("/big", b"x" * 500_000, False, False),
                ]
            )
        assert file.children("/") == []
        file._db.execute("PRAGMA max_page_count = 10000")
        assert file.create("/alone", b"", False, False) == "/alone"
    with opened(path) as file:
        assert file.children("/") == ["alone"]


async def test_a_write_whose_caller_has_left_before_its_turn_is_not_made(path: Any) -> None:
    store = EmbeddedStore(str(path))
    await store.start()
    left = asyncio.ensure_future(store.create("/left", b""))
    await asyncio.sleep(0)  # it waits for its turn
    left.cancel()
    await store.create("/stayed", b"")
    assert await store.children("/") == ["stayed"]
    await store.close()


async def test_writes_that_wait_are_made_before_the_session_is_ended(path: Any) -> None:
    store = EmbeddedStore(str(path))
    await store.start()
    writes = [asyncio.ensure_future(store.create(f"/{n}", b"")) for n in range(100)]
    await asyncio.sleep(0)
    await store.close()
    assert await asyncio.gather(*writes) == [f"/{n}" for n in range(100)]
    with opened(path) as file:
        assert len(file.children("/")) == 100
        assert file._db.execute("SELECT count(*) FROM sessions").fetchone()[0] == 1


async def test_writes_wait_for_the_lock_and_no_longer_than_they_may(
    path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = EmbeddedStore(str(path))
    await store.start()
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        monkeypatch.setattr(embedded, "LOCK_TIMEOUT_MS", 100)
        early = [asyncio.ensure_future(store.create(f"/early-{n}", b"")) for n in range(3)]
        await asyncio.sleep(0)
        monkeypatch.setattr(embedded, "LOCK_TIMEOUT_MS", 20_000)
        late = [asyncio.ensure_future(store.create(f"/late-{n}", b"")) for n in range(3)]
        found = await asyncio.gather(*early, return_exceptions=True)
        assert [type(one) for one in found] == [MetadataUnavailable] * 3
        assert not any(one.done() for one in late)
        other.execute("ROLLBACK")
    assert await asyncio.gather(*late) == [f"/late-{n}" for n in range(3)]
    assert await store.children("/") == [f"late-{n}" for n in range(3)]
    await store.close()


# The change log


def test_whoever_falls_behind_the_change_log_is_told_of_the_gap(
    path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "CHANGES_KEPT", 100)
    with opened(path) as a, opened(path) as b:
        for n in range(700):
            a.create(f"/{n}", b"", False, False)
        rows = a._db.execute("SELECT count(*) FROM changes").fetchone()[0]
        assert rows < 1200
        assert b.take_changes().gap
        a.create("/last", b"", False, False)
        changes = b.take_changes()
        assert not changes.gap
        assert WatchKey("/last", False) in changes.keys


async def test_a_gap_alarms_every_watch(path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_file, "CHANGES_KEPT", 10)
    store = EmbeddedStore(str(path))
    await store.start()
    heard = asyncio.Event()
    store.watch("/quiet", heard.set)
    clock, boot_id = record_file.boot_clock_ms, record_file.read_boot_id()
    with opened(path, clock, boot_id=boot_id, timeout_ms=60_000) as other:
        for n in range(600):
            other.create(f"/{n}", b"", False, False)
    async with asyncio.timeout(5):
        await heard.wait()
    await store.close()


# A store whose clock passes its session


async def test_calls_begun_before_the_loss_was_heard_fail_and_later_ones_serve(path: Any) -> None:
    clock = Clock()
    store = EmbeddedStore(str(path), session_timeout_ms=1000, clock=clock)
    await store.start()
    said = []
    store.on_session(lambda state: said.append(state))
    await store.create("/mine", b"", ephemeral=True)
    clock.now_ms += 5000
    assert store.session_state is SessionState.SUSPENDED
    results = await asyncio.gather(
        store.get("/mine"),
        store.create("/other", b"", ephemeral=True),
        store.children("/"),
        return_exceptions=True,
    )
    assert [type(result) for result in results] == [SessionExpired] * 3
    assert said == [SessionState.EXPIRED, SessionState.CONNECTED]
    assert await store.children("/") == []
    await store.close()


# Real processes


CHILD = textwrap.dedent(
    """
    import asyncio, sys
    from octavo.metadata.embedded import EmbeddedStore

    async def main():
        store = EmbeddedStore(sys.argv[1], session_timeout_ms=800)
        store.on_session(lambda state: print(state.value, flush=True))
        await store.start()
        await store.create("/child", b"", ephemeral=True)
        print("ready", flush=True)
        while True:
            await asyncio.sleep(0.001)
            try:
                await store.get("/child")
            except Exception as error:
                print(error.name, flush=True)
                break
        await store.create("/child", b"again", ephemeral=True)
        print("again", flush=True)
        sys.stdin.readline()

    asyncio.run(main())
    """
)


@contextlib.contextmanager
def child(path):
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


async def lines_until(process, last: str) -> list[str]:
    lines: list[str] = []
    while not lines or lines[-1] != last:
        line = await asyncio.to_thread(process.stdout.readline)
        assert line, f"the child ended after {lines}"
        lines.append(line.strip())
    return lines


async def stop(process, store) -> None:
    """Stop the child, but not during a transaction, when it would hold the lock."""
    while True:
        os.kill(process.pid, signal.SIGSTOP)
        try:
            await store.delete(await store.create("/probe/n", b"", sequence=True))
        except MetadataUnavailable:
            os.kill(process.pid, signal.SIGCONT)
        else:
            return


async def gone(store, name: str) -> None:
    async with asyncio.timeout(10):
        changed = asyncio.Event()
        watch = store.watch_children("/", changed.set)
        while name in await store.children("/"):
            await changed.wait()
            changed.clear()
        watch.cancel()


async def test_a_stopped_process_learns_that_it_expired_before_anything_else(path: Any) -> None:
    store = EmbeddedStore(str(path), session_timeout_ms=5000)
    await store.start()
    with child(path) as process:
        await lines_until(process, "ready")
        await stop(process, store)
        await gone(store, "child")
        os.kill(process.pid, signal.SIGCONT)
        said = await lines_until(process, "again")
        assert said[-4:-2] == ["expired", "connected"], said
        # Either the read or the store's own poll finds it out.
        assert said[-2:] in (["session-expired", "again"], ["record-not-found", "again"])
        assert (await store.get("/child")).value == b"again"
        process.kill()
        await gone(store, "child")
    await store.close()


ADDER = textwrap.dedent(
    """
    import asyncio, contextlib, sys
    from octavo.metadata.embedded import EmbeddedStore
    from octavo.metadata.store import RecordExists, VersionConflict

    async def main():
        store = EmbeddedStore(sys.argv[1])
        await store.start()
        with contextlib.suppress(RecordExists):
            await store.create("/n", b"0")
        done = 0
        while done < 50:
            value, version = await store.get("/n")
            with contextlib.suppress(VersionConflict):
                await store.put("/n", str(int(value) + 1).encode(), version)
                done += 1
        await store.close()

    asyncio.run(main())
    """
)


async def test_processes_that_start_and_write_at_once_lose_nothing(path: Any) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, "-c", ADDER, str(path), cwd=Path(__file__).parents[3]
        )
        for _ in range(4)
    ]
    assert [await process.wait() for process in processes] == [0] * 4
    store = EmbeddedStore(str(path))
    await store.start()
    assert await store.get("/n") == (b"200", 200)
    await store.close()


async def in_order_of_names(store: EmbeddedStore, folder: str) -> list[bytes]:
    return [(await store.get(f"{folder}/{name}")).value for name in await store.children(folder)]


@pytest.mark.parametrize("locked", [1, 3])
async def test_writes_that_others_lock_out_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: int
) -> None:
    """Each time the lock is not free they wait again, in front of newer writes."""
    store = EmbeddedStore(str(tmp_path / "metadata.db"))
    await store.start()
    together, left = store._file.together, locked

    def locked_out(works: Any) -> Any:
        nonlocal left
        if left:
            left -= 1
            raise FileLocked("another process writes")
        return together(works)

    monkeypatch.setattr(store._file, "together", locked_out)
    writing = []
    for number in range(12):
        value = b"%02d" % number
        writing.append(asyncio.create_task(store.create("/q/n", value, sequence=True)))
        if number % 4 == 3:
            await asyncio.sleep(0.005)
    await asyncio.gather(*writing)
    assert left == 0
    assert await in_order_of_names(store, "/q") == [b"%02d" % number for number in range(12)]
    await store.close()


async def test_a_write_of_the_former_session_does_not_fail_the_next_sessions(
    tmp_path: Path,
) -> None:
    """Both wait for the thread; only the write that began in the former session is refused."""
    store = EmbeddedStore(str(tmp_path / "metadata.db"))
    await store.start()
    busy = threading.Event()
    holding = asyncio.create_task(store._on_thread(busy.wait))
    await asyncio.sleep(0)
    first = asyncio.create_task(store.create("/a", b"former"))
    for _ in range(3):
        await asyncio.sleep(0)
    blocked = asyncio.create_task(store.create("/b", b"former"))
    await asyncio.sleep(0)
    store._generation = store._thread_generation = store._generation + 1
    later = asyncio.create_task(store.create("/c", b"next"))
    await asyncio.sleep(0)
    busy.set()
    found = await asyncio.gather(holding, first, blocked, later, return_exceptions=True)
    assert [type(one) for one in found] == [bool, SessionExpired, SessionExpired, str]
    await store.close()


BUSY_TIMEOUT_MS = 5000


@pytest.mark.parametrize("reads_before", [0, 1, 2])
def test_a_file_made_by_another_between_two_looks_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads_before: int
) -> None:
    """A process read the file's application id before another made the file, and its tables
    after, and refused it as not Octavo's."""
    path = str(tmp_path / "octavo.db")
    connect = sqlite3.connect

    class Overtaken(sqlite3.Connection):
        reads = 0

        def execute(self, *args: Any) -> sqlite3.Cursor:
            if self.reads == reads_before:
                with monkeypatch.context() as real:
                    real.setattr(sqlite3, "connect", connect)
                    record_schema.open_database(path, BUSY_TIMEOUT_MS).close()
            self.reads += 1
            return super().execute(*args)

    monkeypatch.setattr(sqlite3, "connect", lambda *a, **k: connect(*a, factory=Overtaken, **k))
    db = record_schema.open_database(path, BUSY_TIMEOUT_MS)
    assert db.execute("SELECT count(*) FROM records").fetchone() == (1,)
    db.close()


# A process that was stopped in a transaction holds the file's lock; others gave up with `database
# is locked` after a third of a session.

SESSION_MS = 300
LOCKED_FOR_S = 1.0


@pytest.fixture(params=["absent", "there"])
async def locked_path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "metadata.db"
    if request.param == "there":
        store = EmbeddedStore(str(path))
        await store.start()
        await store.create("/before", b"")
        await store.close()
    return path


@contextlib.contextmanager
def locked(path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield other


async def test_a_start_waits_for_the_lock(locked_path: Path) -> None:
    with locked(locked_path) as other:
        asyncio.get_running_loop().call_later(LOCKED_FOR_S, other.execute, "ROLLBACK")
        store = EmbeddedStore(str(locked_path), session_timeout_ms=SESSION_MS)
        await store.start()
        assert not other.in_transaction, "it could not have started before"
        await store.create("/after", b"", ephemeral=True)
        await store.close()


async def test_a_start_gives_up_in_bounded_time_and_says_what_to_look_for(
    locked_path: Path,
) -> None:
    with locked(locked_path):
        store = EmbeddedStore(
            str(locked_path), session_timeout_ms=SESSION_MS, connect_timeout_ms=300
        )
        with pytest.raises(MetadataUnavailable, match=r"holds its lock|stopped") as given_up:
            async with asyncio.timeout(10):
                await store.start()
        assert "locked" in str(given_up.value)


# Up to Python 3.12, a child of a `TaskGroup` that fails while the group is being left cancels the
# parent and never calls `uncancel`: a connect that took too long ended its caller's task as
# cancelled.


async def _fails() -> None:
    await asyncio.sleep(0)
    raise MetadataUnavailable("no answer")


async def _reads_then_waits() -> None:
    async with asyncio.timeout(0.5):
        with pytest.raises(MetadataUnavailable):
            await gather_all([_fails(), asyncio.sleep(60)])
        await asyncio.sleep(60)


async def test_a_timeout_is_a_timeout_also_after_a_failed_read() -> None:
    with pytest.raises(TimeoutError):
        await _reads_then_waits()


async def test_the_first_error_ends_the_other_reads() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append("waits")

    with pytest.raises(MetadataUnavailable):
        await gather_all([waits(), _fails()])
    assert ended == ["waits"]


async def test_cancelled_it_ends_the_reads() -> None:
    ended: list[str] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("waits")

    task = asyncio.ensure_future(gather_all([waits(), waits()]))
    for _ in range(3):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["waits", "waits"]


async def test_results_come_in_order() -> None:
    async def one(number: int) -> int:
        await asyncio.sleep(0.001 * (3 - number))
        return number

    assert await gather_all(one(n) for n in range(3)) == [0, 1, 2]
    assert await gather_all([]) == []


# A drained bookie stayed "down" for ever: no command removed it from the list.

GONE = "b4"
COOKIE = Cookie(GONE, "/j", ("/l",), "cluster", ("/i",), "one")


def ledger(*ensembles: tuple[str, ...]) -> LedgerMetadata:
    return LedgerMetadata(
        ledger_id=-1,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=tuple(Fragment(10 * n, one) for n, one in enumerate(ensembles)),
        state=LedgerState.OPEN,
        digest_type=DigestType.CRC32C,
    )


@pytest.fixture
async def forget_store(tmp_path: Path) -> AsyncIterator[EmbeddedStore]:
    store = EmbeddedStore(str(tmp_path / "metadata.db"))
    await store.start()
    await BookieRegistry(store).write_cookie(COOKIE)
    yield store
    await store.close()


async def forget(store: EmbeddedStore, bookie_id: str = GONE) -> None:
    await forget_bookie(BookieRegistry(store), LedgerStore(store, rng=random.Random(1)), bookie_id)


async def test_one_that_nothing_names_is_forgotten(forget_store: EmbeddedStore) -> None:
    registry, ledgers = (
        BookieRegistry(forget_store),
        LedgerStore(forget_store, rng=random.Random(1)),
    )
    await ledgers.create(ledger(("b1", "b2", "b3")))
    assert GONE in await registry.known()
    await forget(forget_store)
    assert await registry.known() == set()
    with pytest.raises(BookieUnknown, match="there is no bookie 'b4'"):
        await forget(forget_store)


async def test_not_while_a_ledger_names_it_in_any_fragment(forget_store: EmbeddedStore) -> None:
    ledgers = LedgerStore(forget_store, rng=random.Random(1))
    made, version = await ledgers.create(ledger(("b1", "b2", GONE), ("b1", "b2", "b3")))
    with pytest.raises(
        BookieStillNeeded, match=f"1 ledgers still name bookie b4: {made.ledger_id}"
    ):
        await forget(forget_store)
    await ledgers.delete(made.ledger_id, version)
    await forget(forget_store)


async def test_not_while_it_is_up(forget_store: EmbeddedStore) -> None:
    registry = BookieRegistry(forget_store)
    await registry.register(BookieInfo(GONE, "h", 1))
    with pytest.raises(BookieStillNeeded, match="is up"):
        await forget(forget_store)
    await registry.unregister(GONE)
    await forget(forget_store)


async def test_one_that_starts_this_very_moment_keeps_its_cookie(
    forget_store: EmbeddedStore,
) -> None:
    registry = BookieRegistry(forget_store)
    delete = registry.delete_cookie

    async def delete_as_it_starts(bookie_id: str, version: int) -> None:
        await delete(bookie_id, version)
        await BookieRegistry(forget_store).register(BookieInfo(GONE, "h", 1))

    registry.delete_cookie = delete_as_it_starts  # type: ignore[method-assign]
    with pytest.raises(BookieStillNeeded, match="is up"):
        await forget_bookie(registry, LedgerStore(forget_store, rng=random.Random(1)), GONE)
    assert (await registry.read_cookie(GONE))[0] == COOKIE


async def test_a_ledger_that_cannot_be_read_is_not_taken_for_none(
    forget_store: EmbeddedStore,
) -> None:
    ledgers = LedgerStore(forget_store, rng=random.Random(1))
    await ledgers.create(ledger(("b1", "b2", "b3")))

    async def unread(ledger_id: int) -> tuple[LedgerMetadata, int]:
        raise MetadataUnavailable("no answer")

    ledgers.read = unread  # type: ignore[method-assign]
    with pytest.raises(MetadataUnavailable):
        await forget_bookie(BookieRegistry(forget_store), ledgers, GONE)
    assert (await BookieRegistry(forget_store).read_cookie(GONE))[0] == COOKIE


async def test_the_command(
    forget_store: EmbeddedStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"file://{tmp_path / 'metadata.db'}"
    arguments = ["bookie", "forget", GONE, "--metadata", url]
    assert await asyncio.to_thread(run, arguments) == 0
    assert "forgot b4" in capsys.readouterr().err
    with pytest.raises(RecordNotFound):
        await BookieRegistry(forget_store).read_cookie(GONE)
    assert await asyncio.to_thread(run, arguments) == 1
    assert "there is no bookie 'b4'" in capsys.readouterr().err
