"""The job `scrub`: read every copy of every entry, or of a sample; check and compare them.

It reports what normal reads silently work around. An entry without any good copy is lost, unless a
bookie gave no answer. Open ledgers are read up to their last ensemble change. Changes nothing.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from crc32c import crc32c

from octavo.ledger.bookies.bookies import settle
from octavo.ledger.bookies.connection import BookieConnection
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.quorum import quorum_of
from octavo.ledger.read.entry_verifier import EntryVerifier, verifier_for
from octavo.metadata.ledgers import LedgerMetadata
from octavo.pipeline.outcome import Outcome
from octavo.pipeline.runner import BadUsage, Run
from octavo.pipeline.runs import runs_in, words
from octavo.pipeline.spread import Findings, Found, Part, current, parts_of, spread
from octavo.protocol.codes import DigestMismatch, NoSuchEntry, NoSuchLedger, OctavoError
from octavo.spark.cluster import Cluster, connected

PART_ENTRIES = 50_000
_BLOCK_ENTRIES = 256
_BLOCK_BYTES = 2**20

Copy = bytes | str
"""A bookie's copy of an entry: a hash of its payload, or `DAMAGED`, `ABSENT` or `UNKNOWN`."""
DAMAGED, ABSENT, UNKNOWN = "copy-damaged", "copy-missing", "copy-unknown"


@dataclass(frozen=True)
class ScrubOptions:
    """`ledgers` empty: all. `sample`: the share of entries to read, chosen by their ids and
    `seed`.
    """

    ledgers: tuple[int, ...] = ()
    sample: float = 1.0
    seed: int = 0
    bytes_per_s: int | None = None


def scrub(run: Run, options: ScrubOptions) -> Outcome:
    if not 0 < options.sample <= 1:
        raise BadUsage(f"--sample {options.sample}: give a share above 0 and at most 1")
    outcome = Outcome("scrub")
    ledgers = asyncio.run(_ledgers(run.service, options.ledgers))
    parts = parts_of(ledgers, entries_max=PART_ENTRIES)
    entries = sum(part.last - part.first + 1 for part in parts)
    run.say(f"{len(ledgers):,} ledgers with {entries:,} confirmed entries")
    slots = run.spark.sparkContext.defaultParallelism
    rate = None if options.bytes_per_s is None else options.bytes_per_s / slots
    work = functools.partial(_work, run.service, options, rate)
    figures = spread(run, outcome, parts, work)
    outcome.summary = {
        "ledgers": len(ledgers),
        "entries": entries,
        "entries_read": figures.get("entries", 0),
        "copies_read": figures.get("copies", 0),
        "bytes_read": figures.get("bytes", 0),
        "sample": options.sample,
    }
    return outcome


async def _ledgers(service: str, wanted: tuple[int, ...]) -> list[LedgerMetadata]:
    async with connected(service) as cluster:
        if wanted:
            return [await cluster.ledgers.metadata(one) for one in wanted]
        return list((await cluster.ledgers.standing(await cluster.ledgers.list())).values())


def chosen(ledger_id: int, entry_id: int, options: ScrubOptions) -> bool:
    """Return whether the entry is in the sample: the same answer for every bookie."""
    if options.sample >= 1:
        return True
    mark = crc32c(b"%d %d %d" % (options.seed, ledger_id, entry_id))
    return mark < options.sample * 2**32


async def _work(
    service: str, options: ScrubOptions, rate: float | None, cluster: Cluster, parts: list[Part]
) -> Found:
    findings = Findings()
    figures = {"entries": 0, "copies": 0, "bytes": 0}
    started = time.monotonic()
    for part in parts:
        standing = await cluster.ledgers.standing([part.ledger_id])
        if not standing:
            continue  # deleted since the job listed it
        metadata = standing[part.ledger_id]
        amiss = Findings()
        copies = Copies(cluster, metadata)
        for first in range(part.first, part.last + 1, _BLOCK_ENTRIES):
            block = range(first, min(first + _BLOCK_ENTRIES, part.last + 1))
            entries = [one for one in block if chosen(part.ledger_id, one, options)]
            read = await copies.read(entries)
            judge(metadata, read, amiss)
            figures["entries"] += len(entries)
            figures["copies"] += sum(len(by) for by in read.values())
            if rate is not None:
                due_s = (figures["bytes"] + copies.bytes) / rate
                await asyncio.sleep(max(0.0, due_s - (time.monotonic() - started)))
        figures["bytes"] += copies.bytes
        if amiss.counts:
            now = await current(service, part.ledger_id)
            if now is None or now.fragments != metadata.fragments:
                continue  # deleted or moved meanwhile: the next scrub reads the new copies
            findings.take(amiss)
    return Found(findings.kept, findings.counts, figures)


