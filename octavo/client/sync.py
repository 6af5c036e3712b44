"""`Client`: `AsyncClient` without `await`; its event loop runs on another thread.

Calls block, may be made from any thread, and raise what the asynchronous call raises.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Literal, Unpack

from octavo.client.client import AsyncClient
from octavo.client.consumer import REFRESH_S, SESSION_S
from octavo.client.consumer import TopicsConsumer as AsyncTopicsConsumer
from octavo.client.deliveries import hands
from octavo.client.durable import BEGINNING, AsyncStream, StreamPart
from octavo.client.partition_queue import Batch
from octavo.client.producer import Producer as AsyncProducer
from octavo.client.settings import ProducerSettings, SubscriptionSettings
from octavo.client.subscription import HAND_MAX
from octavo.client.subscription import Subscription as AsyncSubscription
from octavo.client.types import (
    Delivery,
    Headers,
    Message,
    Position,
    SubscriptionType,
    Value,
    key_bytes,
)
from octavo.loop_thread import LoopThread, OnLoopThread, blocking
from octavo.protocol.codes import OctavoError
from octavo.protocol.compression import Compression
from octavo.protocol.records import Record

HANDED_OVER_MAX = 10_000
"""Messages that may be on their way from callers' threads to the loop's thread."""
Handover = tuple["Receipt", Record | bytes, int, bytes | None, int | None]


class Receipt:
    """The position of a message, once it is durable."""

    __slots__ = ("_batch", "_error", "_index", "_thread")

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._batch: Batch | None = None
        self._index = 0
        self._error: BaseException | None = None

    def result(self, timeout_s: float | None = None) -> Position:
        """Wait for the message's position. Raises why it was not stored, `OutcomeUnknown`,
        `TimeoutError`.
        """
        if not self.done():
            self._thread.call(self._wait(timeout_s))
        return self._found()

    def exception(self, timeout_s: float | None = None) -> BaseException | None:
        """Wait, and return the reason why it was not stored, or None. Raises `TimeoutError`."""
        if not self.done():
            self._thread.call(self._wait(timeout_s))
        if self._batch is None:
            return self._error
        self._batch.told = True
        return self._batch.done.exception()

    def done(self) -> bool:
        """Whether there is an answer, good or bad."""
        return self._error is not None or (self._batch is not None and self._batch.done.done())

    def add_done_callback(self, told: Callable[[Receipt], object]) -> None:
        """Call `told` with this receipt, on the client's thread, when there is an answer."""

        def place() -> None:
            if self._batch is None:
                told(self)
            else:
                self._batch.told = True
                self._batch.done.add_done_callback(lambda _: told(self))

        self._thread.soon(place)

    def placed(self, batch: Batch, index: int) -> None:
        self._batch, self._index = batch, index

    def refused(self, error: BaseException) -> None:
        self._error = error

    async def _wait(self, timeout_s: float | None) -> None:
        # Runs on the loop's thread, where messages handed over earlier are taken first.
        if self._batch is not None:
            async with asyncio.timeout(timeout_s):
                await asyncio.wait({self._batch.done})

    def _found(self) -> Position:
        if self._batch is None:
            assert self._error is not None
            raise self._error
        self._batch.told = True
        return self._batch.done.result().position(self._index)


