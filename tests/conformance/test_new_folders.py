"""A bookie's identity over every kind of store: new folders, and the high-water mark."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import DiskError, RealDisk
from octavo.bookie.ledgers.cookies import CookieRefused, read_cookies, write_cookies
from octavo.bookie.ledgers.high_water import HighWaterMark, MetadataOlder, read_high_water
from octavo.bookie.ledgers.identity import Identity
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.cookie import Cookie
from octavo.metadata.high_water import HIGH_WATER_ROOT, HighWater, HighWaterStore
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerStore
from octavo.metadata.store import MetadataStore, RecordNotFound
from tests.support.metadata_trees import Tree
from tests.support.raw_bookie import config_in


class Crash(DiskError): ...


class FailingDisk(RealDisk):
    """Raises at the n-th change: before it, or after it."""

    def __init__(self, left: int, *, after: bool) -> None:
        self.left = left
        self.after = after

    def _step(self, change: Callable[[], None]) -> None:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash("before")
        change()
        if self.left == 0:
            raise Crash("after")

    def rename(self, old: str, new: str) -> None:
        self._step(lambda: super(FailingDisk, self).rename(old, new))

    def sync_directory(self, path: str) -> None:
        self._step(lambda: super(FailingDisk, self).sync_directory(path))


class Bookie:
    def __init__(self, store: MetadataStore, folder: Path) -> None:
        self.store = store
        self.folder = folder
        self.registry = BookieRegistry(store)
        self.old = config_in(folder)
        self.new = self.with_more("more")

    def with_more(self, *names: str, **how: Any) -> BookieConfig:
        more = [f"{self.folder}/{name}" for name in names]
        return replace(self.old, ledger_directories=(*self.old.ledger_directories, *more), **how)

    @property
    def allowed(self) -> BookieConfig:
        return replace(self.new, accept_new_folders=True)

    async def start(self, config: BookieConfig, disk: RealDisk | None = None) -> Cookie:
        for directory in config.directories:
            RealDisk().make_directory(directory)
        identity = Identity(
            config,
            "bookie-1",
            self.store,
            self.registry,
            disk=disk or RealDisk(),
            rng=random.Random(1),
            clock=lambda: 1,
        )
        return await identity.establish()

    async def recorded(self) -> Cookie:
        return (await self.registry.read_cookie("bookie-1"))[0]

    async def with_data(self) -> Cookie:
        cookie = await self.start(self.old)
        for directory in self.old.directories:
            (Path(directory) / "data").write_bytes(b"x")
        return cookie

    async def check_whole(self, config: BookieConfig) -> None:
        """Check that every folder and metadata agree, and a start needs no permission."""
        cookie = await self.start(replace(config, accept_new_folders=False))
        assert cookie == await self.recorded()
        assert cookie.ledger_dirs == config.ledger_directories
        assert set(read_cookies(RealDisk(), config.directories).values()) == {cookie}


@pytest.fixture
async def bookie(tree: Tree, tmp_path: Path) -> Bookie:
    return Bookie(await tree.open(), tmp_path)


async def test_new_folders_are_taken_in_by_the_same_life(bookie: Bookie) -> None:
    before = await bookie.with_data()
    after = await bookie.start(bookie.allowed)
    assert after == replace(before, ledger_dirs=bookie.new.ledger_directories)
    await bookie.check_whole(bookie.new)
    again = bookie.with_more("more", "and", "more still")
    await bookie.start(replace(again, accept_new_folders=True))
    await bookie.check_whole(again)
    assert (await bookie.recorded()).incarnation == before.incarnation


async def test_what_is_refused_changes_nothing(bookie: Bookie) -> None:
    before = await bookie.with_data()

    async def refused(config: BookieConfig, match: str) -> None:
        with pytest.raises(CookieRefused, match=match):
            await bookie.start(config)
        assert await bookie.recorded() == before
        await bookie.check_whole(bookie.old)

    await refused(bookie.new, "--accept-new-folders")
    await refused(replace(bookie.new, accept_data_loss=True), "--accept-new-folders")
    (bookie.folder / "more" / "photos").write_bytes(b"x")
    await refused(bookie.allowed, "more is not empty")
    (bookie.folder / "more" / "photos").unlink()
    in_front = tuple(reversed(bookie.new.ledger_directories))
    reordered = replace(bookie.allowed, ledger_directories=in_front)
    await refused(reordered, "Configure it as it was")
    journal = (*bookie.old.ledger_directories, *bookie.old.journal_directories)
    await refused(replace(bookie.allowed, ledger_directories=journal), "journal folder")
    moved = replace(bookie.allowed, journal_directories=(f"{bookie.folder}/other",))
    await refused(moved, "Configure it as it was")


async def test_a_folder_of_another_bookie_is_refused(bookie: Bookie) -> None:
    await bookie.with_data()
    foreign = replace(await bookie.recorded(), bookie_id="bookie-2")
    RealDisk().make_directory(f"{bookie.folder}/more")
    write_cookies(RealDisk(), [f"{bookie.folder}/more"], foreign)
    with pytest.raises(CookieRefused, match="belongs to bookie bookie-2"):
        await bookie.start(bookie.allowed)
    await bookie.check_whole(bookie.old)


async def test_a_removed_folder_is_refused(bookie: Bookie) -> None:
    await bookie.with_data()
    await bookie.start(bookie.allowed)
    for config in (bookie.old, replace(bookie.old, accept_new_folders=True)):
        with pytest.raises(CookieRefused, match="Configure it as it was"):
            await bookie.start(config)
    await bookie.check_whole(bookie.new)


async def test_a_bookie_whose_data_is_missing_gets_no_new_folder(bookie: Bookie) -> None:
    await bookie.with_data()
    shutil.rmtree(bookie.old.ledger_directories[0])
    for config in (bookie.allowed, replace(bookie.allowed, accept_data_loss=True)):
        with pytest.raises(CookieRefused, match="carries no cookie"):
            await bookie.start(config)
    await bookie.start(replace(bookie.old, accept_data_loss=True))
    await bookie.start(bookie.allowed)
    await bookie.check_whole(bookie.new)


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_at_any_step(tree: Tree, tmp_path: Path, after: bool) -> None:
    """Before metadata has the folder, the old folders are enough; afterwards no permission is
    needed."""
    store = await tree.open()
    seen: set[bool] = set()
    for step in range(1, 30):
        bookie = Bookie(store, tmp_path / str(step))
        before = await bookie.with_data()
        disk = FailingDisk(step, after=after)
        try:
            await bookie.start(bookie.allowed, disk)
        except Crash:
            told = (await bookie.recorded()) != before
            seen.add(told)
            if told:
                await bookie.check_whole(bookie.new)
            else:
                assert await bookie.start(bookie.old) == before
                await bookie.start(bookie.allowed)
                await bookie.check_whole(bookie.new)
        else:
            assert disk.left > 0
            await bookie.check_whole(bookie.new)
            break
        cookie, version = await bookie.registry.read_cookie("bookie-1")
        assert cookie.ledger_dirs == bookie.new.ledger_directories
        await bookie.registry.delete_cookie("bookie-1", version)
    assert seen == {False, True}, "crashes on both sides of the record in metadata"


async def test_a_crash_and_then_a_lost_disk(bookie: Bookie) -> None:
    """The loss can also be accepted while some folders have the former cookie."""
    await bookie.with_data()
    with pytest.raises(Crash):
        await bookie.start(bookie.allowed, FailingDisk(3, after=False))
    assert (await bookie.recorded()).ledger_dirs == bookie.new.ledger_directories
    (bookie.folder / "more" / "VERSION").unlink()
    with pytest.raises(CookieRefused, match="--accept-loss"):
        await bookie.start(bookie.new)
    await bookie.start(replace(bookie.new, accept_data_loss=True))
    await bookie.check_whole(bookie.new)


async def test_two_starts_at_once(bookie: Bookie, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record changes between the read and the compare-and-set: neither start wins by
    accident."""
    before = await bookie.with_data()
    real = BookieRegistry.read_cookie

    async def read_and_change(self: BookieRegistry, bookie_id: str) -> tuple[Cookie, int]:
        monkeypatch.setattr(BookieRegistry, "read_cookie", real)
        cookie, version = await real(self, bookie_id)
        await self.write_cookie(cookie, version)
        return cookie, version

    monkeypatch.setattr(BookieRegistry, "read_cookie", read_and_change)
    with pytest.raises(CookieRefused, match="changed meanwhile"):
        await bookie.start(bookie.allowed)
    assert await bookie.recorded() == before
    await bookie.check_whole(bookie.old)


