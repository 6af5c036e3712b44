"""Messages that reached their maximum number of deliveries, and their copies. Pure.

No consumer gets a spent message, and it stays unacked until its copy is durable. At most
`waiting_max` messages wait for a copy; beyond that, messages are delivered again instead. With a
retry topic the copy goes there for the remaining deliveries, due when the original would have been
delivered again.

Each copy is a single batch with its own producer id and sequence 0: if it is sent again, even by
the next owner, the topic recognises the duplicate. A copy that does not fit an entry loses the
least important added headers (`fitting_batch`), then becomes a large message (`as_large`). It
cannot be stored only if its key and original headers fill an entry.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import islice

from octavo.broker.errors import InvalidSettings
from octavo.broker.types import (
    Delivery,
    PartitionName,
    SubscriptionInfo,
    SubscriptionSettings,
    TopicName,
)
from octavo.protocol.batch import NO_PRODUCER
from octavo.protocol.due import DELIVER_AT, DUE_MS_MAX, due_header
from octavo.protocol.large import LARGE_HEADER, Cutter
from octavo.protocol.limits import ENTRY_PAYLOAD_BYTES_MAX
from octavo.protocol.names import NAME_CHARS_MAX
from octavo.protocol.records import Record, build_batch
from octavo.protocol.topic_patterns import DEAD_LETTER_SUFFIX, RETRY_SUFFIX

ORIGIN = "Octavo-Origin-"
RETRY = "Octavo-Retry-"
RETRY_FOR = RETRY + "Subscription"


class SpentMessages:
    def __init__(self, deliveries_max: int | None, waiting_max: int) -> None:
        self._deliveries_max = deliveries_max
        self._waiting_max = waiting_max
        self._waiting: dict[int, None] = {}
        self._under_way: dict[int, None] = {}
        self._sent: dict[int, None] = {}
        """The newest messages whose copies are durable, at most `waiting_max`."""
        self._due_ms: dict[int, int] = {}

    def describe(self) -> dict[str, int]:
        return {
            "waiting": len(self._waiting),
            "under_way": len(self._under_way),
            "due": len(self._due_ms),
        }

    @property
    def limits(self) -> bool:
        return self._deliveries_max is not None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def take(self, offset: int, deliveries: int, due_ms: int | None = None) -> bool:
        """Return whether the message is spent; if so, keep it from all consumers."""
        if self._deliveries_max is None or deliveries < self._deliveries_max:
            return False
        if offset in self._waiting or offset in self._under_way:
            return True
        if len(self) >= self._waiting_max:
            return False
        self._waiting[offset] = None
        if due_ms is not None:
            self._due_ms[offset] = due_ms
        return True

    def due_ms(self, offset: int) -> int | None:
        return self._due_ms.get(offset)

    def send(self, most: int) -> list[int]:
        offsets = sorted(list(self._waiting)[:most])
        for offset in offsets:
            del self._waiting[offset]
            self._under_way[offset] = None
        return offsets

    def sent(self, offsets: Iterable[int]) -> list[int]:
        done = [offset for offset in offsets if self._under_way.pop(offset, 0) is None]
        for offset in done:
            self._due_ms.pop(offset, None)
            self._sent[offset] = None
        for offset in [*islice(self._sent, max(0, len(self._sent) - self._waiting_max))]:
            del self._sent[offset]
        return done

    def was_sent(self, offset: int) -> bool:
        return offset in self._sent

    def not_sent(self, offsets: Iterable[int]) -> None:
        """Send these after all others: some may never be stored."""
        for offset in offsets:
            if self._under_way.pop(offset, 0) is None:
                self._waiting[offset] = None

    def acked(self, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._waiting.pop(offset, None)
            self._under_way.pop(offset, None)
            self._due_ms.pop(offset, None)

    def acked_up_to(self, offset: int, but: Collection[int] = ()) -> None:
        self.acked([one for one in self.offsets() if one <= offset and one not in but])

    def offsets(self) -> list[int]:
        return sorted((*self._waiting, *self._under_way))

    def clear(self) -> None:
        self._waiting.clear()
        self._under_way.clear()
        self._due_ms.clear()
        self._sent.clear()


def with_dead_letters(
    topic: TopicName, name: str, settings: SubscriptionSettings
) -> SubscriptionSettings:
    settings = _with_retries(topic, name, settings)
    if settings.max_deliveries is None:
        if settings.dead_letter_topic or settings.dead_letter_subscription:
            raise InvalidSettings(
                "a dead_letter_topic without max_deliveries would never get a message; set both"
            )
        return settings
    text = settings.dead_letter_topic or f"{topic.topic}-{name}-{DEAD_LETTER_SUFFIX}"
    target = TopicName.parse(text) if "/" in text else TopicName.of(topic.namespace, text)
    if target == topic:
        raise InvalidSettings(
            f"dead_letter_topic is {target}, the subscription's own topic: messages that no "
            "consumer can process would circulate for ever; name another topic"
        )
    if str(target) == settings.retry_topic:
        raise InvalidSettings(
            f"dead_letter_topic is {target}, and so is retry_topic: messages that no consumer can "
            "process would circulate for ever; name another topic"
        )
    return replace(
        settings,
        dead_letter_topic=str(target),
        dead_letter_subscription=settings.dead_letter_subscription or name,
    )


def _with_retries(
    topic: TopicName, name: str, settings: SubscriptionSettings
) -> SubscriptionSettings:
    if settings.retry_deliveries is None and not settings.retry_topic:
        if settings.retry_subscription:
            raise InvalidSettings(
                "a retry_subscription without a retry topic would never get a message; set "
                "retry_deliveries or retry_topic as well"
            )
        return settings
    text = settings.retry_topic or f"{topic.topic}-{name}-{RETRY_SUFFIX}"
    target = TopicName.parse(text) if "/" in text else TopicName.of(topic.namespace, text)
    if target == topic:
        raise InvalidSettings(
            f"retry_topic is {target}, the subscription's own topic: its messages would be copied "
            "into it for ever; name another topic"
        )
    return replace(
        settings,
        retry_topic=str(target),
        retry_deliveries=settings.retry_deliveries or 1,
        retry_subscription=settings.retry_subscription or name,
    )


def retrying(name: str, settings: SubscriptionSettings) -> SubscriptionSettings:
    """Make the retry topic's subscription, which gets only its own messages there."""
    before = settings.retry_deliveries
    assert before is not None
    return SubscriptionSettings(
        type="shared",
        ack_timeout_ms=settings.ack_timeout_ms,
        retry_backoff=settings.retry_backoff,
        max_deliveries=settings.max_deliveries and settings.max_deliveries - before,
        dead_letter_topic=settings.dead_letter_topic,
        dead_letter_subscription=settings.dead_letter_subscription,
        filter_headers=((RETRY_FOR, (name,)),),
    )


