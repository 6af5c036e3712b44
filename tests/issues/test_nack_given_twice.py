"""One call that gave the same message back twice failed half-way: its acks were not taken.

The second nack found no lease to end (`KeyError`, a 500), after the first had taken effect. Found
by reading.
"""

from __future__ import annotations

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.dispatch import Dispatcher


def test_the_second_nack_of_a_message_changes_nothing() -> None:
    dispatcher = Dispatcher(
        Cursor(), exclusive=False, ack_timeout_ms=1_000, leased_max=10, delayed_max=10
    )
    dispatcher.enter("c", 0)
    assert dispatcher.dispatch("c", 0, 1, 10) is not None
    dispatcher.nack(0, 0, 0)
    dispatcher.nack(0, 0, 0)
    again = dispatcher.dispatch("c", 1, 1, 10)
    assert again is not None
    assert (again.offsets, again.counts) == ([0], {0: 2})
    assert dispatcher.ready == 0
