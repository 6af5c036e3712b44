"""A message that was sought back to began with the deliveries of before, after a change of owner.

Counts are written when they are handed out. Where a seek came while the messages were read, those
of before were written after it: they went to the dead letters sooner than they may. Found by
reading.
"""

from __future__ import annotations

from octavo.broker.subscriptions.subscription import Subscription
from octavo.broker.types import Nack, StoredBatch
from tests.unit.broker.test_subscription_types import Log, keyed, made


class _Slow(Log):
    """Reads that something comes in between of."""

    meanwhile: Subscription | None = None

    async def read(self, offset: int, *, bytes_max: int, count_max: int) -> list[StoredBatch]:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile.seek(0)
        return await super().read(offset, bytes_max=bytes_max, count_max=count_max)


async def test_a_seek_amid_a_hand_out_ends_what_was_counted() -> None:
    log = _Slow(keyed("a"))
    subscription = made(log, "shared")
    given = await subscription.receive("c", messages_max=1)
    await subscription.acknowledge(nacks=[Nack(given[0].ack_id, 0)])
    log.meanwhile = subscription
    assert (await subscription.receive("c", messages_max=1))[0].delivery_count == 2
    assert subscription._told == {}
    assert (await subscription.receive("c", messages_max=1))[0].delivery_count == 1
