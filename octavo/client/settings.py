"""What may be set on topics and producers, as keywords: for type checkers and those who read."""

from __future__ import annotations

from typing import TypedDict

Time = int | float | str
"""Seconds, or text with a unit: `500ms`, `30s`, `2m`, `1.5h`, `7d`."""
Size = int | str
"""Bytes, or text with a unit: `256MiB`, `10GB`."""


class Retention(TypedDict, total=False):
    """How long messages are kept that every subscription has acked; the others are kept anyway.

    They go a closed ledger at a time. None, or left away: no bound. Of two bounds the first that
    is reached counts.
    """

    time: Time | None
    """A ledger goes when its newest message is older."""
    size: Size | None
    """The oldest ledgers go while a partition has more."""


class Rollover(TypedDict, total=False):
    """When a partition's ledger is closed and a new one begun: whichever comes first."""

    time: Time
    size: Size
    entries: int


class TopicSettings(TypedDict, total=False):
    """Settings of a topic beside its partitions and quorums. A broker refuses any other by name."""

    retention: Retention | None
    """None: everything is kept for ever."""
    rollover: Rollover


class TopicChanges(TopicSettings, total=False):
    """What may be changed of a topic that is there. Quorums count for ledgers made from now on."""

    partitions: int
    """More than before: partitions are never taken away."""
    ensemble_size: int
    write_quorum: int
    ack_quorum: int


class ProducerSettings(TypedDict, total=False):
    """How a producer works; defaults are those of `octavo.client.producer.ProducerOptions`."""

    epoch: int
    """0 to 32,767, of a named producer: a higher one puts an end to those before it."""
    linger_ms: float
    """A batch that is not full waits this long for more; 0 sends at the next loop turn."""
    batch_bytes: int
    """A batch that holds so much goes out at once; at most 2 MiB."""
    window: int
    """Batches of one partition on the way at once."""
    pending_bytes_max: int
    """Unanswered bytes of all partitions; above it `send` waits."""
    delivery_timeout_ms: int
    """How long a batch is sent again before its outcome is given up as unknown."""
