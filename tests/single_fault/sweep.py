"""Puts each single fault on the disk of a stopped bookie, starts it, and reads everything.
Allowed: the right bytes; an explicit error; a refused start, with file and reason. Never:
other bytes, "no such entry" for an acked entry, a lost fence or key. Only damage in the newest
block of the journal looks like a torn write, which was never acked (GUARANTEES.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

from octavo.bookie.config import BookieConfig
from octavo.bookie.journal.mark import NAME as MARK
from octavo.bookie.storage import Storage
from octavo.protocol.codes import BookieIOError, Code, NoSuchEntry, NoSuchLedger, OctavoError
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.single_fault.faults import Fault, bit_faults, block_faults, is_torn_tail
from tests.support.engine_lab.garbage import collect
from tests.support.engine_lab.images import Image, images
from tests.support.engine_lab.life import (
    TINY,
    CheckLoop,
    Fact,
    Promised,
    entry_of,
    promises,
    silence,
)
from tests.support.engine_lab.lives import CrashPoint, points_of
from tests.support.storage_support import OTHER_KEY, is_fenced, make_run

ONE_FOLDER = replace(TINY, ledger_directories=("/l",))
_FENCED = ("add", "delete", "add", "checkpoint", "roll", "fence")
LIVES: dict[str, tuple[BookieConfig, Sequence[str], str]] = {
    # name: (settings, life, where in its last operation the power fails)
    "unflushed": (TINY, ("add", "lac", "checkpoint", "add", "roll", "fence", "add"), "at the end"),
    "stopped": (ONE_FOLDER, ("add", "add", "lac", "roll", "fence", "restart"), "at the end"),
    "deleted": (ONE_FOLDER, (*_FENCED, "checkpoint", "delete", "add", "add"), "at the end"),
    "index ahead of the mark": (
        TINY,
        ("add", "checkpoint", "add", "roll", "lac", "fence", "checkpoint"),
        "before rename /l/journal.mark.new",
    ),
    "marks differ": (
        TINY,
        ("add", "checkpoint", "add", "roll", "lac", "fence", "checkpoint"),
        "before rename /m/journal.mark.new",
    ),
    "old life": (
        ONE_FOLDER,
        ("add", "power", "add", "checkpoint", "power", "add", "roll", "checkpoint", "roll", "add"),
        "at the end",
    ),
}


class Case(NamedTuple):
    name: str
    config: BookieConfig
    image: Image
    facts: tuple[Fact, ...]


class WrongAnswer(AssertionError): ...


def cases() -> Iterator[Case]:
    """Yield all lives, each with its index and without: lost indexes are rebuilt from the logs."""
    for name, (config, sequence, where) in LIVES.items():
        loop = SimLoop(1, trace=Trace())
        point = next(found for found in points_of(sequence, loop, config) if found.where == where)
        loop.close()
        image = _nothing_lost(point)
        yield Case(name, config, image, point.facts)
        yield Case(f"{name}, index removed", config, image._replace(indexes={}), point.facts)


CHECKPOINTS = (
    ("add", "fence", "checkpoint", "roll", "checkpoint", "roll", "power", "lac", "checkpoint"),
    ("add", "delete", "checkpoint", "roll", "busy", "checkpoint", "fence", "restart"),
)
"""Lives whose last operation is cut short anywhere, before the fault."""


def cut_short() -> Iterator[Case]:
    """Yield every disk that a power failure may leave in the last operation of these lives."""
    seen: set[bytes] = set()
    for config in (ONE_FOLDER, TINY):
        for sequence in CHECKPOINTS:
            loop = SimLoop(1, trace=Trace())
            points = points_of(sequence, loop, config)
            loop.close()
            for point in points:
                for number, image in enumerate(images(point.moment)):
                    digest = image.digest((config.ledger_directories, point.facts))
                    if digest not in seen:
                        seen.add(digest)
                        name = f"{sequence} {point.where}, image {number}"
                        yield Case(name, config, image, point.facts)


def _nothing_lost(point: CrashPoint) -> Image:
    return list(images(point.moment))[-1]


def mark_faults(case: Case) -> Iterator[Fault]:
    return (fault for fault in faults_of(case, 20, 97) if fault.path.endswith(MARK))


def faults_of(case: Case, first: int = 0, stride: int = 1) -> Iterator[Fault]:
    yield from block_faults(case.image)
    yield from bit_faults(case.image, first, stride)


def sweep(case: Case, faults: Iterator[Fault]) -> Counter[str]:
    loop = CheckLoop(1, trace=Trace())
    wanted = promises(case.facts)
    ends: Counter[str] = Counter()
    try:
        for fault in faults:
            try:
                end = loop.run_until_complete(_try(case, fault, wanted))
            except Exception as error:
                what = f"{case.name}: {fault}: {type(error).__name__}: {error}"
                raise WrongAnswer(f"{what}\n  promised: {case.facts}") from error
            ends[end] += 1
        assert not loop.errors, loop.errors
    finally:
        loop.close()
    return ends


def sweep_case(stride: int, number: int) -> tuple[str, Counter[str]]:
    case = next(islice(cases(), number, None))
    return case.name, sweep(case, faults_of(case, stride=stride))


def sweep_cut_short(stride: int, parts: int, part: int) -> Counter[str]:
    ends: Counter[str] = Counter()
    for number, case in enumerate(cut_short()):
        if number % parts == part:
            ends += sweep(case, faults_of(case, number % stride, stride))
    return ends


async def _try(case: Case, fault: Fault, wanted: dict[int, Promised]) -> str:
    disk = fault.hurt(case.image).disk()
    try:
        storage = await Storage.open(case.config, disk=disk, index_opener=disk.open_index)
    except OctavoError as error:
        if fault.path.rpartition("/")[2] not in str(error):
            raise WrongAnswer(f"refuses to start and does not name {fault.path}") from error
        return f"refused: {type(error).__name__}"
    tail = is_torn_tail(fault, case.image)
    before = {n: await _ledger(storage, n, one) for n, one in wanted.items()}
    await collect(storage, case.config, compact=True)
    after = {n: await _ledger(storage, n, one) for n, one in wanted.items()}
    assert after == before, f"garbage collection made {before} into {after}"
    if "error" in after.values():
        assert disk.exists(fault.path), "what cannot be read was removed"
    ends = set(after.values())
    await silence(storage)
    if "lost" in ends:
        assert tail, "an acked entry, a fence or a key is denied"
        return "cut as a torn tail"
    return "explicit error" if "error" in ends else "all there"


async def _ledger(storage: Storage, ledger_id: int, one: Promised) -> str:
    """Return `right`, `error` (for at least one entry), or `lost`: an acked entry is denied."""
    ends: set[str] = set()
    for entry_id, size in one.tried.items():
        try:
            found = await storage.reads.read(ledger_id, entry_id)
        except BookieIOError:
            ends.add("error")
        except (NoSuchEntry, NoSuchLedger):
            ends.add("right" if entry_id not in one.acked or one.delete_tried else "lost")
        else:
            assert found == entry_of(ledger_id, entry_id, size), f"wrong bytes of entry {entry_id}"
            assert not one.deleted, f"deleted ledger {ledger_id} is back"
    if one.deleted or one.delete_tried:
        return max(ends, default="right")
    try:
        ends.add("right" if is_fenced(storage, ledger_id) or not one.fenced else "lost")
        ends.add("right" if storage.control.last_add_confirmed(ledger_id) >= one.lac else "lost")
        listed = await storage.reads.entries(ledger_id)
        held = {n for first, last in listed for n in range(first, last + 1)}
        ends.add("right" if one.acked <= held else "lost")
        assert held <= set(one.tried), "lists what nobody wrote"
    except BookieIOError:
        ends.add("error")
    except NoSuchLedger:
        ends.add("lost" if one.is_known else "right")
    if one.is_known and "lost" not in ends:
        codes: list[Code] = []
        other = make_run(ledger_id, 50, [b""], key=OTHER_KEY)
        storage.add([other], lambda results: codes.extend(code for _, code in results))
        ends.add("right" if codes == [Code.UNAUTHORIZED] else "lost")
    return "lost" if "lost" in ends else "error" if "error" in ends else "right"
