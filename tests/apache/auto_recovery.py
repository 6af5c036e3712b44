"""Apache's AutoRecovery over four bookies of ours, of which one dies: without our
re-replication, then with both at work. In the end every ledger is closed where its writer ended,
on live bookies, each entry on each replica as written."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace

from octavo.ledger.client import LedgerClient
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import MetadataStore
from tests.apache.grounds import Ask, Grounds
from tests.apache.matrix import Matrix
from tests.apache.replicas import PASSWORD, Kind, flaws, ledgers_naming, marked, write_ledgers
from tests.apache.shells import conf_of, shells_on
from tests.interop.apache import VERSION
from tests.interop.checks import Checks
from tests.interop.clients import payload_of
from tests.interop.ours import store_at
from tests.interop.processes import Process

CLIENT = f"Apache's AutoRecovery {VERSION}"

EACH = (
    Kind(2, 2, 2),
    Kind(3, 3, 2),
    Kind(3, 2, 2),
    Kind(3, 3, 3, digest="MAC"),
    Kind(2, 2, 2, is_open=True),
    Kind(3, 3, 2, is_open=True),
    Kind(3, 2, 2, entries=1),
    Kind(3, 3, 2, entries=1, is_open=True),
    Kind(3, 3, 2, entries=0),
    Kind(3, 3, 2, entries=0, is_open=True),
)
ROUNDS = 3
WHOLE_S = 240
QUIET_S = 8
LIVE = 3
PAUSE_S = 0.2
ELECTION = "/ledgers/underreplication/auditorelection"
DOUBTS = ("copies_disagree", "replica_damaged", "add_refused", "copies_failed")

QUICK = """openLedgerRereplicationGracePeriod=2000
rwRereplicateBackoffMs=500
lockReleaseOfFailedLedgerGracePeriod=8000
"""
"""The defaults are 30 s for a ledger that may still be written, 5 s after each ledger that could
not be handled at once, up to five minutes for a failed ledger."""

ASLEEP = ("--set", "keep_copies=false")
AWAKE = (
    *("--set", "lost_bookie_ms=4000"),
    *("--set", "copies_open_ledger_ms=2000"),
    *("--set", "copies_retry_ms=1000"),
)


def auto_recovery(matrix: Matrix, asked: Ask) -> None:
    for wire in ("v2", "v3"):
        for own, words in (("off", ASLEEP), ("on at the same time", AWAKE)):
            part = replace(asked, folder=asked.folder / f"{wire}-{own[:3].strip()}")
            operation = f"a bookie of ours dies, three and a spare; our re-replication {own}"
            note = "ledgers of ten kinds, some open, and three that are written meanwhile"
            with (
                matrix.row(CLIENT, wire, operation, note=note) as checks,
                part.grounds(laid_out=False) as one,
            ):
                asyncio.run(_a_bookie_dies(checks, one, wire, words))


def start_auto_recovery(grounds: Grounds, wire: str) -> Process:
    conf = grounds.folder / "auto_recovery.conf"
    conf.write_text(conf_of(grounds, wire, more=QUICK))
    main = "org.apache.bookkeeper.replication.AutoRecoveryMain"
    return grounds.start("auto_recovery", grounds.java.command(main, "--conf", str(conf)))


async def _a_bookie_dies(
    checks: Checks, grounds: Grounds, wire: str, words: tuple[str, ...]
) -> None:
    bookies = [grounds.add_octavo(*words) for _ in range(4)]
    written = write_ledgers(grounds, wire, EACH * (1 if grounds.short else ROUNDS))
    async with store_at(grounds.zookeeper.port) as store:
        start_auto_recovery(grounds, wire)
        await an_auditor(store)
        lost, *others = bookies
        async with _writing(store) as writers:
            await asyncio.sleep(1)
            named = await ledgers_naming(store, lost.bookie_id)
            lost.kill()
            left = await left_of(store, lost.bookie_id, WHOLE_S)
            written |= await writers.closed()
        what = f"of {len(written)} ledgers, {len(named)} on the lost bookie, left"
        checks.equal(what, left, [])
        live = {bookie.bookie_id for bookie in others}
        settled = {one: kind for one, kind in written.items() if one in named or not kind.is_open}
        checks.equal("each entry is on all its replicas", await flaws(store, settled, live), [])
        before = await _versions(store, written)
        await asyncio.sleep(QUIET_S)
        checks.equal("no record changes any more", await _versions(store, written), before)
    with shells_on(grounds) as shells:
        answer = shells.ask(wire, "listunderreplicated")
    checks.contains("listunderreplicated finds none", answer.text, "ledger count {count=0}")
    for bookie in others:
        log = (bookie.folder / "octavo-bookie.log").read_text(errors="replace")
        odd = [line for line in log.splitlines() if any(word in line for word in DOUBTS)]
        checks.equal(f"nothing is in doubt on {bookie.bookie_id}", odd, [])


class _Writers:
    def __init__(self, writers: list[LedgerWriter]) -> None:
        self._writers = writers
        self._over = asyncio.Event()
        self._tasks = [asyncio.create_task(self._write(one)) for one in writers]

    async def _write(self, writer: LedgerWriter) -> int:
        for entry in itertools.count():
            await writer.append(payload_of(entry))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PAUSE_S):
                    await self._over.wait()
                    return entry + 1
        raise AssertionError("it counts for ever")

    async def closed(self) -> dict[int, Kind]:
        """End them; return what they wrote. Raises the error of a refused add."""
        self._over.set()
        counts = await asyncio.gather(*self._tasks)
        for writer in self._writers:
            await writer.close()
        return {
            writer.ledger_id: Kind(3, 3, 2, entries=count)
            for writer, count in zip(self._writers, counts, strict=True)
        }


@contextlib.asynccontextmanager
async def _writing(store: MetadataStore) -> AsyncIterator[_Writers]:
    client = LedgerClient(store, rng=random.Random(3))
    await client.start()
    try:
        made = [
            await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=PASSWORD)
            for _ in range(LIVE)
        ]
        yield _Writers(made)
    finally:
        await client.close()


async def an_auditor(store: MetadataStore, *, here: bool = True) -> None:
    """Wait until an auditor is elected, or none is any more."""
    changed = asyncio.Event()
    watch = store.watch_children(ELECTION, changed.set)
    try:
        async with asyncio.timeout(60):
            while bool(await store.children(ELECTION)) != here:
                changed.clear()
                await changed.wait()
    finally:
        watch.cancel()


async def left_of(store: MetadataStore, bookie_id: str, patience_s: float) -> list[object]:
    """Return the ledgers that still name a bookie or are marked, once none is left or the time
    is over."""
    deadline = time.monotonic() + patience_s
    while True:
        left = [*await ledgers_naming(store, bookie_id), *await marked(store)]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.5)


async def _versions(store: MetadataStore, ledgers: Iterable[int]) -> list[int]:
    return [(await LedgerStore(store).read(ledger_id))[1] for ledger_id in ledgers]
