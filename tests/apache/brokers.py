"""Octavo's brokers, ledger client and commands on Apache's bookies, without a bookie of ours."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from octavo.ledger.client import LedgerClient
from octavo.ledger.quorum import quorum_of
from octavo.ledger.rereplication.copying import Copying
from octavo.metadata.ledgers import LedgerMetadata, LedgerState
from octavo.protocol.codes import OctavoError
from octavo.standalone.ports import free_port
from tests.apache.grounds import (
    Ask,
    Grounds,
    OurBroker,
    Users,
    auto_recovery,
    eventually,
    metadata_of,
)
from tests.apache.jobs import JOBS
from tests.apache.matrix import Matrix
from tests.interop.processes import OCTAVO, store_at
from tests.interop.talk import Checks

BROKERS = "Octavo's brokers"
LEDGERS = "Octavo's ledger client"
COMMANDS = "octavo …"
MODE = "three of Apache's bookies"
QUICK = "gcWaitTime=2000\nminorCompactionInterval=0\nmajorCompactionInterval=0\n"
"""By default Apache's bookies collect deleted ledgers every quarter of an hour."""
MISSED = (
    "the record names a bookie that returned, Apache's fetch nothing, and their AutoRecovery, when "
    "it looks at all ledgers (weekly), wants a spare bookie to copy to"
)
GONE_S = 400
COMMAND_S = 120
JOBS_S = 900
ROOT = Path(__file__).resolve().parents[2]
ALONE = "each of Octavo's bookies fetches what it lacks itself; Apache's need their AutoRecovery"


def brokers(matrix: Matrix, ask: Ask) -> None:
    with ask.grounds() as grounds:
        for _ in range(3):
            grounds.add_apache(QUICK)
        asyncio.run(_rows(matrix, grounds))


async def _rows(matrix: Matrix, grounds: Grounds) -> None:
    served = [OurBroker(grounds, f"broker-{number}") for number in (1, 2)]
    for broker in served:
        await asyncio.to_thread(broker.start)
    urls = [broker.url for broker in served]
    with matrix.row(
        BROKERS, MODE, "publish alone, in batches, as NDJSON; shared and exclusive subscriptions"
    ) as checks:
        async with used(checks, Users(urls, "quiet")) as users:
            await users.more(600)
    # Before any bookie is killed: audit and scrub rightly find what it missed then.
    what = "pipeline audit, verify, scrub, compact, offload (Spark)"
    with matrix.row(COMMANDS, MODE, what) as checks:
        await asyncio.to_thread(jobs, checks, grounds, urls[0])
    async with store_at(grounds.zookeeper.port) as store:
        client = LedgerClient(store, rng=random.Random(5))
        await client.start()
        try:
            with matrix.row(LEDGERS, MODE, "fence and recover a ledger; its writer ends") as checks:
                await fencing(checks, client)
            with matrix.row(BROKERS, MODE, "retention: Apache's delete trimmed ledgers") as checks:
                await retention(checks, client, urls)
            await losing(matrix, grounds, client, urls)
            await killing(matrix, grounds, served)
            what = "what a bookie missed while it was down comes back"
            with matrix.row(BROKERS, MODE, what, fails_because=MISSED) as checks:
                checks.equal("copies that are missing", [one async for one in _lacking(client)], [])
        finally:
            await client.close()
    with matrix.row(COMMANDS, MODE, "bookies, topic, ledger: list, show, read, recover") as checks:
        await asyncio.to_thread(commands, checks, grounds, urls[0])
    with matrix.row(COMMANDS, MODE, "what is of Octavo's bookies alone says so") as checks:
        await asyncio.to_thread(refusals, checks, grounds)


@contextlib.asynccontextmanager
async def used(checks: Checks, users: Users) -> AsyncIterator[Users]:
    """Keep it under load within the block; then check that all acked messages are there, in
    order."""
    await users.start()
    try:
        yield users
        wrong = await users.finish()
    finally:
        await users.stop()
    acked, alone = users.record.acked, users.singles.acked
    checks.equal(
        f"all {acked:,} acked messages ({alone:,} sent alone) are read, in order, and consumed",
        wrong,
        [],
    )