def beside(topic: str, *, retries: bool) -> str:
    suffix = f"-{RETRY_SUFFIX if retries else DEAD_LETTER_SUFFIX}"
    if len(topic) + len(suffix) > NAME_CHARS_MAX:
        short = hashlib.sha256(topic.encode()).hexdigest()[:16]
        topic = f"{topic[: NAME_CHARS_MAX - len(suffix) - len(short) - 1]}-{short}"
    return topic + suffix


def is_retrying(settings: SubscriptionSettings) -> bool:
    return any(name == RETRY_FOR for name, _ in settings.filter_headers)


def retry_of(
    name: PartitionName, subscription: str, delivery: Delivery, due_ms: int | None
) -> Record:
    said = _said_of(RETRY, name, subscription, delivery)
    due = () if due_ms is None else (due_header(min(max(0, due_ms), DUE_MS_MAX)),)
    origin = delivery.record
    return origin._replace(headers=(*_carried(origin, ORIGIN, RETRY), *said, *due))


def dead_letter_of(
    name: PartitionName, subscription: str, delivery: Delivery, *, retried: bool = False
) -> Record:
    """Make the copy; `retried`: it keeps the headers that name the first topic."""
    origin = delivery.record
    said = _said_of(ORIGIN, name, subscription, delivery)
    fronts = (ORIGIN,) if retried else (ORIGIN, RETRY)
    return origin._replace(headers=(*_carried(origin, *fronts), *said))


def _carried(origin: Record, *fronts: str) -> list[tuple[str, bytes | None]]:
    """Return the original's headers without its due time, and without headers that begin with one
    of `fronts`: an earlier copy may have left these.
    """
    dropped = (DELIVER_AT, LARGE_HEADER) if origin.value else (DELIVER_AT,)
    return [
        header
        for header in origin.headers
        if header[0] not in dropped and not header[0].startswith(fronts)
    ]


def _said_of(
    front: str, name: PartitionName, subscription: str, delivery: Delivery
) -> list[tuple[str, bytes | None]]:
    told = {
        "topic": name.topic_name,
        "partition": name.partition,
        "offset": delivery.offset,
        "id": delivery.message_id,
        "timestamp": delivery.record.timestamp_ms,
        "deliveries": delivery.delivery_count,
        "subscription": subscription,
    }
    return [(front + word.title(), str(value).encode()) for word, value in told.items()]


def producer_of(word: object, name: PartitionName, info: SubscriptionInfo, offset: int) -> int:
    """Return a copy's producer id, unique for this message of this subscription.

    `word` changes with the topic's incarnation and at each seek. The id is below `NO_PRODUCER`,
    which only brokers may use, so no client can make a copy look like a duplicate.
    """
    text = f"{word} {name} {info.name} {info.created_ms} {offset}"
    return (
        NO_PRODUCER - 1 - (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2)
    )


_SAY_LEAST = ("Timestamp", "Id", "Deliveries", "Partition", "Subscription", "Topic", "Offset")
"""Suffixes of the headers that may be dropped, in this order. The header that names a retry's
subscription stays, because it addresses the retry."""
_DROPPED = tuple(
    front + word
    for word in _SAY_LEAST
    for front in (ORIGIN, RETRY)
    if front + word != RETRY + "Subscription"
)


_LENGTHS_BYTES = 2


def fitting_batch(record: Record, producer_id: int) -> bytes | None:
    batch = _built(record, producer_id)
    too_many = len(batch) - ENTRY_PAYLOAD_BYTES_MAX
    if too_many <= 0:
        return batch
    left = record.headers
    for name in _DROPPED:
        for header in [one for one in left if one[0] == name]:
            left = [one for one in left if one is not header]
            too_many -= len(name) + len(header[1] or b"") + _LENGTHS_BYTES
        if too_many <= 0:
            break
    batch = _built(record._replace(headers=left), producer_id)
    return batch if len(batch) <= ENTRY_PAYLOAD_BYTES_MAX else None


def as_large(record: Record, upload: str) -> tuple[Record, bytes] | None:
    """Make a large message of the copy; None for a copy without a value."""
    if not record.value:
        return None
    cutter = Cutter(upload, len(record.value))
    for _ in cutter.feed(record.value):
        pass
    cutter.rest()
    headers = (*record.headers, cutter.body().header())
    return record._replace(value=b"", headers=headers), record.value


def _built(record: Record, producer_id: int) -> bytes:
    return build_batch([record], producer_id=producer_id, producer_epoch=0, base_sequence=0)
