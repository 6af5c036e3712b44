"""`Client`: the synchronous face of `AsyncClient`, with an event loop on a thread of its own.

Every call blocks until its answer, may be made from any thread, and raises what the asynchronous
one raises. `KeyboardInterrupt` gives up the call.
"""

from __future__ import annotations

import threading
from collections.abc import (
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Literal, TypeVar, Unpack

from octavo.client import producer as async_producer
from octavo.client import subscription as async_subscription
from octavo.client.client import DEFAULT_URL, AsyncClient
from octavo.client.settings import ProducerSettings, TopicChanges, TopicSettings
from octavo.client.subscription import Handed
from octavo.client.types import Delivery, Headers, Message, Position, Topic, Value
from octavo.loop_thread import LoopThread
from octavo.protocol.compression import Compression

T = TypeVar("T")
HANDED_OVER_MAX = 1_000
"""Messages on their way from the caller's thread to the loop's."""


class Producer:
    """The synchronous face of a producer."""

    def __init__(self, inner: async_producer.Producer, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread
        self._handed_over = threading.Semaphore(HANDED_OVER_MAX)

    def send(
        self,
        value: Value,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Future[Position]:
        """Take a message on; the future's result is where it is stored.

        Waits only while too much is unanswered.
        """
        if not self._inner.has_room:
            self._thread.call(self._inner.until_room())
        self._handed_over.acquire()
        future: Future[Position] = Future()

        def take() -> None:
            self._handed_over.release()
            try:
                receipt = self._inner.send_nowait(
                    value, key=key, headers=headers, timestamp_ms=timestamp_ms, partition=partition
                )
            except Exception as error:
                self._inner.note(error)
                future.set_exception(error)
            else:
                receipt.on_done(lambda found: _settle(future, found))

        self._thread.soon(take)
        return future

    def flush(self) -> None:
        """Wait for every answer. Raises the first error since the last flush."""
        self._thread.call(self._inner.flush())

    def close(self) -> None:
        """Flush and stop."""
        self._thread.call(self._inner.close())

    def __enter__(self) -> Producer:
        """Ready for use as it is."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush, unless the block failed."""
        self._thread.call(self._inner.close(flush=kind is None))


def _settle(future: Future[Position], found: Position | BaseException) -> None:
    if isinstance(found, BaseException):
        future.set_exception(found)
    else:
        future.set_result(found)


class Subscription:
    """The synchronous face of a subscription's consumer."""

    def __init__(self, inner: async_subscription.Subscription, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    @property
    def held_back(self) -> str | None:
        """Why the last `receive` gave nothing though there are messages: too many are unacked."""
        return self._inner.held_back

    def receive(
        self, messages_max: int = 100, *, wait_s: float = 0.0, partition: int | None = None
    ) -> list[Delivery]:
        """Up to `messages_max` messages; empty when none came within `wait_s`."""
        return self._thread.call(
            self._inner.receive(messages_max, wait_s=wait_s, partition=partition)
        )

    def ack(self, *handed: Handed | Iterable[Handed]) -> None:
        """Done with these, durably."""
        self._thread.call(self._inner.ack(*handed))

    def ack_up_to(self, delivery: Delivery) -> None:
        """Done with this and all before it in its partition."""
        self._thread.call(self._inner.ack_up_to(delivery))

    def nack(self, *handed: Handed | Iterable[Handed], delay_s: float = 0.0) -> None:
        """Not done: deliver again, not before `delay_s` from now."""
        self._thread.call(self._inner.nack(*handed, delay_s=delay_s))

    def extend(self, *handed: Handed | Iterable[Handed]) -> None:
        """Still at it: the lease starts anew."""
        self._thread.call(self._inner.extend(*handed))

    def seek(self, to: str | int) -> None:
        """Go to `earliest`, `latest`, an offset, a message id or an RFC 3339 time."""
        self._thread.call(self._inner.seek(to))

    def stats(self) -> Mapping[str, Any]:
        """Backlog, unacked ranges, consumers."""
        return self._thread.call(self._inner.stats())

    def delete(self) -> None:
        """Remove the subscription and its cursor."""
        self._thread.call(self._inner.delete())

    def deliveries(
        self, *, auto_ack: bool = True, batch: int = 500, idle_s: float | None = None
    ) -> Iterator[Delivery]:
        """Messages one by one; see `octavo.client.subscription.Subscription.deliveries`."""
        return self._thread.iterate(
            self._inner.deliveries(auto_ack=auto_ack, batch=batch, idle_s=idle_s)
        )


class Client:
    """A client of one cluster, for programs without an event loop; a context manager."""

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        attempt_s: float = 15.0,
        retry_s: float = 60.0,
    ) -> None:
        self._inner = AsyncClient(urls, attempt_s=attempt_s, retry_s=retry_s)
        self._thread = LoopThread("octavo-client")

    def __enter__(self) -> Client:
        """Ready for use as it is."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Give the connections back and end the thread."""
        try:
            self._thread.call(self._inner.close())
        finally:
            self._thread.stop()

    def cluster(self) -> Mapping[str, Any]:
        """`GET /v1/cluster`."""
        return self._thread.call(self._inner.cluster())

    def brokers(self) -> list[Mapping[str, Any]]:
        """Live brokers."""
        return self._thread.call(self._inner.brokers())

    def bookies(self) -> list[Mapping[str, Any]]:
        """Live bookies."""
        return self._thread.call(self._inner.bookies())

    def create_namespace(self, name: str) -> None:
        """Create it, or find that it exists."""
        self._thread.call(self._inner.create_namespace(name))

    def namespaces(self) -> list[str]:
        """All namespaces."""
        return self._thread.call(self._inner.namespaces())

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int = 1,
        ensemble_size: int | None = None,
        write_quorum: int | None = None,
        ack_quorum: int | None = None,
        **settings: Unpack[TopicSettings],
    ) -> Topic:
        """Create it, or find that it exists so. Raises `Conflict` when it exists otherwise."""
        return self._thread.call(
            self._inner.create_topic(
                topic,
                partitions=partitions,
                ensemble_size=ensemble_size,
                write_quorum=write_quorum,
                ack_quorum=ack_quorum,
                **settings,
            )
        )

    def topic(self, topic: str) -> Topic:
        """Settings and live statistics. Raises `NotFound`."""
        return self._thread.call(self._inner.topic(topic))

    def topics(self, namespace: str = "public") -> list[str]:
        """The names of a namespace's topics."""
        return self._thread.call(self._inner.topics(namespace))

    def update_topic(self, topic: str, **settings: Unpack[TopicChanges]) -> Topic:
        """Change settings."""
        return self._thread.call(self._inner.update_topic(topic, **settings))

    def delete_topic(self, topic: str) -> None:
        """Remove a topic, its messages and its subscriptions."""
        self._thread.call(self._inner.delete_topic(topic))

    def publish(
        self,
        topic: str,
        value: Value,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
    ) -> Position:
        """Store one message; return where, once it is durable."""
        return self._thread.call(
            self._inner.publish(
                topic,
                value,
                key=key,
                headers=headers,
                timestamp_ms=timestamp_ms,
                partition=partition,
            )
        )

    def publish_many(
        self, topic: str, messages: Iterable[tuple[str | bytes | None, Value]]
    ) -> list[Position]:
        """Store (key, value) pairs, in order per key; return their positions."""
        return self._thread.call(self._inner.publish_many(topic, messages))

    def producer(
        self,
        topic: str,
        *,
        producer_id: str | int | None = None,
        encoding: Literal["batch", "ndjson"] = "batch",
        compression: Compression = Compression.NONE,
        **options: Unpack[ProducerSettings],
    ) -> Producer:
        """A producer of a topic; `options` as in `ProducerSettings`."""
        inner = self._thread.call(
            self._inner.producer(
                topic,
                producer_id=producer_id,
                encoding=encoding,
                compression=compression,
                **options,
            )
        )
        return Producer(inner, self._thread)

    def read(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: str | int = "earliest",
        limit: int = 1_000,
        wait_s: float = 0.0,
        compacted: bool = False,
        incarnation: str | None = None,
    ) -> list[Message]:
        """Messages of one partition from `start`; `compacted`: through its compacted view.

        `incarnation`: of which topic of that name; see `AsyncClient.read`.
        """
        return self._thread.call(
            self._inner.read(
                topic,
                partition=partition,
                start=start,
                limit=limit,
                wait_s=wait_s,
                compacted=compacted,
                incarnation=incarnation,
            )
        )

    def messages(
        self,
        topic: str,
        *,
        partition: int = 0,
        start: str | int = "earliest",
        follow: bool = False,
        compacted: bool = False,
        incarnation: str | None = None,
    ) -> Iterator[Message]:
        """A partition's messages in order, to its end, or without end (`follow`).

        `compacted`: first its compacted view, then every message behind the view's horizon.
        All are of one topic: see `AsyncClient.messages`.
        """
        return self._thread.iterate(
            self._inner.messages(
                topic,
                partition=partition,
                start=start,
                follow=follow,
                compacted=compacted,
                incarnation=incarnation,
            )
        )

    def offset(self, topic: str, *, partition: int = 0, at: str | int = "latest") -> int:
        """The offset of `earliest`, `latest` or a time."""
        return self._thread.call(self._inner.offset(topic, partition=partition, at=at))

    def subscribe(
        self,
        topic: str,
        name: str,
        *,
        type: Literal["exclusive", "shared"] = "exclusive",  # noqa: A002 (the API's word)
        start: Literal["earliest", "latest"] = "earliest",
        ack_timeout_s: float | None = None,
        consumer: str | None = None,
    ) -> Subscription:
        """Create the subscription, or find that it exists so; return a consumer of it."""
        inner = self._thread.call(
            self._inner.subscribe(
                topic,
                name,
                type=type,
                start=start,
                ack_timeout_s=ack_timeout_s,
                consumer=consumer,
            )
        )
        return Subscription(inner, self._thread)

    def subscription(self, topic: str, name: str, *, consumer: str | None = None) -> Subscription:
        """A consumer of a subscription that exists."""
        return Subscription(self._inner.subscription(topic, name, consumer=consumer), self._thread)
