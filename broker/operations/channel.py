"""A connection between two brokers; each side keeps a table of requests. Pure.

    state     means                                     leaves by
    WAITING   no piece was sent                         its first piece, cancel (forgotten)
    PARTLY    some pieces were sent                     its last piece, cancel
    OUT       all pieces were sent: it may be done      the end of its answer, cancel
    GONE      it was cancelled after a piece was sent   the end of its answer, or ENDED

The answering side owes each request that has begun to arrive exactly one ANSWER, REFUSED or ENDED,
which frees its room. `Windows` bounds what is under way, with room for answers reserved when a
request is sent: so both sides' memory is bounded, whatever the other does.

A request that waits for an event reserves little room. For a longer answer the answering side sends
OFFER with its size, and the asking side TAKE once it has room.

`undelivered` and `unwanted` report answers that got lost, so that their leases can be released.

Urgent requests go between the pieces of others, but after `URGENT_IN_A_ROW` pieces another piece is
sent. When a connection ends, only requests that were sent completely may have been done.
"""

from __future__ import annotations

import enum
import heapq
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from octavo.broker.errors import Overloaded
from octavo.broker.operations.frames import BrokenChannel, Frame, Kind

PIECE_BYTES = 64 * 1024
"""Urgent pieces go between pieces of this size."""
URGENT_IN_A_ROW = 8
NUMBER_MAX = 2**32 - 1
_DEADLINES_KEPT = 64


class Priority(enum.IntEnum):
    URGENT = 0
    LATER = 1


class Windows(NamedTuple):
    """Bytes that a connection may have under way; a request that is alone may have more."""

    requests: int = 16_384
    asked_bytes: int = 16 * 1024 * 1024
    answer_bytes: int = 32 * 1024 * 1024
    waiting_bytes: int = 64 * 1024 * 1024
    taken_bytes: int = 16 * 1024 * 1024
    """Taken answers, longer than their reservation, on their way."""
    offered_bytes: int = 64 * 1024 * 1024
    """Offered answers that wait at the answering side."""


DEFAULT_WINDOWS = Windows()

Unwanted = Callable[[bytes], object]
"""Called with an answer that came too late."""
Undelivered = Callable[[], object]


class State(enum.Enum):
    WAITING = "waiting"
    PARTLY = "partly"
    OUT = "out"
    GONE = "gone"


class Answer(NamedTuple):
    number: int
    payload: bytes
    refused: bool
    unwanted: Unwanted | None = None


class Asked(NamedTuple):
    number: int
    payload: bytes
    priority: Priority
    reserve: int
    deadline_s: float


class Stopped(NamedTuple):
    number: int


class Lost(NamedTuple):
    not_done: tuple[int, ...]
    maybe_done: tuple[int, ...]


class _Outgoing:
    __slots__ = ("first", "number", "payload", "sent")

    def __init__(self, first: Frame, payload: bytes) -> None:
        self.first = first
        self.number = first.number
        self.payload = memoryview(payload)
        self.sent = -1

    @property
    def is_out(self) -> bool:
        return self.sent >= len(self.payload)

    def next_frame(self) -> Frame:
        start = max(self.sent, 0)
        piece = self.payload[start : start + PIECE_BYTES]
        is_first = self.sent < 0
        self.sent = start + len(piece)
        if is_first:
            return self.first._replace(data=piece)
        return Frame(Kind.MORE, self.number, piece)


