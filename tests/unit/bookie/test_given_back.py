"""A bookie's connection gives back everything that it has taken, however it ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from octavo.bookie.back_pressure import Budget, Flow, FrameRoom, Turns
from octavo.bookie.ledgers.control import LacWatches
from octavo.bookie.wire.in_flight import InFlight
from octavo.bookie.wire.read_scheduler import ReadScheduler
from octavo.protocol.frames import ReadRequest
from tests.support.kit.quiescence import in_use


class Transport:
    """A socket that takes as much as the test says."""

    def __init__(self) -> None:
        self.unsent = 0

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def set_write_buffer_limits(self, high: int) -> None: ...

    def is_closing(self) -> bool:
        return False

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def _counted() -> Any:
    labelled = SimpleNamespace(labels=lambda *_: SimpleNamespace(inc=lambda: None))
    return SimpleNamespace(pauses=labelled, stalled=labelled)


class Peer:
    def __init__(self, answers: Budget, frames: FrameRoom) -> None:
        config = SimpleNamespace(
            connection_answer_bytes_max=50, answer_stall_ms_max=10_000, pressed_stall_ms_max=10_000
        )
        receiver = SimpleNamespace(held_bytes=0, missing_bytes=0, is_large=False)
        self.receiver = receiver
        self.transport = Transport()
        self.flow = Flow(
            cast(Any, config), _counted(), cast(Any, receiver), cast(Any, None), answers, frames,
            Turns(), lambda _: None,
        )  # fmt: skip
        self.flow.attach(cast(Any, self.transport), "peer")

    def answered(self, size: int) -> None:
        """Make an answer of which the socket takes nothing."""
        self.flow.made(size)
        self.transport.unsent += size
        self.flow.written(size)


async def test_answers_that_nobody_takes_are_given_back_with_the_connection() -> None:
    answers, frames = Budget(1_000), FrameRoom(1_000)
    peer = Peer(answers, frames)
    peer.answered(100)
    peer.flow.made(30)  # and an answer that the socket does not have yet
    assert in_use(answers) == {"bytes": 130}
    peer.flow.release()
    assert in_use(answers) == {}


@pytest.mark.parametrize("granted", [False, True])
async def test_half_a_frame_is_given_back_with_the_connection(granted: bool) -> None:
    answers, frames = Budget(1_000), FrameRoom(1_000)
    peer, other = Peer(answers, frames), Peer(answers, frames)
    if not granted:
        other.receiver.held_bytes, other.receiver.missing_bytes = 100, 850
        other.receiver.is_large = True
        other.flow.kept(1)
    peer.receiver.held_bytes, peer.receiver.missing_bytes = 40, 500
    peer.receiver.is_large = True
    peer.flow.kept(1)
    assert in_use(frames)["grants"] == 1
    assert in_use(frames).get("waiting", 0) == (not granted)
    peer.flow.release()
    other.flow.release()
    assert in_use(frames) == {}


@pytest.mark.parametrize("size", [900, 901])
async def test_a_frame_that_fits_to_the_byte_does_not_wait(size: int) -> None:
    frames = FrameRoom(1_000)
    first, second = Peer(Budget(10), frames).flow, Peer(Budget(10), frames).flow
    assert frames.ask(first, 100)
    assert frames.ask(second, size) == (size == 900)


class Requests:
    takes_polls = True

    def __init__(self) -> None:
        self.polls = 0
        self.stay = asyncio.Event()

    def now(self, *_: object) -> None:
        return None

    def refusal(self, *_: object) -> bytes:
        return b"refused"

    async def read(self, *_: object) -> bytes:
        await self.stay.wait()
        return b"read"


def _in_flight(scheduler: ReadScheduler) -> tuple[InFlight, list[bytes]]:
    answered: list[bytes] = []
    one = InFlight(
        cast(Any, Requests()), cast(Any, None), scheduler, answered.append, lambda _: None
    )
    return one, answered


def _scheduler(tasks_max: int, wait_ms_max: int = 60_000) -> ReadScheduler:
    return ReadScheduler(Budget(100), waiting_max=100, tasks_max=tasks_max, wait_ms_max=wait_ms_max)


async def test_reads_that_are_refused_for_their_wait_are_counted_no_more() -> None:
    """The bound of waiting reads filled up with reads that had long been answered."""
    scheduler = _scheduler(tasks_max=1)
    one, answered = _in_flight(scheduler)
    for entry_id in range(5):
        one.read(ReadRequest(0, 1, entry_id, b""))
    for _ in range(10):
        await asyncio.sleep(0)
    assert scheduler.describe()["waiting"] == 4
    one.refuse_waiting()
    assert answered == [b"refused"] * 4
    assert scheduler.describe()["waiting"] == 0
    one.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert in_use(scheduler) == {}
    assert in_use(one) == {}


async def test_a_connection_that_ends_amid_its_reads_leaves_its_places_to_another() -> None:
    """A connection that waited for a task gets the place."""
    scheduler = _scheduler(tasks_max=2)
    gone, _ = _in_flight(scheduler)
    stays, _ = _in_flight(scheduler)
    for one in (gone, stays):
        for entry_id in range(4):
            one.read(ReadRequest(0, 1, entry_id, b""))
    for _ in range(10):
        await asyncio.sleep(0)
    gone.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert in_use(gone) == {}
    assert stays.describe()["tasks"] == 2, "both places are its now"
    assert not scheduler.waits_in_vain()
    stays.cancel()
    for _ in range(10):
        await asyncio.sleep(0)
    assert in_use(scheduler) == {}


@pytest.mark.parametrize(("lac", "is_told"), [(4, False), (5, False), (6, True)])
async def test_a_poll_hears_of_the_very_next_entry(lac: int, is_told: bool) -> None:
    watches = LacWatches()
    poll = watches.park(1, 5)
    watches.moved(1, lac)
    assert poll.done() == is_told
    poll.cancel()
    await asyncio.sleep(0)
    assert in_use(watches) == {}
