"""A bookie's first start may be cut short anywhere: the next one stamps its folders, or starts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

import octavo.bookie.ledgers.cookies
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import Disk
from octavo.bookie.ledgers.cookies import (
    CookieRefused,
    check_cookies,
    folders_to_stamp,
    folders_with_data,
    lock_folders,
    new_cookie,
    read_cookies,
    write_cookies,
)
from octavo.bookie.ledgers.identity import Identity
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.cookie import Cookie
from octavo.metadata.store import MetadataStore
from tests.sim.disk import SimDisk
from tests.support.engine_lab.images import images
from tests.support.engine_lab.lives import CrashPoint, Recorder
from tests.support.raw_bookie import open_metadata

CONFIG = BookieConfig(journal_directories=("/j",), ledger_directories=("/l", "/m"))
FOLDERS = CONFIG.directories


def identify(disk: Disk, recorded: Cookie | None, seed: int = 1) -> Cookie:
    """Do what a starting node does before it writes to the metadata."""
    for lock in lock_folders(disk, FOLDERS):
        lock.close()
    expected = new_cookie(CONFIG, "b1", "instance", random.Random(seed))
    cookie = check_cookies(
        expected, recorded, read_cookies(disk, FOLDERS), folders_with_data(disk, FOLDERS)
    )
    if cookie is None:
        write_cookies(disk, FOLDERS, expected)
        cookie = expected
    return cookie


def crashes_of_the_first_start() -> list[CrashPoint]:
    points: list[CrashPoint] = []
    disk = SimDisk()
    disk.faults = recorder = Recorder(tuple, points)
    recorder.record()
    identify(disk, None)
    recorder.keep(disk, "at the end")
    return points


def check_all() -> int:
    """Check every crash, then a second start that crashes or not, then a third."""
    count = 0
    points = crashes_of_the_first_start()
    for point in points:
        for image in images(point.moment):
            disk = image.disk()
            stamped = identify(disk, None, seed=2)
            disk.crash()
            assert identify(disk, stamped) == stamped
            count += 1
    for image in images(points[-1].moment):
        first = new_cookie(CONFIG, "b1", "instance", random.Random(1))
        assert identify(image.disk(), first) == first, "metadata was told, and the disk forgot"
    return count


def test_every_crash_of_a_first_start() -> None:
    assert len(crashes_of_the_first_start()) > 30
    assert check_all() > 100


async def test_every_crash_while_a_folder_is_added(tmp_path: Path) -> None:
    """Before the metadata has the folder, the others alone are enough; afterwards no option is
    needed."""
    wider = replace(CONFIG, ledger_directories=("/l", "/m", "/n"), accept_new_folders=True)
    points: list[CrashPoint] = []
    told: list[Cookie] = []
    disk = SimDisk()
    for folder in wider.directories:
        disk.make_directory(folder)

    class Registry(BookieRegistry):
        async def write_cookie(self, cookie: Cookie, version: int | None = None) -> int:
            told.append(cookie)
            return await super().write_cookie(cookie, version)

    async def establish(store: MetadataStore, config: BookieConfig) -> Cookie:
        rng = random.Random(1)
        identity = Identity(
            config, "b1", store, Registry(store), disk=disk, rng=rng, clock=lambda: 1
        )
        return await identity.establish()

    async with open_metadata(tmp_path) as store:
        before = await establish(store, CONFIG)
        disk.open("/l/data", create=True).close()
        disk.sync_directory("/l")
        disk.faults = recorder = Recorder(lambda: cast(Any, tuple(told)), points)
        recorder.record()
        after = await establish(store, wider)
        recorder.keep(disk, "at the end")
    assert told == [before, after]
    seen: set[bool] = set()
    for point in points:
        is_told = len(point.facts) == 2
        seen.add(is_told)
        for image in images(point.moment):
            left = image.disk()
            stamps = read_cookies(left, wider.directories)
            with_data = folders_with_data(left, wider.directories)
            if is_told:
                assert check_cookies(after, after, stamps, with_data) == after, point.where
                continue
            old = {folder: stamps[folder] for folder in CONFIG.directories}
            assert check_cookies(before, before, old, with_data) == before, point.where
            assert folders_to_stamp(after, before, stamps, with_data, ("/j",)) in ([], ["/n"])
    assert seen == {False, True}


def test_a_wiped_or_swapped_folder_is_refused() -> None:
    disk = SimDisk()
    cookie = identify(disk, None)
    for path in list(disk.names):
        if path.startswith("/m/"):
            disk.unlink(path)
    with pytest.raises(CookieRefused, match="/m carries no cookie"):
        identify(disk, cookie)
    disk.wipe()
    with pytest.raises(CookieRefused, match="carries no cookie"):
        identify(disk, cookie)


def test_a_folder_not_synced_after_the_rename_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsynced(disk: SimDisk, folders: tuple[str, ...], cookie: Cookie) -> None:
        real(Unsynced(disk), folders, cookie)  # type: ignore[arg-type]

    class Unsynced:
        def __init__(self, disk: SimDisk) -> None:
            self.disk = disk

        def __getattr__(self, name: str) -> Callable[..., object]:
            found: Callable[..., object] = getattr(self.disk, name)
            return found if name != "sync_directory" else lambda path: None

    real = write_cookies
    monkeypatch.setitem(globals(), "write_cookies", unsynced)
    with pytest.raises(CookieRefused):
        check_all()
    assert octavo.bookie.ledgers.cookies.write_cookies is real
