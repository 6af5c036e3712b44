"""The short way of a single message: what the head says was looked at when it came before.

A producer of single messages sends the same head with each of them, byte for byte but for the
message's key and length; so what follows from the rest of it (the call, its topic, who may make it)
is remembered with those bytes. What remains is looked up without waiting:

    the head is known, the body whole, one good message; its partition is open
    here, or another broker's that is known; there is room; the broker is
    neither starting nor stopping                          stored, or passed on, and answered
    anything else                                          the long way

The long way is the call as any other, from the first byte, as if nobody had looked: this way
changes nothing before it is sure, refuses nothing and asks nobody. So it decides nothing either. A
message that turns out not to be ours to store, with nothing done, takes the long way as well, and
so does one that failed, for the long way to say so.

Promises: the answer is that of the long way, byte for byte (test_short_way.py compares the two).
Remembers a bounded number of heads, and nothing of a message. A crash takes the heads with it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec
from aiohttp import HttpVersion11
from aiohttp.helpers import rfc822_formatted_time

from octavo.broker.errors import NotOwner, OwnerUnreachable, PartitionMoving, TopicChanged
from octavo.broker.http.api.passed_on import PassedOn
from octavo.broker.http.api.publish import (
    count_single,
    may_be_single,
    partition_of_single,
    single_answer,
    single_record,
)
from octavo.broker.http.broker_calls import ESCAPED_HEADER, INCARNATION_HEADER
from octavo.broker.http.call import JSON, OWNER_HEADER, Call
from octavo.broker.http.problems import Problem
from octavo.broker.http.services import Services
from octavo.broker.partition.gathering import Joined, Stored
from octavo.broker.types import PartitionName, TopicName

HEADS_KEPT = 512
"""In each of two generations: a head that was not met again while so many new ones came goes."""
CALLS = frozenset(("publish", "publish_of_partition"))
_NOT_ITS_OWN = ("Connection", "Content-Encoding", "Expect", "Prefer", ESCAPED_HEADER)
"""Headers that say how this one request travels."""
_KEY = re.compile(rb"\r\n(?i:octavo-key): ([!-~]+)(?=\r\n[^ \t])")
_LENGTH = re.compile(rb"\r\n(?i:content-length): (0|[1-9][0-9]*)(?=\r\n[^ \t])")
_HOLE = b"\0"
"""Stands where a value was; no head that the parser takes has it."""
_NOTHING_DONE = (NotOwner, OwnerUnreachable, PartitionMoving, TopicChanged)


class Caller(Protocol):
    """The connection that a request came by."""

    peer: str

    def answer(self, answer: bytes) -> None:
        """Send the whole answer, head and body; the next request may come."""

    def take_long_way(self, verdict: BaseException | None) -> None:
        """Take the request from its first byte. With a `verdict` nothing is done but to tell it."""

    def cut(self) -> None:
        """What came of the request cannot be said: end the connection."""


class KnownHead(NamedTuple):
    """What follows from the shape of a head."""

    call: str
    topic: TopicName
    partition: int | None
    incarnation: str | None
    """Of the topic that is meant; no matter which when None."""
    kind: str
    headers: Mapping[str, str]
    """Of the request that it was learnt from; the key is that one's."""
    forwarded: bool
    """By another broker: it is passed on no further."""


def shape_of(head: bytes) -> tuple[bytes, bytes | None]:
    """The head without its key and length, which differ from message to message; and the key.

    A value is left out only where no parser could take it for anything else: visible ASCII, on a
    line of its own. Any other one stays, as a part of what must come again.
    """
    key = None
    if found := _KEY.search(head):
        key = found[1]
        head = head[: found.start(1)] + _HOLE + head[found.end(1) :]
    if found := _LENGTH.search(head):
        head = head[: found.start(1)] + _HOLE + head[found.end(1) :]
    return head, key


