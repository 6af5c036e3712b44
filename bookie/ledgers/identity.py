"""Establishes who a bookie is when it starts, and what it may vouch for: cookies and limbo.

Folders that are as they should be: start. Folders that lost something: refuse, unless the operator
has said that the loss is accepted (`accept_data_loss`). Then, in this order, each step durable:

1. nobody is registered under this id any more: the life that made the promises has ended;
2. the limbo bound: an id not below any ledger's that existed (`LedgerStore.highest_id`);
3. the limbo file in every ledger folder (limbo.py), which names the incarnation to come;
4. a cookie with that new incarnation in every folder;
5. the cookie in metadata, by compare-and-set;
6. only then does the bookie serve and register.

A crash between leaves folders that the next start refuses, or, with the loss accepted, takes up
again: a cookie of neither the recorded life nor the one the limbo file names is another life's.

Why the bound holds: whatever this bookie may have promised it promised for a ledger whose record
was there before the loss, and the loss was before this start. Such a ledger's record is listed, or
was deleted: then nobody will ask. So a complete listing alone would do; the drawn id makes the
bound also pass the ledgers that are being made while it is read.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import structlog

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import Disk
from octavo.bookie.ledgers.cookies import (
    CookieRefused,
    check_cookies,
    folders_with_data,
    lost_folders,
    new_cookie,
    read_cookies,
    write_cookies,
)
from octavo.bookie.ledgers.limbo import (
    LimboDamaged,
    LimboRecord,
    deepened,
    read_limbo,
    remove_limbo,
    write_limbo,
)
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.cookie import Cookie
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import MetadataStore, RecordNotFound, VersionConflict

log = structlog.get_logger()


class Identity:
    """Of one bookie, for one start."""

    def __init__(
        self,
        config: BookieConfig,
        bookie_id: str,
        store: MetadataStore,
        registry: BookieRegistry,
        *,
        disk: Disk,
        rng: random.Random,
        clock: Callable[[], int],
    ) -> None:
        self._config = config
        self._bookie_id = bookie_id
        self._ledgers = LedgerStore(store, rng=rng)
        self._registry = registry
        self._disk = disk
        self._rng = rng
        self._clock = clock
        self._incarnation = ""
        self._bound: int | None = None

    async def establish(self) -> Cookie:
        """The cookie to start with, stamped if need be. Raises `CookieRefused`, `LimboDamaged`."""
        config, folders = self._config, self._config.directories
        instance_id = await self._ledgers.initialize()
        expected = new_cookie(config, self._bookie_id, instance_id, self._rng)
        recorded, version = await self._recorded()
        on_disk = await self._blocking(read_cookies, self._disk, folders)
        with_data = await self._blocking(folders_with_data, self._disk, folders)
        try:
            cookie = check_cookies(expected, recorded, on_disk, with_data)
        except CookieRefused:
            if not config.accept_data_loss or recorded is None:
                raise
            limbo = await self._limbo()
            begun = limbo.incarnation if limbo is not None else ""
            lost = lost_folders(expected, recorded, on_disk, with_data, begun)
            if not begun or begun == recorded.incarnation:
                begun = expected.incarnation
            cookie = await self._begin_again(recorded, version, begun, lost)
        if cookie is None:
            await self._blocking(write_cookies, self._disk, folders, expected)
            await self._registry.write_cookie(expected)
            cookie = expected
            log.info("cookie_stamped", bookie=self._bookie_id, incarnation=cookie.incarnation)
        self._incarnation = cookie.incarnation
        await self._look_at_limbo()
        return cookie

    async def data_lost(self, why: str) -> None:
        """The operator has accepted that this was lost: limbo, durable on return, for all ledgers
        there are. Of what is lost before one start the first finding draws the bound."""
        if self._bound is None:
            self._bound = await self._ledgers.highest_id()
        record = deepened(await self._limbo(), self._bound, why, self._clock(), self._incarnation)
        await self._blocking(write_limbo, self._disk, self._config.ledger_directories, record)
        log.error(
            "data_loss_accepted",
            bookie=self._bookie_id,
            unsure_through=record.unsure_through,
            reason=why,
        )

    async def _recorded(self) -> tuple[Cookie | None, int]:
        try:
            return await self._registry.read_cookie(self._bookie_id)
        except RecordNotFound:
            return None, -1

    async def _limbo(self) -> LimboRecord | None:
        try:
            return await self._read_limbo()
        except LimboDamaged:
            if not self._config.accept_data_loss:
                raise
            return None  # the bound that is about to be drawn is not below any that it held

    async def _begin_again(
        self, recorded: Cookie, version: int, incarnation: str, lost: list[str]
    ) -> Cookie:
        """Steps 1 to 5."""
        await self._registry.wait_until_gone(self._bookie_id)
        self._incarnation = incarnation
        await self.data_lost(f"folders found empty: {', '.join(lost) or 'in an earlier start'}")
        cookie = replace(recorded, incarnation=incarnation)
        await self._blocking(write_cookies, self._disk, self._config.directories, cookie)
        try:
            await self._registry.write_cookie(cookie, version)
        except (VersionConflict, RecordNotFound) as error:
            raise CookieRefused(
                f"the cookie of bookie {self._bookie_id} in metadata was changed meanwhile: "
                "another process uses this id. Stop that one, then start this one again"
            ) from error
        log.warning(
            "cookie_stamped_again",
            bookie=self._bookie_id,
            incarnation=incarnation,
            before=recorded.incarnation,
            lost=lost,
        )
        return cookie

    async def _look_at_limbo(self) -> None:
        """End it when the operator has said so; begin it anew when the file cannot be read."""
        try:
            record = await self._read_limbo()
        except LimboDamaged as error:
            if not self._config.accept_data_loss:
                raise
            await self.data_lost(str(error))
            return
        ended = self._config.limbo_ended_through
        if record is None or record.unsure_through > ended:
            if record is not None and ended >= 0:
                log.warning(
                    "limbo_not_ended",
                    bookie=self._bookie_id,
                    unsure_through=record.unsure_through,
                    ended_through=ended,
                )
            return
        await self._blocking(remove_limbo, self._disk, self._config.ledger_directories)
        log.warning("limbo_ended", bookie=self._bookie_id, unsure_through=record.unsure_through)

    async def _read_limbo(self) -> LimboRecord | None:
        found: LimboRecord | None = await self._blocking(
            read_limbo, self._disk, self._config.ledger_directories
        )
        return found

    @staticmethod
    async def _blocking(call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, call, *args)