async def killing(matrix: Matrix, grounds: Grounds, served: list[OurBroker]) -> None:
    urls = [broker.url for broker in served]
    with matrix.row(BROKERS, MODE, "each broker killed (−9) under load, and back") as checks:
        async with used(checks, Users(urls, "takeover")) as users:
            for broker in served:
                await users.more()
                broker.kill()
                await users.more()
                await asyncio.to_thread(broker.start)
            await users.more()
    with matrix.row(BROKERS, MODE, "a bookie killed (−9) under load, and back, twice") as checks:
        async with used(checks, Users(urls, "nospare")) as users:
            for bookie in grounds.bookies[1:3]:
                await users.more()
                bookie.kill()
                await users.more()
                await asyncio.to_thread(bookie.start)
                await users.more()
        checks.equal("no message sent once got an error", users.singles.failed, [])


async def losing(matrix: Matrix, grounds: Grounds, client: LedgerClient, urls: list[str]) -> None:
    """A bookie that does not come back: writers replace it, and its copies are made again."""
    lost = grounds.bookies[0]
    with matrix.row(BROKERS, MODE, "a bookie killed (−9) under load, a spare one there") as checks:
        spare = await asyncio.to_thread(grounds.add_apache, QUICK)
        async with used(checks, Users(urls, "spare")) as users:
            await users.more()
            lost.kill()
            await users.more(600)
        checks.equal("no message sent once got an error", users.singles.failed, [])
        taken = [one for one in await _records(client) if spare.bookie_id in _names(one)]
        checks.holds("ledgers go on on the spare one", bool(taken))
    with matrix.row(
        BROKERS, MODE, "lost copies come back by Octavo", fails_because=ALONE
    ) as checks:
        naming = [one.ledger_id for one in await _records(client) if lost.bookie_id in _names(one)]
        checks.equal("ledgers that name the lost bookie", naming, [])
    with matrix.row(BROKERS, MODE, "lost copies come back by Apache's AutoRecovery") as checks:
        recovering = await asyncio.to_thread(auto_recovery, grounds)
        forget = ("bookie", "forget", lost.bookie_id, "--metadata", metadata_of(grounds))

        async def forgotten() -> bool:
            return (await asyncio.to_thread(run, *forget)).returncode == 0

        try:
            await eventually(forgotten, GONE_S)
        finally:
            recovering.kill()
        lacking = [one async for one in _lacking(client)]
        checks.equal("copies that their bookies do not have", lacking, [])


async def _records(client: LedgerClient) -> list[LedgerMetadata]:
    return [await client.metadata(ledger_id) for ledger_id in await client.list()]


def _names(metadata: LedgerMetadata) -> set[str]:
    return {bookie for fragment in metadata.fragments for bookie in fragment.bookies}


async def _lacking(client: LedgerClient) -> AsyncIterator[str]:
    for metadata in await _records(client):
        if metadata.state is not LedgerState.CLOSED or metadata.last_entry < 0:
            continue
        assert quorum_of(metadata).everywhere
        starts = [*(one.first_entry for one in metadata.fragments[1:]), metadata.last_entry + 1]
        for fragment, end in zip(metadata.fragments, starts, strict=True):
            wanted = (fragment.first_entry, end - 1)
            for bookie in fragment.bookies if wanted[0] <= wanted[1] else ():
                held = await Copying(client, metadata, bookie).sound(wanted)
                if held != [wanted]:
                    yield f"ledger {metadata.ledger_id} on {bookie}: {held} of {wanted}"


async def fencing(checks: Checks, client: LedgerClient) -> None:
    writer = await client.create()
    await asyncio.gather(*(writer.append(b"%d" % number) for number in range(200)))
    closed = await client.recover(writer.ledger_id)
    checks.equal("it is closed where it ended", closed.last_entry, 199)
    refused = []
    for _ in range(2):
        try:
            await writer.append(b"late")
            refused.append("none")
        except OctavoError as error:
            refused.append(error.name)
    checks.equal("its old writer gets no ack", refused, ["outcome-unknown", "ledger-fenced"])
    reader = await client.open(writer.ledger_id)
    found = [bytes(entry.payload) for entry in await reader.read(0, 199)]
    checks.equal("and all is read", found, [b"%d" % number for number in range(200)])


