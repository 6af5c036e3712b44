"""`audit` and `scrub` on a live cluster: a ledger whose copies are wrong in every way."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from octavo import Client
from octavo.ledger.client import LedgerClient
from octavo.metadata.ledgers import Fragment, LedgerMetadata, LedgerState
from octavo.metadata.opening import open_store
from octavo.pipeline.audit import audit
from octavo.pipeline.outcome import Exit, Outcome
from octavo.pipeline.runner import Run, run_job
from octavo.pipeline.scrub import ABSENT, ScrubOptions, scrub
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry
from octavo.protocol.frames import add_prefix
from tests.support.processes.standalone import Standalone, standalone
from tests.support.published import seen_by_readers

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
Job = Callable[[Callable[[Run], Outcome]], Outcome]


@pytest.fixture(scope="module")
def job(spark: SparkSession, service: str) -> Job:
    return job_at(service)


def job_at(service: str) -> Job:
    def of(work: Callable[[Run], Outcome]) -> Outcome:
        return run_job("copies", work, service=service, say=lambda _: None)

    return of


@pytest.fixture(scope="module")
def spoiled(cluster: Standalone) -> Iterator[LedgerMetadata]:
    """Entry 0 is whole; of 1 a copy is missing, of 2 one is damaged, 3 has another payload on
    one bookie, 4 is lost."""
    url = cluster.cluster.metadata_url
    made = asyncio.run(with_ledgers(url, spoil))
    yield made
    asyncio.run(with_ledgers(url, lambda ledgers: ledgers.delete(made.ledger_id)))


def test_scrub_tells_each(job: Job, spoiled: LedgerMetadata) -> None:
    a, b, c = spoiled.fragments[0].bookies
    outcome = job(lambda run: scrub(run, ScrubOptions(ledgers=(spoiled.ledger_id,))))
    assert outcome.counts == {
        "copy-missing": 4,
        "copy-damaged": 1,
        "copies-differ": 1,
        "entry-lost": 1,
    }
    said = {(one.kind, one.what) for one in outcome.findings}
    assert ("copy-damaged", f"bookie {b} has a copy whose digest is wrong: entries 2") in said
    assert ("copy-missing", f"bookie {c} has no copy, by its own answer: entries 1, 4") in said
    assert ("copy-missing", f"bookie {a} has no copy, by its own answer: entries 4") in said
    assert ("copies-differ", "whole copies that differ: entries 3") in said
    assert ("entry-lost", "no bookie has a good copy: entries 4") in said
    assert (outcome.summary["entries_read"], outcome.summary["copies_read"]) == (5, 15)
    assert outcome.exit is Exit.FINDINGS


def test_audit_tells_what_is_not_there(job: Job, spoiled: LedgerMetadata) -> None:
    a, b, c = spoiled.fragments[0].bookies
    outcome = job(audit)
    mine = [one for one in outcome.findings if one.where == f"ledger {spoiled.ledger_id}"]
    assert sorted((one.kind, one.what) for one in mine) == [
        ("copy-missing", f"bookie {a} lacks entries 4"),
        ("copy-missing", f"bookie {b} lacks entries 4"),
        ("copy-missing", f"bookie {c} lacks entries 1, 4"),
        ("entry-lost", "no bookie of the write set has entries 4"),
    ]
    assert outcome.exit is Exit.FINDINGS


def test_a_sound_ledger_has_no_findings(
    job: Job, service: str, cluster: Standalone, spoiled: LedgerMetadata
) -> None:
    with Client(service) as client:
        client.create_topic("sound", rollover={"entries": 4})
        with (
            seen_by_readers(service, "sound", 200),
            client.producer("sound", batch_bytes=300) as producer,
        ):
            for number in range(200):
                producer.send(b"%d" % number)
    outcome = job(lambda run: scrub(run, ScrubOptions(sample=0.5, bytes_per_s=10**8)))
    # A task's process may end when two copies are there; the third comes later.
    bad = {one.where for one in outcome.findings if one.kind != ABSENT}
    assert bad <= {f"ledger {spoiled.ledger_id}"}
    assert 0 < outcome.summary["entries_read"] < outcome.summary["entries"]


def test_audit_has_bookies_fetch_what_they_lack(spark: SparkSession, tmp_path: Path) -> None:
    """All entries with a copy come back; the others stay lost, and are reported."""
    with standalone(tmp_path / "data", "--set=bookie.copies_retry_ms=86400000") as own:
        made = asyncio.run(with_ledgers(own.cluster.metadata_url, spoil))
        job = job_at(own.cluster.urls[0])
        outcome = job(partial(audit, repair=True))
        assert outcome.summary["bookies_told_to_repair"] == 3
        deadline = time.monotonic() + 120
        while True:
            found = job(audit).findings
            mine = [one for one in found if one.where == f"ledger {made.ledger_id}"]
            if len(mine) == 4 and all("1" not in one.what.partition("lacks")[2] for one in mine):
                break
            assert time.monotonic() < deadline, mine
    assert sorted((one.kind, one.what) for one in mine) == [
        *(
            ("copy-missing", f"bookie {name} lacks entries 4")
            for name in sorted(made.fragments[0].bookies)
        ),
        ("entry-lost", "no bookie of the write set has entries 4"),
    ]


async def with_ledgers(url: str, work: Callable[[LedgerClient], Awaitable[Any]]) -> Any:
    store = open_store(url)
    await store.start()
    ledgers = LedgerClient(store, rng=random.Random(7))
    await ledgers.start()
    try:
        return await work(ledgers)
    finally:
        await ledgers.close()
        await store.close()


class Acks:
    def __init__(self) -> None:
        self.stored = 0
        self.came = asyncio.Event()

    def added(self, bookie_id: str, first: int, last: int) -> None:
        self.stored += last - first + 1
        self.came.set()

    def add_refused(self, bookie_id: str, code: int, first: int, last: int) -> None:
        raise AssertionError(f"bookie {bookie_id} refused entry {first}: {code}")


async def spoil(ledgers: LedgerClient) -> LedgerMetadata:
    a, b, c = sorted(ledgers.bookies.available)[:3]
    wanted = LedgerMetadata(
        ledger_id=-1,
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        fragments=(Fragment(0, (a, b, c)),),
    )
    made, version = await ledgers.records.create(wanted)

    def entry(entry_id: int, payload: bytes) -> bytes:
        digest = digest_for(DigestType.CRC32C, b"")
        length = 5 * (entry_id + 1)
        return pack_entry(digest, made.ledger_id, entry_id, entry_id - 1, length, payload)

    whole = {number: entry(number, b"whole") for number in range(4)}
    flipped = whole[2][:-1] + bytes([whole[2][-1] ^ 1])
    holds = {
        a: {**whole, 3: entry(3, b"other")},
        b: {**whole, 2: flipped},
        c: {number: data for number, data in whole.items() if number != 1},
    }
    for bookie, entries in holds.items():
        connection = await ledgers.bookies.get(bookie).connected()
        acks = Acks()
        connection.attach(made.ledger_id, acks)
        for data in entries.values():
            frame = add_prefix(master_key(b""), len(data)) + data
            connection.send_adds([frame], len(frame))
        while acks.stored < len(entries):
            acks.came.clear()
            await asyncio.wait_for(acks.came.wait(), 60)
    closed = replace(made, state=LedgerState.CLOSED, last_entry=4, length=25)
    await ledgers.records.write(closed, version)
    return closed
