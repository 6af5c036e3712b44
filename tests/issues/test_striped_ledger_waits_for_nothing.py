"""In a ledger with E > Qw, entries that a bookie does not hold counted as owed by it.

A bookie whose next entry had yet to be written looked behind: what all others had acked was kept
for it, so that `drain` could wait for ever; and after an idle hour its first add was found overdue
at the next tick, the bookie was replaced and its connection dropped. Found by reading.
"""

from __future__ import annotations

import asyncio
from typing import Any

from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.bookie_channel import BookieChannel
from octavo.ledger.write.pending import Pending
from octavo.ledger.write.writer_state import WriterState
from tests.support.cluster import Cluster
from tests.support.ledger_world import new_ledger


async def test_drain_ends_when_every_holder_has_acked(cluster: Cluster) -> None:
    client = await cluster.client(pending_bytes_max=1)
    writer = await client.create(ensemble_size=3, write_quorum=2, ack_quorum=2)
    async with asyncio.timeout(10):
        for entry_id in range(7):
            assert await writer.append(b"x" * 100) == entry_id
        await writer.drain()
        assert writer.pending_bytes == 0


class _Bookie:
    """One without a connection: nothing can be sent to it, nor acked by it."""

    bookie_id = "a"
    connection = None


def test_a_bookie_is_not_overdue_for_the_time_in_which_it_was_owed_nothing() -> None:
    core = WriterState(new_ledger(3, 2, 2), 0)
    pending = Pending(core.metadata, core.quorum)
    options = LedgerOptions()
    sink: Any = None
    bookie: Any = _Bookie()
    channel = BookieChannel(sink, core, pending, 0, bookie, options)
    channel.attach(0.0)

    def push(now: float) -> None:
        chunk, _ = pending.encode([b"x"], 0, core.lac)
        core.push(1)
        channel.push(chunk, None, now)

    push(0.0)
    push(0.0)
    for position, first, last in ((0, 0, 0), (1, 0, 1), (2, 1, 1)):
        core.acked(core.ensemble[position], first, last)
    assert core.lac == 1
    assert not channel.owes()  # position 0 does not hold entry 1
    push(3_600.0)
    assert channel.owes()
    assert not channel.overdue(3_600.1)
    assert channel.overdue(3_600.0 + options.add_timeout_s)
