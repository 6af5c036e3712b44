"""The loop over a subscription's messages, which drives `handing`.

A task extends leases and acks while the body works; if the body blocks the event loop, the loop
does so between two messages. When the loop is left, unfinished messages are given back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from octavo.client.errors import (
    AcksUnsent,
    ClientError,
    Conflict,
    InvalidCall,
    NotFound,
    TopicReplaced,
)
from octavo.client.handing import Hand, Handing
from octavo.client.types import Delivery, amount, whole_number
from octavo.protocol.ack_ids import each

WAIT_S_MAX = 60.0
CLOSE_S = 10.0
"""How long closing tries to send the last acks."""
AHEAD_CLOSE_S = 1.0
"""How long closing waits for requested messages, to give them back."""
LOOKS = 24
"""How often in a lease the loop looks for due acks and extensions."""
LOOK_S_MIN, LOOK_S_MAX = 0.005, 0.25


class Consumer(Protocol):
    def receive(
        self, messages_max: int, *, wait_s: float
    ) -> Coroutine[Any, Any, Sequence[Delivery]]: ...

    def receive_in_turn(
        self, messages_max: int, *, wait_s: float
    ) -> Coroutine[Any, Any, Sequence[Delivery]]: ...

    def acknowledge(
        self, body: Mapping[str, Sequence[str]], retry_s: float | None = None
    ) -> Awaitable[None]: ...


class DeliveryLoop:
    def __init__(self, consumer: Consumer, lease_s: float, *, auto_ack: bool, batch: int) -> None:
        whole_number(batch, "batch", 1)
        self._consumer = consumer
        self._handing = Handing(lease_s, batch, auto_ack=auto_ack)
        self._look_s = max(LOOK_S_MIN, min(LOOK_S_MAX, lease_s / LOOKS))
        self._look_at_s = 0.0
        self._loop = asyncio.get_running_loop()
        self._calls = asyncio.Lock()
        self._failed: Exception | None = None
        self._closed = False
        self._last: dict[str, list[str]] | None = None
        """The final call of `close`; a later `close` repeats it until it is answered."""
        self._closing = asyncio.Lock()
        self._ahead: asyncio.Task[bool] | None = None
        self._hand_is_done = asyncio.Event()
        self._keeper = self._loop.create_task(self._keep(), name="keep leases")

    async def hand(self, wait_s: float) -> Hand | None:
        """Return the next hand, once the body has finished the last; None: no message within
        `wait_s`.

        Raises the reason why acks cannot be sent, and the errors of `receive`.
        """
        handing = self._handing
        self._check()
        handing.notice(self._loop.time())
        if handing.is_quick:
            # Ack the finished hand while the body works on the next. For a slower body ack first: a
            # lease might end.
            async with self._calls:
                self._hand_is_done.set()
        else:
            await self._send_due()
        while (hand := handing.hand(self._loop.time())) is None:
            ahead, self._ahead = self._ahead, None
            if ahead is None or not await ahead:
                self._check()
                if not await self._take(wait_s):
                    return None
            self._check()
        if handing.is_quick and self._ahead is None:
            self._ahead = self._loop.create_task(self._take(0.0))
        return hand

    async def _take(self, wait_s: float) -> bool:
        received = await self._receive(wait_s)
        self._handing.took(received, self._loop.time())
        return bool(received)

    def _receive(self, wait_s: float) -> Coroutine[Any, Any, Sequence[Delivery]]:
        handing = self._handing
        if handing.is_quick:
            return self._consumer.receive_in_turn(handing.want(), wait_s=wait_s)
        return self._consumer.receive(handing.want(), wait_s=wait_s)

    async def between(self) -> None:
        """Send due acks; a body that may block this event loop calls it between two messages."""
        now_s = self._loop.time()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + self._look_s
            if self._handing.is_due(now_s):
                await self._send_due()

    async def close(self) -> None:
        """Ack finished messages, give back the others. Raises `AcksUnsent` when that fails.

        If a close was cancelled, the next close continues it.
        """
        async with self._closing:  # a second call waits for the first
            if self._closed and self._last == {}:
                return
            self._closed = True
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            await self._take_ahead()
            async with self._calls:
                await self._send_last()

    def fail(self, why: Exception) -> None:
        self._failed = why
        self._handing.fail(why)

    async def _take_ahead(self) -> None:
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            return
        await asyncio.wait({ahead}, timeout=AHEAD_CLOSE_S)
        if ahead.cancel():
            await asyncio.wait({ahead})
        elif not ahead.cancelled():
            ahead.exception()

    async def _send_last(self) -> None:
        if self._last is None:
            done = self._handing.due(self._loop.time()).acks
            begun, unseen = self._handing.rest(_closed())
            parts = {"ack_ids": done, "nack": begun, "release": unseen}
            self._last = {name: ack_ids for name, ack_ids in parts.items() if ack_ids}
        if not (body := self._last):
            return
        try:
            await self._acknowledge(body, CLOSE_S)
        except asyncio.CancelledError:
            raise  # the ack may not have arrived
        except (TopicReplaced, NotFound):
            self._last = {}  # the messages are gone with the topic
        except ClientError as error:
            self._last = {}
            if unsent := body.get("ack_ids"):
                raise AcksUnsent(unsent, error) from error
        else:
            self._last = {}

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closed:
            raise _closed()

    async def _keep(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._look_s):
                    await self._hand_is_done.wait()
            if self._hand_is_done.is_set() or self._handing.is_due(self._loop.time()):
                self._hand_is_done.clear()
                try:
                    await self._send_due()
                except Exception as error:
                    self.fail(error)
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

    async def _acknowledge(self, body: dict[str, list[str]], retry_s: float | None = None) -> None:
        """Send acks. If a lease has ended, drop its message: it is delivered again."""
        try:
            await self._consumer.acknowledge(body, retry_s)
        except Conflict as error:
            if error.code != "stale-lease":
                raise
            self._handing.stale(each(error.problem.get("stale", ())))


async def hands(loop: DeliveryLoop, idle_s: float | None) -> AsyncIterator[Hand]:
    wait_s = WAIT_S_MAX / 2 if idle_s is None else min(amount(idle_s, "idle_s"), WAIT_S_MAX)
    while True:
        hand = await loop.hand(wait_s)
        if hand is not None:
            yield hand
        elif idle_s is not None:
            return


def _closed() -> InvalidCall:
    return InvalidCall("this loop's client was closed")
