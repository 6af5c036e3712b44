"""A bookie is asked for one force at a time, and again after each answer, whatever it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from octavo.ledger.errors import BookieUnavailable
from octavo.ledger.write.forces import Forces
from octavo.ledger.write.writer_state import Force, WriterState
from octavo.metadata.ledgers import Fragment, LedgerMetadata
from octavo.protocol.codes import OctavoError, TooManyRequests
from tests.support.kit.quiescence import in_use

Answer = Callable[[OctavoError | None, dict[str, Any]], None]


class Bookie:
    """A connected bookie; its answers come when the test says so."""

    is_foreign = False

    def __init__(self, bookie_id: str) -> None:
        self.bookie_id = bookie_id
        self.questions: list[Answer] = []
        self.connection = self

    def request(self, _op: object, _body: object, done: Answer, *, timeout_s: float) -> None:
        assert timeout_s == 5.0
        self.questions.append(done)

    def answer(self, error: OctavoError | None = None) -> None:
        self.questions.pop(0)(error, {})


class Channel:
    def __init__(self, bookie: Bookie) -> None:
        self.bookie = bookie


def test_each_answer_makes_room_for_the_next_question() -> None:
    core = WriterState(LedgerMetadata(7, 3, 3, 2, (Fragment(0, tuple("abc")),)), 0, deferred=True)
    failed: list[str] = []

    def forced(asked: Force) -> None:
        core.forced(asked)

    forces = Forces(core, 5.0, forced, lambda bookie_id, _: failed.append(bookie_id))
    bookies = [Bookie(name) for name in "abc"]
    channels = cast(Any, [Channel(one) for one in bookies])
    first = bookies[0]

    def write(last: int) -> None:
        core.push(1)
        for one in bookies:
            core.acked(one.bookie_id, last, last)
        forces.wanted = last
        forces.pump(channels)

    for last in range(3):
        write(last)
        assert [len(one.questions) for one in bookies] == [1, 1, 1]
        forces.pump(channels)
        assert [len(one.questions) for one in bookies] == [1, 1, 1], "one at a time"
        assert in_use(forces) == {"asked": 3}
        for one in bookies:
            one.answer()
        assert in_use(forces) == {}
        assert core.lac == last
    write(3)
    first.answer(TooManyRequests("busy"))
    forces.pump(channels)
    assert not first.questions, "it rests until the next tick"
    for _ in range(2):
        forces.rested()
        forces.pump(channels)
        first.answer(TooManyRequests("busy"))
    forces.rested()
    forces.pump(channels)
    first.answer(BookieUnavailable("a", "no answer"))
    assert failed == ["a"]
    for one in bookies[1:]:
        one.answer()
    assert in_use(forces) == {}
