"""The metadata store of a single machine: a SQLite file that several processes share.

All SQL runs on one thread (`RecordFile`). A poll of SQLite's data version triggers watches. The
clock alone decides whether the session lives: a process that was stopped for too long gets EXPIRED
at its first call, and only then a new session.

Writes that wait at the same time share a transaction and its sync; each succeeds or fails by
itself. A process that is stopped inside a transaction keeps the file's write lock: others can read
and keep their sessions, but writes raise `MetadataUnavailable` and name it. Reads do not wait for
writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

from octavo.metadata.lock_holder import describe_holder
from octavo.metadata.paths import check_folder, check_path
from octavo.metadata.record_file import FileLocked, RecordFile, boot_clock_ms
from octavo.metadata.record_schema import is_locked, is_transient
from octavo.metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataUnavailable,
    Record,
    SessionExpired,
    SessionState,
    Watch,
    check_value,
)
from octavo.metadata.watching import WatchKey, WatchTable

P = ParamSpec("P")
T = TypeVar("T")

POLL_INTERVAL_MS = 20
QUIET_POLLS_MAX = 10
"""How often to skip an unchanged file's query, which also checks our session and ends others."""
CONNECT_TIMEOUT_MS = 6000
"""A stopped process may hold the file's lock."""
CALL_TIMEOUT_MS = 10_000
LOCK_TIMEOUT_MS = 2000
"""How long a write waits for the file's lock."""
_LOCK_RETRY_MS = 10
TOGETHER_MAX = 64
"""The writes of a transaction: each holds the lock for some 0.1 ms."""


class _Write(NamedTuple):
    generation: int
    work: Callable[[], object]
    done: asyncio.Future[Any]
    until_s: float
    """Gives up waiting for the lock, by the loop's clock."""


def _settle(done: asyncio.Future[Any], outcome: object) -> None:
    if done.done():
        return
    if isinstance(outcome, Exception):
        done.set_exception(outcome)
    else:
        done.set_result(outcome)


