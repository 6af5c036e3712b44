"""Establish a bookie's identity when it starts, and what it may vouch for: cookies and limbo.

If the folders lost data and the operator accepts the loss (`accept_data_loss`), each step durable:

1. Wait until no bookie is registered under this id: the life that made the promises has ended.
2. Draw the limbo bound: an id at or above every ledger that existed.
3. Write the limbo file, with the new incarnation, into every ledger folder.
4. Write a cookie with the new incarnation into every folder.
5. Write the cookie into metadata, by compare-and-set.

After a crash in between, the next start refuses the folders or, if the loss is accepted, continues.

Accepted new ledger folders (`accept_new_folders`) join the same life:

1. Write a cookie that also names the new folders into each new folder.
2. Write that cookie into metadata, by compare-and-set.
3. Write that cookie into every other folder.

Before step 2 the old list of folders still works; after it the new list does.

The bound holds because every promise concerned a ledger whose record existed before the loss.
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
    adds_folders,
    check_cookies,
    folders_to_stamp,
    folders_with_data,
    is_earlier_stamp,
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
        """Return the cookie to start with; stamp folders if needed.

        Raises `CookieRefused`, `LimboDamaged`.
        """
        config, folders = self._config, self._config.directories
        instance_id = await self._ledgers.initialize()
        expected = new_cookie(config, self._bookie_id, instance_id, self._rng)
        recorded, version = await self._recorded()
        on_disk = await self._blocking(read_cookies, self._disk, folders)
        with_data = await self._blocking(folders_with_data, self._disk, folders)
        if config.accept_new_folders and recorded is not None and adds_folders(expected, recorded):
            longer = replace(recorded, ledger_dirs=expected.ledger_dirs)
            await self._add_folders(longer, recorded, version, on_disk, with_data)
            recorded, version = await self._recorded()
            on_disk = await self._blocking(read_cookies, self._disk, folders)
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
        await self._stamp_earlier(cookie, on_disk)
        self._incarnation = cookie.incarnation
        await self._look_at_limbo()
        return cookie

    async def data_lost(self, why: str) -> None:
        """Put all existing ledgers into limbo, durably.

        The first finding of a start draws the bound; later findings use it too.
        """
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
            return None  # the new bound will be at least as high as the bound in that file

    async def _begin_again(
        self, recorded: Cookie, version: int, incarnation: str, lost: list[str]
    ) -> Cookie:
        """Do steps 1 to 5 after an accepted loss."""
        await self._registry.wait_until_gone(self._bookie_id)
        self._incarnation = incarnation
        await self.data_lost(f"folders found empty: {', '.join(lost) or 'in an earlier start'}")
        cookie = replace(recorded, incarnation=incarnation)
        await self._blocking(write_cookies, self._disk, self._config.directories, cookie)
        await self._record(cookie, version)
        log.warning(
            "cookie_stamped_again",
            bookie=self._bookie_id,
            incarnation=incarnation,
            before=recorded.incarnation,
            lost=lost,
        )
        return cookie

    async def _record(self, cookie: Cookie, version: int) -> None:
        try:
            await self._registry.write_cookie(cookie, version)
        except (VersionConflict, RecordNotFound) as error:
            raise CookieRefused(
                f"the cookie of bookie {self._bookie_id} in metadata was changed meanwhile: "
                "another process uses this id. Stop that process, then start this bookie again"
            ) from error

    async def _add_folders(
        self,
        cookie: Cookie,
        recorded: Cookie,
        version: int,
        on_disk: dict[str, Cookie | None],
        with_data: list[str],
    ) -> None:
        """Do steps 1 and 2 of adding folders."""
        journals = self._config.journal_directories
        new = folders_to_stamp(cookie, recorded, on_disk, with_data, journals)
        await self._blocking(write_cookies, self._disk, new, cookie)
        await self._record(cookie, version)
        added = cookie.ledger_dirs[len(recorded.ledger_dirs) :]
        log.info("ledger_folders_added", bookie=self._bookie_id, folders=list(added))

    async def _stamp_earlier(self, cookie: Cookie, on_disk: dict[str, Cookie | None]) -> None:
        """Do step 3 of adding folders."""
        earlier = [
            folder
            for folder, found in on_disk.items()
            if found is not None and is_earlier_stamp(folder, found, cookie)
        ]
        await self._blocking(write_cookies, self._disk, earlier, cookie)

    async def _look_at_limbo(self) -> None:
        """End the limbo if the operator says so; begin it again if its file cannot be read."""
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
