"""`Client`: the synchronous face of `AsyncClient`, with an event loop on a thread of its own.

Every call blocks until its answer, may be made from any thread, and raises what the asynchronous
one raises. `KeyboardInterrupt` gives up the call. Calls that do no more than wait are made of the
asynchronous ones (`blocking`), with their types and descriptions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Literal, Unpack

from octavo.client.client import DEFAULT_URL, AsyncClient
from octavo.client.producer import Producer as AsyncProducer
from octavo.client.settings import ProducerSettings
from octavo.client.subscription import Subscription as AsyncSubscription
from octavo.client.types import Delivery, Headers, Message, Position, Value
from octavo.loop_thread import LoopThread, OnLoopThread, blocking
from octavo.protocol.compression import Compression

HANDED_OVER_MAX = 1_000
"""Messages on their way from the caller's thread to the loop's."""


class Producer(OnLoopThread[AsyncProducer]):
    """The synchronous face of a producer."""

    def __init__(self, inner: AsyncProducer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
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

    flush = blocking(AsyncProducer.flush)

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


class Subscription(OnLoopThread[AsyncSubscription]):
    """The synchronous face of a subscription's consumer."""

    receive = blocking(AsyncSubscription.receive)
    ack = blocking(AsyncSubscription.ack)
    ack_up_to = blocking(AsyncSubscription.ack_up_to)
    nack = blocking(AsyncSubscription.nack)
    extend = blocking(AsyncSubscription.extend)
    seek = blocking(AsyncSubscription.seek)
    stats = blocking(AsyncSubscription.stats)
    delete = blocking(AsyncSubscription.delete)

    @property
    def held_back(self) -> str | None:
        """Why the last `receive` gave nothing though there are messages: too many are unacked."""
        return self._inner.held_back

    def deliveries(
        self, *, auto_ack: bool = True, batch: int = 500, idle_s: float | None = None
    ) -> Iterator[Delivery]:
        """Messages one by one; see `octavo.client.subscription.Subscription.deliveries`."""
        return self._thread.iterate(
            self._inner.deliveries(auto_ack=auto_ack, batch=batch, idle_s=idle_s)
        )


class Client(OnLoopThread[AsyncClient]):
    """A client of one cluster, for programs without an event loop; a context manager."""

    cluster = blocking(AsyncClient.cluster)
    brokers = blocking(AsyncClient.brokers)
    bookies = blocking(AsyncClient.bookies)
    ledger = blocking(AsyncClient.ledger)
    create_namespace = blocking(AsyncClient.create_namespace)
    namespaces = blocking(AsyncClient.namespaces)
    create_topic = blocking(AsyncClient.create_topic)
    topic = blocking(AsyncClient.topic)
    topics = blocking(AsyncClient.topics)
    update_topic = blocking(AsyncClient.update_topic)
    delete_topic = blocking(AsyncClient.delete_topic)
    publish = blocking(AsyncClient.publish)
    publish_many = blocking(AsyncClient.publish_many)
    read = blocking(AsyncClient.read)
    offset = blocking(AsyncClient.offset)

    def __init__(
        self,
        urls: str | Sequence[str] = DEFAULT_URL,
        *,
        attempt_s: float = 15.0,
        retry_s: float = 60.0,
    ) -> None:
        inner = AsyncClient(urls, attempt_s=attempt_s, retry_s=retry_s)
        super().__init__(inner, LoopThread("octavo-client"))

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