class Producer(OnLoopThread[AsyncProducer]):
    """A producer for programs without an event loop."""

    def __init__(self, inner: AsyncProducer, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._lock = threading.Lock()
        self._handed: list[Handover] = []
        self._handed_bytes = 0

    def send(
        self,
        value: Value,
        *,
        key: str | bytes | None = None,
        headers: Headers | None = None,
        timestamp_ms: int | None = None,
        partition: int | None = None,
        deliver_at_ms: int | None = None,
    ) -> Receipt:
        """Accept a message; the receipt's `result()` is its position, once it is durable.

        Waits only while too many bytes are unanswered. Raises `InvalidCall` (`MessageTooLong`
        beyond the fixed bounds), `TopicReplaced`.
        """
        self._thread.check()
        inner = self._inner
        inner.check(partition)
        name = key_bytes(key)
        item, size = inner.item(value, name, headers, timestamp_ms, deliver_at_ms)
        receipt = Receipt(self._thread)
        handed_bytes, bytes_max = self._handed_bytes, inner.options.pending_bytes_max
        if len(self._handed) >= HANDED_OVER_MAX or inner.pending_bytes + handed_bytes >= bytes_max:
            self._thread.call(inner.until_room())  # runs after earlier messages are taken
        with self._lock:
            self._handed.append((receipt, item, size, name, partition))
            self._handed_bytes += size
            is_first = len(self._handed) == 1
        if is_first:
            self._thread.soon(self._take)
        return receipt

    def _take(self) -> None:
        """Put handed-over messages into batches, on the loop's thread."""
        with self._lock:
            handed, self._handed, self._handed_bytes = self._handed, [], 0
        take = self._inner.take
        try:
            self._inner.check(None)  # the producer may have been closed since the hand-over
        except OctavoError as error:
            self._inner.note(error)
            for receipt, *_ in handed:
                receipt.refused(error)
            return
        for receipt, item, size, key, partition in handed:
            try:
                receipt.placed(*take(item, size, key, partition))
            except Exception as error:  # any error concerns this message alone
                receipt.refused(error)
                self._inner.note(error)

    flush = blocking(AsyncProducer.flush)

    def close(self) -> None:
        """Flush and stop; may be repeated. Raises the first error since the last flush."""
        self._close(flush=True)

    def _close(self, *, flush: bool) -> None:
        if not self._thread.is_stopped:  # closing the client has closed the producer
            self._thread.call(self._inner.close(flush=flush))

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close(flush=kind is None)


class TopicsConsumer(OnLoopThread[AsyncTopicsConsumer]):
    """A consumer of several topics, for programs without an event loop."""

    ack = blocking(AsyncTopicsConsumer.ack)
    nack = blocking(AsyncTopicsConsumer.nack)
    extend = blocking(AsyncTopicsConsumer.extend)

    @property
    def has(self) -> list[str]:
        """List the topics that it receives from now; in a group, the partitions."""
        return self._inner.has

    def deliveries(
        self, *, auto_ack: bool = True, batch: int = HAND_MAX, idle_s: float | None = None
    ) -> Iterator[Delivery]:
        """Yield messages one by one; see `octavo.client.consumer.TopicsConsumer.deliveries`."""
        opened = self._inner.opened(auto_ack=auto_ack, batch=batch)
        with self._thread.entered(opened) as merged:
            for hand in self._thread.iterate(merged.hands(idle_s)):
                yield from hand


class Stream(OnLoopThread[AsyncStream]):
    """A durable stream, by its name; it has the calls of `AsyncStream`."""

    @property
    def name(self) -> str:
        """Return the name as `namespace/topic`."""
        return self._inner.name

    create = blocking(AsyncStream.create)
    append = blocking(AsyncStream.append)
    append_many = blocking(AsyncStream.append_many)
    close = blocking(AsyncStream.close)
    read = blocking(AsyncStream.read)
    head = blocking(AsyncStream.head)
    delete = blocking(AsyncStream.delete)

    def follow(self, offset: str = BEGINNING) -> Iterator[StreamPart]:
        """Yield data and new data until the stream is closed; see `AsyncStream.follow`."""
        return self._thread.iterate(self._inner.follow(offset))

    def fork(self, name: str, offset: str | None = None) -> Stream:
        """Create a stream that begins with this stream's data: see `AsyncStream.fork`."""
        return Stream(self._thread.call(self._inner.fork(name, offset)), self._thread)


class Subscription(OnLoopThread[AsyncSubscription]):
    """A consumer of a subscription, for programs without an event loop."""

    receive = blocking(AsyncSubscription.receive)
    ack = blocking(AsyncSubscription.ack)
    ack_up_to = blocking(AsyncSubscription.ack_up_to)
    nack = blocking(AsyncSubscription.nack)
    extend = blocking(AsyncSubscription.extend)
    seek = blocking(AsyncSubscription.seek)
    skip = blocking(AsyncSubscription.skip)
    expire = blocking(AsyncSubscription.expire)
    peek = blocking(AsyncSubscription.peek)
    lag = blocking(AsyncSubscription.lag)
    stats = blocking(AsyncSubscription.stats)
    delete = blocking(AsyncSubscription.delete)

    @property
    def held_back(self) -> str | None:
        """Say why the last `receive` gave no message although there are some."""
        return self._inner.held_back

    def deliveries(
        self, *, auto_ack: bool = True, batch: int = HAND_MAX, idle_s: float | None = None
    ) -> Iterator[Delivery]:
        """Yield messages one by one; see `octavo.client.subscription.Subscription.deliveries`.

        The body runs on the caller's thread; the client's thread extends leases and acks.
        """
        opened = self._inner.opened(auto_ack=auto_ack, batch=batch)
        with self._thread.entered(opened) as loop:
            for hand in self._thread.iterate(hands(loop, idle_s)):
                yield from hand


class Client(OnLoopThread[AsyncClient]):
    """A client of a cluster, for programs without an event loop; a context manager.

        with Client("http://127.0.0.1:8080") as client:
            client.create_topic("orders", partitions=4)
            with client.producer("orders") as producer:
                producer.send({"order": 1}, key="customer-7")
            orders = client.subscribe("orders", "billing", type="shared")
            for delivery in orders.deliveries(idle_s=2):
                print(delivery.offset, delivery.json())

    Arguments and errors as in `AsyncClient`. Calls wait for their answers and may be made from any
    thread. After a `fork`, the child must make a new client: this client's thread stays in the
    parent.
    """

    cluster = blocking(AsyncClient.cluster)
    brokers = blocking(AsyncClient.brokers)
    drain_broker = blocking(AsyncClient.drain_broker)
    undrain_broker = blocking(AsyncClient.undrain_broker)
    bookies = blocking(AsyncClient.bookies)
    ledger = blocking(AsyncClient.ledger)
    create_namespace = blocking(AsyncClient.create_namespace)
    namespace = blocking(AsyncClient.namespace)
    update_namespace = blocking(AsyncClient.update_namespace)
    namespace_policies = blocking(AsyncClient.namespace_policies)
    delete_namespace = blocking(AsyncClient.delete_namespace)
    is_encrypted = blocking(AsyncClient.is_encrypted)
    namespaces = blocking(AsyncClient.namespaces)
    create_topic = blocking(AsyncClient.create_topic)
    topic = blocking(AsyncClient.topic)
    topics = blocking(AsyncClient.topics)
    update_topic = blocking(AsyncClient.update_topic)
    topic_policies = blocking(AsyncClient.topic_policies)
    set_topic_policies = blocking(AsyncClient.set_topic_policies)
    fork_topic = blocking(AsyncClient.fork_topic)
    truncate_topic = blocking(AsyncClient.truncate_topic)
    delete_topic = blocking(AsyncClient.delete_topic)
    unload_topic = blocking(AsyncClient.unload_topic)
    explain_topic = blocking(AsyncClient.explain_topic)
    subscriptions = blocking(AsyncClient.subscriptions)
    register_schema = blocking(AsyncClient.register_schema)
    check_schema = blocking(AsyncClient.check_schema)
    schema = blocking(AsyncClient.schema)
    schema_subject = blocking(AsyncClient.schema_subject)
    schema_subjects = blocking(AsyncClient.schema_subjects)
    set_schema_compatibility = blocking(AsyncClient.set_schema_compatibility)
    delete_schema_subject = blocking(AsyncClient.delete_schema_subject)
    quotas = blocking(AsyncClient.quotas)
    quota = blocking(AsyncClient.quota)
    set_quota = blocking(AsyncClient.set_quota)
    delete_quota = blocking(AsyncClient.delete_quota)
    policy = blocking(AsyncClient.policy)
    user_groups = blocking(AsyncClient.user_groups)
    set_policy = blocking(AsyncClient.set_policy)
    publish = blocking(AsyncClient.publish)
    publish_many = blocking(AsyncClient.publish_many)
    publish_large = blocking(AsyncClient.publish_large)
    read = blocking(AsyncClient.read)
    offset = blocking(AsyncClient.offset)

    def __init__(
        self,
        urls: str | Sequence[str] | None = None,
        *,
        ca_file: str | None = None,
        certificate: str | None = None,
        key: str | None = None,
        token: str | None = None,
        attempt_s: float = 15.0,
        retry_s: float = 60.0,
    ) -> None:
        inner = AsyncClient(
            urls,
            ca_file=ca_file,
            certificate=certificate,
            key=key,
            token=token,
            attempt_s=attempt_s,
            retry_s=retry_s,
        )
        super().__init__(inner, LoopThread("octavo-client", inner.close_in_time, inner.forked))

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(flush=kind is None)

    def close(self, *, flush: bool = True) -> None:
        """Flush and close producers, close the connections, end the thread; may be repeated.

        Raises the reason why a message was not stored, unless its receipt or `flush` has raised it.
        A client that is never closed is closed when it is collected or the program ends, within 10
        seconds; messages that were not stored are logged.
        """
        if self._thread.is_stopped:
            return
        try:
            self._thread.call(self._inner.close(flush=flush))
        finally:
            self._thread.stop()

    def producer(
        self,
        topic: str,
        *,
        producer_id: str | int | None = None,
        encoding: Literal["batch", "ndjson"] = "batch",
        compression: Compression = Compression.NONE,
        exclusive: bool | Literal["fencing"] = False,
        exclusive_wait_s: float = 0.0,
        **options: Unpack[ProducerSettings],
    ) -> Producer:
        """Return a producer of a topic, a context manager that flushes and closes at its end.

        Arguments and errors as in `AsyncClient.producer`.
        """
        inner = self._thread.call(
            self._inner.producer(
                topic,
                producer_id=producer_id,
                encoding=encoding,
                compression=compression,
                exclusive=exclusive,
                exclusive_wait_s=exclusive_wait_s,
                **options,
            ).made()
        )
        return Producer(inner, self._thread)

    def body(
        self, topic: str, message: Message | int, *, partition: int | None = None
    ) -> Iterator[bytes]:
        """Yield the body of a message, piece by piece; see `AsyncClient.body`."""
        return self._thread.iterate(self._inner.body(topic, message, partition=partition))

    def messages(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: str | int = "earliest",
        follow: bool = False,
        compacted: bool = False,
        incarnation: str | None = None,
    ) -> Iterator[Message]:
        """Yield messages of a partition, or of all, to the end, or without end (`follow`).

            for message in client.messages("orders"):
                print(message.partition, message.offset, message.key, message.value)

        Leaving the loop, also by Ctrl-C, ends it. Arguments and errors as in
        `AsyncClient.messages`.
        """
        found = self.pages(
            topic, partition=partition, start=start, follow=follow, compacted=compacted,
            incarnation=incarnation,
        )  # fmt: skip
        for page in found:
            yield from page

    def pages(
        self,
        topic: str,
        *,
        partition: int | None = None,
        start: str | int = "earliest",
        follow: bool = False,
        compacted: bool = False,
        incarnation: str | None = None,
    ) -> Iterator[list[Message]]:
        """Yield what `messages` yields, as lists; each list is of a single partition."""
        return self._thread.iterate(
            self._inner.pages(
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
        type: SubscriptionType = "exclusive",  # noqa: A002 (the API's word)
        start: Literal["earliest", "latest"] = "earliest",
        ack_timeout_s: float | None = None,
        consumer: str | None = None,
        priority: int = 0,
        **settings: Unpack[SubscriptionSettings],
    ) -> Subscription:
        """Create a subscription, or find it; return a consumer. See `AsyncClient.subscribe`."""
        inner = self._thread.call(
            self._inner.subscribe(
                topic,
                name,
                type=type,
                start=start,
                ack_timeout_s=ack_timeout_s,
                consumer=consumer,
                priority=priority,
                **settings,
            )
        )
        return Subscription(inner, self._thread)

    def consume(
        self,
        topics: str | Sequence[str],
        subscription: str,
        *,
        group: bool = False,
        consumer: str | None = None,
        type: SubscriptionType = "shared",  # noqa: A002 (the API's word)
        start: Literal["earliest", "latest"] = "earliest",
        ack_timeout_s: float | None = None,
        session_timeout_s: float = SESSION_S,
        refresh_s: float = REFRESH_S,
    ) -> TopicsConsumer:
        """Return a consumer of several topics; see `AsyncClient.consume`."""
        inner = self._inner.consume(
            topics,
            subscription,
            group=group,
            consumer=consumer,
            type=type,
            start=start,
            ack_timeout_s=ack_timeout_s,
            session_timeout_s=session_timeout_s,
            refresh_s=refresh_s,
        )
        return TopicsConsumer(inner, self._thread)

    def subscription(
        self, topic: str, name: str, *, consumer: str | None = None, priority: int = 0
    ) -> Subscription:
        """Return a consumer of an existing subscription."""
        inner = self._inner.subscription(topic, name, consumer=consumer, priority=priority)
        return Subscription(inner, self._thread)

    def stream(self, name: str) -> Stream:
        """Return a durable stream: see `Stream`. Nothing is sent yet."""
        return Stream(self._inner.stream(name), self._thread)
