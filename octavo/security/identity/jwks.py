"""Fetch the public keys of an issuer from its JWKS address (OIDC).

Every `refresh_s`, and for a token with an unknown key, but then at least `retry_s` apart. While the
issuer is away, the last keys stay in use.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from octavo.security.identity.jwt_keys import KeySet, fitting, parse_jwks
from octavo.security.identity.token_form import Token
from octavo.security.settings import SecurityError

FETCH_TIMEOUT_S = 10.0
JWKS_BYTES_MAX = 1 << 20

Fetch = Callable[[str], Awaitable[bytes]]
"""Returns the contents of a URL; raises `OSError` or `TimeoutError`."""

log = structlog.get_logger()


class Jwks:
    def __init__(self, url: str, fetch: Fetch, *, refresh_s: float, retry_s: float) -> None:
        self._url, self._fetch = url, fetch
        self._refresh_s, self._retry_s = refresh_s, retry_s
        self._keys: KeySet = ()
        self._data: bytes | None = None
        self._begun_s: float | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self._told: str | None = None
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    async def start(self) -> None:
        self._task = asyncio.create_task(self._keep_fresh(), name="jwks")

    async def close(self) -> None:
        tasks = [one for one in (self._task, self._fetching) if one is not None]
        self._task = self._fetching = None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def find(self, token: Token) -> KeySet:
        """Return the keys that may have signed `token`; fetch first if none is known."""
        found = fitting(self._keys, token)
        if not found:
            await self._refreshed()
            found = fitting(self._keys, token)
        return found

    async def _refreshed(self) -> None:
        if self._fetching is None:
            now_s = asyncio.get_running_loop().time()
            if self._begun_s is not None and now_s - self._begun_s < self._retry_s:
                return
            self._begun_s = now_s
            self._fetching = asyncio.create_task(self._fetch_once())
            self._fetching.add_done_callback(self._fetched)
        await asyncio.wait([self._fetching])

    def _fetched(self, task: asyncio.Task[None]) -> None:
        self._fetching = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("jwks_not_fetched", url=self._url, reason=repr(error), exc_info=error)

    async def _fetch_once(self) -> None:
        try:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                data = await self._fetch(self._url)
            if len(data) > JWKS_BYTES_MAX:
                raise SecurityError(f"the JWKS has more than {JWKS_BYTES_MAX} bytes")
            keys = parse_jwks(data)
        except (OSError, SecurityError) as error:  # TimeoutError is an OSError
            reason = str(error) or "no answer in time"
            if reason != self._told:
                self._told = reason
                log.warning("jwks_not_fetched", url=self._url, reason=reason, keys=len(self._keys))
            return
        self._told = None
        if data == self._data:
            return
        self._data, self._keys = data, keys
        log.info("jwks_fetched", url=self._url, keys=[one.kid[:60] for one in keys])
        for listener in tuple(self._listeners):
            listener()

    async def _keep_fresh(self) -> None:
        while True:
            self._begun_s = None
            await self._refreshed()
            await asyncio.sleep(self._refresh_s)
