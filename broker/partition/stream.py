"""Use a partition as a durable stream. Promises: what a call has returned is durable. An append is
stored together with its effects on its producer, on `Stream-Seq` and on the stream's end, or not at
all (state/stream.py). A repeat is stored once, also across take-overs. Readers see the end only
when it is durable. Each owner counts the idle time of a stream from the take-over on, so a stream
that expires when idle may live longer, but never shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import (
    STREAM_CONFLICT,
    TOPIC_IS_NO_STREAM,
    EpochBegun,
    StaleStreamEpoch,
    StreamClosed,
    StreamGone,
    StreamNotFound,
    StreamSequence,
    StreamSequenceGap,
)
from octavo.broker.partition.publisher import Publisher
from octavo.broker.state.format import Op
from octavo.broker.state.stream import MARKER, Append, StreamConfig, StreamState, marker_of
from octavo.broker.types import PartitionName
from octavo.protocol.records import Record, build_batch

Store = Callable[[bytes, Append, int | None], Awaitable[int | None]]
"""Returns the append's end, None for a repeat."""
_REFUSALS = (EpochBegun, StaleStreamEpoch, StreamClosed, StreamSequence, StreamSequenceGap)


class Appended(NamedTuple):
    end: int
    closed: bool
    repeated: bool = False
    epoch: int = 0
    sequence: int = 0


