"""What was refused for overload was in no state ledger, though the state in memory had it.

Cursors in memory are changed first, and made durable after. An operation that found too many
waiting was refused and forgotten; a cumulative ack that was then made again wrote only what was
new to the memory, and answered. A restart went back behind it. Producers were lost in the same
way: their batches could be stored twice. Found by reading.
"""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.errors import Overloaded
from octavo.broker.state import log as state_log
from octavo.broker.state.cursor import Cursor
from octavo.broker.state.format import ack_op, cursor_op, snapshot
from tests.support.memory_state_ledgers import Served


async def test_a_cumulative_ack_after_a_refused_one_is_durable_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_log, "_WAITING_MAX", 1)
    cursors = {"s": Cursor(), "other": Cursor()}
    served = Served(lambda: snapshot([(name, 1, c) for name, c in cursors.items()], [], 0))
    log = served.log
    await log.append(cursor_op("s", 1, 0))
    served.writer.go_on.clear()  # a slow disk: acks queue up
    queued = []
    for offset in (0, 1):
        cursors["other"].ack(offset, offset + 1)
        op = ack_op("other", [(offset, offset + 1)])
        queued.append(asyncio.create_task(log.append(op)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    cursors["s"].ack(0, 100)
    with pytest.raises(Overloaded):
        await log.append(ack_op("s", [(0, 100)]))
    served.writer.go_on.set()
    await asyncio.gather(*queued)

    cursors["s"].ack(0, 200)
    await log.append(ack_op("s", [(100, 200)]))  # as an ack up to 199 is written now
    assert served.after_a_restart().cursors["s"].cursor.committed_offset == 200
