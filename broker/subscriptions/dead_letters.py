"""Messages that were delivered as often as may be: which they are, and what becomes of them. Pure.

    spent → being sent → sent, acked
              ↓ not stored: spent again, after a pause

A spent message is nobody's: no consumer gets it, so it stands in no other's way, and it stays
unacked until its copy in the dead-letter topic is durable. At most `waiting_max` wait at once; a
message that finds no room goes on being delivered, which loses nothing.

With a retry topic (`retry_deliveries`) a message is spent sooner, and its copy goes there: that is
where the subscription's other deliveries are, and from where it goes to the dead-letter topic. Such
a copy is due when the original would have been delivered again.

A copy has the original's key, value and headers, and says in headers of its own where it comes
from. It begins a life of its own, so it carries no header that brokers act on, and none that an
earlier life left behind (`_carried`). It is a batch by itself, of a producer by itself
(`producer_of`), with sequence 0: whoever sends it again, the next owner too, sends the same, and
the dead-letter topic knows it.
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
from octavo.protocol.large import LARGE_HEADER
from octavo.protocol.names import NAME_CHARS_MAX
from octavo.protocol.records import Record
from octavo.protocol.topic_patterns import DEAD_LETTER_SUFFIX, RETRY_SUFFIX

ORIGIN = "Octavo-Origin-"
"""So begin the headers that say where a dead letter comes from …"""
RETRY = "Octavo-Retry-"
"""… and a copy in a retry topic; so a dead letter that comes from there has both."""
RETRY_FOR = RETRY + "Subscription"


class SpentMessages:
    """Of one subscription in one partition, in the order in which they were given up."""

    def __init__(self, deliveries_max: int | None, waiting_max: int) -> None:
        """`deliveries_max`: None, there is no such thing."""
        self._deliveries_max = deliveries_max
        self._waiting_max = waiting_max
        self._waiting: dict[int, None] = {}
        self._under_way: dict[int, None] = {}
        self._sent: dict[int, None] = {}
        """The newest of those whose copies are durable, `waiting_max` of them."""
        self._due_ms: dict[int, int] = {}
        """Of those that are not to be delivered at once, elsewhere."""

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {
            "waiting": len(self._waiting),
            "under_way": len(self._under_way),
            "due": len(self._due_ms),
        }

    @property
    def limits(self) -> bool:
        """Whether a message can be spent at all."""
        return self._deliveries_max is not None

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def take(self, offset: int, deliveries: int, due_ms: int | None = None) -> bool:
        """Whether the message is spent; then nobody else has it any more.

        `due_ms`: when it was to be delivered again, in milliseconds since the epoch; None: at once.
        """
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
        """When a spent message was to be delivered again; None: at once."""
        return self._due_ms.get(offset)

    def send(self, most: int) -> list[int]:
        """The next ones to be sent, ascending."""
        offsets = sorted(list(self._waiting)[:most])
        for offset in offsets:
            del self._waiting[offset]
            self._under_way[offset] = None
        return offsets

    def sent(self, offsets: Iterable[int]) -> list[int]:
        """Those of `offsets` that are to be acked now: their copies are durable.

        Not those that were acked, or sought away from, meanwhile.
        """
        done = [offset for offset in offsets if self._under_way.pop(offset, 0) is None]
        for offset in done:
            self._due_ms.pop(offset, None)
            self._sent[offset] = None
        for offset in [*islice(self._sent, max(0, len(self._sent) - self._waiting_max))]:
            del self._sent[offset]
        return done

    def was_sent(self, offset: int) -> bool:
        """Whether it is known that a copy of it is durable."""
        return offset in self._sent

    def not_sent(self, offsets: Iterable[int]) -> None:
        """They have to be sent again, after the others: some may never be stored."""
        for offset in offsets:
            if self._under_way.pop(offset, 0) is None:
                self._waiting[offset] = None

    def acked(self, offsets: Iterable[int]) -> None:
        """These are acked otherwise."""
        for offset in offsets:
            self._waiting.pop(offset, None)
            self._under_way.pop(offset, None)
            self._due_ms.pop(offset, None)

    def acked_up_to(self, offset: int, but: Collection[int] = ()) -> None:
        """All up to and including `offset` are, but these."""
        self.acked([one for one in self.offsets() if one <= offset and one not in but])

    def offsets(self) -> list[int]:
        """All that are spent, ascending."""
        return sorted((*self._waiting, *self._under_way))

    def clear(self) -> None:
        """After a seek."""
        self._waiting.clear()
        self._under_way.clear()
        self._due_ms.clear()
        self._sent.clear()


def with_dead_letters(
    topic: TopicName, name: str, settings: SubscriptionSettings
) -> SubscriptionSettings:
    """The settings with the names that the maker of the subscription left away; retries' as well.

    Raises `InvalidSettings`, `InvalidName`.
    """
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
            f"dead_letter_topic is {target}, the subscription's own topic: what nobody can process "
            "would go round for ever; name another one"
        )
    if str(target) == settings.retry_topic:
        raise InvalidSettings(
            f"dead_letter_topic is {target}, and so is retry_topic: what nobody can process would "
            "go round for ever; name another one"
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
            "into it for ever; name another one"
        )
    return replace(
        settings,
        retry_topic=str(target),
        retry_deliveries=settings.retry_deliveries or 1,
        retry_subscription=settings.retry_subscription or name,
    )


def retrying(name: str, settings: SubscriptionSettings) -> SubscriptionSettings:
    """Of the subscription of the retry topic: it goes on where subscription `name` stops.

    Several subscriptions may share a retry topic: each has its own messages there.
    """
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
    """The name of the topic that gets the copies which `topic` itself does not take."""
    suffix = f"-{RETRY_SUFFIX if retries else DEAD_LETTER_SUFFIX}"
    if len(topic) + len(suffix) > NAME_CHARS_MAX:
        short = hashlib.sha256(topic.encode()).hexdigest()[:16]
        topic = f"{topic[: NAME_CHARS_MAX - len(suffix) - len(short) - 1]}-{short}"
    return topic + suffix


def is_retrying(settings: SubscriptionSettings) -> bool:
    """Whether the subscription was made by `retrying`: its messages are copies for one other."""
    return any(name == RETRY_FOR for name, _ in settings.filter_headers)


def retry_of(
    name: PartitionName, subscription: str, delivery: Delivery, due_ms: int | None
) -> Record:
    """The copy for the retry topic, to be delivered when it is due; its time is the sender's."""
    said = _said_of(RETRY, name, subscription, delivery)
    due = () if due_ms is None else (due_header(min(max(0, due_ms), DUE_MS_MAX)),)
    origin = delivery.record
    return origin._replace(headers=(*_carried(origin, ORIGIN, RETRY), *said, *due))