# The high-water mark over every kind of store: older metadata is refused, or its ids are
NEW = LedgerMetadata(-1, 3, 3, 2, (Fragment(0, ("a:1", "b:1", "c:1")),))
PATH = f"{HIGH_WATER_ROOT}/b1"


async def at_once(call: Any, *args: Any) -> Any:
    return call(*args)


def mark_of(store: Any, folder: Path) -> HighWaterMark:
    ledgers = LedgerStore(store, rng=random.Random(1))
    disk = RealDisk()
    disk.make_directory(str(folder))
    return HighWaterMark("b1", HighWaterStore(store), ledgers, disk, [str(folder)], at_once)


async def put_back(store: Any, value: bytes | None) -> None:
    """Do to the record what a copy of the metadata does."""
    if value is None:
        await store.delete(PATH)
    else:
        _, version = await store.get(PATH)
        await store.put(PATH, value, version)


async def test_a_copy_that_is_put_back_is_refused(tree: Tree, tmp_path: Path) -> None:
    store = await tree.open()
    await LedgerStore(store, rng=random.Random(1)).initialize()
    await mark_of(store, tmp_path).start(accept_older=False)
    copy, _ = await store.get(PATH)
    running = mark_of(store, tmp_path)
    await running.start(accept_older=False)
    await running.rise()
    for older in (copy, None):
        await put_back(store, older)
        with pytest.raises(MetadataOlder, match="--accept-older-metadata"):
            await mark_of(store, tmp_path).start(accept_older=False)
        with pytest.raises(MetadataOlder):  # and by a bookie that has been up all the time
            await running.rise()


