"""A bookie that failed while an ensemble change was being written was still sent to.

The writer's core has nothing to do about a second failure until the first change is through, so it
asked for no action, and only an action told the bookie's channel that it was down. What the bookie
missed was let go, as of one that is down; when its connection came back, the channel wanted to send
it: an assertion ended the task that keeps that bookie connected, and it was never tried again.
Found by the simulator, seed 40174.
"""

from __future__ import annotations

from typing import Any

from octavo.ledger.actions import ChooseReplacements, WriteMetadata
from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.bookie_channel import BookieChannel
from octavo.ledger.write.pending import Pending
from octavo.ledger.write.writer_state import State, WriterState
from tests.support.ledger_world import new_ledger


class _Connection:
    """Takes everything."""

    writable = True

    def __init__(self) -> None:
        self.sent = 0

    def attach(self, ledger_id: int, sink: object) -> None: ...

    def send_adds(self, frames: object, size: int) -> None:
        self.sent += size


class _Bookie:
    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.connection: _Connection | None = _Connection()


def test_a_bookie_that_failed_meanwhile_is_sent_nothing() -> None:
    core = WriterState(new_ledger(3, 3, 2), 0)
    first, second, third = core.ensemble
    pending = Pending(core.metadata, core.quorum)
    sink: Any = None
    bookie: Any = _Bookie(second)
    channel = BookieChannel(sink, core, pending, 1, bookie, LedgerOptions())
    channel.attach(0.0)
    for _ in range(3):
        pending.encode([b"x"], 0, core.lac)
        core.push(1)
    core.acked(first, 0, 1)
    core.acked(third, 0, 1)
    assert core.lac == 1

    [asked] = core.failed(third, BookieUnavailable(third, "the first failure"))
    assert isinstance(asked, ChooseReplacements)
    [change] = core.chosen({2: "spare"})
    assert isinstance(change, WriteMetadata)
    assert core.state is State.PUBLISHING
    assert core.failed(second, BookieUnavailable(second, "the second")) == []
    pending.release(core.lac)  # nobody that is up misses it

    bookie.connection = _Connection()  # it comes back
    channel.attach(1.0)
    assert core.returned(second) == []
    channel.pump()
    assert bookie.connection.sent == 0
    assert not channel.owes()
