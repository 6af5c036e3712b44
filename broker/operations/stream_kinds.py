"""The operations on durable streams, their answers, and the messages of a body. Pure.

A stream is a partition that is read and written by the Durable Streams protocol
(docs/durable_streams.md). `streams` runs these operations; `kinds` lists them with all others.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec

from octavo.broker.operations.given import GivenBatch
from octavo.broker.state.stream import Append, StreamConfig
from octavo.broker.types import PartitionName, TopicName
from octavo.protocol.json_message import MESSAGE_PARTS_MAX, has_more_parts

ELEMENTS_MAX = 20_000
"""The most messages in an append of JSON: they form one batch, made in a single turn."""


# Making a stream


class ForkAsked(NamedTuple):
    source: TopicName
    offset: int | None
    """The offset before which to fork; None: the end."""
    sub_offset: int


class StreamAsked(NamedTuple):
    content_type: str
    """Empty: not given."""
    ttl_s: int | None
    expires_at: str | None
    expires_at_ms: int | None
    closed: bool
    fork: ForkAsked | None

    def config(self, like: StreamConfig | None = None) -> StreamConfig:
        """Return the stream's config; a fork takes missing parts from `like`."""
        found = StreamConfig() if like is None or self.fork is None else like
        if self.content_type:
            found = found._replace(content_type=self.content_type)
        if self.ttl_s is not None or self.expires_at is not None:
            found = found._replace(
                ttl_s=self.ttl_s, expires_at=self.expires_at, expires_at_ms=self.expires_at_ms
            )
        if self.fork is None:
            return found
        found = found._replace(
            forked_from=str(self.fork.source), fork_sub_offset=self.fork.sub_offset
        )
        return found if self.fork.offset is None else found._replace(fork_offset=self.fork.offset)


class ForkPlan(NamedTuple):
    config: StreamConfig
    base: int
    """The offset before which the source is cut."""
    part: bytes
    """The part of the message at `base` that the fork inherits."""


class MakeStream(msgspec.Struct, frozen=True, array_like=True, tag="make_stream"):
    """Turn a topic with one partition into a durable stream, or check that it is this stream."""

    name: PartitionName
    asked: StreamAsked
    body: bytes
    """Its first messages."""
    is_new: bool
    """Whether the topic was made for a stream."""
    plan: ForkPlan | None = None
    may_convert: bool = False
    """Whether the caller has the rights to turn a topic of messages into a stream."""

    @property
    def config(self) -> StreamConfig:
        """The properties that a new stream gets."""
        return self.asked.config() if self.plan is None else self.plan.config

    @property
    def expires(self) -> bool:
        """Whether the stream would be deleted by itself."""
        return self.config.ttl_s is not None or self.config.expires_at is not None


class Making(enum.Enum):
    """The outcome of a request to make a stream."""

    MADE = "made"
    THERE = "there"
    """The stream existed, and is the same."""
    OVER = "over"
    """A stream that has expired or was deleted must be removed first."""
    UNPLANNED = "unplanned"
    """The topic exists, and the fork's source has not been asked yet."""
    CONVERTS = "converts"
    """The topic has messages, or was not made for a stream: this needs `may_convert`."""


class StreamMade(msgspec.Struct, frozen=True, array_like=True):
    """The answer to `MakeStream`. The rest is known for `MADE` and `THERE`."""

    making: Making
    content_type: str = ""
    end: int = 0
    closed: bool = False
    messages: int = 0
    """How many were stored."""


# Appending


class AppendToStream(msgspec.Struct, frozen=True, array_like=True, tag="append_to_stream"):
    """Append a body to a stream, close the stream, or both. A producer's repeat is recognised."""

    name: PartitionName
    append: Append
    content_type: str
    body: bytes


class StreamAppended(msgspec.Struct, frozen=True, array_like=True):
    end: int
    closed: bool
    repeated: bool
    epoch: int
    """Epoch of the append's producer; `sequence` is the newest stored."""
    sequence: int
    messages: int
    """How many were stored."""


class DeleteStream(msgspec.Struct, frozen=True, array_like=True, tag="delete_stream"):
    """Delete a stream. While the stream has forks, its name is kept."""

    name: PartitionName


# Reading


class ReadStream(msgspec.Struct, frozen=True, array_like=True, tag="read_stream"):
    """Return messages of a stream from a place on, and whether more may follow.

    This counts as use of the stream.
    """

    name: PartitionName
    at: int | None
    """The offset to begin at; None: the end of the stream; −1: its beginning."""
    bytes_max: int
    count_max: int
    """0: return no messages."""
    wait_ms: int = 0
    """How long to wait until there is a message, or the stream has ended."""
    look_back: int = 0
    """How many bytes before the place to return as well."""


class StreamPage(msgspec.Struct, frozen=True, array_like=True):
    config: StreamConfig
    incarnation: str
    batches: list[GivenBatch]
    """The first may begin before `start`."""
    start: int
    following: int
    """The offset to continue at."""
    is_all: bool
    """Whether there are no more messages now …"""
    closed: bool
    """… nor at any later time."""
    before: bytes = b""


class AwaitStream(msgspec.Struct, frozen=True, array_like=True, tag="await_stream"):
    """Wait until a message is at this offset, or the stream has ended."""

    name: PartitionName
    offset: int
    wait_ms: int


class DescribeStream(msgspec.Struct, frozen=True, array_like=True, tag="describe_stream"):
    """Return the properties and the end of a stream. Does not count as use."""

    name: PartitionName
    least: int = 0
    """If the stream ends before this offset, its owner proves that it has no successor."""


class StreamNow(msgspec.Struct, frozen=True, array_like=True):
    config: StreamConfig
    end: int
    closed: bool


StreamOperation = (
    MakeStream | AppendToStream | DeleteStream | ReadStream | AwaitStream | DescribeStream
)


# Bodies


class TooManyParts(ValueError):
    """The body would take too long to read as JSON. The message names the limit."""


def json_values(body: bytes) -> list[bytes] | None:
    """Return the messages of a body: an array's elements, else the body; None if it is not JSON.

    Raises `TooManyParts`.
    """
    if has_more_parts(body, MESSAGE_PARTS_MAX):
        raise TooManyParts(
            f"the body has more than {MESSAGE_PARTS_MAX} commas, brackets and braces"
        )
    try:
        body.decode()
        if body.lstrip()[:1] == b"[":
            found = msgspec.json.decode(body, type=list[msgspec.Raw])
            if len(found) > ELEMENTS_MAX:
                raise TooManyParts(
                    f"the array has {len(found)} elements; the most are {ELEMENTS_MAX}"
                )
            return [bytes(one) for one in found]
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [body.strip()]
