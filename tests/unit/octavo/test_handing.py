"""A loop over deliveries acks each finished message once, whatever fails."""

from __future__ import annotations

import random

import pytest

from octavo.client.handing import Handing
from octavo.client.types import Delivery


def delivery(number: int) -> Delivery:
    return Delivery(0, number, "", None, b"", (), 0, f"0-{number}")


@pytest.mark.parametrize("seed", range(60))
def test_each_message_that_is_done_is_acked_once_and_in_order(seed: int) -> None:
    """Calls get lost, leases end, and the body stops anywhere."""
    rng = random.Random(seed)
    handing, now_s = Handing(1.0, rng.choice((1, 3, 50)), auto_ack=True), 0.0
    received = 0
    done: list[str] = []
    acked: list[str] = []
    gone: set[str] = set()
    for _ in range(80):
        now_s += rng.choice((0.0, 0.01, 0.4))
        step = rng.choice(("take", "work", "work", "send", "send", "stale"))
        if step == "take":
            count = rng.randint(0, 4)
            handing.took([delivery(received + one) for one in range(count)], now_s)
            received += count
        elif step == "work":
            hand = handing.hand(now_s)
            done += [one.ack_id for one in hand or ()]
        elif step == "stale":
            left = [one.ack_id for one in handing._ahead]
            ended = rng.sample(left, min(1, len(left)))
            handing.stale(ended)
            gone |= set(ended)
        else:
            due = handing.due(now_s)
            if rng.random() < 0.4:
                handing.not_sent(due)
            else:
                acked += due.acks
    acked += handing.due(now_s).acks
    assert acked == done
    assert not gone & set(done)
    begun, unseen = handing.rest(RuntimeError())
    assert sorted([*begun, *unseen, *done, *gone]) == sorted(f"0-{n}" for n in range(received))