async def test_who_accepts_it_draws_ids_that_none_had(tree: Tree, tmp_path: Path) -> None:
    store = await tree.open()
    ledgers = LedgerStore(store, rng=random.Random(1))
    await ledgers.initialize()
    first, _ = await ledgers.create(NEW)
    mark = mark_of(store, tmp_path)
    await mark.start(accept_older=False)
    copy, _ = await store.get(PATH)
    await ledgers.draw_beyond(6)  # later, and unknown to the copy
    later, _ = await ledgers.create(NEW)
    await mark.rise()
    await put_back(store, copy)
    await store.delete(f"/ledgers/idgen-long/HOB-{7:010d}")
    again = mark_of(store, tmp_path)
    await again.start(accept_older=True)
    new, _ = await ledgers.create(NEW)
    assert first.ledger_id < later.ledger_id < new.ledger_id
    assert new.ledger_id >> 32 == 8
    await mark_of(store, tmp_path).start(accept_older=False)  # once is enough
    held = read_high_water(RealDisk(), [str(tmp_path)])
    assert held is not None
    assert held.seen == 4
    assert held.stretch == 8


async def test_accepting_what_is_not_older_changes_no_ids(tree: Tree, tmp_path: Path) -> None:
    store = await tree.open()
    ledgers = LedgerStore(store, rng=random.Random(1))
    await ledgers.initialize()
    await mark_of(store, tmp_path).start(accept_older=True)
    await mark_of(store, tmp_path).start(accept_older=True)
    assert await ledgers.stretch() == 0


async def test_a_forgotten_bookie_leaves_no_mark(tree: Tree) -> None:
    store = await tree.open()
    registry, marks = BookieRegistry(store), HighWaterStore(store)
    await registry.write_cookie(Cookie("b1", "/j", ("/l",)))
    _, version = await marks.read("b1")
    await marks.write("b1", HighWater(1, 0), version)
    await registry.delete_cookie("b1", 0)
    with pytest.raises(RecordNotFound):
        await store.get(PATH)
