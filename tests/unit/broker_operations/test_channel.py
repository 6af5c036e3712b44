"""The connection between two brokers as two tables of requests, in every order of events."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.broker.errors import Overloaded
from octavo.broker.operations.channel import (
    PIECE_BYTES,
    URGENT_IN_A_ROW,
    Answer,
    Answering,
    Asked,
    Asking,
    Priority,
    State,
    Stopped,
    Windows,
)
from octavo.broker.operations.frames import BrokenChannel, Frame, Kind

SMALL = Windows(requests=4, asked_bytes=300_000, answer_bytes=500_000, waiting_bytes=1_000_000)
NOTHING = {"requests", "waiting_bytes", "under_way", "asked_bytes", "reserved_bytes", "to_send"}


def ask(side: Asking, payload: bytes = b"request", **how: Any) -> int:
    given: dict[str, Any] = {"priority": Priority.URGENT, "reserve": 1000, "deadline_s": 10.0}
    return side.ask(payload, **{**given, **how})


def sent(side: Asking, now_s: float = 0.0) -> list[Frame]:
    return list(iter(lambda: side.next_frame(now_s), None))


def is_empty(side: Asking | Answering) -> bool:
    return not any(side.describe().values())


def served(side: Answering, frames: list[Frame], now_s: float = 0.0) -> list[Asked]:
    found = [side.take(frame, now_s) for frame in frames]
    return [one for one in found if isinstance(one, Asked)]


def test_a_request_and_its_answer() -> None:
    asking, answering = Asking(), Answering()
    number = ask(asking)
    (asked,) = served(answering, sent(asking), now_s=100.0)
    assert asked == Asked(number, b"request", Priority.URGENT, 1000, 110.0)
    answering.answer(number, b"answer")
    frame = answering.next_frame()
    assert frame is not None
    assert asking.take(frame) == Answer(number, b"answer", False)
    assert is_empty(asking)
    assert is_empty(answering)
    assert set(asking.describe()) == NOTHING


def test_the_time_left_is_told_when_the_request_is_sent_and_not_when_it_was_asked() -> None:
    asking, answering = Asking(), Answering()
    ask(asking, deadline_s=10.0)
    (asked,) = served(answering, sent(asking, now_s=7.5), now_s=0.0)
    assert asked.deadline_s == 2.5


def test_an_answer_goes_to_its_request_in_whatever_order_they_come() -> None:
    asking, answering = Asking(), Answering()
    numbers = [ask(asking, b"%d" % n) for n in range(5)]
    for asked in reversed(served(answering, sent(asking))):
        answering.answer(asked.number, b"to " + asked.payload)
    frames = list(iter(answering.next_frame, None))
    answers = [asking.take(frame) for frame in frames]
    found = {one.number: one.payload for one in answers if one is not None}
    assert found == {number: b"to %d" % n for n, number in enumerate(numbers)}


def test_a_long_read_does_not_hold_up_a_publish() -> None:
    """Each goes out in pieces, the urgent ones between those of the others."""
    asking, answering = Asking(), Answering()
    read = ask(asking, b"read", priority=Priority.LATER, reserve=10 * PIECE_BYTES)
    publish = ask(asking, b"publish")
    assert [one.number for one in served(answering, sent(asking))] == [publish, read]
    answering.answer(read, b"r" * (10 * PIECE_BYTES))
    first = answering.next_frame()
    answering.answer(publish, b"p")
    second = answering.next_frame()
    assert first is not None
    assert second is not None
    assert (first.number, second.number) == (read, publish)


def test_a_read_goes_on_beside_any_number_of_publishes() -> None:
    asking = Asking()
    for _ in range(50):
        ask(asking)
    read = ask(asking, priority=Priority.LATER)
    numbers = [frame.number for frame in sent(asking)]
    assert numbers.index(read) <= URGENT_IN_A_ROW


def test_requests_of_a_partition_are_sent_in_the_order_in_which_they_were_asked() -> None:
    asking = Asking(SMALL)
    numbers = [ask(asking, b"x" * 100_000) for _ in range(3)]
    frames = sent(asking)
    firsts = [frame.number for frame in frames if frame.kind is Kind.ASK]
    assert firsts == numbers[: len(firsts)]


def test_no_more_is_under_way_than_the_windows_allow() -> None:
    asking, answering = Asking(SMALL), Answering(SMALL)
    numbers = [ask(asking, b"x" * 100_000) for _ in range(6)]
    begun = served(answering, sent(asking))
    assert [one.number for one in begun] == numbers[:3]
    assert asking.describe()["waiting_bytes"] == 300_000
    answering.answer(numbers[0], b"")
    frame = answering.next_frame()
    assert frame is not None
    asking.take(frame)
    assert [one.number for one in served(answering, sent(asking))] == [numbers[3]]


def test_a_request_longer_than_the_window_goes_alone() -> None:
    asking, answering = Asking(SMALL), Answering(SMALL)
    long = ask(asking, b"x" * 900_000, reserve=900_000)
    behind = ask(asking)
    assert [one.number for one in served(answering, sent(asking))] == [long]
    answering.answer(long, b"")
    frame = answering.next_frame()
    assert frame is not None
    asking.take(frame)
    assert [one.number for one in served(answering, sent(asking))] == [behind]


def test_what_waits_is_bounded_in_bytes() -> None:
    asking = Asking(SMALL)
    for _ in range(10):
        ask(asking, b"x" * 100_000)
    with pytest.raises(Overloaded):
        ask(asking, b"x" * 100_000)


def test_a_request_that_waits_is_cancelled_without_a_trace() -> None:
    asking = Asking()
    number = ask(asking)
    asking.cancel(number)
    assert sent(asking) == []
    assert is_empty(asking)
    asking.cancel(number)  # it is over


def test_a_cancelled_request_gives_its_room_back_when_the_other_side_has_ended_it() -> None:
    asking, answering = Asking(), Answering()
    number = ask(asking)
    served(answering, sent(asking))
    asking.cancel(number)
    assert asking.state_of(number) is State.GONE
    assert asking.describe()["under_way"] == 1
    (cancel,) = sent(asking)
    assert answering.take(cancel, 0.0) == Stopped(number)
    answering.answer(number, b"too late")
    (ended,) = list(iter(answering.next_frame, None))
    assert ended == Frame(Kind.ENDED, number)
    assert asking.take(ended) is None
    assert is_empty(asking)
    assert is_empty(answering)


def test_an_answer_that_crosses_a_cancellation_is_dropped() -> None:
    asking, answering = Asking(), Answering()
    number = ask(asking)
    served(answering, sent(asking))
    answering.answer(number, b"answer")
    frames = list(iter(answering.next_frame, None))
    asking.cancel(number)
    (cancel,) = sent(asking)
    assert answering.take(cancel, 0.0) is None
    assert [asking.take(frame) for frame in frames] == [None]
    assert is_empty(asking)
    assert is_empty(answering)


def test_a_request_cancelled_in_the_middle_is_never_begun() -> None:
    asking, answering = Asking(), Answering()
    number = ask(asking, b"x" * (3 * PIECE_BYTES))
    frame = asking.next_frame(0.0)
    assert frame is not None
    assert answering.take(frame, 0.0) is None
    asking.cancel(number)
    (cancel,) = sent(asking)
    assert answering.take(cancel, 0.0) is None
    (ended,) = list(iter(answering.next_frame, None))
    assert asking.take(ended) is None
    assert is_empty(asking)
    assert is_empty(answering)


def test_a_connection_that_ends_tells_what_may_have_been_done() -> None:
    """A request of which a piece was not sent cannot have been begun."""
    asking = Asking(SMALL)
    out = ask(asking)
    partly = ask(asking, b"x" * (2 * PIECE_BYTES))
    asking.next_frame(0.0)
    asking.next_frame(0.0)
    waiting = ask(asking)
    lost = asking.lose()
    assert (lost.maybe_done, sorted(lost.not_done)) == ((out,), [partly, waiting])
    assert is_empty(asking)


def test_what_is_overdue_is_cancelled() -> None:
    asking = Asking()
    out = ask(asking, deadline_s=1.0)
    sent(asking)
    waiting = ask(asking, deadline_s=1.0)
    later = ask(asking, deadline_s=3.0)
    assert asking.next_deadline_s == 1.0
    assert asking.overdue(0.5) == []
    assert asking.overdue(1.0) == [(out, State.OUT), (waiting, State.WAITING)]
    assert asking.next_deadline_s == 3.0
    assert asking.state_of(later) is State.WAITING


def test_deadlines_of_requests_that_are_over_are_not_kept() -> None:
    asking = Asking()
    slow = ask(asking, deadline_s=1.0)
    for _ in range(1000):
        asking.cancel(ask(asking, deadline_s=40.0))
    assert len(asking._deadlines) < 200
    assert asking.overdue(2.0) == [(slow, State.WAITING)]


WRONG: dict[str, list[Frame]] = {
    "of a number that was never given": [Frame(Kind.ANSWER, 77)],
    "of a request that has not been sent": [Frame(Kind.ANSWER, 2)],
    "twice": [Frame(Kind.ANSWER, 1, b"abc", size=9), Frame(Kind.ANSWER, 1, b"abc", size=9)],
    "longer than it says": [Frame(Kind.ANSWER, 1, b"abc", size=2)],
    "longer than was reserved": [Frame(Kind.ANSWER, 1, b"", size=1001)],
    "with pieces of nothing": [Frame(Kind.ANSWER, 1, b"", size=2)],
    "that never began": [Frame(Kind.MORE, 1, b"abc")],
    "that was ended without a cancellation": [Frame(Kind.ENDED, 1)],
    "that is a request": [Frame(Kind.ASK, 1, b"abc", size=3)],
}


@pytest.mark.parametrize("wrong", WRONG)
def test_an_answer_that_makes_no_sense_ends_the_connection(wrong: str) -> None:
    asking = Asking()
    assert ask(asking) == 1
    sent(asking)
    assert ask(asking) == 2
    *before, last = WRONG[wrong]
    for frame in before:
        asking.take(frame)
    with pytest.raises(BrokenChannel):
        asking.take(last)


BEYOND: dict[str, list[Frame]] = {
    "a number twice": [Frame(Kind.ASK, 1, b"x", size=9)] * 2,
    "too many": [Frame(Kind.ASK, n, b"x", size=9) for n in range(1, 6)],
    "too many bytes": [Frame(Kind.ASK, n, b"x", size=200_000) for n in (1, 2)],
    "answers too long": [Frame(Kind.ASK, n, b"x", size=9, reserve=300_000) for n in (1, 2)],
    "an unknown priority": [Frame(Kind.ASK, 1, b"", size=1, priority=9)],
    "more than it has": [Frame(Kind.ASK, 1, b"abc", size=2)],
    "a piece of nothing known": [Frame(Kind.MORE, 1, b"abc")],
    "an answer": [Frame(Kind.ANSWER, 1, b"abc", size=3)],
}


@pytest.mark.parametrize("beyond", BEYOND)
def test_a_request_that_no_broker_makes_ends_the_connection(beyond: str) -> None:
    answering = Answering(SMALL)
    *before, last = BEYOND[beyond]
    for frame in before:
        answering.take(frame, 0.0)
    with pytest.raises(BrokenChannel):
        answering.take(last, 0.0)


class World:
    """Both sides, with what is on its way between them; a referee of every answer."""

    def __init__(self) -> None:
        self.asking, self.answering = Asking(SMALL), Answering(SMALL)
        self.there: deque[Frame] = deque()
        self.back: deque[Frame] = deque()
        self.open: dict[int, bytes] = {}
        """Requests that are wanted."""
        self.work: dict[int, Asked] = {}
        self.begun: list[bytes] = []
        self.asked: list[bytes] = []
        self.serial = 0
        self.now_s = 0.0

    def ask(self, size: int, later: bool) -> None:
        self.serial += 1
        payload = b"%d:" % self.serial + b"x" * size
        priority = Priority.LATER if later else Priority.URGENT
        try:
            number = self.asking.ask(
                payload, priority=priority, reserve=size + 100, deadline_s=self.now_s + 5
            )
        except Overloaded:
            return
        assert number not in self.open
        self.open[number] = payload
        if not later:
            self.asked.append(payload)

    def step(self, which: int, draw: int) -> None:
        if which == 0 and (frame := self.asking.next_frame(self.now_s)):
            self.there.append(frame)
        elif which == 1 and self.there:
            self._serve(self.there.popleft())
        elif which == 2 and self.work:
            asked = self.work.pop(sorted(self.work)[draw % len(self.work)])
            self.answering.answer(asked.number, b"to " + asked.payload, refused=bool(draw % 2))
        elif which == 3 and (frame := self.answering.next_frame()):
            self.back.append(frame)
        elif which == 4 and self.back:
            self._hear(self.back.popleft())
        elif which == 5 and self.open:
            number = sorted(self.open)[draw % len(self.open)]
            self.asking.cancel(number)
            payload = self.open.pop(number)
            if payload in self.asked and payload not in self.begun:
                self.asked.remove(payload)
        elif which == 6:
            self.now_s += 1
            for number, _ in self.asking.overdue(self.now_s):
                payload = self.open.pop(number)
                if payload in self.asked and payload not in self.begun:
                    self.asked.remove(payload)

    def _serve(self, frame: Frame) -> None:
        found = self.answering.take(frame, self.now_s)
        if isinstance(found, Asked):
            self.work[found.number] = found
            self.begun.append(found.payload)
        elif isinstance(found, Stopped):
            self.work.pop(found.number, None)

    def _hear(self, frame: Frame) -> None:
        answer = self.asking.take(frame)
        if answer is not None:
            assert answer.payload == b"to " + self.open.pop(answer.number)

    def settle(self) -> None:
        for round_ in range(10_000):
            before = (len(self.there), len(self.back), len(self.work), len(self.open))
            for which in (0, 1, 2, 3, 4):
                self.step(which, 0)
            if before == (0, 0, 0, 0) and round_ > 3:
                break


@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("ask"), st.sampled_from((0, 10, PIECE_BYTES, 150_000)), st.booleans()
            ),
            st.tuples(st.just("step"), st.integers(0, 6), st.integers(0, 9)),
        ),
        max_size=150,
    ),
    st.booleans(),
)
def test_any_order_of_events(events: list[tuple[str, int, Any]], dies: bool) -> None:
    """Every request gets its own answer, urgent ones begin in their order, and nothing is kept."""
    world = World()
    for what, first, second in events:
        if what == "ask":
            world.ask(first, second)
        else:
            world.step(first, second)
        described = world.asking.describe()
        assert all(count >= 0 for count in described.values())
    urgent = [payload for payload in world.begun if payload in world.asked]
    assert urgent == [payload for payload in world.asked if payload in urgent]
    if dies:
        lost = world.asking.lose()
        assert set(world.open) == {*lost.not_done, *lost.maybe_done}
        for number in lost.not_done:
            assert world.open[number] not in world.begun
        world.answering.lose()
    else:
        world.settle()
        assert not world.open
    assert is_empty(world.asking)
    assert is_empty(world.answering)
