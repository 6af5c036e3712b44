"""A state log that is closed while its writer is slow: what waits has a writer until the end."""

from __future__ import annotations

import asyncio

import pytest

from octavo.broker.errors import NotOwner
from octavo.broker.state.format import used_op
from tests.support.kit.quiescence import in_use
from tests.support.memory_state_ledgers import Served


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_closed_while_changes_wait(drain: bool, turns: int) -> None:
    """With `drain` all are written in their order; else each of them is told."""
    served = Served(list, state_ledger_entries_max=100)
    log = served.log
    await log.append(used_op("s", 1))  # the snapshot: from here on each change is an entry
    held = served.writer
    held.go_on.clear()
    written = [asyncio.ensure_future(log.append(used_op("s", number))) for number in (2, 3)]
    for _ in range(turns):
        await asyncio.sleep(0)
    written.append(asyncio.ensure_future(log.append(used_op("s", 4))))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(log.close(drain=drain))
    for _ in range(10):
        await asyncio.sleep(0)
        assert log.waits_in_vain() == ""
    assert closing.done() == (not drain)
    held.go_on.set()
    await closing
    outcomes = await asyncio.gather(*written, return_exceptions=True)
    assert [type(one) for one in outcomes] == 3 * [type(None) if drain else NotOwner]
    assert (in_use(log), log.waits_in_vain()) == ({}, "")
    with pytest.raises(NotOwner):
        await log.append(used_op("s", 5))
