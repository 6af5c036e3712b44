"""Adds that a busy bookie refused are all sent again, after a pause."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from octavo.ledger.options import LedgerOptions
from octavo.ledger.write.bookie_channel import BookieChannel
from octavo.ledger.write.pending import Pending
from octavo.ledger.write.writer_state import WriterState
from octavo.protocol.entry import HEADER, Buffer
from octavo.protocol.frames import ADD_PREFIX_BYTES
from tests.sim.loop import SimLoop
from tests.sim.trace import Trace
from tests.support.ledger_world import new_ledger

PAYLOAD = b"x" * 40_000
"""Frames of this size are sent in two parts, header and payload."""


class Connection:
    """Takes everything, and notes the entries."""

    writable = True

    def __init__(self) -> None:
        self.sent: list[int] = []

    def attach(self, *_: object) -> None:
        pass

    def send_adds(self, frames: Sequence[Buffer], _: int) -> None:
        for front in frames[::2]:
            header = bytes(front)[ADD_PREFIX_BYTES : ADD_PREFIX_BYTES + HEADER.size]
            self.sent.append(HEADER.unpack(header)[1])


class Bookie:
    bookie_id = "a"

    def __init__(self) -> None:
        self.connection = Connection()


def test_what_is_refused_during_a_pause_is_sent_again_as_well() -> None:
    """Otherwise the bookie would count as silent, and be replaced."""

    async def story() -> None:
        core = WriterState(new_ledger(), 0)
        pending = Pending(core.metadata, core.quorum)
        bookie, sink = Bookie(), Any
        channel = BookieChannel(sink, core, pending, 0, bookie, LedgerOptions())  # type: ignore[arg-type]
        channel.attach(0.0)
        start = 0
        payloads = [PAYLOAD] * 6
        while start < len(payloads):
            chunk, stop = pending.encode(payloads, start, core.lac)
            core.push(stop - start)
            start = stop
            channel.push(chunk, pending.frames(chunk), 0.0)
        sent = bookie.connection.sent
        assert sent == [0, 1, 2, 3, 4, 5]
        channel.busy(0.0, 1, 2)
        channel.busy(0.0, 4, 4)
        assert sent == [0, 1, 2, 3, 4, 5], "not before a pause"
        await asyncio.sleep(60.0)
        assert sent == [0, 1, 2, 3, 4, 5, 1, 2, 4]

    loop = SimLoop(1, trace=Trace())
    try:
        loop.run_until_complete(story())
        assert loop.errors == []
    finally:
        loop.close()


def test_each_ack_of_a_bookie_that_was_busy_lets_more_go() -> None:
    """Only its acks send what the window held."""

    async def story() -> None:
        core = WriterState(new_ledger(), 0)
        pending = Pending(core.metadata, core.quorum)
        bookie, sink = Bookie(), Any
        channel = BookieChannel(sink, core, pending, 0, bookie, LedgerOptions())  # type: ignore[arg-type]
        channel.attach(0.0)
        count, start, sent = 240, 0, bookie.connection.sent
        bookie.connection.writable = False
        payloads = [PAYLOAD] * count
        while start < count:
            chunk, stop = pending.encode(payloads, start, core.lac)
            core.push(stop - start)
            start = stop
            channel.push(chunk, pending.frames(chunk), 0.0)
        assert sent == []
        bookie.connection.writable = True
        refused = last = 0
        for _ in range(3):
            channel.busy(0.0, refused, refused)  # a pause, and a narrow window
            await asyncio.sleep(60.0)
            assert refused in sent, "the pause is over"
            last = max(last, *sent)
            assert last < count - 1, "the window holds the rest back"
            assert channel.waits_in_vain() == ""
            refused = last + 1
            core.acked("a", 0, last)
            sent.clear()
            channel.heard(0.0, 1)
            assert refused in sent, "the window has room, and nothing else sends"
            assert channel.waits_in_vain() == ""
            last = max(sent)
            sent.clear()

    loop = SimLoop(1, trace=Trace())
    try:
        loop.run_until_complete(story())
        assert loop.errors == []
    finally:
        loop.close()