async def retention(checks: Checks, client: LedgerClient, urls: list[str]) -> None:
    users = Users(urls, "trimmed")
    await users.client.create_topic("trimmed", retention={"size": 20_000}, rollover={"entries": 20})
    producer = await users.client.producer("trimmed", batch_bytes=1_000, linger_ms=1)
    before: dict[int, LedgerMetadata] = {}
    for number in range(600):
        await (await producer.send(f"{number:0200}"))
        if number % 100 == 0:
            before |= {one.ledger_id: one for one in await _records(client)}
    await producer.close()
    await users.client.close()
    gone: set[int] = set()

    async def trimmed() -> bool:
        gone.update(before.keys() - set(await client.list()))
        return len(gone) >= 3

    await eventually(trimmed, GONE_S)
    checks.holds(f"{len(gone)} its ledgers were deleted", True)
    for one in sorted(gone)[:3]:
        for bookie in before[one].fragments[0].bookies:
            await eventually(partial(_denied, client, before[one], bookie), GONE_S)
    checks.holds("and their bookies deny their entries", True)


async def _denied(client: LedgerClient, metadata: LedgerMetadata, bookie: str) -> bool:
    try:
        await Copying(client, metadata, bookie).copy_at(bookie, 0)
    except OctavoError as error:
        if error.name in ("no-such-entry", "no-such-ledger"):
            return True
        raise
    return False


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(
        [str(OCTAVO), *words],
        capture_output=True,
        text=True,
        timeout=COMMAND_S,
        env=environment,
    )


def commands(checks: Checks, grounds: Grounds, url: str) -> None:
    at = ("--metadata", metadata_of(grounds))
    listed = json.loads(run("bookies", *at, "--json").stdout)
    up = {one["kind"] for one in listed if one["state"] == "writable"}
    checks.equal("bookies tells whose they are", up, {"apache"})
    run("topic", "create", "idle", "--url", url)
    for number in range(5):
        run("publish", "idle", f"message {number}", "--url", url)
    read = run("consume", "idle", "--limit", "5", "--url", url)
    checks.contains("publish and consume", read.stdout, *(f"message {n}" for n in range(5)))
    described = run("topic", "describe", "idle", "--url", url)
    checks.contains("topic describe", described.stdout, "idle")
    ledgers = json.loads(run("ledger", "list", *at, "--json").stdout)
    mine = [
        one["ledger_id"]
        for one in ledgers
        if one["custom"].get("octavo.partition") == "public/idle/0"
    ]
    newest = str(max(mine, default=-1))
    read = run("ledger", "read", newest, *at)
    checks.contains("ledger read, to the last entry", read.stdout + read.stderr, "5 entries")
    checks.contains("ledger show", run("ledger", "show", newest, *at).stdout, "OPEN")
    closed = run("ledger", "recover", newest, "--force", *at)
    checks.contains("ledger recover", closed.stderr + closed.stdout, "CLOSED, last entry 4")


def refusals(checks: Checks, grounds: Grounds) -> None:
    """Each is refused aloud, without a stack trace, and without "no damage"."""
    bookie = grounds.bookies[1]
    for words in ("sizes", "gc", "damage", "scrub", "copies"):
        done = run("bookie", words, "--url", f"http://{bookie.bookie_id}")
        checks.contains(f"bookie {words}", done.stderr, "A bookie of Apache's has none")
    folder = str(bookie.folder)
    for group, word in (("bookie", "check"), ("inspect", "cookie"), ("inspect", "entrylog")):
        done = run(group, word, folder)
        checks.contains(f"{group} {word}", done.stderr, "one of Apache's", "bookkeeper shell")
    at = ["--metadata", metadata_of(grounds), "--bookie-id", bookie.bookie_id]
    at += ["--port", str(free_port())]
    done = run("bookie", *at, "--data", str(grounds.folder / "squatter"))
    checks.contains(
        "a bookie of ours under its id", done.stderr, "belongs to an Apache BookKeeper bookie"
    )
    places = ("--journal", f"{folder}/journal", "--ledgers", f"{folder}/ledgers")
    done = run("bookie", *at, *places, "--accept-loss")
    checks.contains("and on its folders", done.stderr, "belongs to an Apache BookKeeper bookie")


def jobs(checks: Checks, grounds: Grounds, url: str) -> None:
    folder = str(grounds.folder / "offloaded")
    command = [sys.executable, "-m", "tests.apache.jobs", url, folder]
    done = subprocess.run(command, capture_output=True, text=True, timeout=JOBS_S, cwd=ROOT)
    for words in JOBS:
        said = f"JOB {' '.join(words)}: 0"
        checks.holds(said, said in done.stdout, done.stdout[-3000:] + done.stderr[-1000:])