class Copies:
    def __init__(self, cluster: Cluster, metadata: LedgerMetadata) -> None:
        self._ledgers = cluster.ledgers
        self._metadata = metadata
        self._verified: EntryVerifier = verifier_for(metadata)
        self._quorum = quorum_of(metadata)
        self.bytes = 0

    async def read(self, entries: list[int]) -> dict[int, dict[str, Copy]]:
        wanted: dict[str, list[int]] = {}
        for entry_id in entries:
            bookies = self._metadata.fragment_of(entry_id).bookies
            for position in self._quorum.write_set(entry_id):
                wanted.setdefault(bookies[position], []).append(entry_id)
        found: dict[int, dict[str, Copy]] = {entry_id: {} for entry_id in entries}
        answers = await asyncio.gather(*(self._of(*one) for one in wanted.items()))
        for bookie, by_entry in zip(wanted, answers, strict=True):
            for entry_id, copy in by_entry.items():
                found[entry_id][bookie] = copy
        return found

    async def _of(self, bookie: str, entries: list[int]) -> dict[int, Copy]:
        found: dict[int, Copy] = {}
        for first, last in runs_in(entries):
            at = first
            while at <= last:
                for entry_id, copy in await self._some(bookie, at, last):
                    found[entry_id] = copy
                    at = entry_id + 1
        return found

    async def _some(self, bookie: str, first: int, last: int) -> list[tuple[int, Copy]]:
        """Read from `first` on. Returns at least one entry: some of a batch, or a failed read."""
        if last > first:
            try:
                whole = await self._batch(bookie, first, last)
                if whole:
                    return [(first + n, self._judged(first + n, d)) for n, d in enumerate(whole)]
            except OctavoError:
                pass  # the single read below tells why
        try:
            return [(first, self._judged(first, await self._single(bookie, first)))]
        except (NoSuchEntry, NoSuchLedger):
            return [(first, ABSENT)]
        except BookieUnavailable:
            return [(one, UNKNOWN) for one in range(first, last + 1)]
        except OctavoError:
            return [(first, UNKNOWN)]

    def _judged(self, entry_id: int, data: bytes) -> Copy:
        self.bytes += len(data)
        try:
            entry = self._verified(entry_id, data)
        except DigestMismatch:
            return DAMAGED
        # Compare without the header's last confirmed entry: recovery writes copies with its own.
        front = entry.length.to_bytes(8, "big", signed=True)
        return blake2b(front + bytes(entry.payload), digest_size=16).digest()

    async def _batch(self, bookie: str, first: int, last: int) -> list[bytes]:
        count = last - first + 1
        ledger_id = self._metadata.ledger_id
        return list(
            await self._asked(
                bookie,
                lambda on, done: on.batch_read(ledger_id, first, count, _BLOCK_BYTES, done),
            )
        )[:count]

    async def _single(self, bookie: str, entry_id: int) -> bytes:
        ledger_id = self._metadata.ledger_id
        return bytes(await self._asked(bookie, lambda on, done: on.read(ledger_id, entry_id, done)))

    async def _asked(
        self, bookie: str, ask: Callable[[BookieConnection, Callable[..., None]], None]
    ) -> Any:
        connection = await self._ledgers.bookies.get(bookie).connected()
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        ask(connection, settle(answer))
        return await answer


_WORDS = {
    DAMAGED: "a copy whose digest is wrong",
    ABSENT: "no copy, by its own answer",
    UNKNOWN: "no answer",
}


def judge(metadata: LedgerMetadata, read: dict[int, dict[str, Copy]], findings: Findings) -> None:
    where = f"ledger {metadata.ledger_id}"
    amiss: dict[tuple[str, str], list[int]] = {}
    for entry_id, copies in sorted(read.items()):
        good = {copy for copy in copies.values() if isinstance(copy, bytes)}
        for bookie, copy in sorted(copies.items()):
            if isinstance(copy, str):
                what = f"bookie {bookie} has {_WORDS[copy]}"
                amiss.setdefault((copy, what), []).append(entry_id)
        if len(good) > 1:
            amiss.setdefault(("copies-differ", "whole copies that differ"), []).append(entry_id)
        if not good and UNKNOWN not in copies.values():
            amiss.setdefault(("entry-lost", "no bookie has a good copy"), []).append(entry_id)
    for (kind, what), entries in amiss.items():
        findings.add(kind, where, f"{what}: {words(runs_in(entries))}", len(entries))
