"""Whether ledgers are whole: each entry on each bookie that is to hold it, as it was written."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from octavo.ledger.quorum import quorum_of
from octavo.ledger.rereplication.copies import names, stretches
from octavo.metadata.ledgers import LedgerMetadata, LedgerState, LedgerStore
from octavo.metadata.store import MetadataStore, RecordNotFound
from octavo.protocol.answers import ReadAnswer
from octavo.protocol.codes import Code
from octavo.protocol.entry import digest_for, unpack_entry
from octavo.protocol.frames import read_request
from tests.apache.grounds import Grounds
from tests.interop.clients import payload_of
from tests.interop.talk import Talk

SOURCE = Path(__file__).with_name("ManyLedgers.java")
PASSWORD = b"secret"
WRITE_S = 180


@dataclass(frozen=True, slots=True)
class Kind:
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    entries: int = 40
    digest: str = "CRC32C"
    is_open: bool = False

    def __str__(self) -> str:
        sizes = f"{self.ensemble_size}/{self.write_quorum}/{self.ack_quorum}/{self.entries}"
        return f"{sizes}/{self.digest}/{'open' if self.is_open else 'close'}"


def write_ledgers(grounds: Grounds, wire: str, kinds: Sequence[Kind]) -> dict[int, Kind]:
    """Let Apache's client write one ledger of each of `kinds`, and die."""
    classes = grounds.folder / "classes"
    if not classes.exists():
        grounds.java.compile(SOURCE, classes)
    uri = f"zk+hierarchical://127.0.0.1:{grounds.zookeeper.port}/ledgers"
    words = (uri, wire, PASSWORD.decode(), *map(str, kinds))
    command = grounds.java.command("ManyLedgers", *words, classes=classes)
    done = subprocess.run(command, capture_output=True, text=True, timeout=WRITE_S)
    found = [int(line.split()[1]) for line in done.stdout.splitlines() if line[:7] == "LEDGER "]
    assert len(found) == len(kinds), f"not all were written:\n{(done.stdout + done.stderr)[-3000:]}"
    return dict(zip(found, kinds, strict=True))


async def ledgers_naming(store: MetadataStore, bookie_id: str) -> list[int]:
    ledgers = LedgerStore(store)
    found = []
    for ledger_id in await ledgers.list():
        metadata, _ = await ledgers.read(ledger_id)
        if bookie_id in names(metadata):
            found.append(ledger_id)
    return found


async def marked(store: MetadataStore) -> list[str]:
    async def below(path: str) -> list[str]:
        children = await store.children(path)
        found = [name for name in children if name.startswith("urL")]
        for name in set(children) - set(found):
            found += await below(f"{path}/{name}")
        return found

    return await below("/ledgers/underreplication/ledgers")


async def flaws(
    store: MetadataStore, written: Mapping[int, Kind], live: Collection[str]
) -> list[str]:
    """Return the faults of these ledgers; empty when all are whole: closed at the last entry, on
    `live` bookies only, no fragment the same bookie twice, every entry served by each bookie as
    it was written."""
    found: list[str] = []
    for ledger_id, kind in written.items():
        try:
            metadata, _ = await LedgerStore(store).read(ledger_id)
        except RecordNotFound:
            found.append(f"ledger {ledger_id} ({kind}): its record is gone")
            continue
        wrong = _wrong_record(metadata, kind.entries - 1, live) or await _wrong_copies(metadata)
        found += [f"ledger {ledger_id} ({kind}): {what}" for what in wrong]
    return found


def _wrong_record(metadata: LedgerMetadata, last: int, live: Collection[str]) -> list[str]:
    found = []
    if (metadata.state, metadata.last_entry) != (LedgerState.CLOSED, last):
        found.append(f"{metadata.state.name} at {metadata.last_entry}, not closed at {last}")
    if gone := names(metadata) - set(live):
        found.append(f"it names {', '.join(sorted(gone))}")
    twice = [one for one in metadata.fragments if len(set(one.bookies)) < len(one.bookies)]
    return [*found, *(f"a bookie stands twice in {one}" for one in twice)]


async def _wrong_copies(metadata: LedgerMetadata) -> list[str]:
    quorum = quorum_of(metadata)
    wanted: dict[str, list[int]] = {}
    for stretch in stretches(metadata):
        for entry_id in range(stretch.first, stretch.last + 1):
            for position in quorum.write_set(entry_id):
                wanted.setdefault(stretch.fragment.bookies[position], []).append(entry_id)
    lists = await asyncio.gather(*(_unread(metadata, *one) for one in wanted.items()))
    return [what for found in lists for what in found]


async def _unread(metadata: LedgerMetadata, bookie: str, entry_ids: list[int]) -> list[str]:
    ledger_id = metadata.ledger_id
    digest = digest_for(metadata.digest_type, metadata.password)
    async with await Talk.with_bookie(int(bookie.rpartition(":")[2])) as talk:
        answers = await talk.ask(*(read_request(ledger_id, one) for one in entry_ids))
    found = []
    read = set()
    for answer in answers:
        assert isinstance(answer, ReadAnswer), answer
        if answer.code != Code.OK:
            found.append(f"entry {answer.entry_id} on {bookie}: code {answer.code}")
            continue
        entry = unpack_entry(digest, ledger_id, answer.entry_id, answer.entry)
        if bytes(entry.payload) != payload_of(answer.entry_id):
            found.append(f"entry {answer.entry_id} on {bookie} is another one")
        read.add(answer.entry_id)
    if not found and read != set(entry_ids):
        found.append(f"{bookie} does not answer for {sorted(set(entry_ids) - read)}")
    return found
