"""A WebSocket remembers its unacked messages, so that closing gives them back."""

from __future__ import annotations

from msgspec import Raw

from octavo.broker.http.api.push import Handout, _Out
from octavo.protocol.leased import Leased, Run


def messages(*ack_ids: str) -> Handout:
    return Handout(0, [Raw(b'{"ack_id":"%s"}' % ack_id.encode()) for ack_id in ack_ids])


def test_what_is_acked_is_forgotten_and_the_rest_told_in_ranges() -> None:
    out = _Out(100)
    out.add(messages("0-1-8-3", "0-2-8-3", "0-3-8-3", "0-4-8-3", "0-5-8-4"))
    out.add(Handout(1, leased=Leased(1, "8-9", [Run(10, 13, 1), Run(20, 21, 2)], [])))
    out.done(["0-3-8-3", "1-10:12-8-9"])
    assert out.ack_ids() == ["0-1:3-8-3", "0-4-8-3", "0-5-8-4", "1-12-8-9", "1-20-8-9"]


def test_what_was_given_out_again_meanwhile_is_still_out() -> None:
    """The answer to a nack may come after the redelivery of its message."""
    out = _Out(100)
    out.add(messages("0-1-8-3"))
    out.add(messages("0-1-8-4"))
    out.done(["0-1-8-3"])
    assert out.ack_ids() == ["0-1-8-4"]


def test_of_what_was_never_acked_no_more_is_kept_than_may_be_out() -> None:
    out = _Out(2)
    out.add(messages("0-1-8-1", "0-2-8-1"))
    out.add(messages("0-1-8-2"))
    out.add(messages("0-3-8-3"))
    assert out.ack_ids() == ["0-1-8-2", "0-3-8-3"]
