"""A subscription counts calls and hand-outs only while they last, however they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.errors import NotOwner, SubscriptionBusy
from octavo.broker.state.cursor import Cursor
from octavo.broker.subscriptions.dispatch import Dispatcher
from tests.support.kit.quiescence import in_use
from tests.unit.broker.test_subscription_types import Log, keyed, made

TIMEOUT = 100


def dispatcher() -> Dispatcher:
    return Dispatcher(
        Cursor(0), exclusive=True, in_order=False, ack_timeout_ms=TIMEOUT, leased_max=100,
        delayed_max=100,
    )  # fmt: skip


@pytest.mark.parametrize("ends", ["given", "given back"])
def test_a_hand_out_that_was_read_holds_no_subscription(ends: str) -> None:
    """A consumer that was gone kept an exclusive subscription for ever."""
    one = dispatcher()
    for _ in range(3):  # read, and read again
        one.enter("a", 0)
        found = one.dispatch("a", 0, 10, 4)
        assert found is not None
        one.reading(found)
        assert in_use(one)["reads"] == 1
        with pytest.raises(SubscriptionBusy):
            one.enter("b", 10 * TIMEOUT)
        if ends == "given":
            one.begin(found, 0)
            for offset in found.offsets:
                one.cursor.ack(offset, offset + 1)
            one.acked(found.offsets)
        else:
            one.give_back(found)
        assert in_use(one) == {}
    one.enter("b", 10 * TIMEOUT)


@pytest.mark.parametrize("type_", ["exclusive", "shared", "key_shared"])
async def test_a_call_that_ended_is_counted_no_more(type_: Any) -> None:
    """Whether it got a message, none in time, was given up, or met the end of the partition. Calls
    that are counted for ever shrink the share of each later call."""
    log = Log([])
    one = made(log, type_, consumer_timeout_ms=600_000)
    for _ in range(2):
        assert await one.receive("a", messages_max=10, wait_s=0) == []
        assert await one.receive("a", messages_max=10, wait_s=0.01) == []
        given_up = asyncio.ensure_future(one.receive("a", messages_max=10, wait_s=600))
        await asyncio.sleep(0.01)
        assert in_use(one) == {"waiters": 1, "receiving": 1}
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert in_use(one) == {}
    waits = asyncio.ensure_future(one.receive("a", messages_max=10, wait_s=600))
    await asyncio.sleep(0.01)
    for _ in range(3):  # woken, with nothing there
        one.wake()
        await asyncio.sleep(0.01)
        assert in_use(one) == {"waiters": 1, "receiving": 1}
    log.records += keyed("k", "k", "k")
    one.wake()
    assert [message.offset for message in await waits] == [0, 1, 2]
    assert in_use(one) == {}
    waits = asyncio.ensure_future(one.receive("a", messages_max=10, wait_s=600))
    await asyncio.sleep(0.01)
    one.close(NotOwner("public/t/0 is served by another broker now"))
    with pytest.raises(NotOwner):
        await waits
    assert in_use(one) == {}
