"""Opens the disk that a crash left and compares it with the storage's promises. It is opened
four times with the same result: as the crash left it; after one more add and a power failure;
after a checkpoint and a power failure; after a compaction, without the index."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from octavo.bookie.adds import AddBatch
from octavo.bookie.config import BookieConfig
from octavo.bookie.storage import Storage
from octavo.protocol.codes import Code, NoSuchEntry, NoSuchLedger
from tests.sim.disk import SimDisk
from tests.sim.index import SimIndexStore
from tests.support.engine_lab.garbage import collect
from tests.support.engine_lab.images import Image
from tests.support.engine_lab.life import TINY, Fact, Promised, entry_of, promises, silence
from tests.support.storage_support import OTHER_KEY, entry_bytes, is_fenced, make_run

PROBE = 99


Seen = dict[int, tuple[object, ...]]


async def check(
    image: Image, facts: Sequence[Fact], *, sure: bool = True, config: BookieConfig = TINY
) -> None:
    """Raise `AssertionError`, or the storage's own error. For `sure` see `CrashPoint`."""
    await check_disk(image.disk(), facts, sure=sure, config=config)


async def check_disk(
    disk: SimDisk, facts: Sequence[Fact], *, sure: bool = True, config: BookieConfig = TINY
) -> None:
    wanted = promises(facts)
    storage = await _open(disk, config)
    seen = await _look(storage, wanted, sure)
    _judge(seen, wanted, storage)
    await _add_probe(storage)
    storage = await _reopen(storage, disk, config)

    async def same(after: str) -> None:
        assert await _look(storage, wanted, sure) == seen, f"{after} it sees something else"
        assert await storage.reads.read(PROBE, 0) == entry_bytes(PROBE, 0, b"goes on")

    await same("after another start")
    await storage.checkpoint()
    storage = await _reopen(storage, disk, config)
    await same("after a checkpoint and a start")
    await collect(storage, config, compact=True)
    await same("after a compaction")
    disk.indexes = SimIndexStore()
    storage = await _reopen(storage, disk, config)
    await same("with its index rebuilt")
    await silence(storage)


async def _open(disk: SimDisk, config: BookieConfig) -> Storage:
    return await Storage.open(config, disk=disk, index_opener=disk.open_index)


async def _reopen(storage: Storage, disk: SimDisk, config: BookieConfig) -> Storage:
    await silence(storage)
    disk.crash()
    return await _open(disk, config)


async def _add_probe(storage: Storage) -> None:
    answered: asyncio.Future[Code] = asyncio.get_running_loop().create_future()
    storage.add(
        [make_run(PROBE, 0, [b"goes on"])], lambda results: answered.set_result(results[0][1])
    )
    assert await answered is Code.OK


async def _look(storage: Storage, wanted: dict[int, Promised], sure: bool) -> Seen:
    """Read everything, or only what was promised when the rest is not `sure`."""
    seen: Seen = {}
    for ledger_id, one in wanted.items():
        entries: dict[int, bytes | None] = {}
        for entry_id in one.tried if sure else sorted(one.acked):
            try:
                entries[entry_id] = await storage.reads.read(ledger_id, entry_id)
            except (NoSuchEntry, NoSuchLedger):
                entries[entry_id] = None
        if not sure and not one.is_known:
            continue
        try:
            if not sure:
                seen[ledger_id] = (entries, is_fenced(storage, ledger_id))
                continue
            seen[ledger_id] = (
                entries,
                is_fenced(storage, ledger_id),
                storage.control.last_add_confirmed(ledger_id),
                storage.control.last_entry(ledger_id),
                await storage.reads.entries(ledger_id),
                await _last(storage, ledger_id),
            )
        except NoSuchLedger:
            seen[ledger_id] = (entries,)
    unknown = set(storage.ledgers()) - set(wanted) - {PROBE}
    assert not unknown, f"ledgers that nobody wrote: {unknown}"
    return seen


async def _last(storage: Storage, ledger_id: int) -> bytes | None:
    try:
        return await storage.reads.read(ledger_id, -1)
    except NoSuchEntry:
        return None


def _judge(seen: Seen, wanted: dict[int, Promised], storage: Storage) -> None:
    for ledger_id, one in wanted.items():
        if ledger_id not in seen or (one.delete_tried and len(seen[ledger_id]) == 1):
            continue  # The ledger may be gone; the next opening must agree.
        assert not one.deleted, f"deleted ledger {ledger_id} is back"
        _judge_ledger(ledger_id, seen[ledger_id], one)
    for ledger_id, one in wanted.items():
        if one.forgotten:
            continue
        if one.deleted:
            assert _refused(storage, make_run(ledger_id, 50, [b""])) is Code.FENCED
            again = make_run(ledger_id, 50, [b""], recovery=True)
            assert _refused(storage, again) is Code.NO_LEDGER
        elif one.is_known and not one.delete_tried:
            other = make_run(ledger_id, 50, [b""], key=OTHER_KEY)
            assert _refused(storage, other) is Code.UNAUTHORIZED, "the key is lost"
            if one.fenced:
                assert _refused(storage, make_run(ledger_id, 50, [b""])) is Code.FENCED


def _judge_ledger(ledger_id: int, seen: tuple[object, ...], one: Promised) -> None:
    entries = seen[0]
    assert isinstance(entries, dict)
    for entry_id, found in entries.items():
        size = one.tried[entry_id]
        if found is None:
            assert entry_id not in one.acked, f"acked entry {ledger_id}:{entry_id} is lost"
        else:
            assert found == entry_of(ledger_id, entry_id, size), "other bytes than were written"
    if len(seen) == 1:
        assert not one.is_known, f"ledger {ledger_id} is forgotten"
        return
    fenced = seen[1]
    assert fenced or not one.fenced, f"the fence of ledger {ledger_id} is lost"
    assert one.fence_tried or not fenced, f"ledger {ledger_id} is fenced and nobody did it"
    if len(seen) == 2:
        return
    _, _, lac, last_entry, intervals, last = seen
    held = [entry_id for entry_id, found in entries.items() if found is not None]
    listed = [n for first, end in intervals for n in range(first, end + 1)]  # type: ignore[attr-defined]
    assert listed == sorted(held), f"lists {listed}, holds {sorted(held)}"
    assert last_entry == max(held, default=-1), f"last entry {last_entry}, holds {held}"
    assert last == entries.get(last_entry), "read(-1) is not the last entry"
    assert isinstance(lac, int)
    assert lac >= one.lac, f"explicit LAC {one.lac} of ledger {ledger_id} is lost"
    assert lac >= max(one.acked, default=0) - 1, "the LAC of an acked entry is lost"
    assert lac <= max([one.lac_tried, *(n - 1 for n in one.tried)]), "a LAC that nobody sent"


def _refused(storage: Storage, run: AddBatch) -> Code:
    """Return the code of an add that must be refused before it reaches the journal."""
    codes: list[Code] = []
    storage.add([run], lambda results: codes.extend(code for _, code in results))
    assert codes, "an add that must be refused was taken"
    return codes[0]