class _Outbox:
    def __init__(self) -> None:
        self._lines: dict[Priority, deque[_Outgoing]] = {one: deque() for one in Priority}
        self._at_once: deque[Frame] = deque()
        self._in_a_row = 0

    def describe(self) -> dict[str, int]:
        return {"to_send": sum(map(len, self._lines.values())) + len(self._at_once)}

    def put(self, priority: Priority, outgoing: _Outgoing) -> None:
        self._lines[priority].append(outgoing)

    def put_at_once(self, frame: Frame) -> None:
        self._at_once.append(frame)

    def drop(self, priority: Priority, outgoing: _Outgoing) -> None:
        self._lines[priority].remove(outgoing)

    def head(self, priority: Priority) -> _Outgoing | None:
        line = self._lines[priority]
        return line[0] if line else None

    @property
    def has_at_once(self) -> bool:
        return bool(self._at_once)

    def order(self) -> tuple[Priority, Priority]:
        if self._in_a_row >= URGENT_IN_A_ROW:
            return Priority.LATER, Priority.URGENT
        return Priority.URGENT, Priority.LATER

    def next_at_once(self) -> Frame | None:
        return self._at_once.popleft() if self._at_once else None

    def take_piece(self, priority: Priority) -> Frame:
        line = self._lines[priority]
        frame = line[0].next_frame()
        if line[0].is_out:
            line.popleft()
        others_wait = priority is Priority.URGENT and self._lines[Priority.LATER]
        self._in_a_row = self._in_a_row + 1 if others_wait else 0
        return frame


class _Incoming:
    __slots__ = ("first", "parts", "size")

    def __init__(self, first: Frame) -> None:
        self.first = first
        self.parts: list[bytes | memoryview] = []
        self.size = 0

    def take(self, data: bytes | memoryview) -> bool:
        self.parts.append(data)
        self.size += len(data)
        if self.size > self.first.size or not (len(data) or self.size == self.first.size):
            raise BrokenChannel(f"{self.size} bytes of request {self.first.number} came, and it "
                                f"has {self.first.size}")  # fmt: skip
        return self.size == self.first.size

    def payload(self) -> bytes:
        return b"".join(self.parts)


class _Request:
    __slots__ = (
        "deadline_s",
        "incoming",
        "offered",
        "outgoing",
        "priority",
        "reserve",
        "state",
        "taken",
        "unwanted",
    )

    def __init__(
        self,
        outgoing: _Outgoing,
        priority: Priority,
        reserve: int,
        deadline_s: float,
        unwanted: Unwanted | None,
    ) -> None:
        self.outgoing = outgoing
        self.priority = priority
        self.reserve = reserve
        self.deadline_s = deadline_s
        self.unwanted = unwanted
        self.offered = 0
        self.taken = 0
        self.state = State.WAITING
        self.incoming: _Incoming | None = None

    @property
    def size(self) -> int:
        return len(self.outgoing.payload)


