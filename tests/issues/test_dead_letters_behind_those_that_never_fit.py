"""Dead letters were stored no more once 32 of them could not be.

The same 32, longer than the dead-letter topic takes, were tried again and again, and those behind
them never were: they stayed unacked, at nobody. Found by reading; seen with curl.
"""

from __future__ import annotations

from octavo.broker.subscriptions.dead_letters import SpentMessages


def test_what_cannot_be_stored_is_tried_after_the_others() -> None:
    spent = SpentMessages(1, 100)
    for offset in range(40):
        assert spent.take(offset, 1)
    first = spent.send(32)
    assert first == [*range(32)]
    spent.not_sent(first)
    second = spent.send(32)
    assert second == [*range(24), *range(32, 40)]
    assert spent.sent(second[24:]) == [*range(32, 40)]
    spent.not_sent(second)
    assert spent.send(32) == [*range(32)]