class PartitionStream:
    def __init__(
        self,
        name: PartitionName,
        publisher: Callable[[], Publisher],
        store: Store,
        persist: Callable[[Op], Awaitable[None]],
        prove: Callable[[], Awaitable[None]],
        deletion_time: Callable[[], DeletionTime | None],
        producers_max: int,
    ) -> None:
        self._name = name
        self._publisher = publisher
        self._store = store
        self._persist = persist
        self._prove = prove
        self._deletion_time = deletion_time
        self._producers_max = producers_max
        self._loop = asyncio.get_running_loop()
        self._changing = asyncio.Lock()
        self._pending = 0
        """Changes without a batch that may not be durable; readers do not see them."""
        self._is_being_made = False
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._used_s = self._loop.time()

    def describe(self) -> dict[str, int]:
        return {"pending": self._pending, "waiting": len(self._waiting)}

    @property
    def state(self) -> StreamState | None:
        return self._publisher().stored_stream

    @property
    def end(self) -> int:
        return self._publisher().confirmed_offset

    @property
    def is_closed(self) -> bool:
        state = self.state
        return state is not None and state.closed and not self._pending

    @property
    def is_over(self) -> bool:
        state = self.state
        if state is None:
            return False
        config = state.config
        idle_s = 0.0 if self._waiting else self._loop.time() - self._used_s
        if config.ttl_s is not None and idle_s >= config.ttl_s:
            return True
        time = self._deletion_time()
        due_ms = config.expires_at_ms
        return due_ms is not None and time is not None and not time.doubt and due_ms <= time.now_ms

    def standing(self, *, used: bool = True) -> StreamState:
        """Return the state for a caller; counts as a use, unless `used` is false."""
        state = self.state
        if state is None or not self.is_made:
            raise TOPIC_IS_NO_STREAM(
                f"{self._name.topic_name} is a topic, and no durable stream: PUT makes it one"
            )
        if state.is_gone:
            raise StreamGone(f"{self._name.topic_name} was deleted, and is kept for its forks")
        if self.is_over:
            raise StreamNotFound(f"{self._name.topic_name} has expired")
        if used:
            self._used_s = self._loop.time()
        return state

    @property
    def is_made(self) -> bool:
        state = self.state
        return state is not None and self.end >= state.whole_at and not self._is_being_made

    async def make(
        self, config: StreamConfig, records: Sequence[Record], *, closed: bool, base: int = 0
    ) -> bool:
        """Make the log this stream, with these messages; return False if it was already.

        `base`: for a fork, the end of its inherited messages. A repeat continues a broken-off call.
        """
        async with self._changing:
            publisher = self._publisher()
            state = publisher.stored_stream
            if self.is_made:
                self._compare(self.standing(), config, closed=closed)
                return False
            begins = publisher.next_offset if state is None else state.base
            if publisher.next_offset > begins:  # an earlier call, which broke off, stored them
                records = []
            if state is None and config.is_json and begins != base:
                raise STREAM_CONFLICT(
                    f"{self._name.topic_name} has messages, which may not be JSON: a stream of "
                    "application/json can be made only of an empty topic"
                )
            revision = 1 if state is None else state.revision + 1
            whole_at = publisher.next_offset + len(records)
            made = StreamState(
                config,
                revision,
                begins,
                begins,
                whole_at,
                closed,
                producers_max=self._producers_max,
            )
            self._is_being_made = True
            publisher.begin_stream(made)
            self._used_s = self._loop.time()
            await self._told(made)
            self._is_being_made = False
            if records and self.end < made.whole_at:
                await self._store(build_batch(records), Append(is_first=True), begins)
            self.wake()
            return True

    def _compare(self, state: StreamState, config: StreamConfig, *, closed: bool) -> None:
        held = state.config
        differs = [
            word
            for word, one, other in (
                ("content type", held.media_type, config.media_type),
                ("Stream-TTL", held.ttl_s, config.ttl_s),
                ("Stream-Expires-At", held.expires_at_ms, config.expires_at_ms),
                ("Stream-Closed", state.closed, closed),
                ("Stream-Forked-From", held.forked_from, config.forked_from),
                ("Stream-Fork-Offset", held.fork_offset, config.fork_offset),
                ("Stream-Fork-Sub-Offset", held.fork_sub_offset, config.fork_sub_offset),
            )
            if one != other
        ]
        if differs:
            raise STREAM_CONFLICT(
                f"{self._name.topic_name} is there already, with another " + ", ".join(differs)
            )

    async def append(self, records: Sequence[Record], append: Append) -> Appended:
        self.standing()
        marker = marker_of(append)
        if marker is not None:
            headers = [*records[0].headers, (MARKER, marker)]
            records = [records[0]._replace(headers=headers), *records[1:]]
        try:
            end = await self._store(build_batch(records), append, None)
        except _REFUSALS:
            await self._prove()  # a successor may have the missing append
            raise
        if end is None:
            await self._prove()
        return self._appended(append, end)

    async def close(self, append: Append) -> Appended:
        """End the stream without a message; a repeat is harmless."""
        self.standing()
        async with self._changing:
            publisher = self._publisher()
            try:
                end = publisher.let_close(append)
            except _REFUSALS:
                await self._prove()
                raise
            upto = publisher.next_offset
            await publisher.confirmed_up_to(upto)
            state = publisher.stored_stream
            assert state is not None
            if publisher.closing is not None and not state.closed:
                state.revision += 1
                state.accept(publisher.closing, upto)
                await self._told(state)
                self.wake()
            elif self._pending:  # an earlier call ended with an unknown outcome
                await self._told(state)
                self.wake()
            else:
                await self._prove()
            return self._appended(append, upto if end is None else None)

    async def delete(self) -> None:
        """Mark the stream as deleted, durably; it is kept for its forks."""
        async with self._changing:
            state = self.standing()
            state.revision += 1
            state.is_gone = True
            await self._told(state)
            self.wake()

    async def settle(self) -> None:
        """Repeat a change whose outcome is unknown: its client may not return. Call
        periodically.
        """
        if not self._pending or self._is_being_made:
            return
        async with self._changing:
            state = self.state
            if state is not None and self._pending:
                await self._told(state)
                self.wake()

    async def _told(self, state: StreamState) -> None:
        """Make a change without a batch durable; the state has it already.

        If the outcome is unknown, readers do not see it until a later call has written it.
        """
        self._pending += 1
        await self._persist(state.change(self.end))
        self._pending = 0

    def _appended(self, append: Append, end: int | None) -> Appended:
        state = self.state
        assert state is not None
        written = None if append.producer is None else state.producers.get(append.producer)
        epoch, sequence = append.epoch, append.sequence
        if written is not None and written[:2] > (epoch, sequence):
            epoch, sequence, _ = written
        # With deferred syncs, the append may not be readable yet.
        closed = self.is_closed or (append.closes and end is not None)
        return Appended(max(self.end, end or 0), closed, end is None, epoch, sequence)

    async def wait(self, offset: int, wait_s: float) -> None:
        until_s = self._loop.time() + wait_s
        while self.end <= offset and not self.is_closed and self._loop.time() < until_s:
            self.standing(used=False)
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiting[waiter] = None
            timer = self._loop.call_at(until_s, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiting.pop(waiter, None)
                self._used_s = self._loop.time()

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