class Asking:
    def __init__(self, windows: Windows = DEFAULT_WINDOWS) -> None:
        self._windows = windows
        self._requests: dict[int, _Request] = {}
        self._outbox = _Outbox()
        self._deadlines: list[tuple[float, int]] = []
        self._last = 0
        self._waiting_bytes = 0
        self._under_way = 0
        self._asked_bytes = 0
        self._reserved_bytes = 0
        self._offers: deque[int] = deque()
        self._taken_bytes = 0

    def describe(self) -> dict[str, int]:
        return {
            "requests": len(self._requests),
            "waiting_bytes": self._waiting_bytes,
            "under_way": self._under_way,
            "asked_bytes": self._asked_bytes,
            "reserved_bytes": self._reserved_bytes,
            "offers": len(self._offers),
            "taken_bytes": self._taken_bytes,
            **self._outbox.describe(),
        }

    def state_of(self, number: int) -> State | None:
        request = self._requests.get(number)
        return None if request is None else request.state

    def ask(
        self,
        payload: bytes,
        *,
        priority: Priority,
        reserve: int,
        deadline_s: float,
        unwanted: Unwanted | None = None,
    ) -> int:
        """Queue a request, return its number; `reserve`: the longest answer without an offer."""
        size = len(payload)
        if self._waiting_bytes and self._waiting_bytes + size > self._windows.waiting_bytes:
            raise Overloaded(
                f"{self._waiting_bytes} bytes of requests wait for the connection to the "
                f"partition's owner, of at most {self._windows.waiting_bytes}: come back in a "
                "moment"
            )
        number = self._last % NUMBER_MAX + 1
        while number in self._requests:
            number = number % NUMBER_MAX + 1
        self._last = number
        first = Frame(Kind.ASK, number, size=size, reserve=reserve, priority=priority)
        outgoing = _Outgoing(first, payload)
        self._requests[number] = _Request(outgoing, priority, reserve, deadline_s, unwanted)
        self._outbox.put(priority, outgoing)
        self._waiting_bytes += size
        if len(self._deadlines) > 2 * len(self._requests) + _DEADLINES_KEPT:
            # Most requests end before their deadline: forget those deadlines.
            self._deadlines = [(r.deadline_s, n) for n, r in self._requests.items()]
            heapq.heapify(self._deadlines)
        else:
            heapq.heappush(self._deadlines, (deadline_s, number))
        return number

    def may_send(self) -> bool:
        heads = [one for p in Priority if (one := self._outbox.head(p)) is not None]
        return self._outbox.has_at_once or any(
            request.state is not State.WAITING or self._has_room(request)
            for request in (self._requests[one.number] for one in heads)
        )

    def next_frame(self, now_s: float) -> Frame | None:
        if (at_once := self._outbox.next_at_once()) is not None:
            return at_once
        for priority in self._outbox.order():
            outgoing = self._outbox.head(priority)
            if outgoing is None:
                continue
            request = self._requests[outgoing.number]
            if request.state is State.WAITING:
                if not self._has_room(request):
                    continue
                self._begin(request, now_s)
            frame = self._outbox.take_piece(priority)
            if outgoing.is_out:
                request.state = State.OUT
            return frame
        return None

    def cancel(self, number: int) -> None:
        request = self._requests.get(number)
        if request is None or request.state is State.GONE:
            return
        if request.state is State.WAITING:
            self._outbox.drop(request.priority, request.outgoing)
            self._waiting_bytes -= request.size
            del self._requests[number]
            return
        if request.state is State.PARTLY:
            self._outbox.drop(request.priority, request.outgoing)
        request.state = State.GONE
        self._outbox.put_at_once(Frame(Kind.CANCEL, number))
        if request.offered and not request.taken:
            self._offers.remove(number)

    def take(self, frame: Frame) -> Answer | None:
        request = self._requests.get(frame.number)
        if request is None or request.state is State.WAITING:
            raise BrokenChannel(f"an answer to request {frame.number} came, which was not sent")
        if frame.kind is Kind.ENDED:
            if request.state is not State.GONE:
                raise BrokenChannel(f"request {frame.number} was ended without being cancelled")
            self._end(frame.number, request)
            return None
        if frame.kind is Kind.OFFER:
            self._offered(frame, request)
            return None
        if frame.kind in (Kind.ANSWER, Kind.REFUSED):
            if request.incoming is not None:
                raise BrokenChannel(f"a second answer to request {frame.number} came")
            if request.state is State.PARTLY:
                raise BrokenChannel(f"request {frame.number} was answered before it was sent")
            request.incoming = _Incoming(frame)
        elif frame.kind is not Kind.MORE or request.incoming is None:
            raise BrokenChannel(f"a frame {frame.kind.name} of request {frame.number} came")
        incoming = request.incoming
        if incoming.first.size > (reserved := max(request.reserve, request.taken)):
            raise BrokenChannel(
                f"the answer to request {frame.number} has {incoming.first.size} bytes, and "
                f"{reserved} were reserved"
            )
        if not incoming.take(frame.data):
            return None
        self._end(frame.number, request)
        if request.state is State.GONE and request.unwanted is None:
            return None
        is_refused = incoming.first.kind is Kind.REFUSED
        return Answer(frame.number, incoming.payload(), is_refused, request.unwanted)

    def overdue(self, now_s: float) -> list[tuple[int, State]]:
        found: list[tuple[int, State]] = []
        while self._deadlines and self._deadlines[0][0] <= now_s:
            _, number = heapq.heappop(self._deadlines)
            request = self._requests.get(number)
            if request is None or request.state is State.GONE or request.deadline_s > now_s:
                continue
            found.append((number, request.state))
            self.cancel(number)
        return found

    @property
    def next_deadline_s(self) -> float | None:
        while self._deadlines:
            request = self._requests.get(self._deadlines[0][1])
            if request is not None and request.state is not State.GONE:
                return self._deadlines[0][0]
            heapq.heappop(self._deadlines)
        return None

    def lose(self) -> Lost:
        not_done = [n for n, r in self._requests.items() if r.state in _NOT_SENT]
        maybe_done = [n for n, r in self._requests.items() if r.state is State.OUT]
        self._requests.clear()
        self._deadlines.clear()
        self._outbox = _Outbox()
        self._waiting_bytes = self._under_way = self._asked_bytes = self._reserved_bytes = 0
        self._offers.clear()
        self._taken_bytes = 0
        return Lost(tuple(not_done), tuple(maybe_done))

    def _offered(self, frame: Frame, request: _Request) -> None:
        if request.offered or request.incoming or request.state is State.PARTLY:
            raise BrokenChannel(f"an offer for request {frame.number} came out of turn")
        if frame.size <= request.reserve:
            raise BrokenChannel(
                f"{frame.size} bytes were offered for request {frame.number}, which has "
                f"{request.reserve} reserved"
            )
        request.offered = frame.size
        if request.state is State.OUT:  # else its cancellation is on the way
            self._offers.append(frame.number)
            self._take_offers()

    def _take_offers(self) -> None:
        while self._offers:
            request = self._requests[self._offers[0]]
            most = self._windows.taken_bytes
            if self._taken_bytes and self._taken_bytes + request.offered > most:
                return
            request.taken = request.offered
            self._taken_bytes += request.taken
            self._outbox.put_at_once(Frame(Kind.TAKE, self._offers.popleft()))

    def _has_room(self, request: _Request) -> bool:
        windows = self._windows
        if not self._under_way:
            return True
        return (
            self._under_way < windows.requests
            and self._asked_bytes + request.size <= windows.asked_bytes
            and self._reserved_bytes + request.reserve <= windows.answer_bytes
        )

    def _begin(self, request: _Request, now_s: float) -> None:
        left_ms = min(max(0, round((request.deadline_s - now_s) * 1000)), NUMBER_MAX)
        request.outgoing.first = request.outgoing.first._replace(left_ms=left_ms)
        request.state = State.PARTLY
        self._waiting_bytes -= request.size
        self._under_way += 1
        self._asked_bytes += request.size
        self._reserved_bytes += request.reserve

    def _end(self, number: int, request: _Request) -> None:
        del self._requests[number]
        self._under_way -= 1
        self._asked_bytes -= request.size
        self._reserved_bytes -= request.reserve
        self._taken_bytes -= request.taken
        self._take_offers()


