"""The operations on durable streams, their answers, and the messages of a body. Pure.

A stream is a partition that is read and written by the Durable Streams protocol
(docs/durable_streams.md).
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
"""Messages in an append of JSON: one batch, made in one turn."""


class ForkAsked(NamedTuple):
    source: TopicName
    offset: int | None
    """Fork before this offset; None: the end."""
    sub_offset: int


class StreamAsked(NamedTuple):
    content_type: str
    ttl_s: int | None
    expires_at: str | None
    expires_at_ms: int | None
    closed: bool
    fork: ForkAsked | None

    def config(self, like: StreamConfig | None = None) -> StreamConfig:
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
    part: bytes
    """The part of the message at `base` that the fork inherits."""


class MakeStream(msgspec.Struct, frozen=True, array_like=True, tag="make_stream"):
    name: PartitionName
    asked: StreamAsked
    body: bytes
    is_new: bool
    plan: ForkPlan | None = None
    may_convert: bool = False
    """The caller may turn a topic of messages into a stream."""

    @property
    def config(self) -> StreamConfig:
        return self.asked.config() if self.plan is None else self.plan.config

    @property
    def expires(self) -> bool:
        return self.config.ttl_s is not None or self.config.expires_at is not None


class Making(enum.Enum):
    MADE = "made"
    THERE = "there"
    """The stream existed, and is the same."""
    OVER = "over"
    UNPLANNED = "unplanned"
    """The fork's source was not asked yet."""
    CONVERTS = "converts"
    """The topic has messages or is no stream's: needs `may_convert`."""


class StreamMade(msgspec.Struct, frozen=True, array_like=True):
    """The rest is known for `MADE` and `THERE`."""

    making: Making
    content_type: str = ""
    end: int = 0
    closed: bool = False
    messages: int = 0


class AppendToStream(msgspec.Struct, frozen=True, array_like=True, tag="append_to_stream"):
    name: PartitionName
    append: Append
    content_type: str
    body: bytes


class StreamAppended(msgspec.Struct, frozen=True, array_like=True):
    end: int
    closed: bool
    repeated: bool
    epoch: int
    """`sequence` is the newest stored."""
    sequence: int
    messages: int


class DeleteStream(msgspec.Struct, frozen=True, array_like=True, tag="delete_stream"):
    """While the stream has forks, its name is kept."""

    name: PartitionName


class ReadStream(msgspec.Struct, frozen=True, array_like=True, tag="read_stream"):
    """A read counts as use of the stream."""

    name: PartitionName
    at: int | None
    """None: the end of the stream; −1: its beginning."""
    bytes_max: int
    count_max: int
    """0: return no messages."""
    wait_ms: int = 0
    look_back: int = 0


class StreamPage(msgspec.Struct, frozen=True, array_like=True):
    config: StreamConfig
    incarnation: str
    batches: list[GivenBatch]
    start: int
    following: int
    is_all: bool
    """Whether there are no more messages now …"""
    closed: bool
    """… nor later."""
    before: bytes = b""


class AwaitStream(msgspec.Struct, frozen=True, array_like=True, tag="await_stream"):
    name: PartitionName
    offset: int
    wait_ms: int


class DescribeStream(msgspec.Struct, frozen=True, array_like=True, tag="describe_stream"):
    """A description does not count as use of the stream."""

    name: PartitionName
    least: int = 0
    """If the stream ends before this offset, the owner proves that it has no successor."""


class StreamNow(msgspec.Struct, frozen=True, array_like=True):
    config: StreamConfig
    end: int
    closed: bool


StreamOperation = (
    MakeStream | AppendToStream | DeleteStream | ReadStream | AwaitStream | DescribeStream
)


class TooManyParts(ValueError):
    pass


def json_values(body: bytes) -> list[bytes] | None:
    """Return an array's elements, else the body; None if it is not JSON."""
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
