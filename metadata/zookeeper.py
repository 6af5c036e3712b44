"""The metadata store of a cluster: ZooKeeper, through kazoo.

kazoo's threads post to the event loop in order: the end of a session arrives before any answer
given after it.

A lost reply to a write means `MetadataUnavailable`. The first read after it comes after a `sync`,
because a server that is behind may answer. Reads are repeated until their deadline. While the
connection is down no call is sent, so a call that timed out has no effect later.

With credentials, records are created with access for them alone; a store of others' records does
not start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import ssl
from collections.abc import Callable, Sequence
from typing import Any

import structlog
from kazoo import exceptions as zk
from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from octavo.metadata.credentials import Credentials
from octavo.metadata.paths import check_folder, check_path, parents_of
from octavo.metadata.record_file import boot_clock_ms
from octavo.metadata.store import (
    ANY_VERSION,
    MetadataError,
    MetadataUnavailable,
    MetadataUnusable,
    Record,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    SessionState,
    VersionConflict,
    Watch,
    check_value,
)
from octavo.metadata.watching import WatchKey, WatchTable
from octavo.metadata.zookeeper_connections import ConnectionHandler
from octavo.metadata.zookeeper_pairs import beside as beside_of
from octavo.metadata.zookeeper_tls import Context, TlsHandler, why_not
from octavo.metadata.zookeeper_watches import PlacedWatches

CONNECT_TIMEOUT_MS = 6000
CALL_TIMEOUT_MS = 10_000
CALLS_IN_FLIGHT_MAX = 256
_PARENTS_TRIED_MAX = 8
_PROBE_TIMEOUT_S = 1.0

# kazoo warns about every lost connection; we report session states and errors.
_log = structlog.get_logger()
_kazoo_log = logging.getLogger("octavo.metadata.kazoo")
_kazoo_log.setLevel(logging.ERROR)

_ERRORS: dict[type[Exception], type[MetadataError]] = {
    zk.NoNodeError: RecordNotFound,
    zk.NodeExistsError: RecordExists,
    zk.NotEmptyError: RecordExists,
    zk.BadVersionError: VersionConflict,
    zk.SessionExpiredError: SessionExpired,
    # kazoo derives it from SessionExpiredError, but only the socket is gone.
    zk.ConnectionClosedError: MetadataUnavailable,
    zk.ConnectionLoss: MetadataUnavailable,
    zk.OperationTimeoutError: MetadataUnavailable,
    zk.SessionMovedError: MetadataUnavailable,
    zk.RequestTimeoutError: MetadataUnavailable,
    zk.ThrottledOpError: MetadataUnavailable,
    zk.CancelledError: MetadataUnavailable,
    zk.NoAuthError: MetadataUnusable,
    zk.AuthFailedError: MetadataUnusable,
}

# Then the caller reads again, to learn the outcome.
_DOUBTFUL = (MetadataUnavailable, VersionConflict, RecordExists)


class ZooKeeperStore:
    """Metadata in ZooKeeper; `hosts` are `host:port` each, `chroot` is empty or `/a`."""

    def __init__(
        self,
        hosts: Sequence[str],
        chroot: str = "",
        *,
        session_timeout_ms: int = 6000,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        call_timeout_ms: int = CALL_TIMEOUT_MS,
        credentials: Credentials | None = None,
        tls: Context | None = None,
        clock: Callable[[], int] = boot_clock_ms,
    ) -> None:
        """Make a store; `tls` returns a connection's TLS context, if it has any."""
        assert hosts
        self._hosts = tuple(hosts)
        self._chroot = check_path(chroot) if chroot else ""
        self._session_timeout_ms = session_timeout_ms
        self._connect_timeout_ms = connect_timeout_ms
        self._call_timeout_ms = call_timeout_ms
        self._clock = clock
        self._tls = tls
        self._user = "" if credentials is None else credentials.user
        self._client = KazooClient(
            hosts=",".join(hosts),
            timeout=session_timeout_ms / 1000,
            handler=(
                ConnectionHandler(session_timeout_ms)
                if tls is None
                else TlsHandler(session_timeout_ms, tls)
            ),
            logger=_kazoo_log,
            connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
            auth_data=None if credentials is None else [("digest", ":".join(credentials))],
            default_acl=None if credentials is None else CREATOR_ALL_ACL,
        )
        self._watches = WatchTable()
        self._placed = PlacedWatches(self._client, self._chroot, self._watches, self._post)
        self._state = SessionState.SUSPENDED
        self._connected = asyncio.Event()
        self._in_flight = asyncio.Semaphore(CALLS_IN_FLIGHT_MAX)
        self._generation = 0
        # Writes with a doubtful outcome, and their number at the last sync.
        self._doubts = 0
        self._doubts_settled = 0
        self._contact_ms = 0
        self._closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pulse: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        scheme = "zk" if self._tls is None else "zks"
        return f"{scheme}://{','.join(self._hosts)}{self._chroot}"

    @property
    def session_state(self) -> SessionState:
        """Return the state; never CONNECTED without contact for a session timeout."""
        if (
            self._state is SessionState.CONNECTED
            and self._clock() - self._contact_ms >= self._session_timeout_ms
        ):
            return SessionState.SUSPENDED
        return self._state

    @property
    def session_timeout_ms(self) -> int:
        return self._session_timeout_ms

    # -- start and close

    async def start(self) -> None:
        """Connect. Raises `MetadataUnavailable` with each host's reason, or `MetadataUnusable`."""
        assert self._loop is None, "a store is started once"
        self._loop = asyncio.get_running_loop()
        self._client.add_listener(lambda state: self._post(self._on_kazoo_state, state))
        self._client.start_async()
        try:
            async with asyncio.timeout(self._connect_timeout_ms / 1000):
                await self._connected.wait()
            with contextlib.suppress(RecordNotFound):
                await self._read("read", "/", self._client.get_async)
        except TimeoutError as error:
            reasons = await asyncio.gather(*map(self._reason, self._hosts))
            await self._stop_client()
            raise MetadataUnavailable(
                f"{self.url}: no ZooKeeper session within {self._connect_timeout_ms} ms: "
                + "; ".join(reasons)
            ) from error
        except BaseException:
            await self._stop_client()
            raise
        self._pulse = asyncio.create_task(self._pulse_forever(), name="metadata-pulse")

    async def _reason(self, host: str) -> str:
        name, _, port = host.rpartition(":")
        context = None if self._tls is None else self._tls()
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(
                    name.strip("[]"), int(port), ssl=context
                )
            if context is not None:
                # Its first bytes show whether it accepts our certificate.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_PROBE_TIMEOUT_S):
                        await reader.read(1)
        except TimeoutError:
            return f"{host} did not answer"
        except (ssl.SSLError, ConnectionResetError, BrokenPipeError) as error:
            return f"{host}: {why_not(error)}"
        except OSError as error:
            # asyncio's text names the call, the system's the reason.
            if error.errno is not None and error.errno > 0:
                return f"{host}: {os.strerror(error.errno)}"
            return f"{host}: {error.strerror or error}"
        writer.close()
        other = "" if context is not None else ", or does that port speak TLS: zks://"
        return f"{host} accepts connections, but opens no session (no quorum, no ZooKeeper{other}?)"

    async def close(self) -> None:
        if self._closed or self._loop is None:
            return
        if self._pulse is not None:
            self._pulse.cancel()
            await asyncio.gather(self._pulse, return_exceptions=True)
        await self._stop_client()

    async def _stop_client(self) -> None:
        assert self._loop is not None
        self._closed = True
        self._connected.clear()
        self._state = SessionState.SUSPENDED
        await self._loop.run_in_executor(None, self._stop_client_blocking)

    def _stop_client_blocking(self) -> None:
        # Then the session times out; kazoo's threads are daemons.
        with contextlib.suppress(zk.KazooException):
            self._client.stop()
            self._client.close()

    # -- records

    async def get(self, path: str) -> Record:
        value, stat = await self._read("read", check_path(path), self._client.get_async)
        return Record(value or b"", stat.version)

    async def children(self, path: str) -> list[str]:
        try:
            names = await self._read("list", check_folder(path), self._client.get_children_async)
        except RecordNotFound:
            return []
        return sorted(names)

    async def create(
        self,
        path: str,
        value: bytes,
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        beside: str | None = None,
    ) -> str:
        check_path(path + "0" if sequence else path)
        check_value(path, value)
        generation = self._generation
        for _ in range(_PARENTS_TRIED_MAX):
            try:
                made = await self._call(
                    "create",
                    path,
                    lambda full: self._writer(beside).create_async(
                        full, value, ephemeral=ephemeral, sequence=sequence
                    ),
                    generation=generation if ephemeral else None,
                )
            except RecordNotFound:
                for one in filter(None, (path, beside)):
                    await self._make_parents(one)
                continue
            if ephemeral:
                # kazoo may have opened a new session since: then the record does not count.
                self._check_session(generation)
            return str(made).removeprefix(self._chroot)
        raise MetadataUnavailable(f"{self.url}: the parents of {path} keep being deleted")

    async def _make_parents(self, path: str) -> None:
        full = self._chroot + path
        for parent in parents_of(full):
            with contextlib.suppress(RecordExists):
                # The chroot itself may be missing.
                await self._call("create", parent, self._create_empty, chroot="")

    def _create_empty(self, full: str) -> Any:
        return self._client.create_async(full, b"")

    async def put(self, path: str, value: bytes, version: int, *, beside: str | None = None) -> int:
        check_value(path, value)
        stat = await self._call(
            "write",
            check_path(path),
            lambda full: self._writer(beside).set_async(full, value, version=version),
        )
        return int(stat.version)

    async def changed_at(self, path: str) -> int | None:
        """Return the time by the clock of the ensemble's leader."""
        _, stat = await self._read("read", check_path(path), self._client.get_async)
        return int(stat.mtime)

    async def delete(
        self, path: str, version: int = ANY_VERSION, *, beside: str | None = None
    ) -> None:
        await self._call(
            "delete",
            check_path(path),
            lambda full: self._writer(beside).delete_async(full, version=version),
        )

    # -- calls

    def _writer(self, other: str | None) -> Any:
        return beside_of(self._client, None if other is None else self._chroot + check_path(other))

    async def sync(self) -> None:
        await self._read("sync", "/", self._client.sync_async)

    async def _read(self, verb: str, path: str, send: Callable[[str], Any]) -> Any:
        """Repeat a call without effect until the deadline."""
        deadline = self._deadline()
        while True:
            try:
                if (doubts := self._doubts) != self._doubts_settled:
                    await self._call("sync", "/", self._client.sync_async, deadline=deadline)
                    self._doubts_settled = doubts
                return await self._call(verb, path, send, deadline=deadline)
            except MetadataUnavailable:
                if self._closed or asyncio.get_running_loop().time() >= deadline:
                    raise

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._call_timeout_ms / 1000

    async def _call(
        self,
        verb: str,
        path: str,
        send: Callable[[str], Any],
        *,
        chroot: str | None = None,
        deadline: float | None = None,
        generation: int | None = None,
    ) -> Any:
        """Send once and wait for the answer; kazoo's errors become ours.

        With a `generation`, nothing is sent for a later session.
        """
        if self._closed:
            raise MetadataUnavailable(f"{self.url} is closed")
        full = (self._chroot if chroot is None else chroot) + path
        try:
            async with (
                asyncio.timeout_at(self._deadline() if deadline is None else deadline),
                self._in_flight,
            ):
                await self._connected.wait()
                if generation is not None:
                    self._check_session(generation)
                sent_ms = self._clock()
                result = await self._bridge(send(full or "/"))
                self._contact_ms = max(self._contact_ms, sent_ms)
                return result
        except TimeoutError as error:
            self._doubts += 1
            raise MetadataUnavailable(
                f"{self.url} did not answer in time to {verb} {path}"
            ) from error
        except zk.KazooException as error:
            kind = next((_ERRORS[c] for c in type(error).__mro__ if c in _ERRORS), MetadataError)
            reason = str(error) or type(error).__name__
            if kind is MetadataUnusable:
                who = f"the user {self._user} of the credentials file" if self._user else "nobody"
                reason = (
                    f"not allowed to {who}; the setting metadata_credentials_file names the file "
                    "with the user:password that the cluster's records were made with"
                )
            if kind in _DOUBTFUL:
                self._doubts += 1
            raise kind(f"{self.url}: cannot {verb} {path}: {reason}") from error

    def _check_session(self, generation: int) -> None:
        if generation != self._generation:
            raise SessionExpired(f"{self.url}: the session in which this call began is over")

    def _bridge(self, async_result: Any) -> asyncio.Future[Any]:
        assert self._loop is not None
        future: asyncio.Future[Any] = self._loop.create_future()

        def settle() -> None:
            if future.done():
                return
            if async_result.exception is not None:
                future.set_exception(async_result.exception)
            else:
                future.set_result(async_result.value)

        async_result.rawlink(lambda _: self._post(settle))
        return future

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        assert self._loop is not None
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback, *args)

    # -- session

    def _on_kazoo_state(self, state: str) -> None:
        if self._closed:
            return
        if state == KazooState.CONNECTED:
            self._contact_ms = self._clock()
            self._connected.set()
            self._set_state(SessionState.CONNECTED)
            self._placed.place_all()
        elif state == KazooState.SUSPENDED:
            self._connected.clear()
            self._set_state(SessionState.SUSPENDED)
        else:
            self._connected.clear()
            self._generation += 1
            self._set_state(SessionState.EXPIRED)

    def _set_state(self, state: SessionState) -> None:
        if state is not self._state:
            self._state = state
            self._watches.notify_session(state)

    async def _pulse_forever(self) -> None:
        """Confirm the session; kazoo does not report its pings."""
        while True:
            await asyncio.sleep(self._session_timeout_ms / 1000 / 4)
            try:
                await self._call("check", "/", lambda _: self._client.exists_async("/"))
            except MetadataError:
                pass  # the session's state reports it
            except Exception as error:  # a bug must not end the pulse silently
                _log.error("metadata_pulse_failed", reason=repr(error), exc_info=error)

    # -- watches

    def watch(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watch(WatchKey(check_path(path), of_children=False), on_change)

    def watch_children(self, path: str, on_change: Callable[[], None]) -> Watch:
        return self._watch(WatchKey(check_folder(path), of_children=True), on_change)

    def _watch(self, key: WatchKey, on_change: Callable[[], None]) -> Watch:
        watch = self._watches.add(key, on_change)
        if self._state is SessionState.CONNECTED:
            self._placed.ensure(key)
        return watch

    def on_session(self, listener: Callable[[SessionState], None]) -> None:
        self._watches.listen(listener)
