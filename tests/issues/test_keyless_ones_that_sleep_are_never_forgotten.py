"""A message without a key that was given back with a delay and then expired stayed in memory.

Of a key-shared subscription: nobody woke it, so with a time to live that overtakes delays each such
message was kept until a seek or a take-over. Found by reading.
"""

from __future__ import annotations

from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.keys import KeyOrder


def test_nothing_is_left_of_what_is_acked() -> None:
    cursor = Cursor()
    keys = KeyOrder(cursor, 100)
    keys.belong_to(["c"])
    look = keys.wanted("c", 3)
    assert look is not None
    keys.learn(look, [(0, None), (1, None), (2, 7)], 3)
    assert keys.take("c", 3) == [0, 1, 2]
    for offset in (2, 1, 0):
        keys.back(offset, asleep=True)
    cursor.ack(0, 3)
    keys.passed()
    assert (keys._known, keys._returned, keys._asleep_free, keys._asleep) == ({}, {}, {}, {})
    assert not keys.is_left(3)
