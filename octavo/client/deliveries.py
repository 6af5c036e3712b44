"""The loop over a subscription's messages: what drives `handing.py`.

While the loop's body works, a task extends the leases of what is held and acks what is done. A
body that blocks the event loop stops that task too, so the same is done between two messages when
it is due. Whoever leaves the loop, in whatever way, gives back what is not done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol

from octavo.client.errors import AcksUnsent, ClientError, Conflict, InvalidCall, TopicReplaced
from octavo.client.handing import Handing
from octavo.client.types import Delivery

CLOSE_S = 10.0
"""Closing tries for so long to send the last acks."""
LOOKS = 24
"""In one lease, at whether something is due."""
LOOK_S_MIN, LOOK_S_MAX = 0.005, 0.25


class Consumer(Protocol):
    """What a loop needs of its subscription."""

    def receive(self, messages_max: int, *, wait_s: float) -> Awaitable[Sequence[Delivery]]:
        """Up to so many messages."""

    def acknowledge(self, body: Mapping[str, Any], retry_s: float | None = None) -> Awaitable[None]:
        """One call with acks, nacks and extends."""


class DeliveryLoop:
    """One loop. `next` until it gives None, then, or earlier, `close`."""

    def __init__(self, consumer: Consumer, lease_s: float, *, auto_ack: bool, batch: int) -> None:
        if batch < 1:
            raise InvalidCall(f"batch is {batch}: a loop takes at least one message at a time")
        self._consumer = consumer
        self._handing = Handing(lease_s, batch, auto_ack=auto_ack)
        self._look_s = max(LOOK_S_MIN, min(LOOK_S_MAX, lease_s / LOOKS))
        self._loop = asyncio.get_running_loop()
        self._calls = asyncio.Lock()
        self._failed: Exception | None = None
        self._closed = False
        self._closing = asyncio.Lock()
        self._keeper = self._loop.create_task(self._keep(), name="keep leases")

    async def next(self, wait_s: float) -> Delivery | None:
        """The next message; None when none came within `wait_s`. The last one is done.

        Raises why acks cannot be sent, and what `receive` raises.
        """
        handing = self._handing
        handing.came_back(self._loop.time())
        if handing.is_empty or handing.is_due(self._loop.time()):
            await self._send_due()
        while handing.is_empty:
            self._check()
            received = await self._consumer.receive(handing.want(), wait_s=wait_s)
            if not received:
                return None
            handing.took(received, self._loop.time())
        self._check()
        return handing.hand(self._loop.time())

    async def close(self) -> None:
        """Ack what is done, give back what is not. Raises `AcksUnsent` when that fails."""
        async with self._closing:  # whoever closes it too, waits until it is
            if self._closed:
                return
            self._closed = True
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            async with self._calls:
                await self._send_last()

    async def _send_last(self) -> None:
        done, rest = self._handing.due(self._loop.time()).acks, self._handing.rest()
        if not done and not rest:
            return
        try:
            await self._acknowledge({"ack_ids": done, "nack": rest}, CLOSE_S)
        except TopicReplaced:
            return  # nothing of it will be delivered again, to nobody
        except ClientError as error:
            if done:
                raise AcksUnsent(done, error) from error

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise InvalidCall("this loop's client was closed")

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            if self._handing.is_due(self._loop.time()):
                try:
                    await self._send_due()
                except Exception as error:
                    self._failed = error  # for the body, when it comes back
                    return

    async def _send_due(self) -> None:
        async with self._calls:
            due = self._handing.due(self._loop.time())
            if not due.acks and not due.extend:
                return
            try:
                await self._acknowledge({"ack_ids": due.acks, "extend": due.extend})
            except BaseException:
                self._handing.not_sent(due)
                raise

    async def _acknowledge(self, body: dict[str, Any], retry_s: float | None = None) -> None:
        """A lease that has ended ends no loop: that message comes again, to whomever."""
        try:
            await self._consumer.acknowledge(body, retry_s)
        except Conflict as error:
            if error.code != "stale-lease":
                raise
            self._handing.stale(error.problem.get("stale", ()))
