"""The bookies of a cluster: registrations that vanish with their process, and cookies that stay.

Both are BookKeeper's records: a BookieServiceInfoFormat and protobuf text. A cookie's `incarnation`
tells a bookie from one that was wiped and set up again under the same id (BookKeeper #4812).
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import structlog
from google.protobuf.message import DecodeError

from octavo.metadata.cookie import Cookie, decode_cookie, encode_cookie
from octavo.metadata.gather_all import gather_all
from octavo.metadata.high_water import HighWaterStore
from octavo.metadata.ledgers import LEDGERS_ROOT
from octavo.metadata.paths import join
from octavo.metadata.protobuf_schema import BookieServiceInfoFormat
from octavo.metadata.store import (
    BadRecord,
    MetadataError,
    MetadataStore,
    RecordExists,
    RecordNotFound,
    SessionExpired,
    SessionState,
    VersionConflict,
    Watch,
)

__all__ = ["BookieIdTaken", "BookieInfo", "BookieRegistry", "Cookie"]

_log = structlog.get_logger()

INCARNATION = "incarnation"
AUTH = "auth"
"""A bookie without this plugin asks for no authentication."""
READ_ONLY_BECAUSE = "read_only_because"
FREE_BYTES = "free_bytes"
_ENDPOINT = "bookie"
_PROTOCOL = "bookie-rpc"
_READ_ONLY = "readonly"


class BookieIdTaken(MetadataError):
    name = "bookie-id-taken"


@dataclass(frozen=True, slots=True)
class BookieInfo:
    """`properties` have `rack`, `incarnation` and other facts."""

    bookie_id: str
    host: str
    port: int
    read_only: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return self.properties.get(INCARNATION, "")

    @property
    def unsure_through(self) -> int:
        """Return the highest ledger of which the bookie may have lost something; −1 for none."""
        text = self.properties.get("unsure_through", "")
        return int(text) if text.isascii() and text.isdigit() else -1

    @property
    def read_only_because(self) -> str:
        return self.properties.get(READ_ONLY_BECAUSE, "") if self.read_only else ""

    @property
    def free_bytes(self) -> int | None:
        text = self.properties.get(FREE_BYTES, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 20 else None

    @property
    def auth(self) -> str:
        return self.properties.get(AUTH, "")


def encode_service_info(info: BookieInfo) -> bytes:
    message = BookieServiceInfoFormat()
    message.endpoints.add(id=_ENDPOINT, host=info.host, port=info.port, protocol=_PROTOCOL)
    for key, value in info.properties.items():
        message.properties.add(key=key, value=value)
    data: bytes = message.SerializeToString()
    return data


@functools.lru_cache(maxsize=256)
def decode_service_info(bookie_id: str, data: bytes, *, read_only: bool) -> BookieInfo:
    """Decode a registration; an old bookie's is empty: the id is its address.

    Cached: all registrations are read again whenever one changes.
    """
    if not data:
        host, colon, port = bookie_id.rpartition(":")
        if not colon or not port.isascii() or not port.isdigit():
            raise BadRecord(
                f"registration of bookie {bookie_id}: empty, and the id is not host:port"
            )
        return BookieInfo(bookie_id, host, int(port), read_only)
    message = BookieServiceInfoFormat()
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise BadRecord(f"registration of bookie {bookie_id}: {error}") from error
    for endpoint in message.endpoints:
        if endpoint.protocol == _PROTOCOL:
            properties = MappingProxyType({e.key: e.value for e in message.properties})
            return BookieInfo(bookie_id, endpoint.host, endpoint.port, read_only, properties)
    raise BadRecord(f"registration of bookie {bookie_id}: no endpoint speaks {_PROTOCOL}")


class BookieRegistry:
    def __init__(self, store: MetadataStore, *, root: str = LEDGERS_ROOT) -> None:
        self._store = store
        self._available = f"{root}/available"
        self._cookies = f"{root}/cookies"
        self._ours: set[str] = set()
        self._generation = 0
        store.on_session(self._on_session)

    def _on_session(self, state: SessionState) -> None:
        if state is SessionState.EXPIRED:
            self._generation += 1
            self._ours.clear()

    def _path(self, bookie_id: str, *, read_only: bool) -> str:
        return join(self._available, *([_READ_ONLY] if read_only else []), bookie_id)

    # -- registration

    async def register(self, info: BookieInfo) -> None:
        """Register, or change the registration.

        Another incarnation's record gets one and a half session timeouts to vanish, then
        `BookieIdTaken` is raised. After `SessionExpired`, or EXPIRED and CONNECTED, the caller
        registers again.
        """
        generation = self._generation
        path = self._path(info.bookie_id, read_only=info.read_only)
        value = encode_service_info(info)
        deadline = asyncio.get_running_loop().time() + 1.5 * self._store.session_timeout_ms / 1000
        while not await self._try_register(info, path, value):
            await self._wait_for_change(path, deadline, info.bookie_id)
        if generation != self._generation:
            raise SessionExpired(f"the session ended while {info.bookie_id} was registered")
        self._ours.add(path)
        # New before old, so that no process counts the bookie as lost.
        await self._remove(self._path(info.bookie_id, read_only=not info.read_only))

    async def _try_register(self, info: BookieInfo, path: str, value: bytes) -> bool:
        with contextlib.suppress(RecordExists):
            await self._store.create(path, value, ephemeral=True)
            return True
        try:
            found, version = await self._store.get(path)
            if path in self._ours:
                await self._store.put(path, value, version)
                return True
            # Left by our previous session: two processes with the same incarnation would have to
            # share a folder, which is locked.
            if self._incarnation_of(info, found) == info.incarnation:
                await self._store.delete(path, version)
                await self._store.create(path, value, ephemeral=True)
                return True
        except (RecordNotFound, VersionConflict, RecordExists):
            pass
        return False

    @staticmethod
    def _incarnation_of(info: BookieInfo, data: bytes) -> str | None:
        try:
            found = decode_service_info(info.bookie_id, data, read_only=info.read_only)
        except BadRecord:
            return None
        return found.incarnation

    async def _wait_for_change(self, path: str, deadline: float, bookie_id: str) -> None:
        changed = asyncio.Event()
        watch = self._store.watch(path, changed.set)
        try:
            with contextlib.suppress(RecordNotFound):
                await self._store.get(path)
                async with asyncio.timeout_at(deadline):
                    await changed.wait()
        except TimeoutError as error:
            raise BookieIdTaken(
                f"bookie id {bookie_id} is registered by another live bookie; stop that bookie, "
                "or give this bookie another id"
            ) from error
        finally:
            watch.cancel()

    async def wait_until_gone(self, bookie_id: str) -> None:
        """Wait for an earlier process's registration to end, within a session timeout.

        Raises `BookieIdTaken` after a while.
        """
        now = asyncio.get_running_loop().time()
        deadline = now + 1.5 * self._store.session_timeout_ms / 1000
        for read_only in (False, True):
            path = self._path(bookie_id, read_only=read_only)
            while True:
                try:
                    await self._store.get(path)
                except RecordNotFound:
                    break
                await self._wait_for_change(path, deadline, bookie_id)

    async def unregister(self, bookie_id: str) -> None:
        for read_only in (False, True):
            await self._remove(self._path(bookie_id, read_only=read_only))

    async def _remove(self, path: str) -> None:
        self._ours.discard(path)
        with contextlib.suppress(RecordNotFound):
            await self._store.delete(path)

    # -- present bookies

    async def available(self) -> dict[str, BookieInfo]:
        """Return bookies by id; log and skip an unreadable one, so that ledgers can be created."""
        found: dict[str, BookieInfo] = {}
        for read_only in (False, True):
            folder = f"{self._available}/{_READ_ONLY}" if read_only else self._available
            names = [name for name in await self._store.children(folder) if name != _READ_ONLY]
            infos = await gather_all(self._info(name, read_only=read_only) for name in names)
            # In both folders while it turns read-only: read-only wins.
            found.update({info.bookie_id: info for info in infos if info is not None})
        return found

    async def known(self) -> set[str]:
        available = self._available
        folders = (available, f"{available}/{_READ_ONLY}", self._cookies)
        listed = await gather_all(self._store.children(folder) for folder in folders)
        return set().union(*listed) - {_READ_ONLY}

    async def _info(self, bookie_id: str, *, read_only: bool) -> BookieInfo | None:
        try:
            value = (await self._store.get(self._path(bookie_id, read_only=read_only))).value
            return decode_service_info(bookie_id, value, read_only=read_only)
        except RecordNotFound:
            return None
        except BadRecord as error:
            _log.warning("bookie_registration_unreadable", bookie_id=bookie_id, reason=str(error))
            return None

    def watch(self, on_change: Callable[[], None]) -> Watch:
        """Call `on_change` after bookies came or went, or turned read-only or writable."""
        return _Both(
            self._store.watch_children(self._available, on_change),
            self._store.watch_children(f"{self._available}/{_READ_ONLY}", on_change),
        )

    def watch_cookies(self, on_change: Callable[[], None]) -> Watch:
        return self._store.watch_children(self._cookies, on_change)

    # -- cookies

    async def read_cookie(self, bookie_id: str) -> tuple[Cookie, int]:
        """Raises `RecordNotFound`, `BadRecord`."""
        value, version = await self._store.get(join(self._cookies, bookie_id))
        return decode_cookie(value), version

    async def write_cookie(self, cookie: Cookie, version: int | None = None) -> int:
        path = join(self._cookies, cookie.bookie_id)
        if version is None:
            await self._store.create(path, encode_cookie(cookie))
            return 0
        return await self._store.put(path, encode_cookie(cookie), version)

    async def delete_cookie(self, bookie_id: str, version: int) -> None:
        """Forget a bookie that is gone for good."""
        await self._store.delete(join(self._cookies, bookie_id), version)
        await HighWaterStore(self._store).delete(bookie_id)

    async def cookies(self) -> list[str]:
        """Set up and not decommissioned."""
        return await self._store.children(self._cookies)


class _Both:
    def __init__(self, *watches: Watch) -> None:
        self._watches = watches

    def cancel(self) -> None:
        for watch in self._watches:
            watch.cancel()
