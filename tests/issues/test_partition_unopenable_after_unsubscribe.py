"""An ack beside an unsubscribe, while the state ledger rolled over, made the partition unopenable.

The snapshot that begins a new state ledger is of the state in memory, which may be ahead of the
operations still queued: the subscription was gone from it already, and the group after it began
with an ack of that subscription. Replay took that for damage (`BadStateLedger`), at every
take-over from then on. Found by reading.
"""

from __future__ import annotations

import asyncio

from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import ack_op, cursor_op, delete_op, snapshot
from tests.support.memory_state_ledgers import Served


async def turns() -> None:
    """Let everything run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_an_ack_and_an_unsubscribe_during_a_roll_over_can_be_replayed() -> None:
    cursors = {"kept": Cursor(), "gone": Cursor()}
    served = Served(
        lambda: snapshot([(name, 1, cursor) for name, cursor in cursors.items()], [], 0),
        state_ledger_entries_max=1,
    )
    log = served.log
    await log.append(cursor_op("kept", 1, 0))
    await log.append(cursor_op("gone", 1, 0))

    served.ledgers.may_create.clear()  # the next group rolls the ledger over, which takes a while
    cursors["kept"].ack(0, 5)
    rolling = asyncio.create_task(log.append(ack_op("kept", [(0, 5)])))
    await turns()
    cursors["gone"].ack(0, 3)
    ack = asyncio.create_task(log.append(ack_op("gone", [(0, 3)])))
    await turns()
    del cursors["gone"]
    unsubscribe = asyncio.create_task(log.append(delete_op("gone")))
    await turns()
    served.ledgers.may_create.set()
    await asyncio.gather(rolling, ack, unsubscribe)

    found = served.after_a_restart().cursors
    assert set(found) == {"kept"}
    assert found["kept"].cursor.committed_offset == 5
