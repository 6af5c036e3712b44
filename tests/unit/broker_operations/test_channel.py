"""The connection between two brokers as two tables of requests, in every order of events."""

from __future__ import annotations

from collections import Counter, deque
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
from octavo.broker.operations.frames import (
    DATA_BYTES_MAX,
    BrokenChannel,
    Frame,
    Keys,
    Kind,
    Receiver,
    Seals,
    encode,
    keys_of,
)
from tests.support.kit.examples import examples

SMALL = Windows(
    requests=4,
    asked_bytes=300_000,
    answer_bytes=500_000,
    waiting_bytes=1_000_000,
    taken_bytes=200_000,
    offered_bytes=1_000_000,
)
NOTHING = {
    "requests", "waiting_bytes", "under_way", "asked_bytes", "reserved_bytes", "offers",
    "taken_bytes", "to_send",
}  # fmt: skip


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
    """Both go out in pieces, the urgent ones between the others."""
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
    """A request with an unsent piece cannot have begun."""
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


def test_a_long_answer_of_a_short_reservation_is_sent_when_there_is_room() -> None:
    """Waiting answers take no room, and go out one after the other."""
    windows = Windows(taken_bytes=250_000)
    asking, answering = Asking(windows), Answering(windows)
    numbers = [ask(asking, reserve=10) for _ in range(4)]
    served(answering, sent(asking))
    for number in numbers:
        answering.answer(number, b"%d" % number * 100_000)
    offers = list(iter(answering.next_frame, None))
    assert [(one.kind, one.number, one.size) for one in offers] == [
        (Kind.OFFER, number, 100_000) for number in numbers
    ]
    got: list[int] = []
    for _ in range(10):
        for frame in offers:
            if (answer := asking.take(frame)) is not None:
                got.append(answer.number)
                assert answer.payload == b"%d" % answer.number * 100_000
        assert asking.describe()["taken_bytes"] <= 250_000
        for frame in sent(asking):
            answering.take(frame, 0.0)
        offers = list(iter(answering.next_frame, None))
    assert got == numbers
    assert is_empty(asking)
    assert is_empty(answering)


def test_an_answer_longer_than_the_window_for_offers_goes_alone() -> None:
    windows = Windows(taken_bytes=100, offered_bytes=100)
    asking, answering = Asking(windows), Answering(windows)
    number = ask(asking, reserve=10)
    served(answering, sent(asking))
    answering.answer(number, b"x" * 5_000)
    (offer,) = list(iter(answering.next_frame, None))
    asking.take(offer)
    (take,) = sent(asking)
    answering.take(take, 0.0)
    (frame,) = list(iter(answering.next_frame, None))
    assert asking.take(frame) == Answer(number, b"x" * 5_000, False)
    assert is_empty(asking)
    assert is_empty(answering)


@pytest.mark.parametrize("when", ["before the offer comes", "while it waits", "when it is taken"])
def test_a_request_that_is_cancelled_while_its_answer_is_offered(when: str) -> None:
    """Either the maker of the answer hears that it was not sent, or the asking side gets it."""
    windows = Windows(taken_bytes=100_000)
    asking, answering = Asking(windows), Answering(windows)
    told: list[str] = []
    other = ask(asking, reserve=10)
    number = ask(asking, reserve=10, unwanted=lambda _: told.append("unwanted"))
    served(answering, sent(asking))
    if when == "while it waits":
        answering.answer(other, b"o" * 90_000)
        (offer,) = list(iter(answering.next_frame, None))
        asking.take(offer)
    answering.answer(number, b"x" * 50_000, undelivered=lambda: told.append("undelivered"))
    (offer,) = list(iter(answering.next_frame, None))
    if when == "before the offer comes":
        asking.cancel(number)
    asking.take(offer)
    if when == "when it is taken":
        for frame in sent(asking):
            answering.take(frame, 0.0)
    asking.cancel(number)
    answering.answer(other, b"")
    for _ in range(3):
        for frame in sent(asking):
            answering.take(frame, 0.0)
        for frame in list(iter(answering.next_frame, None)):
            answer = asking.take(frame)
            if answer is not None and answer.number == number:
                assert answer.unwanted is not None
                answer.unwanted(answer.payload)
    assert told == ["unwanted" if when == "when it is taken" else "undelivered"]
    assert is_empty(asking)
    assert is_empty(answering)


def test_answers_that_are_offered_are_bounded() -> None:
    answering = Answering(Windows(offered_bytes=1_000))
    for number in (1, 2):
        answering.take(Frame(Kind.ASK, number, b"x", size=1), 0.0)
    answering.answer(1, b"x" * 900)
    with pytest.raises(Overloaded):
        answering.answer(2, b"x" * 200)
    answering.answer(2, b"", refused=True)


