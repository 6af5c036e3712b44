"""The fast publish path: answer a single message by the results of an earlier call with this head.

A producer of single messages repeats its head but for key and length, so the results of the rest
(call, topic, rights) are remembered under its bytes. If the caller is still admitted, the body a
valid message, its owner known and room left, the message is stored, or refused by a quota; else the
long way (aiohttp and the handlers) takes the call from the first byte. Nothing is changed before
that is sure (decision 32).

Promises: the answer equals the long way's, byte for byte (test_short_way.py). Remembers a limited
number of heads, and no messages.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol

import msgspec
from aiohttp import HttpVersion11
from aiohttp.helpers import rfc822_formatted_time

from octavo.broker.errors import NotOwner, OwnerUnreachable, PartitionMoving, TopicChanged
from octavo.broker.http.api.publish import (
    may_be_single,
    partition_of_single,
    single_answer,
    single_record,
)
from octavo.broker.http.call import INCARNATION_HEADER, JSON, OWNER_HEADER, Call
from octavo.broker.http.gate import Grant
from octavo.broker.http.problems import PROBLEM_TYPE, Problem, problem_of
from octavo.broker.http.services import Services
from octavo.broker.operations.gathered import RemoteBatchers
from octavo.broker.operations.local import count_single
from octavo.broker.partition.message_batcher import Joined, Stored
from octavo.broker.types import PartitionName, TopicName
from octavo.protocol.due import is_delayed
from octavo.security.rules import Kind, Operation, Resource

HEADS_KEPT = 512
"""In each of two generations; an unused head is forgotten after this many new heads."""
CALLS = frozenset(("publish", "publish_of_partition"))
_NOT_ITS_OWN = ("Connection", "Content-Encoding", "Expect", "Origin", "Prefer")
"""Headers about this single request, or of a browser's page (csrf.py)."""
_KEY = re.compile(rb"\r\n(?i:octavo-key): ([!-~]+)(?=\r\n[^ \t])")
_LENGTH = re.compile(rb"\r\n(?i:content-length): (0|[1-9][0-9]*)(?=\r\n[^ \t])")
_HOLE = b"\0"
"""Replaces a value; an accepted head cannot contain it."""
_NOTHING_DONE = (NotOwner, OwnerUnreachable, PartitionMoving, TopicChanged)


class Caller(Protocol):
    peer: str
    counted_as: str

    def when_lost(self, call: Callable[[], None]) -> None: ...

    @property
    def certificate(self) -> bytes | None: ...

    def answer(self, answer: bytes) -> None: ...

    def take_long_way(self, verdict: BaseException | None) -> None:
        """Give the request to aiohttp from its first byte; a `verdict` is the answer."""

    def cut(self) -> None: ...


class KnownHead(NamedTuple):
    call: str
    topic: TopicName
    partition: int | None
    incarnation: str | None
    kind: str
    headers: Mapping[str, str]
    """The headers of the first request with this head, with its key."""
    grant: Grant
    resource: Resource


def shape_of(head: bytes) -> tuple[bytes, bytes | None]:
    """Cuts out a value only if every parser reads it alike: visible ASCII, on its own line."""
    key = None
    if found := _KEY.search(head):
        key = found[1]
        head = head[: found.start(1)] + _HOLE + head[found.end(1) :]
    if found := _LENGTH.search(head):
        head = head[: found.start(1)] + _HOLE + head[found.end(1) :]
    return head, key


