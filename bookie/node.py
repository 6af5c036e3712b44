"""A bookie's life: identity, replay, serving, registration, and an orderly end.

Start: bind the port, lock the folders, check the cookies, replay the journal, serve, register. So a
second process or a wrong disk is detected before anything is changed, and no bookie is registered
that cannot serve.

When the disk is short of space, the bookie turns read-only by itself (recovery may still write into
the reserve), and back. A failed `fsync` ends the node: `failed` carries the reason, and the process
must exit.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib.metadata
import random
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple, TypeVar

import structlog

from octavo.bookie.admin import AdminServer, flag_of, number_of
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk import space
from octavo.bookie.disk.files import Disk, DiskError, File
from octavo.bookie.gc.collector import Collector
from octavo.bookie.gc.deletion_proof import DeletionProof
from octavo.bookie.gc.status import ledger_sizes
from octavo.bookie.index.index import LedgerIndex
from octavo.bookie.ledgers.cookies import lock_folders
from octavo.bookie.ledgers.high_water import HighWaterMark
from octavo.bookie.ledgers.identity import Identity
from octavo.bookie.metrics import BookieMetrics
from octavo.bookie.storage import Storage
from octavo.bookie.wire.guard import Guard
from octavo.bookie.wire.listener import Listener, SecureListener
from octavo.bookie.wire.server import BookieServer
from octavo.metadata.bookies import (
    AUTH,
    FREE_BYTES,
    INCARNATION,
    READ_ONLY_BECAUSE,
    BookieInfo,
    BookieRegistry,
)
from octavo.metadata.cookie import Cookie
from octavo.metadata.high_water import HighWaterStore
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import (
    MetadataError,
    MetadataStore,
    MetadataUnavailable,
    SessionExpired,
    SessionState,
)
from octavo.protocol.auth import OCTAVO
from octavo.protocol.backoff import Backoff
from octavo.protocol.codes import OctavoError, Scope
from octavo.tls.contexts import Certificates

T = TypeVar("T")

log = structlog.get_logger()

_RETRY_FIRST_S = 0.1
_RETRY_MAX_S = 5.0
_RISE_EVERY_S = 60.0
"""The longest time between two raises of the high-water mark."""
_RISE_PAUSE_S = 1.0
"""The shortest time, if ledgers have begun here."""
_LISTED = 1000
"""Rows of an answer on the admin port without `limit`."""


class BookieStartTimeout(OctavoError):
    name = "bookie-start-timeout"
    scope = Scope.PROCESS


class _Serving(NamedTuple):
    storage: Storage
    server: BookieServer
    collector: Collector


class BookieNode:
    """A bookie with its ports and registration; the caller starts and closes `store`."""

    def __init__(
        self,
        config: BookieConfig,
        store: MetadataStore,
        *,
        disk: Disk,
        rng: random.Random,
        clock: Callable[[], int],
        index_opener: Callable[[str], LedgerIndex] | None = None,
        open_storage: Callable[..., Awaitable[Storage]] = Storage.open,
        tls: Certificates | None = None,
        guard: Guard | None = None,
    ) -> None:
        """Make a bookie; a test may replace `open_storage` to watch the storage.

        Without `tls` ports are plain. Without `guard`, which the node starts and closes, every
        caller may do everything.
        """
        self.config = config
        self.metrics = BookieMetrics()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception when the node must end; it has stopped serving by then."""
        self.failed.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._store = store
        self._registry = BookieRegistry(store)
        self._disk = disk
        self._index_opener = index_opener
        self._open_storage = open_storage
        self._tls = tls if tls and tls.config.serves else None
        self._guard = guard
        self._rng = rng
        self._clock = clock
        self._started_ms = 0
        self._cookie: Cookie | None = None
        self._locks: list[File] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._registration_due = asyncio.Event()
        self._rise_due = asyncio.Event()
        self._high_water: HighWaterMark | None = None
        self._told_read_only = config.read_only
        self._short_of_space = False
        self._short_because = ""
        self._free_bytes = self._most_free_bytes = 0
        self._total_bytes = 0
        self._free_told = 0
        self._stopping = False
        self._version = _version()
        self.metrics.writing.observe_disk(disk)
        self.admin = AdminServer(self.metrics, self._health, guard, [self.host])
        self._listener: Listener | SecureListener | None = None
        self._serving: _Serving | None = None

    # Parts

    @property
    def _parts(self) -> _Serving:
        assert self._serving is not None, "the bookie is not started"
        return self._serving

    @property
    def storage(self) -> Storage:
        return self._parts.storage

    @property
    def server(self) -> BookieServer:
        return self._parts.server

    @property
    def collector(self) -> Collector:
        return self._parts.collector

    # Identity

    @property
    def host(self) -> str:
        return self.config.advertised_host or self.config.host

    @property
    def port(self) -> int:
        return self._listener.port if self._listener is not None else self.config.port

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def bookie_id(self) -> str:
        return self.config.bookie_id or self.address

    @property
    def incarnation(self) -> str:
        """Tells this bookie from an earlier life on wiped disks."""
        return self._cookie.incarnation if self._cookie else ""

    @property
    def read_only(self) -> bool:
        return self._told_read_only or self._short_of_space

    @property
    def read_only_because(self) -> str:
        """Say why the bookie is read-only; empty when it is not."""
        told = [space.TOLD] if self._told_read_only else []
        return "; ".join((*told, self._short_because) if self._short_of_space else told)

    def info(self) -> dict[str, Any]:
        return {
            "bookie_id": self.bookie_id,
            "incarnation": self.incarnation,
            "read_only": self.read_only,
            "unsure_through": self.storage.limbo.unknown_through,
            "free_bytes": self._free_bytes,
            "total_bytes": self._total_bytes,
            "started_ms": self._started_ms,
            "version": self._version,
        }

    def _health(self) -> tuple[bool, dict[str, Any]]:
        reason = str(self.failed.exception()) if self.failed.done() else None
        shown = {"read_only_because": self.read_only_because or None, "failed": reason}
        return not self._stopping and reason is None, {**self.info(), **shown}

    # Garbage and damage

    def _new_collector(self, storage: Storage, instance_id: str) -> Collector:
        ledgers = LedgerStore(self._store, rng=self._rng)
        storage.control.ledger_admission.ask(ledgers.list)
        return Collector(
            self.config,
            storage,
            DeletionProof(self._store, ledgers, instance_id),
            clock=self._clock,
            short_of_space=lambda: self._short_of_space,
            free_bytes=lambda: self._most_free_bytes,
        )

    def _show(self, storage: Storage, server: BookieServer, collector: Collector) -> None:
        metrics, admin = self.metrics, self.admin
        metrics.writing.observe(storage.write_stats)
        metrics.reads_of(storage.read_stats)
        metrics.damages(storage.damages.counts)
        metrics.memory(server.memory)
        metrics.limbo.set(not storage.limbo.is_over)
        metrics.gauge(
            "octavo_bookie_queue_bytes",
            "Adds that wait for the disk",
            lambda: storage.pending_add_bytes,
        )
        metrics.gauge("octavo_bookie_ledgers", "Ledgers known here", lambda: len(storage.ledgers()))
        metrics.gauge(
            "octavo_bookie_entry_logs_open", "Entry logs open", lambda: storage.logs.open_count
        )
        metrics.scrubbing(storage.scrubber.progress)
        metrics.garbage(collector.status)

        def start_scrub(query: Mapping[str, str]) -> dict[str, Any]:  # noqa: ARG001
            storage.scrubber.start_pass()
            return storage.scrubber.status()

        def start_gc(query: Mapping[str, str]) -> dict[str, Any]:
            """Start a round; `?minor=1` or `?major=1` includes compactions that are not due yet."""
            collector.start_now(minor=flag_of(query, "minor"), major=flag_of(query, "major"))
            return collector.status_json(0)

        def listed(query: Mapping[str, str]) -> int:
            return number_of(query, "limit", _LISTED)

        admin.route(
            "GET", "/ledgers", lambda query: ledger_sizes(storage.logs, listed(query)), "limit"
        )
        admin.route("GET", "/damage", lambda query: storage.damages.listing(listed(query)), "limit")
        admin.route("GET", "/scrub", lambda _: storage.scrubber.status())
        admin.route("POST", "/scrub", start_scrub)
        admin.route("GET", "/gc", lambda query: collector.status_json(listed(query)), "limit")
        admin.route("POST", "/gc", start_gc, "minor", "major")

    # Life

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._release()
            raise

    async def _start(self) -> None:
        listener = self._listener = await self._bind()
        folders = self.config.directories
        self._locks = await self._blocking(lock_folders, self._disk, folders)
        identity = Identity(
            self.config,
            self.bookie_id,
            self._store,
            self._registry,
            disk=self._disk,
            rng=self._rng,
            clock=self._clock,
        )
        cookie = await self._within_start("checking the cookie", identity.establish())
        self._cookie = cookie
        self._high_water = mark = HighWaterMark(
            self.bookie_id,
            HighWaterStore(self._store),
            LedgerStore(self._store, rng=self._rng),
            self._disk,
            self.config.ledger_directories,
            self._blocking,
        )
        accept_older = self.config.accept_older_metadata
        await self._within_start("checking the metadata", mark.start(accept_older=accept_older))
        room = await self._measure_space()
        storage = await self._open_storage(
            self.config,
            disk=self._disk,
            index_opener=self._index_opener,
            on_fatal=self._fail,
            clock=self._clock,
            on_loss=identity.data_lost if self.config.accept_data_loss else None,
        )
        if self._guard is not None:
            await self._within_start("reading the policy", self._guard.start(self.bookie_id))
        server = BookieServer(self.config, storage, self.metrics, listener, self.info, self._guard)
        collector = self._new_collector(storage, cookie.instance_id)
        self._serving = _Serving(storage, server, collector)
        self._judge_space(room, collect=False)
        self._show(storage, server, collector)
        storage.control.ledger_admission.on_begin = self._rise_due.set
        limbo = storage.limbo
        if limbo.record is not None and not limbo.is_over:
            log.warning(
                "bookie_in_limbo",
                bookie=self.bookie_id,
                unsure_through=limbo.unsure_through,
                since_ms=limbo.record.since_ms,
                reason=limbo.record.why,
            )
        await server.start()
        if self.config.admin_port is not None:
            await self.admin.start(self.config.host, self.config.admin_port, self._tls)
        self._store.on_session(self._on_session)
        await self._within_start("registering", self._register())
        self._started_ms = self._clock()
        if not self.config.journal_sync:
            log.warning(
                "journal_sync_off",
                bookie=self.bookie_id,
                risk="what was acked may be lost with the machine's power",
            )
        self._spawn(self._keep_registered(), "registration")
        self._spawn(self._raise_high_water(mark), "high water")
        self._spawn(self._watch_space(), "disk-space")
        self._spawn(storage.scrubber.run(), "scrub")
        self._spawn(collector.run(), "gc")
        log.info(
            "bookie_ready",
            bookie=self.bookie_id,
            address=self.address,
            incarnation=self.incarnation,
            read_only=self.read_only,
        )

    async def _bind(self) -> Listener | SecureListener:
        host, port = self.config.host, self.config.port
        if self._tls is None:
            return await Listener.bind(host, port)
        return await SecureListener.bind(host, port, self._tls)

    async def stop(self) -> None:
        """Stop the bookie, also after `failed`; a second call does nothing."""
        if self._stopping:
            return
        self._stopping = True
        if self._serving is not None:
            await self._serving.collector.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        timeout_s = self.config.stop_timeout_ms / 1000
        if self._serving is not None and self._high_water is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._high_water.rise()
            except (OctavoError, TimeoutError) as error:
                log.warning("high_water_not_raised", bookie=self.bookie_id, reason=str(error))
        try:
            async with asyncio.timeout(timeout_s):
                await self._registry.unregister(self.bookie_id)
        except (OctavoError, TimeoutError) as error:
            # The record disappears with the session, a little later.
            log.warning("bookie_not_unregistered", bookie=self.bookie_id, reason=str(error))
        if self._serving is not None and not self.failed.done():
            await self._serving.server.stop(timeout_s)
        await self._release()
        log.info("bookie_stopped", bookie=self.bookie_id)

    async def _release(self) -> None:
        self.admin.close()
        if self._guard is not None:
            await self._guard.close()
        if self._listener is not None:
            self._listener.close()
        try:
            if self._serving is not None:
                storage = self._serving.storage
                self._serving.server.abort()
                await storage.control.ledger_admission.close()
                await storage.close()
        except OctavoError as error:
            log.warning("storage_not_flushed", bookie=self.bookie_id, reason=str(error))
        finally:
            for lock in self._locks:
                lock.close()
            self._locks = []

    # Limbo

    async def end_limbo(self) -> None:
        """Register without limbo: all lost entries are here again."""
        await self.storage.limbo_file.end()
        self.metrics.limbo.set(0)
        self._registration_due.set()

    # Registration

    async def _register(self) -> None:
        self._free_told = self._free_bytes
        properties = {INCARNATION: self.incarnation, FREE_BYTES: str(self._free_bytes)}
        if self._guard is not None:
            properties[AUTH] = OCTAVO
        if self.config.rack:
            properties["rack"] = self.config.rack
        if self.read_only:
            properties[READ_ONLY_BECAUSE] = self.read_only_because
        if not self.storage.limbo.is_over:
            properties["unsure_through"] = str(self.storage.limbo.unsure_through)
        await self._registry.register(
            BookieInfo(self.bookie_id, self.host, self.port, self.read_only, properties)
        )

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._registration_due.set()
            self._rise_due.set()
        else:
            log.warning("metadata_session", bookie=self.bookie_id, state=state.value)

    async def _keep_registered(self) -> None:
        """Register whenever the session or the mode has changed; retry until it works."""
        while True:
            await self._registration_due.wait()
            self._registration_due.clear()
            pauses = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, self._rng)
            while True:
                try:
                    await self._register()
                    break
                except (MetadataUnavailable, SessionExpired) as error:
                    log.warning("registration_failed", bookie=self.bookie_id, reason=str(error))
                    await asyncio.sleep(pauses.next_s())
            log.info("bookie_registered", bookie=self.bookie_id, read_only=self.read_only)

    # High-water mark of the metadata

    async def _raise_high_water(self, mark: HighWaterMark) -> None:
        """Raise the mark when ledgers began here, after a session was lost, and at intervals.

        If the metadata has become older, this task and the bookie end.
        """
        while True:
            await asyncio.sleep(_RISE_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_RISE_EVERY_S):
                    await self._rise_due.wait()
            self._rise_due.clear()
            try:
                await mark.rise()
            except MetadataError as error:
                log.warning("high_water_not_raised", bookie=self.bookie_id, reason=str(error))
                self._rise_due.set()

    async def _watch_space(self) -> None:
        while True:
            await asyncio.sleep(self.config.disk_check_interval_ms / 1000)
            await self._check_space()

    async def _check_space(self) -> None:
        self._judge_space(await self._measure_space(), collect=True)
        if space.has_changed(self._free_told, self._free_bytes, self._total_bytes):
            self._registration_due.set()

    async def _measure_space(self) -> dict[str, tuple[int, int]]:
        measured: dict[str, tuple[int, int]] = {}
        for folder in self.config.directories:
            try:
                measured[folder] = await self._blocking(self._disk.free_bytes, folder)
            except DiskError as error:
                log.error("disk_unreadable", folder=folder, reason=str(error))
                measured[folder] = (0, 0)
            self.metrics.free_bytes.labels(folder).set(measured[folder][0])
        return measured

    def _judge_space(self, measured: Mapping[str, tuple[int, int]], *, collect: bool) -> None:
        """Turn read-only or writable; with `collect`, collect garbage if space has run short."""
        ledgers = [measured[folder] for folder in self.config.ledger_directories]
        self._free_bytes = sum(free for free, _ in ledgers)
        self._most_free_bytes = max(free for free, _ in ledgers)
        self._total_bytes = sum(total for _, total in ledgers)
        free = min(free for free, _ in measured.values())
        limit = (
            self.config.disk_free_bytes_resume
            if self._short_of_space
            else self.config.disk_free_bytes_min
        )
        was_short = self._short_of_space
        self._short_of_space = free < limit or self.storage.disk_full
        if self._short_of_space and not was_short:
            self._short_because = space.disk_is_short(
                measured,
                self.config.disk_free_bytes_min,
                self.config.disk_free_bytes_resume,
                write_failed=self.storage.disk_full,
            )
            if collect:
                self.collector.start_now()
        self.server.takes_recovery_adds = free >= self.config.disk_free_bytes_reserve
        self._apply_mode(free_bytes=free)

    def _apply_mode(self, **why: object) -> None:
        read_only = self.read_only
        if self.server.read_only == read_only:
            return
        self.server.read_only = read_only
        self.metrics.read_only.set(read_only)
        if read_only:
            why = {**why, "reason": self.read_only_because}
        log.warning(
            "bookie_read_only" if read_only else "bookie_writable", bookie=self.bookie_id, **why
        )
        self._registration_due.set()

    # Failure

    def _fail(self, error: BaseException) -> None:
        if self.failed.done():
            return
        log.critical(
            "bookie_failed", bookie=self.bookie_id, error=type(error).__name__, reason=str(error)
        )
        if self._serving is not None:
            self._serving.server.abort()
        self.failed.set_exception(error)

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    async def _within_start(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self.config.start_timeout_ms / 1000):
                return await work
        except TimeoutError as error:
            raise BookieStartTimeout(
                f"{what} took longer than {self.config.start_timeout_ms} ms: does the metadata "
                f"store {self._store.url} answer?"
            ) from error

    @staticmethod
    async def _blocking(call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call, *args)


@functools.cache
def _version() -> str:
    try:
        return importlib.metadata.version("octavo")
    except importlib.metadata.PackageNotFoundError:  # run from a bare source tree
        return "0"
