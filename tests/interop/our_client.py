"""Our ledger client over one bookie of each kind, and Apache's reading of its ledgers."""

from __future__ import annotations

import asyncio
import random

from octavo.ledger.client import LedgerClient
from octavo.ledger.write.writer import LedgerWriter
from octavo.metadata.ledgers import LedgerState
from octavo.metadata.store import MetadataStore
from octavo.protocol.codes import OctavoError
from octavo.protocol.entry import DigestType
from tests.interop.apache import Peer
from tests.interop.checks import Checks
from tests.interop.clients import (
    APACHE_NAME,
    CONTENT,
    ENTRIES,
    LENGTH,
    PASSWORD,
    SHA256,
    JavaClient,
    both_replicas,
)
from tests.interop.ours import OurBookie


async def our_client(
    checks: Checks, peer: Peer, store: MetadataStore, node: OurBookie, java: JavaClient
) -> None:
    client = LedgerClient(store, rng=random.Random(2))
    await client.start()
    ports = (peer.bookie.port, node.port)
    try:
        for digest_type in (DigestType.CRC32C, DigestType.HMAC):
            kind = APACHE_NAME.get(digest_type, digest_type.name)
            checks.title(f"our client, {kind}, E = Qw = Qa = 2 over both bookies")
            writer = await _written(client, digest_type)
            await both_replicas(checks, ports, writer.ledger_id, digest_type)
            closed = await writer.close()
            checks.equal("it closed", (closed.last_entry, closed.length), (ENTRIES - 1, LENGTH))
            read = await java.run("v2", "read", writer.ledger_id, kind, PASSWORD.decode(), "plain")
            checks.equal("Apache's client reads every entry", read["sha256"], SHA256)

            checks.title(f"our client's open ledger, {kind}, recovered by Apache's client")
            writer = await _written(client, digest_type)
            read = await java.run(
                "v2", "read", writer.ledger_id, kind, PASSWORD.decode(), "recover"
            )
            checks.equal(
                "it ends where our writer ended",
                (int(read["last"]), int(read["length"]), read["sha256"]),
                (ENTRIES - 1, LENGTH, SHA256),
            )
            checks.equal(
                "our writer learns it: its add may have been written, later ones are refused",
                (await _refusal(writer), await _refusal(writer)),
                ("outcome-unknown", "ledger-fenced"),
            )

            checks.title(f"Apache's client's open ledger, {kind}, recovered by ours")
            made = await java.run("v2", "write", 2, 2, 2, kind, PASSWORD.decode(), ENTRIES, "leave")
            ledger = int(made["ledger"])
            found = await client.recover(ledger, password=PASSWORD)
            checks.equal(
                "it ends where Apache's writer ended",
                (found.state, found.last_entry, found.length),
                (LedgerState.CLOSED, ENTRIES - 1, LENGTH),
            )
            reader = await client.open(ledger, password=PASSWORD)
            entries = await reader.read(0, ENTRIES - 1)
            checks.equal("we read every entry", [bytes(one.payload) for one in entries], CONTENT)
            read = await java.run("v2", "read", ledger, kind, PASSWORD.decode(), "plain")
            checks.equal("and so does Apache's client", read["sha256"], SHA256)
    finally:
        await client.close()


async def _written(client: LedgerClient, digest_type: DigestType) -> LedgerWriter:
    writer = await client.create(
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        digest_type=digest_type,
        password=PASSWORD,
        custom={"maker": b"octavo"},
    )
    await asyncio.gather(*(writer.append(payload) for payload in CONTENT))
    return writer


async def _refusal(writer: LedgerWriter) -> str:
    try:
        await writer.append(b"late")
    except OctavoError as error:
        return error.name
    return "none"