class EmbeddedStore:
    def __init__(
        self,
        path: str,
        *,
        session_timeout_ms: int = 6000,
        call_timeout_ms: int = CALL_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        poll_interval_ms: int = POLL_INTERVAL_MS,
        executor: Executor | None = None,
        clock: Callable[[], int] = boot_clock_ms,
    ) -> None:
        assert session_timeout_ms >= 3 * poll_interval_ms
        self._path = path
        self._session_timeout_ms = session_timeout_ms
        self._call_timeout_ms = call_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._poll_interval_ms = poll_interval_ms
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="metadata")
        self._owns_executor = executor is None
        self._file = RecordFile(path, clock=clock)
        self._watches = WatchTable()
        self._state = SessionState.SUSPENDED
        self._loop: asyncio.AbstractEventLoop | None = None
        self._poller: asyncio.Task[None] | None = None
        self._beater: asyncio.Task[None] | None = None
        self._waiting: deque[_Write] = deque()
        self._writer: asyncio.Task[None] | None = None
        # A call carries the generation in which it began. The thread's advances when it finds the
        # session over, the loop's after the listeners ran.
        self._generation = 0
        self._thread_generation = 0

    def describe(self) -> dict[str, int]:
        """Counts that are all 0 at rest."""
        return {"waiting": len(self._waiting)}

    @property
    def url(self) -> str:
        return f"file://{self._path}"

    @property
    def session_state(self) -> SessionState:
        if self._state is SessionState.CONNECTED and not self._file.is_leased:
            return SessionState.SUSPENDED
        return self._state

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    # -- start and close

    async def start(self) -> None:
        """Raises `MetadataUnusable` or `MetadataUnavailable`."""
        assert self._loop is None, "a store is started once"
        self._loop = asyncio.get_running_loop()
        deadline = self._loop.time() + self._connect_timeout_ms / 1000
        try:
            while True:
                is_last_try = self._loop.time() >= deadline
                if await self._on_thread(partial(self._open_file, is_last_try)):
                    break
                await asyncio.sleep(self._poll_interval_ms / 1000)
        except BaseException:
            self._give_up_executor()
            raise
        self._poller = asyncio.create_task(self._poll_forever(), name="metadata-poll")
        self._beater = asyncio.create_task(self._beat_forever(), name="metadata-beat")
        for task in (self._poller, self._beater):
            task.add_done_callback(self._task_ended)

    def _open_file(self, is_last_try: bool) -> bool:
        """Open the file; False if others hold its lock and there is time left."""
        try:
            self._file.open()
            try:
                self._open_session()
            except BaseException:
                self._file.close()
                raise
        except (sqlite3.Error, FileLocked, OSError) as error:
            locked = isinstance(error, FileLocked) or is_locked(error)
            if not is_last_try and (locked or is_transient(error)):
                return False
            hint = f"; {describe_holder(self._path)}" if locked else ""
            raise MetadataUnavailable(f"{self.url} cannot be opened: {error}{hint}") from error
        return True

    async def close(self) -> None:
        poller, self._poller = self._poller, None
        if poller is None:
            return
        poller.cancel()
        await asyncio.gather(poller, return_exceptions=True)
        if self._writer is not None:  # it must not open a new session after ours has ended
            await asyncio.gather(self._writer, return_exceptions=True)
        try:
            await self._until_unlocked(self._file.end_session)
        except (sqlite3.Error, MetadataUnavailable) as error:
            raise MetadataUnavailable(
                f"{self.url}: the session could not be ended: {error}; it will time out"
            ) from error
        finally:
            self._state = SessionState.SUSPENDED
            if self._beater is not None:
                self._beater.cancel()
                await asyncio.gather(self._beater, return_exceptions=True)
            try:
                await self._on_thread(self._file.close)
            finally:
                self._give_up_executor()

    def _give_up_executor(self) -> None:
        if self._owns_executor:
            self._executor.shutdown(wait=False)

    # -- records

    async def get(self, path: str) -> Record:
        return await self._call(self._file.get, path)

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        beside: str | None = None,
    ) -> str:
        value = check_value(path, value)
        return await self._write(
            partial(self._file.create, path, value, ephemeral, sequence, beside)
        )

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        value = check_value(path, value)
        return await self._write(partial(self._file.put, path, value, version, beside))

    async def changed_at(self, path: str) -> int | None:
        """Return the change's time by the machine's clock, which is also the callers' clock."""
        await self.get(path)
        return None

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        await self._write(partial(self._file.delete, path, version, beside))

    async def children(self, path: str) -> list[str]:
        return await self._call(self._file.children, path)

    async def sync(self) -> None:
        """Do nothing: every read sees the last commit."""

    # -- watches

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watches.add(WatchKey(check_path(path), of_children=False), on_change)

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watches.add(WatchKey(check_folder(path), of_children=True), on_change)

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        self._watches.listen(listener)

    # -- on the loop

    async def _on_thread(self, call: Callable[[], T]) -> T:
        assert self._loop is not None, "start the store first"
        try:
            async with asyncio.timeout(self._call_timeout_ms / 1000):
                return await self._loop.run_in_executor(self._executor, call)
        except TimeoutError as error:
            raise self._silent() from error

    async def _until_unlocked(self, call: Callable[[], T]) -> T:
        """Repeat while another process holds the lock."""
        assert self._loop is not None, "start the store first"
        deadline = self._loop.time() + LOCK_TIMEOUT_MS / 1000
        while True:
            try:
                return await self._on_thread(call)
            except FileLocked as error:
                if self._loop.time() >= deadline:
                    raise self._locked() from error
            await asyncio.sleep(_LOCK_RETRY_MS / 1000)

    def _check_open(self) -> None:
        if self._poller is None:
            raise MetadataUnavailable(f"{self.url} is closed")

    async def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        self._check_open()
        generation = self._generation
        return await self._until_unlocked(
            lambda: self._run(generation, lambda: work(*args, **kwargs))
        )

    # -- writes

    async def _write(self, work: Callable[[], T]) -> T:
        """Share a transaction with other waiting writes."""
        self._check_open()
        assert self._loop is not None
        done: asyncio.Future[T] = self._loop.create_future()
        until_s = self._loop.time() + LOCK_TIMEOUT_MS / 1000
        self._waiting.append(_Write(self._generation, work, done, until_s))
        if self._writer is None:
            self._writer = self._loop.create_task(self._write_all(), name="metadata-write")
        try:
            async with asyncio.timeout(self._call_timeout_ms / 1000):
                return await done
        except TimeoutError as error:
            raise self._silent() from error

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                generation = self._waiting[0].generation
                group: list[_Write] = []
                while (
                    self._waiting
                    and len(group) < TOGETHER_MAX
                    and self._waiting[0].generation == generation
                ):
                    one = self._waiting.popleft()
                    if not one.done.done():  # else its caller has given up
                        group.append(one)
                if group:
                    await self._write_together(group)
        finally:
            self._writer = None

    async def _write_together(self, group: list[_Write]) -> None:
        works = [one.work for one in group]
        write = partial(self._run, group[0].generation, partial(self._file.together, works))
        found: list[object]
        try:
            found = await self._on_thread(write)
        except FileLocked:
            await self._wait_for_the_lock(group)
            return
        except Exception as error:
            found = [error] * len(group)
        for one, outcome in zip(group, found, strict=True):
            _settle(one.done, outcome)

    async def _wait_for_the_lock(self, group: list[_Write]) -> None:
        """Queue the writes again, except those that have waited too long."""
        assert self._loop is not None
        now_s = self._loop.time()
        late = [one for one in group if one.until_s <= now_s]
        if late:
            error = self._locked()
            for one in late:
                _settle(one.done, error)
        self._waiting.extendleft(one for one in reversed(group) if one.until_s > now_s)
        await asyncio.sleep(_LOCK_RETRY_MS / 1000)

    def _locked(self) -> MetadataUnavailable:
        return MetadataUnavailable(
            f"{self.url} cannot be written for {LOCK_TIMEOUT_MS} ms now: "
            f"{describe_holder(self._path)}"
        )

    def _silent(self) -> MetadataUnavailable:
        return MetadataUnavailable(f"{self.url} did not answer within {self._call_timeout_ms} ms")

    async def _beat_forever(self) -> None:
        while True:
            await asyncio.sleep(self._session_timeout_ms / 4000)
            with contextlib.suppress(OSError):
                self._file.beat()

    async def _poll_forever(self) -> None:
        quiet_polls = 0
        seen: tuple[int, ...] = ()
        while True:
            await asyncio.sleep(self._poll_interval_ms / 1000)
            signature = self._file.signature()
            if signature == seen and 0 < quiet_polls < QUIET_POLLS_MAX:
                quiet_polls += 1
                continue
            # After each difference, query once more: see `RecordFile.signature`.
            quiet_polls = int(signature == seen)
            seen = signature
            await self._poll_once()

    async def _poll_once(self) -> None:
        try:
            await self._call(self._poll)
        except SessionExpired:
            pass  # the next poll has a new session
        except MetadataError:
            # EXPIRED stays until there is a new session.
            if self._state is SessionState.CONNECTED:
                self._set_state(SessionState.SUSPENDED)
        else:
            self._reconnected()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        """Suspend: without this task the store sees no changes, or its session ends."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._set_state(SessionState.SUSPENDED)
            task.get_loop().call_exception_handler(
                {"message": f"{self.url}: {task.get_name()} has ended", "exception": error}
            )

    def _reconnected(self) -> None:
        if self._state is not SessionState.CONNECTED:
            self._set_state(SessionState.CONNECTED)
            self._watches.notify_all()

    def _set_state(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            self._watches.notify_session(state)

    def _expired(self, generation: int) -> None:
        self._set_state(SessionState.EXPIRED)
        self._generation = generation

    # -- on the thread

    def _run(self, generation: int, work: Callable[[], T]) -> T:
        """Run `work`; post an ended session and changes to the loop before the result."""
        try:
            if generation != self._thread_generation:
                raise SessionExpired(f"the session in which this call to {self.url} began is over")
            if not self._file.has_session:
                self._open_session()
            try:
                return work()
            except SessionExpired:
                self._replace_session()
                raise
            finally:
                self._post_changes()
        except (sqlite3.Error, OSError) as error:
            self._file.check_place()
            raise MetadataUnavailable(f"{self.url}: {error}") from error

    def _poll(self) -> None:
        self._file.check_lease()
        self._file.check_place()
        self._file.sweep_if_due()

    def _replace_session(self) -> None:
        self._file.forget_session()
        self._thread_generation += 1
        self._post(self._expired, self._thread_generation)
        self._open_session()

    def _open_session(self) -> None:
        self._file.open_session(self._session_timeout_ms)
        self._post(self._reconnected)

    def _post_changes(self) -> None:
        if not self._file.has_changes():
            return
        changes = self._file.take_changes()
        if changes.gap:
            self._post(self._watches.notify_all)
        elif changes.keys:
            self._post(self._watches.notify, changes.keys)

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(callback, *args)