_NOT_SENT = (State.WAITING, State.PARTLY)


class _Owed:
    __slots__ = (
        "answer", "asked", "incoming", "is_offered", "priority", "reserve", "size", "undelivered",
    )  # fmt: skip

    def __init__(self, frame: Frame, priority: Priority) -> None:
        self.priority = priority
        self.reserve = frame.reserve
        self.size = frame.size
        self.incoming: _Incoming | None = _Incoming(frame)
        self.asked: Asked | None = None
        self.answer: _Outgoing | None = None
        self.is_offered = False
        self.undelivered: Undelivered | None = None


class Answering:
    def __init__(self, windows: Windows = DEFAULT_WINDOWS) -> None:
        self._windows = windows
        self._owed: dict[int, _Owed] = {}
        self._outbox = _Outbox()
        self._asked_bytes = 0
        self._reserved_bytes = 0
        self._offered_bytes = 0

    def describe(self) -> dict[str, int]:
        return {
            "owed": len(self._owed),
            "asked_bytes": self._asked_bytes,
            "reserved_bytes": self._reserved_bytes,
            "offered_bytes": self._offered_bytes,
            **self._outbox.describe(),
        }

    def take(self, frame: Frame, now_s: float) -> Asked | Stopped | None:
        if frame.kind is Kind.ASK:
            self._begin(frame)
        owed = self._owed.get(frame.number)
        if frame.kind is Kind.CANCEL:
            return self._cancel(frame.number, owed)
        if frame.kind is Kind.TAKE:
            self._taken(frame.number, owed)
            return None
        if owed is None or owed.incoming is None or frame.kind not in (Kind.ASK, Kind.MORE):
            raise BrokenChannel(f"a frame {frame.kind.name} of request {frame.number} came")
        if not owed.incoming.take(frame.data):
            return None
        first, payload = owed.incoming.first, owed.incoming.payload()
        owed.incoming = None
        owed.asked = Asked(
            frame.number, payload, owed.priority, owed.reserve, now_s + first.left_ms / 1000
        )
        return owed.asked

    def answer(
        self,
        number: int,
        payload: bytes,
        *,
        refused: bool = False,
        undelivered: Undelivered | None = None,
    ) -> None:
        """Send an answer. Raises `Overloaded` when too many offered answers wait."""
        owed = self._owed.get(number)
        if owed is None or owed.answer is not None:
            if undelivered is not None:
                undelivered()
            return
        assert owed.asked is not None, "it has not come as a whole"
        size = len(payload)
        is_offered = size > owed.reserve
        waiting = self._offered_bytes
        if is_offered and waiting and waiting + size > self._windows.offered_bytes:
            raise Overloaded(
                f"{waiting} bytes of answers wait until another broker takes them, which is the "
                "limit: come back in a moment"
            )
        kind = Kind.REFUSED if refused else Kind.ANSWER
        owed.answer = _Outgoing(Frame(kind, number, size=size), payload)
        owed.undelivered = undelivered
        owed.is_offered = is_offered
        if is_offered:
            self._offered_bytes += size
            self._outbox.put_at_once(Frame(Kind.OFFER, number, size=size))
        else:
            self._outbox.put(owed.priority, owed.answer)

    def may_send(self) -> bool:
        return self._outbox.has_at_once or any(map(self._outbox.head, Priority))

    def next_frame(self) -> Frame | None:
        if (at_once := self._outbox.next_at_once()) is not None:
            return at_once
        for priority in self._outbox.order():
            outgoing = self._outbox.head(priority)
            if outgoing is not None:
                frame = self._outbox.take_piece(priority)
                if outgoing.is_out:
                    self._end(outgoing.number)
                return frame
        return None

    def _taken(self, number: int, owed: _Owed | None) -> None:
        if owed is None or owed.answer is None or not owed.is_offered:
            raise BrokenChannel(f"an answer to request {number} is taken, which was not offered")
        owed.is_offered = False
        self._offered_bytes -= len(owed.answer.payload)
        self._outbox.put(owed.priority, owed.answer)

    def lose(self) -> tuple[int, ...]:
        begun = tuple(n for n, owed in self._owed.items() if owed.asked and not owed.answer)
        unsent = [owed.undelivered for owed in self._owed.values() if owed.undelivered]
        self._owed.clear()
        self._outbox = _Outbox()
        self._asked_bytes = self._reserved_bytes = self._offered_bytes = 0
        for undelivered in unsent:
            undelivered()
        return begun

    def _begin(self, frame: Frame) -> None:
        windows = self._windows
        if frame.number in self._owed:
            raise BrokenChannel(f"request {frame.number} came twice")
        if self._owed and (
            len(self._owed) >= windows.requests
            or self._asked_bytes + frame.size > windows.asked_bytes
            or self._reserved_bytes + frame.reserve > windows.answer_bytes
        ):
            raise BrokenChannel(
                f"request {frame.number} came beyond the bounds: {len(self._owed)} are under way "
                f"with {self._asked_bytes} bytes, answers may have {self._reserved_bytes}"
            )
        try:
            priority = Priority(frame.priority)
        except ValueError:
            raise BrokenChannel(f"request {frame.number} has priority {frame.priority}") from None
        self._owed[frame.number] = _Owed(frame, priority)
        self._asked_bytes += frame.size
        self._reserved_bytes += frame.reserve

    def _cancel(self, number: int, owed: _Owed | None) -> Stopped | None:
        if owed is None or (owed.answer is not None and not owed.is_offered):
            return None  # the answer is on the way and ends the operation, too
        self._end(number)
        self._outbox.put_at_once(Frame(Kind.ENDED, number))
        if owed.answer is not None:
            self._offered_bytes -= len(owed.answer.payload)
            if owed.undelivered is not None:
                owed.undelivered()
            return None
        return None if owed.asked is None else Stopped(number)

    def _end(self, number: int) -> None:
        owed = self._owed.pop(number)
        self._asked_bytes -= owed.size
        self._reserved_bytes -= owed.reserve
