"""The job `audit`: compare the metadata with what every bookie holds.

- A bookie should have an entry and denies it: a copy is missing.
- Every bookie of an entry's write set denies it: the entry is lost.
- A bookie that does not answer, or lost its disk: its copies are unknown, never missing.

An open ledger is checked up to its last ensemble change. The job changes nothing; with `repair`,
bookies fetch their missing copies now.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from octavo.broker.log.orphan_ledgers import label_of
from octavo.ledger.quorum import quorum_of
from octavo.ledger.rereplication.copies import missing, names
from octavo.ledger.rereplication.copying import Copying
from octavo.metadata.bookies import BookieRegistry
from octavo.metadata.compactions import RUN_KEY, compacted_ledgers
from octavo.metadata.ledgers import LedgerMetadata
from octavo.metadata.offloads import is_only_copy
from octavo.pipeline.outcome import Finding, Outcome
from octavo.pipeline.runner import Run
from octavo.pipeline.runs import Run as Entries
from octavo.pipeline.runs import count_of, has, numbers_in, runs_in, without, words
from octavo.pipeline.spread import Findings, Found, Part, current, parts_of, spread
from octavo.protocol.codes import NoSuchEntry, NoSuchLedger, OctavoError
from octavo.protocol.extension import Op
from octavo.spark.cluster import Cluster, connected
from octavo.spark.options import Selection

_PART_ENTRIES = 2**62
_PAUSE_S = 2.0
_YOUNG_MS = 10 * 60_000
"""A ledger is created before its partition's record names it: an unnamed young one is normal."""


@dataclass
class Held:
    """None: unknown, for the reason in `why`."""

    runs: dict[str, list[Entries] | None]
    why: dict[str, str]


def audit(run: Run, *, repair: bool = False) -> Outcome:
    outcome = Outcome("audit")
    seen = asyncio.run(_look(run.service, int(time.time() * 1000)))
    if seen.findings:
        # Trimming changes two records, one after the other: report only what a second look finds,
        # too.
        time.sleep(_PAUSE_S)
        again = asyncio.run(_look(run.service, int(time.time() * 1000)))
        outcome.found([one for one in seen.findings if one in again.findings])
    parts = parts_of(seen.ledgers, entries_max=_PART_ENTRIES)
    run.say(f"{len(seen.ledgers):,} ledgers on {len(seen.bookies)} bookies")
    figures = spread(run, outcome, parts, functools.partial(_work, run.service))
    outcome.summary = {
        "bookies": len(seen.bookies),
        "partitions": seen.partitions,
        "ledgers": len(seen.ledgers),
        "ledgers_open": sum(one.state.name != "CLOSED" for one in seen.ledgers),
        "entries": figures.get("entries", 0),
        "copies": figures.get("copies", 0),
    }
    if repair and outcome.findings:
        outcome.summary["bookies_told_to_repair"] = asyncio.run(_repair(run))
    return outcome


async def _repair(run: Run) -> int:
    told = 0
    async with connected(run.service) as cluster:
        for bookie in sorted(cluster.ledgers.bookies.available):
            try:
                await cluster.ledgers.request(bookie, Op.FETCH_COPIES, {})
                told += 1
            except OctavoError as error:
                run.say(f"bookie {bookie} did not accept the repair: {error}")
    return told


@dataclass
class _Seen:
    ledgers: list[LedgerMetadata]
    bookies: set[str]
    partitions: int
    findings: list[Finding]


async def _look(service: str, now_ms: int) -> _Seen:
    async with connected(service) as cluster:
        registry = BookieRegistry(cluster.store)
        bookies = {*(await registry.cookies()), *cluster.ledgers.bookies.available}
        ids = await cluster.ledgers.list()
        ledgers = await cluster.ledgers.standing(ids)
        named: dict[int, str] = {}
        runs: set[bytes] = set()
        partitions = 0
        for topic, numbers in (await cluster.partitions(Selection(pattern=".*"))).items():
            for number in numbers:
                record = await cluster.record(topic, number)
                partitions += 1
                for link in record.ledgers:
                    if not is_only_copy(link.offload):
                        named[link.ledger_id] = f"{topic}/{number}"
                if record.state_ledger is not None:
                    named[record.state_ledger] = f"{topic}/{number}"
                named.update(dict.fromkeys(compacted_ledgers(record), f"{topic}/{number}"))
                if record.compaction is not None and record.compaction.run is not None:
                    runs.add(record.compaction.run.encode())
        # Read these after the partitions: a ledger exists before it is named.
        unseen = [name for name in named if name not in ledgers]
        ledgers.update(await cluster.ledgers.standing(unseen))
        # A running compaction's ledgers are named only when it publishes: they are not orphans.
        waiting = {i for i, one in ledgers.items() if one.custom.get(RUN_KEY) in runs}
        findings = metadata_findings(ledgers, named, bookies, now_ms, waiting)
        return _Seen([ledgers[one] for one in sorted(ledgers)], bookies, partitions, findings)


