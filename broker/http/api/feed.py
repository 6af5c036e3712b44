"""Feed a consumer from the partitions of a topic, without end: a subscription's stream.

`Feed` asks each partition's owner for messages, call after call, and passes them on. It is a
consumer like any other, with leases. If an owner dies, the stream pauses. The consumer decides how
many messages may be unacked: `credits` per partition. A message that is acked or given back, or
whose lease has ended, makes room for the next. At the end, messages that were received and not sent
are given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from msgspec import Raw
from msgspec.structs import replace

from octavo.broker.errors import SubscriptionBusy
from octavo.broker.http.api.acks import give_back
from octavo.broker.http.api.deliveries import GIVE_BACK_S, Handover, ack_ids_in
from octavo.broker.http.call import Call
from octavo.broker.http.stream import LIVES_S, Holding, through_moves
from octavo.broker.operations.kinds import Receive, ids_of
from octavo.broker.types import AckRange, Nack
from octavo.protocol.leased import Leased
from octavo.protocol.limits import MESSAGE_BYTES_MAX

AT_ONCE = 500
"""Limit of messages in a call to a partition that has some, if they are small …"""
HANDOUT_BYTES = 64 * 1024
"""… otherwise as many as make up this size, judged by earlier messages; while they come, twice this
or the last answer's size counts as held …"""
FIRST_OF_ALL = 16
"""… and limit of messages in a call that waits, since all partitions are waited for at once."""
ASKED_AT_ONCE = 2
"""Limit of calls at the same time to partitions that have messages. This limits how much a broker
holds for a slow consumer."""
FIRST_S = 2.0
"""How long the stream waits for each partition's first answer before it begins without it."""


class Handout(NamedTuple):
    """The messages of a call, as JSON, or as batches as they are stored."""

    partition: int
    messages: Sequence[Raw] = ()
    leased: Leased | None = None
    body: bytes = b""

    @property
    def size(self) -> int:
        """How many messages it has."""
        if self.leased is None:
            return len(self.messages)
        return sum(run.end - run.start for run in self.leased.runs)

    @property
    def held_bytes(self) -> int:
        """The bytes it needs until it is sent: its messages, and the frame made of them."""
        return 2 * (len(self.body) + sum(map(len, self.messages)))

    @property
    def ack_ids(self) -> list[str]:
        """The ack ids of all messages; for batches, as ranges."""
        return ack_ids_in(self.messages) if self.leased is None else ids_of(self.leased)


