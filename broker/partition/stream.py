"""A partition as a durable stream: made, appended to, ended, waited for.

Promises: what returned is durable, and an append and what it says of its producer, of `Stream-Seq`
and of the stream's end are there together or not at all (state/stream.py says how); a repeat is
stored once, also through take-overs. Readers are told of the end only when it is durable. Whoever
waits for more wakes when there is some, when the stream ends, and when the partition is somebody
else's. How long a stream has been idle each owner counts for itself: after a take-over it is
anew, so one that goes when idle lives longer, never shorter.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from octavo.broker.clock.deletion_clock import DeletionTime
from octavo.broker.errors import (
    EpochBegun,
    StaleStreamEpoch,
    StreamClosed,
    StreamConflict,
    StreamGone,
    StreamNotFound,
    StreamSequence,
    StreamSequenceGap,
    TopicIsNoStream,
)
from octavo.broker.partition.publisher import Publisher
from octavo.broker.state.format import Op
from octavo.broker.state.stream import MARKER, Append, StreamConfig, StreamState, marker_of
from octavo.broker.types import PartitionName
from octavo.protocol.records import Record, build_batch

Store = Callable[[bytes, Append, int | None], Awaitable[int | None]]
"""Publish a batch as an append, at this offset if one is given: where it ends; None: a repeat."""
_REFUSALS = (EpochBegun, StaleStreamEpoch, StreamClosed, StreamSequence, StreamSequenceGap)


class Appended(NamedTuple):
    """What became of an append."""

    end: int
    """Of the stream."""
    closed: bool
    repeated: bool = False
    epoch: int = 0
    """Of its producer, with the newest sequence that is stored."""
    sequence: int = 0


class PartitionStream:
    """Of one open partition; there is one also when it is no stream."""

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
        """One who makes, closes or deletes it at a time."""
        self._pending = 0
        """Changes without a batch that may not be durable yet: they are not shown."""
        self._is_being_made = False
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._used_s = self._loop.time()

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"pending": self._pending, "waiting": len(self._waiting)}

    # What it is

    @property
    def state(self) -> StreamState | None:
        """What is stored of it; None where the topic is no stream, or not yet."""
        return self._publisher().stored_stream

    @property
    def end(self) -> int:
        """One past the last durable message."""
        return self._publisher().confirmed_offset

    @property
    def is_closed(self) -> bool:
        """Whether nothing will follow, for good."""
        state = self.state
        return state is not None and state.closed and not self._pending

    @property
    def is_over(self) -> bool:
        """Whether its time is over: nobody has used it for its ttl, or `expires_at` has come."""
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
        """The stream, which is `used` by the caller. Raises `StreamNotFound`, `StreamGone`."""
        state = self.state
        if state is None or not self.is_made:
            raise TopicIsNoStream(
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
        """Whether it is there, with all that it was made with."""
        state = self.state
        return state is not None and self.end >= state.whole_at and not self._is_being_made

    # What is done to it

    async def make(
        self, config: StreamConfig, records: Sequence[Record], *, closed: bool, base: int = 0
    ) -> bool:
        """Have the log be this stream, with these messages. False when it was.

        `base`: where what is there before ends, of the stream that it is a fork of.

        Done again after it was broken off it goes on. Raises `StreamConflict` when it is there and
        differs, `StreamGone`, what appending raises.
        """
        async with self._changing:
            publisher = self._publisher()
            state = publisher.stored_stream
            if self.is_made:
                self._compare(self.standing(), config, closed=closed)
                return False
            begins = publisher.next_offset if state is None else state.base
            if publisher.next_offset > begins:  # by a call before this one, which broke off
                records = []
            if state is None and config.is_json and begins != base:
                raise StreamConflict(
                    f"{self._name.topic_name} has messages, which may be no JSON: a stream of "
                    "application/json is made of an empty topic"
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
            raise StreamConflict(
                f"{self._name.topic_name} is there already, with another " + ", ".join(differs)
            )

    async def append(self, records: Sequence[Record], append: Append) -> Appended:
        """Store these messages. Raises as `Partition.publish` does, and as `StreamState.check`."""
        self.standing()
        marker = marker_of(append)
        if marker is not None:
            headers = [*records[0].headers, (MARKER, marker)]
            records = [records[0]._replace(headers=headers), *records[1:]]
        try:
            end = await self._store(build_batch(records), append, None)
        except _REFUSALS:
            await self._prove()  # our successor, if there is one, may have what is missing
            raise
        if end is None:
            await self._prove()
        return self._appended(append, end)

    async def close(self, append: Append) -> Appended:
        """End it, without another message. Repeated it does no harm. Raises as `append` does."""
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
            elif self._pending:  # somebody was told before that nobody knows
                await self._told(state)
                self.wake()
            else:
                await self._prove()
            return self._appended(append, upto if end is None else None)

    async def delete(self) -> None:
        """It is gone for everybody, and kept for its forks. Durable when it returns."""
        async with self._changing:
            state = self.standing()
            state.revision += 1
            state.is_gone = True
            await self._told(state)
            self.wake()

    async def settle(self) -> None:
        """Have what may not be durable yet be so: now and then, for nobody may come again.

        Raises as what has failed then.
        """
        if not self._pending or self._is_being_made:
            return
        async with self._changing:
            state = self.state
            if state is not None and self._pending:
                await self._told(state)
                self.wake()

    async def _told(self, state: StreamState) -> None:
        """Have a change without a batch be durable; it is in the state already.

        When nobody knows whether it is, it stays unseen until it was told again.
        """
        self._pending += 1
        await self._persist(state.change(self.end))
        self._pending = 0

    def _appended(self, append: Append, end: int | None) -> Appended:
        """`end`: of the append; None when it is a repeat."""
        state = self.state
        assert state is not None
        written = None if append.producer is None else state.producers.get(append.producer)
        epoch, sequence = append.epoch, append.sequence
        if written is not None and written[:2] > (epoch, sequence):
            epoch, sequence, _ = written
        # Of a topic that syncs later than it answers the append may not be readable yet.
        closed = self.is_closed or (append.closes and end is not None)
        return Appended(max(self.end, end or 0), closed, end is None, epoch, sequence)

    # Waiting

    async def wait(self, offset: int, wait_s: float) -> None:
        """Return when there is something at `offset`, or nothing will come, or after `wait_s`."""
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
        """Whoever waits looks again."""
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
