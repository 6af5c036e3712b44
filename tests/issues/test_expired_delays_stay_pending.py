"""Messages that were not due and then were expired, skipped or trimmed counted as pending still.

With as many of them as a subscription remembers it handed out nothing more until the last of them
would have been due, a year at the most, though every one of them was acked. Found by reading.
"""

from __future__ import annotations

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.delays import Delays
from octavo.broker.subscriptions.dispatch import Dispatcher

_YEAR_MS = 31_536_000_000


def _dispatcher(pending_max: int) -> Dispatcher:
    one = Dispatcher(
        Cursor(), ack_timeout_ms=1_000, leased_max=50, delayed_max=50, pending_max=pending_max
    )
    one.enter("c", 0)
    return one


def _acked_up_to(one: Dispatcher, offset: int) -> None:
    one.cursor.ack(0, offset + 1)
    one.acked_up_to(offset)


def test_what_follows_expired_ones_is_handed_out() -> None:
    one = _dispatcher(pending_max=3)
    found = one.dispatch("c", 0, 8, 3)
    assert found is not None
    one.reading(found)
    one.begin(one.withhold(found, dict.fromkeys(range(3), _YEAR_MS)), 0)
    assert one.held_back(8) is not None
    _acked_up_to(one, 2)
    assert one.held_back(8) is None
    found = one.dispatch("c", 1, 8, 3)
    assert found is not None
    assert found.offsets == [3, 4, 5]


def test_those_that_are_left_come_when_they_are_due() -> None:
    delays = Delays(100)
    for offset in range(50):
        delays.add(1_000 + offset * 2_000, offset)
    assert delays.take(1_000, 1, lambda _: True) == [0]
    delays.passed(48)
    assert len(delays) == 2
    delays.passed(49)
    assert len(delays) == 1
    assert delays.take(98_999, 9, lambda _: True) == []
    assert delays.take(99_000, 9, lambda _: True) == [49]
    assert delays.next_ms() is None


def test_going_over_them_is_paid_by_what_was_acked() -> None:
    """A time to live acks a few at a time: a million pending ones are not gone over for each."""
    many = 4_096
    delays = Delays(many)
    for offset in range(many):
        delays.add(_YEAR_MS + offset, offset)
    for floor in range(1, many):
        delays.passed(floor)
        assert 0 <= len(delays) - (many - floor) <= many // 16
    delays.passed(many)
    assert len(delays) == 0