def test_a_connection_that_ends_tells_of_each_answer_that_was_not_sent() -> None:
    asking, answering = Asking(), Answering()
    told: list[int] = []
    numbers = [ask(asking, reserve=10) for _ in range(3)]
    long = ask(asking, reserve=3 * PIECE_BYTES)
    served(answering, sent(asking))
    answering.answer(numbers[0], b"sent", undelivered=lambda: told.append(0))
    assert answering.next_frame() is not None
    answering.answer(numbers[1], b"not", undelivered=lambda: told.append(1))
    answering.answer(numbers[2], b"only offered", undelivered=lambda: told.append(2))
    answering.answer(long, b"x" * 2 * PIECE_BYTES, undelivered=lambda: told.append(3))
    answering.next_frame()
    answering.next_frame()
    answering.lose()
    assert sorted(told) == [2, 3] or sorted(told) == [1, 2, 3]
    answering.answer(numbers[1], b"too late", undelivered=lambda: told.append(4))
    assert told[-1] == 4
    assert is_empty(answering)


WRONG: dict[str, list[Frame]] = {
    "of a number that was never given": [Frame(Kind.ANSWER, 77)],
    "of a request that has not been sent": [Frame(Kind.ANSWER, 2)],
    "twice": [Frame(Kind.ANSWER, 1, b"abc", size=9), Frame(Kind.ANSWER, 1, b"abc", size=9)],
    "longer than it says": [Frame(Kind.ANSWER, 1, b"abc", size=2)],
    "longer than was reserved": [Frame(Kind.ANSWER, 1, b"", size=1001)],
    "with pieces of nothing": [Frame(Kind.ANSWER, 1, b"", size=2)],
    "that never began": [Frame(Kind.MORE, 1, b"abc")],
    "that was ended without a cancellation": [Frame(Kind.ENDED, 1)],
    "offered twice": [Frame(Kind.OFFER, 1, size=1001)] * 2,
    "offered though there is room": [Frame(Kind.OFFER, 1, size=1000)],
    "offered after it has begun": [
        Frame(Kind.ANSWER, 1, b"abc", size=9),
        Frame(Kind.OFFER, 1, size=2000),
    ],
    "longer than was offered": [
        Frame(Kind.OFFER, 1, size=1001),
        Frame(Kind.ANSWER, 1, b"", size=1002),
    ],
    "taken": [Frame(Kind.TAKE, 1)],
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
    "an answer taken that was not offered": [
        Frame(Kind.ASK, 1, b"x", size=1),
        Frame(Kind.TAKE, 1),
    ],
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
    """Both sides, their messages in flight, and a referee of every answer."""

    def __init__(self) -> None:
        self.asking, self.answering = Asking(SMALL), Answering(SMALL)
        self.there: deque[Frame] = deque()
        self.back: deque[Frame] = deque()
        self.open: dict[int, bytes] = {}
        """Requests that still want an answer."""
        self.work: dict[int, Asked] = {}
        self.begun: list[bytes] = []
        self.asked: list[bytes] = []
        self.made: list[bytes] = []
        """Requests whose answers were made."""
        self.fates: Counter[tuple[bytes, str]] = Counter()
        """The fate of each answer."""
        self.serial = 0
        self.now_s = 0.0

    def ask(self, size: int, later: bool) -> None:
        self.serial += 1
        payload = b"%d:" % self.serial + b"x" * size
        priority = Priority.LATER if later else Priority.URGENT
        try:
            number = self.asking.ask(
                payload,
                priority=priority,
                reserve=size + 100 if self.serial % 3 else 10,
                deadline_s=self.now_s + 5,
                unwanted=lambda _: self.fates.update([(payload, "unwanted")]),
            )
        except Overloaded:
            return
        assert number not in self.open
        self.open[number] = payload
        if not later:
            self.asked.append(payload)

    def step(self, which: int, draw: int) -> None:
        if which == 0:
            may_send, frame = self.asking.may_send(), self.asking.next_frame(self.now_s)
            assert may_send == (frame is not None)
            self.there.extend(() if frame is None else (frame,))
        elif which == 1 and self.there:
            self._serve(self.there.popleft())
        elif which == 2 and self.work:
            asked = self.work.pop(sorted(self.work)[draw % len(self.work)])
            self._answer(asked, refused=bool(draw % 2))
        elif which == 3:
            may_send, frame = self.answering.may_send(), self.answering.next_frame()
            assert may_send == (frame is not None)
            self.back.extend(() if frame is None else (frame,))
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

    def _answer(self, asked: Asked, *, refused: bool) -> None:
        payload = asked.payload
        self.made.append(payload)

        def undelivered() -> None:
            self.fates.update([(payload, "undelivered")])

        try:
            self.answering.answer(
                asked.number, b"to " + payload, refused=refused, undelivered=undelivered
            )
        except Overloaded:
            self.answering.answer(asked.number, b"to " + payload[:5], refused=True)
            self.made.remove(payload)
            self.open.pop(asked.number, None)

    def _serve(self, frame: Frame) -> None:
        found = self.answering.take(frame, self.now_s)
        if isinstance(found, Asked):
            self.work[found.number] = found
            self.begun.append(found.payload)
        elif isinstance(found, Stopped):
            self.work.pop(found.number, None)

    def _hear(self, frame: Frame) -> None:
        answer = self.asking.take(frame)
        if answer is None:
            return
        if answer.number in self.open:
            payload = self.open.pop(answer.number)
            assert answer.payload == b"to " + payload
            self.fates.update([(payload, "wanted")])
        else:
            assert answer.unwanted is not None
            answer.unwanted(answer.payload)

    def settle(self) -> None:
        for round_ in range(10_000):
            before = (len(self.there), len(self.back), len(self.work), len(self.open))
            for which in (0, 1, 2, 3, 4):
                self.step(which, 0)
            if before == (0, 0, 0, 0) and round_ > 3:
                break


@settings(max_examples=examples(200), deadline=None)
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
    """Every request gets its answer, urgent requests begin in their order, and nothing is kept."""
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
        assert sorted(payload for payload, _ in world.fates.elements()) == sorted(world.made)
    assert is_empty(world.asking)
    assert is_empty(world.answering)


KEYS = keys_of(b"the cluster's secret", "a", "b", ("1" * 32, "2" * 32))
HELLO = Frame(Kind.HELLO, 0, b"hello")
FRAMES = [
    HELLO,
    Frame(Kind.ASK, 1, b"x" * DATA_BYTES_MAX, size=70_000, reserve=9, left_ms=1500, priority=1),
    Frame(Kind.MORE, 1, b"y" * 4464),
    Frame(Kind.ANSWER, 7, b"z", size=1),
    Frame(Kind.REFUSED, 2**32 - 1, b"", size=0),
    Frame(Kind.CANCEL, 7),
    Frame(Kind.ENDED, 7),
]


def written(frames: list[Frame], *, first_only: bool = False, key: bytes = b"") -> bytes:
    seals = Seals(key or KEYS.asking, first_only=first_only)
    return b"".join(encode(frame, seals) for frame in frames)


def receiver(*, first_only: bool = False) -> Receiver:
    return Receiver(Seals(KEYS.asking, first_only=first_only))


@given(st.booleans(), st.lists(st.integers(1, 80_000), max_size=20))
def test_frames_come_back_in_whatever_pieces(first_only: bool, cuts: list[int]) -> None:
    data, reads = written(FRAMES, first_only=first_only), receiver(first_only=first_only)
    found = []
    for cut in cuts:
        found += reads.feed(data[:cut])
        data = data[cut:]
    found += reads.feed(data)
    assert [frame._replace(data=bytes(frame.data)) for frame in found] == FRAMES
    assert reads.describe() == {"unread_bytes": 0}


@pytest.mark.parametrize("at", [0, 4, 5, 9, 12, 20, -1])
def test_a_byte_that_was_changed_ends_the_connection(at: int) -> None:
    data = bytearray(written([HELLO, Frame(Kind.ASK, 1, b"publish", size=7)]))
    hello = len(written([HELLO]))
    data[hello + at if at >= 0 else at] ^= 1
    reads = receiver()
    reads.feed(bytes(data[:hello]))
    with pytest.raises(BrokenChannel):
        reads.feed(bytes(data[hello:]) + b"\0" * 200_000)


def test_a_frame_that_comes_twice_or_was_left_out_ends_the_connection() -> None:
    asks = [Frame(Kind.ASK, n, b"abc", size=3) for n in (1, 2)]
    seals = Seals(KEYS.asking, first_only=False)
    hello, first, second = (encode(frame, seals) for frame in (HELLO, *asks))
    for wrong in (hello + first + first, hello + second):
        with pytest.raises(BrokenChannel, match="seal"):
            receiver().feed(wrong)


@pytest.mark.parametrize(
    "keys",
    [
        keys_of(b"another secret", "a", "b", ("1" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "a", "c", ("1" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "b", "a", ("1" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "a", "b", ("3" * 32, "2" * 32)),
        keys_of(b"the cluster's secret", "a", "b", ("1" * 32, "3" * 32)),
        Keys(KEYS.answering, KEYS.asking),
    ],
)
@pytest.mark.parametrize("first_only", [True, False])
def test_a_side_without_the_key_of_this_connection_proves_nothing(
    keys: Keys, first_only: bool
) -> None:
    """Another secret, another broker, another connection, the other direction; inside TLS too."""
    with pytest.raises(BrokenChannel, match="seal"):
        receiver(first_only=first_only).feed(
            written([HELLO], first_only=first_only, key=keys.asking)
        )


@pytest.mark.parametrize(
    "wrong",
    [
        [Frame(Kind.CANCEL, 1)],
        [HELLO, HELLO],
        [HELLO, Frame(Kind.MORE, 1, b"x" * (DATA_BYTES_MAX + 100))],
    ],
)
def test_frames_that_no_broker_sends(wrong: list[Frame]) -> None:
    with pytest.raises(BrokenChannel):
        receiver().feed(written(wrong))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_waited_for(data: bytes) -> None:
    try:
        assert receiver().feed(data) == []
    except BrokenChannel:
        pass
