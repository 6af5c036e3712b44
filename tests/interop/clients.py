"""Apache's own client against both bookies at once, and our reading of its ledgers."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import subprocess
from pathlib import Path

from octavo.metadata.ledgers import LedgerState
from octavo.metadata.store import MetadataStore
from octavo.protocol.answers import AddRefused, ReadAnswer
from octavo.protocol.codes import Code
from octavo.protocol.entry import DigestType, digest_for, master_key, pack_entry, unpack_entry
from octavo.protocol.frames import add_prefix, read_request
from tests.interop.apache import Java, Peer
from tests.interop.checks import Checks
from tests.interop.ours import OurBookie
from tests.interop.phrases import FENCE, RECOVERY
from tests.interop.shared_records import ledger_by_us
from tests.interop.talk import Talk, told

SOURCE = Path(__file__).with_name("InteropClient.java")
ENTRIES = 200
PASSWORD = b"secret"
APACHE_NAME = {DigestType.HMAC: "MAC"}


class JavaClient:
    def __init__(self, java: Java, zookeeper_port: int) -> None:
        self._java = java
        self._uri = f"zk+hierarchical://127.0.0.1:{zookeeper_port}/ledgers"
        self._classes = java.folder / "classes"

    def compile(self) -> None:
        self._java.compile(SOURCE, self._classes)

    async def run(self, *words: object) -> dict[str, str]:
        command = self._java.command(
            "InteropClient", self._uri, *map(str, words), classes=self._classes
        )
        done = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=120
        )
        results = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        assert len(results) == 1, f"{words}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
        return dict(part.split("=", 1) for part in results[0].split()[1:])


def payload_of(entry: int) -> bytes:
    return b"entry %d " % entry * 10


CONTENT = [payload_of(entry) for entry in range(ENTRIES)]
SHA256 = hashlib.sha256(b"".join(CONTENT)).hexdigest()
LENGTH = sum(map(len, CONTENT))


async def apaches_client(
    checks: Checks, peer: Peer, store: MetadataStore, node: OurBookie, java: JavaClient
) -> None:
    """Apache's client writes, leaves open and recovers a ledger on one bookie of each kind."""
    for wire, digest_type in itertools.product(("v2", "v3"), (DigestType.CRC32C, DigestType.HMAC)):
        kind = APACHE_NAME.get(digest_type, digest_type.name)
        for end in ("close", "leave"):
            checks.title(f"Apache's client, {wire}, {kind}, E = Qw = Qa = 2 on both bookies, {end}")
            made = await java.run(wire, "write", 2, 2, 2, kind, PASSWORD.decode(), ENTRIES, end)
            checks.equal("it wrote all entries", (made["last"], made["length"]), _ends(ENTRIES - 1))
            ledger = int(made["ledger"])
            await both_replicas(checks, (peer.bookie.port, node.port), ledger, digest_type)
            if end == "leave":
                await _recovered(checks, java, store, wire, ledger, kind)
                await _old_writer(checks, (peer.bookie.port, node.port), ledger, digest_type)
            metadata = await ledger_by_us(checks, store, ledger)
            checks.equal(
                "our reading of it",
                (metadata.state, metadata.last_entry, metadata.length, metadata.digest_type),
                (LedgerState.CLOSED, ENTRIES - 1, LENGTH, digest_type),
            )
            checks.equal("and of its map", dict(metadata.custom), {"maker": b"apache"})
            read = await java.run(wire, "read", ledger, kind, PASSWORD.decode(), "plain")
            checks.equal("it reads every entry back", read["sha256"], SHA256)


def _ends(last: int) -> tuple[str, str]:
    return str(last), str(LENGTH)


async def both_replicas(
    checks: Checks, ports: tuple[int, int], ledger: int, digest_type: DigestType
) -> None:
    digest = digest_for(digest_type, PASSWORD)
    found: list[list[bytes]] = []
    for port in ports:
        async with await Talk.with_bookie(port) as talk:
            asked = [read_request(ledger, entry) for entry in range(ENTRIES)]
            answers = [one for one in await talk.ask(*asked) if isinstance(one, ReadAnswer)]
            found.append([one.entry for one in sorted(answers, key=lambda one: one.entry_id)])
    checks.equal("both bookies hold the same bytes", found[0], found[1])
    opened = [unpack_entry(digest, ledger, number, entry) for number, entry in enumerate(found[1])]
    checks.equal("which hold what was written", [bytes(one.payload) for one in opened], CONTENT)


async def _recovered(
    checks: Checks, java: JavaClient, store: MetadataStore, wire: str, ledger: int, kind: str
) -> None:
    metadata = await ledger_by_us(checks, store, ledger)
    checks.equal("the ledger of a dead writer is open", metadata.state, LedgerState.OPEN)
    read = await java.run(wire, "read", ledger, kind, PASSWORD.decode(), "recover")
    checks.equal(
        "its recovery over both bookies ends where the writer ended",
        (read["last"], read["length"], read["closed"], read["sha256"]),
        (*_ends(ENTRIES - 1), "true", SHA256),
    )


async def _old_writer(
    checks: Checks, ports: tuple[int, int], ledger: int, digest_type: DigestType
) -> None:
    digest = digest_for(digest_type, PASSWORD)
    key = master_key(PASSWORD)
    entry = pack_entry(digest, ledger, ENTRIES, ENTRIES - 1, LENGTH + 4, b"late")
    for port in ports:
        async with await Talk.with_bookie(port) as talk:
            answers = await talk.ask(add_prefix(key, len(entry)) + entry)
            checks.equal(
                f"the bookie on {port} refuses the fenced writer",
                answers,
                [AddRefused(Code.FENCED, ledger, ENTRIES)],
            )
            first = pack_entry(digest, ledger, 0, -1, len(CONTENT[0]), CONTENT[0])
            answers = await talk.ask(
                add_prefix(key, len(first), RECOVERY) + first,
                read_request(ledger, 0, FENCE, key),
            )
            checks.holds(
                "and lets recovery pass",
                all("OK" in told(one) or "added" in told(one) for one in answers),
                [told(one) for one in answers],
            )