class Feed:
    """Feed a consumer from the partitions of a topic. An async context."""

    def __init__(
        self,
        call: Call,
        partitions: Sequence[int],
        asked: Receive,
        *,
        topic_partitions: int,
    ) -> None:
        assert asked.out_max is not None
        self.credits = asked.out_max
        self.topic_partitions = topic_partitions
        self._call = call
        self._topic = call.topic
        self._partitions = partitions
        self._asked = asked
        self._id = secrets.token_hex(6)
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._ready: asyncio.Queue[Handout] = asyncio.Queue(1)
        self._unsent: deque[Handout] = deque()
        self._held = Holding(call)
        self._pulls: list[asyncio.Task[None]] = []
        self._begun = {number: asyncio.Event() for number in partitions}

    async def __aenter__(self) -> Feed:
        """Begin. Raises a partition's lasting refusal that comes before anything was sent."""
        self._pulls = [asyncio.ensure_future(self._pull(number)) for number in self._partitions]
        try:
            begun = asyncio.ensure_future(self._all_begun())
            either: set[asyncio.Future[None]] = {*self._pulls, begun}
            try:
                await asyncio.wait(either, timeout=FIRST_S, return_when=asyncio.FIRST_COMPLETED)
            finally:
                begun.cancel()
            self._raise_what_ended()
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._end()

    async def handouts(self, quiet_s: float) -> AsyncIterator[Handout | None]:
        """Yield messages without end; None after each `quiet_s` without any.

        Raises a partition's lasting refusal.
        """
        while True:
            ready = asyncio.ensure_future(self._ready.get())
            either: set[asyncio.Future[Any]] = {ready, *self._pulls}
            try:
                await asyncio.wait(either, timeout=quiet_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if ready.done():
                    self._unsent.append(ready.result())
                else:
                    ready.cancel()
            if self._unsent:
                yield self._unsent[0]
                self._held.add(-self._unsent.popleft().held_bytes)
                continue
            self._raise_what_ended()
            yield None

    async def _all_begun(self) -> None:
        for event in tuple(self._begun.values()):
            await event.wait()

    def _raise_what_ended(self) -> None:
        for pull in self._pulls:
            if pull.done():
                pull.result()

    async def _end(self) -> None:
        for pull in self._pulls:
            pull.cancel()
        await asyncio.gather(*self._pulls, return_exceptions=True)
        while not self._ready.empty():
            self._unsent.append(self._ready.get_nowait())
        ack_ids = [one for handout in self._unsent for one in handout.ack_ids]
        self._unsent.clear()
        self._held.end()
        await self.give_back(ack_ids, were_sent=False)

    async def give_back(self, ack_ids: Sequence[str], *, were_sent: bool) -> None:
        """Give these back so that others get them before the ack timeout, if possible."""
        if not ack_ids:
            return
        shares: dict[int, list[str]] = defaultdict(list)
        for ack_id in ack_ids:
            shares[AckRange.parse(ack_id).partition].append(ack_id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GIVE_BACK_S):
                await asyncio.gather(
                    *[
                        give_back(
                            self._call,
                            self._topic.partition(number),
                            self._asked.subscription,
                            nacks=[Nack(one, 0) for one in some] if were_sent else (),
                            release=() if were_sent else some,
                        )
                        for number, some in shares.items()
                    ],
                    return_exceptions=True,
                )

    async def _pull(self, number: int) -> None:
        """Receive from a partition for ever. Raises lasting refusals."""
        wait_s = min(LIVES_S, self._call.services.config.wait_ms_max / 1000)
        most, expected = FIRST_OF_ALL, 2 * MESSAGE_BYTES_MAX
        name = self._topic.partition(number)
        waiting = replace(self._asked, name=name, most=FIRST_OF_ALL, wait_ms=round(wait_s * 1000))
        turns = itertools.count()
        has_more = True
        while True:
            if has_more:
                async with self._turns:
                    kept = await self._held.more(expected)
                    asked = replace(waiting, most=most, wait_ms=0)
                    found = await self._receive(asked, next(turns))
                    self._held.add(-kept)
                    self._begun[number].set()
                    if found is not None:
                        await self._ready_for(found)
                has_more = found is not None
            else:
                found = await self._receive(waiting, next(turns))
                if found is not None:
                    await self._ready_for(found)
                    has_more = found.size >= waiting.most
            if found is not None:
                held_bytes = found.held_bytes
                most = max(1, min(2 * HANDOUT_BYTES * found.size // held_bytes, AT_ONCE))
                expected = max(held_bytes, 2 * HANDOUT_BYTES)

    async def _ready_for(self, found: Handout) -> None:
        self._held.add(found.held_bytes)
        try:
            await self._ready.put(found)
        except asyncio.CancelledError:
            self._unsent.append(found)
            raise

    async def _receive(self, asked: Receive, turn: int) -> Handout | None:
        """Receive, and repeat the same call until it is answered; its number identifies it."""
        one = replace(asked, request=f"{self._id}-{turn}")
        return await through_moves(lambda: self._ask(one), SubscriptionBusy.name)

    async def _ask(self, asked: Receive) -> Handout | None:
        number = asked.name.partition
        async with Handover(self._call, asked) as handover:
            leases = await handover.leases()
            if leases.leased is not None:
                return Handout(number, leased=leases.leased, body=b"".join(leases.batches))
            shown = await handover.shown(leases)
        return Handout(number, shown.messages) if shown.messages else None