class FastPublish:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._elsewhere = RemoteBatchers(services.remote)
        self._young: dict[bytes, KnownHead] = {}
        self._old: dict[bytes, KnownHead] = {}

    def learn(self, head: bytes, call: Call) -> None:
        request = call.request
        if (
            call.route.name in CALLS
            and not call.query
            and request.version == HttpVersion11
            and call.headers is request.headers  # not renamed, nor restored
            and may_be_single(call)
            and not any(name in request.headers for name in _NOT_ITS_OWN)
        ):
            assert call.grant is not None
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
                    grant=call.grant,
                    resource=Resource(Kind.TOPIC, str(call.topic)),
                ),
            )

    def take(self, head: bytes, body: bytes, caller: Caller) -> bool:
        services = self._services
        shape, key = shape_of(head)
        known = self._known(shape)
        if known is None or not services.ready or services.stopping.is_set():
            return False
        if not services.gate.holds_for(known.grant, caller):
            self._forget(shape)
            return False
        topic = services.broker.topics.fresh(known.topic)
        if topic is None or known.incarnation not in (None, topic.incarnation):
            return False
        if topic.settings.schema_validate:
            return False  # the check may have to wait
        config = services.config
        if len(body) > min(config.line_bytes_max, config.body_bytes_max):
            return False
        try:
            record = single_record(known.kind, known.headers, body, services, known.topic, key)
        except Problem:
            return False
        if record is None or is_delayed(record.headers):
            return False  # a delayed message may be refused, and must not fail others in its batch
        number = known.partition
        if number is None:
            partitions = topic.settings.partitions
            number = partition_of_single(record, partitions, services.turn.now)
        name = known.topic.partition(number)
        ownership = services.broker.ownership
        partition = ownership.at_hand(name, topic.incarnation)
        owner = None
        if partition is None:
            owner = ownership.other_at_hand(name, topic.incarnation)
        if partition is None and owner is None:
            return False
        found = services.quotas.at_hand(
            caller, known.grant.identity.name, known.topic, len(body), owned=owner is None
        )
        if found is None:
            return False
        if found.wait_s:
            at_owner = found.subject.startswith(("namespace:", "topic:"))
            about = topic.incarnation if at_owner else ""
            self._refuse(
                head, known.call, problem_of(services.quotas.exceeded(found)), about, caller
            )
            return True
        shares = services.quotas.sharers(known.grant.identity, known.topic.namespace)
        if not services.held.try_take(caller.peer, len(body), *shares):
            return False
        services.in_hand.enter()
        services.gate.again(
            known.grant.identity, Operation.PRODUCE, known.resource, caller.peer, known.call
        )
        if known.partition is None and topic.settings.partitions > 1:
            next(services.turn)  # the long way advances it itself
        if partition is not None:
            owner_url, joined = services.url, partition.join_single(record)
        else:
            assert owner is not None
            owner_url, joined = (
                owner.url,
                self._elsewhere.join(name, owner, record, known.grant.identity),
            )
        stored = _ShortCall(
            services, known.call, topic.incarnation, name, owner_url, len(body), shares, caller,
            joined,
        )  # fmt: skip
        joined.stored.add_done_callback(stored)
        return True

    def _refuse(
        self, head: bytes, call: str, problem: Problem, incarnation: str, caller: Caller
    ) -> None:
        services = self._services
        path = head.split(b" ", 2)[1].decode("ascii", "replace").partition("?")[0]
        body = msgspec.json.encode(problem.body(path))
        headers = {OWNER_HEADER: services.url, **problem.headers}
        if incarnation:
            headers[INCARNATION_HEADER] = incarnation
        answer = _whole_answer(
            f"{problem.status} Too Many Requests", PROBLEM_TYPE, headers, body, services
        )
        services.in_hand.enter()

        def tell() -> None:
            services.in_hand.leave()
            services.metrics.answered(call, problem.status, 0.0)
            caller.answer(answer)

        asyncio.get_running_loop().call_soon(tell)  # the caller must first know that it is taken

    def _known(self, shape: bytes) -> KnownHead | None:
        known = self._young.get(shape)
        if known is None and (known := self._old.get(shape)) is not None:
            self._keep(shape, known)
        return known

    def _forget(self, shape: bytes) -> None:
        for heads in (self._young, self._old):
            heads.pop(shape, None)

    def _keep(self, shape: bytes, known: KnownHead) -> None:
        if len(self._young) >= HEADS_KEPT:
            self._old, self._young = self._young, {}
        self._young[shape] = known


class _ShortCall:
    __slots__ = (
        "_began_s", "_body_bytes", "_call", "_caller", "_incarnation", "_joined", "_name",
        "_owner_url", "_services", "_shares",
    )  # fmt: skip

    def __init__(
        self,
        services: Services,
        call: str,
        incarnation: str,
        name: PartitionName,
        owner_url: str,
        body_bytes: int,
        shares: tuple[str, ...],
        caller: Caller,
        joined: Joined,
    ) -> None:
        self._services = services
        self._call = call
        self._incarnation = incarnation
        self._name = name
        self._owner_url = owner_url
        self._body_bytes = body_bytes
        self._shares = shares
        self._caller = caller
        self._joined = joined
        self._began_s = joined.stored.get_loop().time()

    def __call__(self, stored: Stored) -> None:
        services, caller = self._services, self._caller
        services.held.give_back(caller.peer, self._body_bytes, *self._shares)
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
            count_single(placed, self._name.topic_name, services.rules)
        body = msgspec.json.encode(single_answer(self._name.partition, placed))
        headers = {OWNER_HEADER: self._owner_url, INCARNATION_HEADER: self._incarnation}
        return _whole_answer("200 OK", JSON, headers, body, services)


def _whole_answer(
    status: str, kind: str, headers: Mapping[str, str], body: bytes, services: Services
) -> bytes:
    own = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    closing = "Connection: close\r\n" if services.stopping.is_set() else ""
    head = (
        f"HTTP/1.1 {status}\r\n"
        f"Content-Type: {kind}\r\n"
        f"{own}"
        "Server: octavo\r\n"
        "X-Content-Type-Options: nosniff\r\n"
        f"Content-Length: {len(body) + 1}\r\n"
        f"Date: {rfc822_formatted_time()}\r\n"
        f"{closing}\r\n"
    )
    return head.encode() + body + b"\n"
