"""Garbage collection: proofs of deletion, the plan for each log, and rounds on real storage."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.gc import deletion_proof
from octavo.bookie.gc.collector import Collector, _Due
from octavo.bookie.gc.compaction import Pace
from octavo.bookie.gc.deletion_proof import DeletionProof
from octavo.bookie.gc.rules import (
    Action,
    Decision,
    LogFacts,
    Quarantine,
    Rules,
    Verdict,
    longest,
    plan,
)
from octavo.bookie.ledgers.rules import Fate
from octavo.bookie.storage import Storage
from octavo.metadata.embedded import EmbeddedStore
from octavo.metadata.ledger_record import Fragment, LedgerMetadata
from octavo.metadata.ledgers import LedgerStore
from octavo.metadata.store import BadRecord, MetadataUnavailable, RecordNotFound
from octavo.protocol.codes import Code, NoSuchLedger, ReadOnly
from tests.support.storage_support import CONFIG, Bench, entry_bytes, eventually, make_run

PAYLOAD = b"x" * 4000
ENTRIES = 60
WEEK_MS = 7 * 24 * 3600 * 1000


class World:
    def __init__(self, folder: Path, store: EmbeddedStore, **changed: Any) -> None:
        self.folder = folder
        self.store = store
        self.ledgers = LedgerStore(store, rng=random.Random(1))
        self.config = replace(
            BookieConfig(
                journal_directories=(f"{folder}/j",),
                ledger_directories=(f"{folder}/l",),
                journal_preallocate_bytes=64 * 1024,
                entry_log_bytes_max=512 * 1024,
                flush_interval_ms=3_600_000,
                gc_quarantine_ms=1,
            ),
            **changed,
        )
        self.now_ms = 10 * WEEK_MS

    async def start(self) -> None:
        clock = lambda: self.now_ms  # noqa: E731
        self.storage = await Storage.open(self.config, disk=RealDisk(), clock=clock)
        self.collector = Collector(
            self.config,
            self.storage,
            DeletionProof(self.store, self.ledgers, await self.ledgers.initialize()),
            clock=lambda: self.now_ms,
        )

    async def restart(self) -> None:
        await self.storage.close()
        await self.start()

    async def create(self, ledger_id: int) -> None:
        fragments = (Fragment(0, ("b",)),)
        await self.ledgers.create(LedgerMetadata(ledger_id, 1, 1, 1, fragments))

    async def add(self, ledger_id: int, first: int = 0, count: int = ENTRIES) -> None:
        codes: list[Code] = []
        run = make_run(ledger_id, first, [PAYLOAD] * count)
        self.storage.add([run], lambda results: codes.extend(code for _, code in results))
        await self.storage._journals.drain()
        assert codes == [Code.OK]

    async def fill(self, ledger_ids: range) -> None:
        for ledger_id in ledger_ids:
            await self.create(ledger_id)
            await self.add(ledger_id)
            await self.storage.checkpoint()

    async def rounds(self, count: int = 2, **forced: bool) -> None:
        for _ in range(count):
            self.collector.start_now(**forced)
            await self.collector.round()

    async def delete_at(self, now_ms: int) -> None:
        self.collector.status.begin(now_ms)
        await self.collector._delete_ledgers(now_ms)

    @property
    def logs(self) -> list[int]:
        return [int(path.stem, 16) for path in sorted((self.folder / "l").glob("*.log"))]

    async def check(self, ledger_id: int, count: int = ENTRIES) -> None:
        found = await self.storage.reads.read_many(ledger_id, 0, count, 2**30)
        assert found == [entry_bytes(ledger_id, n, PAYLOAD) for n in range(count)]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    store = EmbeddedStore(str(tmp_path / "metadata.db"))
    await store.start()
    world = World(tmp_path, store)
    await world.start()
    yield world
    await world.storage.close()
    await store.close()


async def test_what_metadata_deleted_goes_from_the_disk(world: World) -> None:
    await world.fill(range(10))
    before = world.logs
    assert len(before) > 4
    for ledger_id in range(10):
        if ledger_id != 7:
            await world.ledgers.delete(ledger_id)
    await world.rounds(1)
    assert world.logs == before, "seen gone once is in quarantine"
    await world.check(0)
    await world.rounds(1)
    assert world.storage.ledgers() == [7]
    with pytest.raises(NoSuchLedger):
        await world.storage.reads.read(0, 0)
    assert len(world.logs) < len(before)
    await world.rounds(3, major=True)
    assert len(world.logs) <= 2
    await world.check(7)
    await world.restart()
    await world.check(7)
    assert world.storage.ledgers() == [7]
    assert world.collector is not None


async def test_without_metadata_nothing_is_deleted(world: World) -> None:
    await world.fill(range(4))
    for ledger_id in range(4):
        await world.ledgers.delete(ledger_id)
    await world.rounds(1)
    await world.store.close()
    with pytest.raises(MetadataUnavailable):
        await world.ledgers.list()
    before = world.logs
    await world.rounds(3)
    assert world.storage.ledgers() == [0, 1, 2, 3]
    assert world.logs == before
    assert world.collector.status.last.metadata_error


async def test_another_cluster_proves_nothing(world: World) -> None:
    await world.fill(range(2))
    for ledger_id in range(2):
        await world.ledgers.delete(ledger_id)
    world.collector._proofs = DeletionProof(world.store, world.ledgers, "another")
    await world.rounds(3)
    assert world.storage.ledgers() == [0, 1]
    assert "belongs to cluster" in world.collector.status.last.metadata_error


class Lying(LedgerStore):
    hidden: tuple[int, ...] = ()
    silent = False

    async def list(self) -> list[int]:
        return [found for found in await super().list() if found not in self.hidden]

    async def read(self, ledger_id: int) -> Any:
        if self.silent:
            raise MetadataUnavailable("no answer")
        return await super().read(ledger_id)


async def test_an_incomplete_listing_deletes_nothing(world: World) -> None:
    await world.fill(range(4))
    lying = Lying(world.store, rng=random.Random(1))
    lying.hidden = (0, 1, 2)
    world.collector._proofs = DeletionProof(world.store, lying, await world.ledgers.instance_id())
    await world.rounds(4)
    assert world.storage.ledgers() == [0, 1, 2, 3]
    assert len(world.collector._quarantine) == 0
    lying.silent = True
    await world.rounds(4)
    assert world.storage.ledgers() == [0, 1, 2, 3]
    assert world.collector.status.last.metadata_error == "no answer"


async def test_a_ledger_that_reappears_is_released(world: World) -> None:
    world.collector._quarantine = Quarantine(60_000)
    await world.fill(range(2))
    found, _ = await world.ledgers.read(0)
    await world.ledgers.delete(0)
    await world.rounds(2)
    assert len(world.collector._quarantine) == 1
    await world.ledgers.create(found)
    await world.rounds(1)
    assert len(world.collector._quarantine) == 0
    await world.check(0)


async def test_more_ledgers_than_a_round_looks_up_go_without_idle_rounds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """60,000 ledgers took nine rounds: two thirds of the look-ups were for ledgers that had to
    wait."""
    at_once, minute_ms = 4, 60_000
    monkeypatch.setattr(deletion_proof, "_LOOKUPS_MAX", at_once)
    world.collector._quarantine = Quarantine(15 * minute_ms)
    await world.fill(range(3 * at_once + 1))
    for ledger_id in range(3 * at_once):
        await world.ledgers.delete(ledger_id)
    left = []
    for number in range(7):
        await world.delete_at(number * 10 * minute_ms)
        left.append(len(world.storage.ledgers()) - 1)
    assert left == [12, 12, 8, 4, 4, 4, 0], "each is proven twice, a quarantine apart"
    await world.check(3 * at_once)


async def test_one_that_waits_is_still_looked_up_when_there_is_time(world: World) -> None:
    """A wrong listing leaves a ledger out; it is released before its second proof is due."""
    world.collector._quarantine = Quarantine(60_000)
    await world.fill(range(2))
    found, _ = await world.ledgers.read(0)
    await world.ledgers.delete(0)
    await world.delete_at(0)
    assert len(world.collector._quarantine) == 1
    await world.ledgers.create(found)
    lying = Lying(world.store, rng=random.Random(1))
    lying.hidden = (0,)
    world.collector._proofs = DeletionProof(world.store, lying, await world.ledgers.instance_id())
    await world.delete_at(10_000)
    assert len(world.collector._quarantine) == 0
    await world.ledgers.delete(0)
    await world.delete_at(20_000)
    await world.delete_at(70_000)
    assert world.storage.ledgers() == [0, 1], "its quarantine begins anew"


async def test_a_ledger_made_during_the_proofs_is_not_among_the_gone(world: World) -> None:
    await world.fill(range(2))

    class Slow(LedgerStore):
        async def list(self) -> list[int]:
            found = await super().list()
            if 9 not in found:
                await world.create(9)
                await world.add(9)
            return found

    slow = Slow(world.store, rng=random.Random(1))
    world.collector._proofs = DeletionProof(world.store, slow, await world.ledgers.instance_id())
    await world.rounds(3)
    assert world.storage.ledgers() == [0, 1, 9]


async def test_late_adds_are_refused_while_the_deletion_is_remembered(world: World) -> None:
    await world.fill(range(3))
    await world.ledgers.delete(0)
    await world.rounds(2, major=True)
    await world.rounds(2, major=True)
    codes: list[Code] = []
    run = make_run(0, 0, [PAYLOAD])
    world.storage.add([run], lambda results: codes.extend(code for _, code in results))
    assert codes == [Code.FENCED]
    states = world.storage._states
    assert states.get(0) is not None
    world.now_ms += WEEK_MS + 1
    await world.rounds(1)
    assert states.get(0) is None, "no log holds a record of it, and its time is over"
    assert world.collector.status.last.markers_dropped == 1
    await world.restart()
    assert world.storage.ledgers() == [1, 2]


async def test_a_marker_stays_while_a_log_holds_a_record(world: World) -> None:
    await world.fill(range(3))
    await world.ledgers.delete(1)
    await world.rounds(1)
    path = next(path for path in sorted((world.folder / "l").glob("*.log")))
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)
    world.now_ms += 2 * WEEK_MS
    await world.rounds(3, major=True)
    world.now_ms += 2 * WEEK_MS
    await world.rounds(1, major=True)
    assert world.storage._states.get(1) is not None
    kept = world.collector.status_json(100)["logs"]
    assert any("damaged from byte 0" in log["reason"] for log in kept)


async def test_the_current_log_is_renewed_when_little_of_it_lives(world: World) -> None:
    await world.fill(range(1))
    await world.ledgers.delete(0)
    assert len(world.logs) == 1
    await world.rounds(4, minor=True)
    assert world.storage.ledgers() == []
    assert world.logs == [2], "an empty new one"
    await world.restart()
    await world.rounds(2, minor=True)
    assert len(world.logs) == 1


async def test_a_deletion_that_was_not_journaled_is_tried_again(world: World) -> None:
    await world.fill(range(2))
    await world.ledgers.delete(0)
    await world.rounds(1)
    control = world.storage.control
    with pytest.MonkeyPatch.context() as patched:

        def refuse(*_: object) -> asyncio.Future[None]:
            failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            failed.set_exception(ReadOnly("no space"))
            return failed

        patched.setattr(control, "_write", refuse)
        await world.rounds(1)
    assert control.fate(0) is Fate.UNSURE
    assert world.storage.ledgers() == [1]
    before = world.logs
    await world.collector._collect_logs(_Due(minor=True, major=True), 10**6)
    assert world.logs[: len(before)] == before, "what is not surely deleted stays"
    await world.rounds(1)
    assert control.fate(0) is Fate.DELETED


async def test_it_stops_in_the_middle_of_a_round(world: World) -> None:
    await world.fill(range(4))

    class Silent(LedgerStore):
        async def list(self) -> list[int]:
            await asyncio.sleep(3600)
            return []

    silent = Silent(world.store, rng=random.Random(1))
    world.collector._proofs = DeletionProof(world.store, silent, await world.ledgers.instance_id())
    task = asyncio.get_running_loop().create_task(world.collector.run())
    world.collector.start_now()
    await eventually(lambda: world.collector._proving is not None)
    async with asyncio.timeout(5):
        await world.collector.stop()
        await task


async def test_the_pace_is_kept(world: World) -> None:
    pace = Pace(1000)
    loop = asyncio.get_running_loop()
    started_s = loop.time()
    for _ in range(3):
        await pace.spend(100)
    assert loop.time() - started_s > 0.28
    pace.hurry()
    await pace.spend(10**9)


SMALL = replace(CONFIG, entry_log_bytes_max=16 * 1024)
EVERYTHING = Rules(0.2, 0.8, minor_due=True, major_due=True, room_bytes=2**40)
LEDGERS = 400


async def test_what_is_all_live_stays() -> None:
    """Fully live logs were rewritten at each major compaction: in a log of many small ledgers,
    record headers and the ledgers map exceed the fifth that may be dead."""
    async with Bench(SMALL) as bench:
        for ledger_id in range(LEDGERS):
            assert await bench.add(ledger_id, 0, b"x") is Code.OK
        await bench.storage.checkpoint()
        await bench.storage.compactor.renew_current()
        counted = await bench.storage.compactor.log_metadata({})
        assert len(counted.logs) > 2
        decisions = plan(counted.logs, EVERYTHING)
        assert [one.action for one in decisions] == [Action.KEEP] * len(decisions)
        sealed = counted.logs[0]
        assert sealed.ratio == 1

        for ledger_id in range(LEDGERS // 2):
            await bench.storage.delete_ledger(ledger_id)
        await bench.storage.checkpoint()
        decisions = plan((await bench.storage.compactor.log_metadata({})).logs, EVERYTHING)
        assert decisions[0].action is Action.UNLINK


CENSUS_SMALL = replace(CONFIG, entry_log_bytes_max=4096)


async def test_it_looks_at_no_further_log() -> None:
    """The census read the maps of all logs before a stopping bookie could end."""
    async with Bench(CENSUS_SMALL) as bench:
        for ledger_id in range(4):
            assert await bench.add(ledger_id, 0, b"x" * 3000) is Code.OK
            await bench.storage.checkpoint()
        compactor = bench.storage.compactor
        whole = await compactor.log_metadata({})
        assert whole.complete
        assert len(whole.logs) == 4
        compactor.stop()
        cut = await compactor.log_metadata({})
        assert not cut.complete, "no marker of a deletion goes by it"
        assert not cut.logs


# The plan for each log, in words; and the quarantine, against a model.
RULES = Rules(0.2, 0.8, minor_due=True, major_due=True, room_bytes=10_000)


def reason(log: LogFacts, rules: Rules = RULES) -> tuple[Action, str]:
    (decision,) = plan([log], rules)
    return decision.action, decision.reason


@pytest.mark.parametrize(
    ("log", "rules", "action", "words"),
    [
        (LogFacts(1, 100, 0, current=True), RULES, Action.KEEP, "current log"),
        (LogFacts(1, 100, 0, why_not="is damaged"), RULES, Action.KEEP, "is damaged"),
        (LogFacts(1, 100, 0), RULES, Action.UNLINK, "nothing in it is live"),
        (LogFacts(1, 100, 90), RULES, Action.KEEP, "90% live, above 80%"),
        (LogFacts(1, 100, 80), RULES, Action.REWRITE, "80% live"),
        (
            LogFacts(1, 100, 80),
            RULES._replace(major_due=False),
            Action.KEEP,
            "80% live, waits for the next major compaction",
        ),
        (LogFacts(1, 100, 20), RULES._replace(major_due=False), Action.REWRITE, "20% live"),
        (
            LogFacts(1, 100, 20),
            RULES._replace(major_due=False, minor_due=False),
            Action.KEEP,
            "20% live, waits for the next minor compaction",
        ),
        (
            LogFacts(1, 100, 50),
            RULES._replace(room_bytes=49),
            Action.KEEP,
            "50% live, no room to rewrite: 50 bytes are wanted, 49 allowed",
        ),
        (
            LogFacts(1, 100, 90, quarantined=(7, 12_000)),
            RULES,
            Action.KEEP,
            "90% live, above 80%; ledger 7 is in quarantine for 12 s more",
        ),
    ],
)
def test_every_log_has_a_decision_and_a_reason(
    log: LogFacts, rules: Rules, action: Action, words: str
) -> None:
    assert reason(log, rules) == (action, words)


def test_what_costs_nothing_comes_first_then_the_emptiest() -> None:
    logs = [
        LogFacts(1, 100, 60),
        LogFacts(2, 100, 10),
        LogFacts(3, 100, 0),
        LogFacts(4, 100, 30),
        LogFacts(5, 100, 95),
        LogFacts(6, 100, 0, current=True),
    ]
    assert [one.log_id for one in plan(logs, RULES)] == [3, 2, 4, 1, 5, 6]


def test_each_log_that_goes_makes_room_for_the_next() -> None:
    logs = [LogFacts(1, 100, 0), LogFacts(2, 100, 40), LogFacts(3, 100, 70)]
    decisions = plan(logs, RULES._replace(room_bytes=0))
    assert [one.action for one in decisions] == [Action.UNLINK, Action.REWRITE, Action.REWRITE]
    decisions = plan(logs[1:], RULES._replace(room_bytes=0))
    assert {one.action for one in decisions} == {Action.KEEP}


def test_a_full_disk_frees_what_is_dead_without_any_room() -> None:
    assert plan([LogFacts(1, 100, 0)], RULES._replace(room_bytes=-5)) == [
        Decision(1, Action.UNLINK, "nothing in it is live")
    ]


def test_a_ledger_is_confirmed_a_quarantine_after_it_was_first_seen_gone() -> None:
    quarantine = Quarantine(100)
    assert quarantine.round(1000, [7], [8]) == Verdict([7], [], [])
    assert quarantine.round(1099, [7], [8]) == Verdict([], [], [])
    assert quarantine.left_ms(1099) == {7: 1}
    assert quarantine.round(1100, [7], [8]) == Verdict([], [], [7])
    quarantine.forget(7)
    assert len(quarantine) == 0


def test_a_ledger_that_reappears_begins_anew() -> None:
    quarantine = Quarantine(100)
    quarantine.round(0, [7], [])
    assert quarantine.round(50, [], [7]) == Verdict([], [7], [])
    assert quarantine.round(200, [7], []) == Verdict([7], [], [])


def test_silence_neither_confirms_nor_releases() -> None:
    quarantine = Quarantine(100)
    quarantine.round(0, [7], [])
    assert quarantine.round(500, [], []) == Verdict([], [], [])
    assert quarantine.round(501, [7], []) == Verdict([], [], [7])


def test_the_quarantine_is_bounded() -> None:
    quarantine = Quarantine(0, ledgers_max=2)
    assert quarantine.round(0, [1, 2, 3], []).entered == [1, 2]
    assert quarantine.round(1, [1, 2, 3], []).confirmed == [1, 2]
    quarantine.forget(1)
    quarantine.forget(2)
    assert quarantine.round(2, [3], []).entered == [3]


def test_the_one_that_waits_longest_is_named() -> None:
    assert longest([1, 2, 3], {1: 5, 3: 9}) == (3, 9)
    assert longest([1], {}) is None


sightings = st.lists(
    st.tuples(st.integers(0, 60), st.dictionaries(st.integers(0, 3), st.booleans())), max_size=25
)


@given(st.integers(0, 100), sightings)
def test_nothing_is_confirmed_that_was_seen_in_between(
    quarantine_ms: int, rounds: list[tuple[int, dict[int, bool]]]
) -> None:
    """The whole history proves it: missing at two rounds far enough apart, never present in
    between."""
    quarantine = Quarantine(quarantine_ms)
    history: list[tuple[int, dict[int, bool]]] = []
    now_ms = 0
    for step_ms, seen in rounds:
        now_ms += step_ms
        gone = [ledger_id for ledger_id, is_gone in seen.items() if is_gone]
        present = [ledger_id for ledger_id, is_gone in seen.items() if not is_gone]
        verdict = quarantine.round(now_ms, gone, present)
        wanted = []
        for ledger_id in gone:
            since_ms = now_ms
            for then_ms, then in reversed(history):
                if then.get(ledger_id) is False:
                    break
                if then.get(ledger_id):
                    since_ms = then_ms
            known = any(then.get(ledger_id) for _, then in history)
            if known and now_ms - since_ms >= quarantine_ms and since_ms != now_ms:
                wanted.append(ledger_id)
        confirmed = [found for found in verdict.confirmed if quarantine_ms > 0]
        if quarantine_ms > 0:
            assert confirmed == wanted
        history.append((now_ms, seen))


@given(
    st.lists(
        st.tuples(st.integers(1, 100), st.integers(1, 100)).map(lambda p: (max(p), min(p))),
        min_size=3,
        max_size=8,
    ),
    st.integers(1, 60),
)
def test_what_is_planned_fits_at_each_step(sizes: list[tuple[int, int]], room: int) -> None:
    logs = [LogFacts(number, size, live) for number, (size, live) in enumerate(sizes)]
    of = {log.log_id: log for log in logs}
    for decision in plan(logs, RULES._replace(major_ratio=1.0, room_bytes=room)):
        log = of[decision.log_id]
        if decision.action is Action.REWRITE:
            assert log.live_bytes <= room, f"log {log.log_id} is copied before the old one goes"
        if decision.action is not Action.KEEP:
            room += log.bytes - log.live_bytes


# Only a record that is certainly missing proves that a ledger is gone.
STATES = ("there", "gone", "bad", "missing from the listing", "bad and not listed")


class Ledgers:
    """Ledger records; a listing may omit some."""

    def __init__(self, states: dict[int, str], *, silent: bool) -> None:
        self.states = states
        self.silent = silent

    async def instance_id(self) -> str:
        return "this"

    async def list(self) -> list[int]:
        return [found for found, state in self.states.items() if state in ("there", "bad")]

    async def read(self, ledger_id: int) -> None:
        if self.silent:
            raise MetadataUnavailable("no answer")
        state = self.states[ledger_id]
        if state == "gone":
            raise RecordNotFound("no record")
        if "bad" in state:
            raise BadRecord("cannot be read")


class Store:
    url = "test:"

    async def sync(self) -> None:
        pass


@pytest.mark.parametrize("seed", range(30))
async def test_what_is_proven_gone_has_no_record(seed: int) -> None:
    rng = random.Random(seed)
    states = {number: rng.choice(STATES) for number in range(20)}
    store: Any = Store()
    ledgers: Any = Ledgers(states, silent=False)
    proven = await DeletionProof(store, ledgers, "this").prove(list(states))
    assert sorted(proven.gone) == [one for one, state in states.items() if state == "gone"]
    assert not set(proven.gone) & set(proven.present)
    assert {one for one, state in states.items() if state == "there"} <= set(proven.present)


async def test_silence_is_no_proof() -> None:
    store: Any = Store()
    ledgers: Any = Ledgers({1: "gone"}, silent=True)
    with pytest.raises(MetadataUnavailable):
        await DeletionProof(store, ledgers, "this").prove([1])