class ShortWay:
    """Of one broker."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._passed_on = PassedOn(services)
        self._young: dict[bytes, KnownHead] = {}
        self._old: dict[bytes, KnownHead] = {}

    def learn(self, head: bytes, call: Call) -> None:
        """Remember the head of a call that the long way has answered with 200."""
        request = call.request
        if (
            call.route.name in CALLS
            and not call.query
            and request.version == HttpVersion11
            and call.headers is request.headers  # not renamed, nor restored
            and may_be_single(call)
            and not any(name in request.headers for name in _NOT_ITS_OWN)
        ):
            partition = call.partition
            self._keep(
                shape_of(head)[0],
                KnownHead(
                    call=call.route.name,
                    topic=call.topic,
                    partition=None if partition is None else partition.partition,
                    incarnation=request.headers.get(INCARNATION_HEADER),
                    kind=call.content_type,
                    headers=request.headers,
                    forwarded=call.forwarded,
                ),
            )

    def take(self, head: bytes, body: bytes, caller: Caller) -> bool:
        """Whether this request is stored and will be answered here."""
        services = self._services
        shape, key = shape_of(head)
        known = self._known(shape)
        if known is None or not services.ready or services.stopping.is_set():
            return False
        topic = services.broker.topics.fresh(known.topic)
        if topic is None or known.incarnation not in (None, topic.incarnation):
            return False
        config = services.config
        if len(body) > min(config.line_bytes_max, config.body_bytes_max):
            return False
        try:
            record = single_record(known.kind, known.headers, body, services, key)
        except Problem:
            return False
        if record is None:
            return False
        number = known.partition
        if number is None:
            partitions = topic.settings.partitions
            number = partition_of_single(record, partitions, services.turn.now)
        name = known.topic.partition(number)
        ownership = services.broker.ownership
        partition = ownership.at_hand(name, topic.incarnation)
        owner = None
        if partition is None and not known.forwarded:
            owner = ownership.other_at_hand(name, topic.incarnation)
        if partition is None and owner is None:
            return False
        if not services.held.try_take(caller.peer, len(body)):
            return False
        services.in_hand.enter()
        if known.partition is None and topic.settings.partitions > 1:
            next(services.turn)  # what is left to the long way has this one there
        if partition is not None:
            owner_url, joined = services.url, partition.join_single(record)
        else:
            assert owner is not None
            owner_url, joined = owner.url, self._passed_on.join(name, owner, record)
        stored = _ShortCall(
            services, known.call, topic.incarnation, name, owner_url, len(body), caller, joined
        )
        joined.stored.add_done_callback(stored)
        return True

    def _known(self, shape: bytes) -> KnownHead | None:
        known = self._young.get(shape)
        if known is None and (known := self._old.get(shape)) is not None:
            self._keep(shape, known)
        return known

    def _keep(self, shape: bytes, known: KnownHead) -> None:
        if len(self._young) >= HEADS_KEPT:
            self._old, self._young = self._young, {}
        self._young[shape] = known


class _ShortCall:
    """A message that is being stored; called when that is done."""

    __slots__ = (
        "_began_s", "_body_bytes", "_call", "_caller", "_incarnation", "_joined", "_name",
        "_owner_url", "_services",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        call: str,
        incarnation: str,
        name: PartitionName,
        owner_url: str,
        body_bytes: int,
        caller: Caller,
        joined: Joined,
    ) -> None:
        self._services = services
        self._call = call
        self._incarnation = incarnation
        self._name = name
        self._owner_url = owner_url
        self._body_bytes = body_bytes
        self._caller = caller
        self._joined = joined
        self._began_s = joined.stored.get_loop().time()

    def __call__(self, stored: Stored) -> None:
        services, caller = self._services, self._caller
        services.held.give_back(caller.peer, self._body_bytes)
        services.in_hand.leave()
        if stored.cancelled():
            caller.cut()
        elif (error := stored.exception()) is not None:
            caller.take_long_way(None if isinstance(error, _NOTHING_DONE) else error)
        else:
            caller.answer(self._answer())
            took_s = stored.get_loop().time() - self._began_s
            services.metrics.answered(self._call, 200, took_s)

    def _answer(self) -> bytes:
        services, placed = self._services, self._joined.placed()
        if self._owner_url == services.url:
            count_single(placed, services)
        body = msgspec.json.encode(single_answer(self._name.partition, placed))
        closing = "Connection: close\r\n" if services.stopping.is_set() else ""
        head = (
            "HTTP/1.1 200 OK\r\n"
            f"Content-Type: {JSON}\r\n"
            f"{OWNER_HEADER}: {self._owner_url}\r\n"
            f"{INCARNATION_HEADER}: {self._incarnation}\r\n"
            "Server: octavo\r\n"
            "X-Content-Type-Options: nosniff\r\n"
            f"Content-Length: {len(body) + 1}\r\n"
            f"Date: {rfc822_formatted_time()}\r\n"
            f"{closing}\r\n"
        )
        return head.encode() + body + b"\n"
