"""Compares a cluster's final content with its users' records."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from octavo import AsyncClient
from octavo.bookie.config import BookieConfig
from octavo.bookie.disk.files import RealDisk
from octavo.bookie.storage import Storage
from octavo.ledger.quorum import Quorum
from octavo.metadata.ledgers import LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.opening import open_store
from octavo.process.spec import read_spec
from octavo.protocol.entry import digest_for, unpack_entry
from tests.support.kit.checkers import check_topics
from tests.support.processes.users import TOPIC, Place, Record


async def stored(
    urls: list[str], partitions: int, topic: str = TOPIC
) -> dict[Place, tuple[str, str]]:
    async with AsyncClient(urls) as client:
        return {
            (partition, message.offset): (message.text(), (message.key or b"").decode())
            for partition in range(partitions)
            async for message in client.messages(topic, partition=partition)
        }


def texts(found: dict[Place, tuple[str, str]]) -> list[tuple[Place, str]]:
    return [(place, found[place][0]) for place in sorted(found)]


def problems(record: Record, found: dict[Place, tuple[str, str]]) -> list[str]:
    return [
        *(f"call failed: {text}" for text in record.failed),
        *(
            f"{place} holds {text!r} under key {key!r}, which nobody sent"
            for place, (text, key) in found.items()
            if record.keys.get(text) != key
        ),
        *map(str, check_topics(record.history, order="key", dense=True)),
    ]


def errors_in_logs(folder: Path) -> list[str]:
    return [
        f"{path.name}: {line}"
        for path in sorted((folder / "logs").glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if not line.startswith("{") or "Traceback" in line
    ]


def last_warnings(folder: Path, count: int = 60) -> list[str]:
    lines = [
        (found.get("ts", ""), f"{path.stem}: {line}")
        for path in (folder / "logs").glob("*.jsonl")
        for line in path.read_text().splitlines()
        if line.startswith("{") and line.endswith("}")
        if (found := json.loads(line)).get("level") != "info"
    ]
    return [text for _, text in sorted(lines)[-count:]]


Copies = dict[int, dict[str, bytes]]


async def ledger_problems(folder: Path, metadata_url: str) -> list[str]:
    """Return every contradiction between the disks and the ledgers' records, after the
    cluster's end: each bookie's folders are opened here, one after another."""
    ledgers = await _records(metadata_url)
    copies: dict[int, Copies] = {ledger_id: defaultdict(dict) for ledger_id in ledgers}
    for spec_path in sorted((folder / "conf").glob("bookie-*.json")):
        spec = read_spec(spec_path)
        storage = await Storage.open(spec.config(BookieConfig, "bookie"), disk=RealDisk())
        try:
            for ledger_id in set(ledgers) & set(storage.ledgers()):
                await _collect(storage, ledgers[ledger_id], spec.name, copies[ledger_id])
        finally:
            await storage.close()
    return [
        problem
        for ledger_id, metadata in ledgers.items()
        for problem in replica_problems(metadata, copies[ledger_id])
    ]


async def _records(metadata_url: str) -> dict[int, LedgerMetadata]:
    store = open_store(metadata_url)
    await store.start()
    try:
        ledgers = LedgerStore(store)
        return {number: (await ledgers.read(number))[0] for number in await ledgers.list()}
    finally:
        await store.close()


async def _collect(storage: Storage, metadata: LedgerMetadata, name: str, into: Copies) -> None:
    digest = digest_for(metadata.digest_type, metadata.password)
    ledger_id = metadata.ledger_id
    for first, last in await storage.reads.entries(ledger_id):
        at = first
        while at <= last:
            for data in await storage.reads.read_many(ledger_id, at, last + 1 - at, 1 << 20):
                entry = unpack_entry(digest, ledger_id, at, data)
                into[at][name] = bytes(entry.payload)
                at += 1


def replica_problems(metadata: LedgerMetadata, copies: Copies) -> Iterator[str]:
    """Check a closed ledger: each entry is on at least Qa of its write set, and the same
    everywhere."""
    if metadata.state is not LedgerState.CLOSED:
        return
    quorum = Quorum(metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum)
    for entry_id in range(metadata.last_entry + 1):
        bookies = metadata.fragment_of(entry_id).bookies
        write_set = [bookies[position] for position in quorum.write_set(entry_id)]
        held = {name: copies[entry_id][name] for name in write_set if name in copies[entry_id]}
        shown = f"ledger {metadata.ledger_id} entry {entry_id} of {metadata.last_entry}"
        if len(held) < metadata.ack_quorum:
            yield f"{shown}: only {sorted(held)} of {write_set} hold it"
        if len(set(held.values())) > 1:
            lengths = Counter(map(len, held.values()))
            yield f"{shown}: its copies differ: {sorted(held)}, lengths {dict(lengths)}"
