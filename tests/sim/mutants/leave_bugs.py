"""Bugs of counts that calls leave behind which end in the middle (profile `leave`).

They lie between brokers, and at the clients of durable streams. Nothing is lost and no call fails
at once: a bound fills up, and the next callers are refused, or wait.
"""

from __future__ import annotations

from tests.sim.mutants.planting import Edit
from tests.sim.mutants.tested import TestedBug

_TEST = "sim/test_leave.py::test_nothing_is_left_behind"


def _bug(name: str, title: str, story: str, breaks: str, edit: tuple[str, str, str]) -> TestedBug:
    return TestedBug(name, title, story, breaks, _TEST, (Edit(*edit),))


BUGS = (
    _bug(
        "reader-that-left-keeps-its-place",
        "a reader of a stream that is cut off keeps its place",
        "After 2,000 readers no stream can be followed.",
        "Q1, Q3",
        (
            "octavo.broker.http.stream:StreamPlaces.one",
            "    try:\n        yield\n    finally:\n        self._count(-1)",
            "    yield\n    self._count(-1)",
        ),
    ),
    _bug(
        "reader-that-left-is-charged",
        "a reader of a stream that is cut off stays in its user's quota",
        "The user is refused with 429 until the broker starts again.",
        "Q1, Q3",
        (
            "octavo.broker.http.quotas:HttpQuotas.stream",
            "    try:\n        yield\n    finally:\n        self._limits",
            "    yield\n    if principal:\n        self._limits",
        ),
    ),
    _bug(
        "poll-that-left-stays",
        "a long poll of a stream that is cancelled leaves its waiter in memory",
        "Waiters pile up until a message comes.",
        "Q1",
        (
            "octavo.broker.partition.stream:PartitionStream.wait",
            "self._waiting.pop(waiter, None)",
            "waiter.cancelled() or self._waiting.pop(waiter, None)",
        ),
    ),
    _bug(
        "cancelled-and-still-under-way",
        "a request that was cancelled stays under way at the broker that asked",
        "After 16,000 cancelled requests the connection takes no more.",
        "Q1, Q2, Q3",
        (
            "octavo.broker.operations.channel:Asking.take",
            "self._end(frame.number, request)\n        return None",
            "del self._requests[frame.number]\n        return None",
        ),
    ),
    _bug(
        "cancelled-and-still-counted",
        "the bytes of a request that was cancelled stay counted at the owner",
        "The owner ends the connection, because a new request is beyond the bounds.",
        "Q1",
        (
            "octavo.broker.operations.channel:Answering._cancel",
            "self._end(number)",
            "self._owed.pop(number)",
        ),
    ),
)
FOUND_WITH = {
    "cancelled-and-still-counted": 3,
    "cancelled-and-still-under-way": 3,
    "poll-that-left-stays": 9,
    "reader-that-left-is-charged": 8,
    "reader-that-left-keeps-its-place": 8,
}
"""Bug → a seed of profile `leave` that finds it."""
