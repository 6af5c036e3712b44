"""Questions to a bookie of either kind, with equal answers: `tests/interop`, as rows. The
transcripts of both kinds, v2 and v3, must be equal but for a few checked differences; each side
reads the other's records; Apache's client and ours exchange ledgers. The short form leaves out
the clients, which take minutes."""

from __future__ import annotations

import asyncio

from tests.apache.grounds import Ask
from tests.apache.matrix import Matrix
from tests.interop.apache import VERSION, Peer, running
from tests.interop.clients import JavaClient, apaches_client
from tests.interop.our_client import our_client
from tests.interop.ours import OurBookie, store_at
from tests.interop.shared_records import apache_by_us, ours_by_apache
from tests.interop.transcripts import transcripts
from tests.interop.v3_conversation import apaches_client_on_ours, v3_conversation

THEIRS = f"Apache's client {VERSION}"
OURS = "Octavo's ledger client"
BOTH = "one bookie of each kind"


def conversations(matrix: Matrix, ask: Ask) -> None:
    with running(ask.lib, ask.folder) as peer:
        asyncio.run(_converse(matrix, peer, short=ask.short))


async def _converse(matrix: Matrix, peer: Peer, *, short: bool) -> None:
    node = OurBookie(peer.folder, peer.zookeeper.port)
    java = JavaClient(peer.java, peer.zookeeper.port)
    if not short:
        await asyncio.to_thread(java.compile)
    async with store_at(peer.zookeeper.port) as store:
        try:
            with matrix.row(OURS, "records", "reads what Apache's bookie registers") as checks:
                await apache_by_us(checks, peer, store)
            await asyncio.to_thread(node.start)
            with matrix.row("frames by hand", "v2", "bookies of both kinds answer alike") as checks:
                await transcripts(checks, peer, node, aloud=False)
            with matrix.row("frames by hand", "v3", "bookies of both kinds answer alike") as checks:
                await v3_conversation(checks, (peer.bookie.port, node.port))
            with matrix.row("BookieShell", "records", "reads our records") as checks:
                await ours_by_apache(checks, peer, store, node)
            if short:
                return
            with matrix.row(THEIRS, "v2 and v3", f"write, leave, recover, read; {BOTH}") as checks:
                await apaches_client(checks, peer, store, node, java)
            with matrix.row(OURS, "v2", f"write, leave, recover, read; {BOTH}") as checks:
                await our_client(checks, peer, store, node, java)
            with matrix.row(THEIRS, "v3, its defaults", "all of its calls; our bookies") as checks:
                await apaches_client_on_ours(checks, peer, store, node, java)
        finally:
            node.kill()