def dead_letter_of(
    name: PartitionName, subscription: str, delivery: Delivery, *, retried: bool = False
) -> Record:
    """The copy for the dead-letter topic; its time is the sender's.

    `retried`: the subscription is a retry topic's (`is_retrying`), so the copy keeps what that
    topic's copy says of the first topic.
    """
    origin = delivery.record
    said = _said_of(ORIGIN, name, subscription, delivery)
    fronts = (ORIGIN,) if retried else (ORIGIN, RETRY)
    return origin._replace(headers=(*_carried(origin, *fronts), *said))


def _carried(origin: Record, *fronts: str) -> list[tuple[str, bytes | None]]:
    """The headers of the original that its copy keeps.

    A due time was the original's: the copy is due by its own, or at once. Headers that begin with
    one of `fronts` are of an earlier life, such as a dead letter that a user published again. Only
    the headers that the copy gets now say where it comes from, and for which subscription it is. A
    value that stands in the message itself is no large body, whatever a header says.
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
    """Where a copy comes from."""
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
    """The id of the producer of one dead letter: of this message of this subscription.

    `word` tells its topic from namesakes, and what was given up before a seek from what is after.
    The id is below `NO_PRODUCER`. Only brokers may publish with such an id, so no client can make
    a letter look like a duplicate by publishing first.
    """
    text = f"{word} {name} {info.name} {info.created_ms} {offset}"
    return (
        NO_PRODUCER - 1 - (int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 2)
    )