def metadata_findings(
    ledgers: dict[int, LedgerMetadata],
    named: dict[int, str],
    bookies: set[str],
    now_ms: int,
    waiting: Collection[int] = (),
) -> list[Finding]:
    """Check the records against each other.

    `named`: the partition that names each ledger. `waiting`: ledgers of a running compaction.
    """
    found = [
        Finding("ledger-missing", where, f"the record names ledger {ledger_id}, which is missing")
        for ledger_id, where in sorted(named.items())
        if ledger_id not in ledgers
    ]
    for ledger_id, metadata in sorted(ledgers.items()):
        partition = metadata.custom.get("octavo.partition")
        young = now_ms - metadata.created_ms < _YOUNG_MS
        known = ledger_id in named or ledger_id in waiting
        if partition is not None and not known and not young:
            of = partition.decode(errors="replace")
            removed = label_of(metadata.custom) is not None
            who = (
                "brokers remove it, at the latest after the partition is next opened"
                if removed
                else ("no broker removes it: its metadata does not say when it was made")
            )
            what = f"made for partition {of}, whose record does not name it; {who}"
            found.append(Finding("ledger-orphaned", f"ledger {ledger_id}", what))
        gone = names(metadata) - bookies
        found += [
            Finding(
                "bookie-gone",
                f"ledger {ledger_id}",
                f"bookie {one} holds a part, but is not registered and has no cookie",
            )
            for one in sorted(gone)
        ]
    return found


async def _work(service: str, cluster: Cluster, parts: list[Part]) -> Found:
    findings = Findings()
    figures = {"entries": 0, "copies": 0}
    for part in parts:
        metadata = await cluster.ledgers.metadata(part.ledger_id)
        amiss, copies = await _ledger(cluster, metadata, part.last)
        if amiss.counts:
            now = await current(service, part.ledger_id)
            if now is None:
                continue
            if now.fragments != metadata.fragments:
                amiss, copies = await _ledger(cluster, now, part.last)
            findings.take(amiss)
        figures["entries"] += part.last - part.first + 1
        figures["copies"] += copies
    return Found(findings.kept, findings.counts, figures)


async def _ledger(cluster: Cluster, metadata: LedgerMetadata, last: int) -> tuple[Findings, int]:
    findings = Findings()
    bookies = sorted(names(metadata))
    wanted = wanted_runs(metadata, last)
    asked = (_ask(cluster, metadata, one, wanted.get(one, [])) for one in bookies)
    answers = dict(zip(bookies, await asyncio.gather(*asked), strict=True))
    held = Held(
        {name: runs for name, (runs, _) in answers.items()},
        {name: why for name, (_, why) in answers.items()},
    )
    return findings, copies_findings(metadata, last, held, findings)


async def _ask(
    cluster: Cluster, metadata: LedgerMetadata, bookie: str, wanted: list[Entries]
) -> tuple[list[Entries] | None, str]:
    try:
        if cluster.ledgers.bookies.get(bookie).is_foreign:
            copying = Copying(cluster.ledgers, metadata, bookie)
            return [part for run in wanted for part in await copying.sound(run)], ""
        answer: dict[str, Any] = await cluster.ledgers.request(
            bookie, Op.LIST_ENTRIES, {"ledger": metadata.ledger_id}
        )
        return [(first, last) for first, last in answer["runs"]], ""
    except (NoSuchLedger, NoSuchEntry):
        return [], ""
    except OctavoError as error:
        return None, str(error)


def wanted_runs(metadata: LedgerMetadata, last: int) -> dict[str, list[Entries]]:
    quorum = quorum_of(metadata)
    found: dict[str, list[Entries]] = {}
    fragments = metadata.fragments
    for at, fragment in enumerate(fragments):
        end = fragments[at + 1].first_entry - 1 if at + 1 < len(fragments) else last
        end = min(end, last)
        if end < fragment.first_entry:
            continue
        for position, bookie in enumerate(fragment.bookies):
            runs = missing(quorum, position, fragment.first_entry, end, held=[])
            found.setdefault(bookie, []).extend(runs)
    return found


def copies_findings(metadata: LedgerMetadata, last: int, held: Held, findings: Findings) -> int:
    where = f"ledger {metadata.ledger_id}"
    quorum = quorum_of(metadata)
    lacking: dict[str, list[Entries]] = {}
    copies = 0
    for bookie, wanted in sorted(wanted_runs(metadata, last).items()):
        runs = held.runs[bookie]
        if runs is None:
            what = f"bookie {bookie} could not say what it holds: {held.why[bookie]}"
            findings.add("copies-unknown", where, what, count_of(wanted))
            continue
        absent = without(wanted, runs)
        copies += count_of(wanted) - count_of(absent)
        if absent:
            lacking[bookie] = absent
            what = f"bookie {bookie} lacks {words(absent)}"
            findings.add("copy-missing", where, what, count_of(absent))
    lost = []
    for entry_id in sorted({one for runs in lacking.values() for one in numbers_in(runs)}):
        bookies = metadata.fragment_of(entry_id).bookies
        holders = [bookies[position] for position in quorum.write_set(entry_id)]
        if all(has(lacking.get(bookie, []), entry_id) for bookie in holders):
            lost.append(entry_id)
    if lost:
        what = f"no bookie of the write set has {words(runs_in(lost))}"
        findings.add("entry-lost", where, what, len(lost))
    return copies
