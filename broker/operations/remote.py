"""Send operations to the brokers that own partitions, and decide what a missing answer means.

If the request was not sent completely, nothing was done: look for the owner again. If it was, the
outcome is unknown, unless the operation changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from typing import NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

import msgspec
import structlog

from octavo.broker.errors import NotOwner, OwnerUnreachable, TopicChanged
from octavo.broker.operations.channel import Unwanted
from octavo.broker.operations.frames import VERSION, BrokenChannel, Keys, Seals, keys_of
from octavo.broker.operations.kinds import (
    RULES,
    AnyAnswer,
    AnyOperation,
    Await,
    Awaited,
    BrokerOperation,
    Given,
    Leases,
    OperationOutcomeUnknown,
    OtherProtocol,
    Publish,
    Read,
    Receive,
    Refusal,
    Refused,
    Settle,
    Stored,
    decode_answer,
    decode_refusal,
    encode_request,
    reserve_of,
)
from octavo.broker.operations.large import Pieces
from octavo.broker.operations.large_kinds import (
    GIVEN_UP,
    AddPiece,
    BeginBody,
    BodyStored,
    EndBody,
    LargeStored,
    PieceTaken,
)
from octavo.broker.operations.links import AnswerLost, AnswerRefused, AskingLink
from octavo.broker.operations.stream_kinds import AwaitStream, ReadStream, StreamPage
from octavo.broker.operations.upgrade import (
    PROTOCOL,
    Accepted,
    Upgrade,
    read_answer,
    request_head,
)
from octavo.broker.types import Owner, PartitionName
from octavo.protocol.codes import OctavoError
from octavo.protocol.log_limiter import LogLimiter
from octavo.security.principal import Identity

MOVING_CODES = frozenset({"not-owner", "partition-moving", "not-ready", "stopping"})
"""Refusals after which nothing was done: look for the owner again."""
NOTHING_AFTER_S = 10.0
"""A late piece is replaced by an empty piece, before the owner's `IDLE_S` ends."""

log = structlog.get_logger()
Answer = TypeVar("Answer", bound=AnyAnswer)

Measured = Callable[[Awaitable[bytes | None]], Awaitable[bytes | None]]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    version: int
    broker_id: str


class Place(NamedTuple):
    host: str
    port: int
    is_tls: bool
    authority: str


Dial = Callable[[Place, Callable[[], asyncio.Protocol]], Awaitable[object]]


class Settings(Protocol):
    @property
    def peer_connect_timeout_ms(self) -> int: ...

    @property
    def peer_answer_timeout_ms(self) -> int: ...


class Proof(NamedTuple):
    secret: bytes
    draw_nonce: Callable[[], str]


class Remote:
    def __init__(
        self,
        broker_id: str,
        settings: Settings,
        proof: Proof,
        dial: Dial,
        own: Identity,
        count: Callable[[], object] = lambda: None,
    ) -> None:
        """Call another broker; `own` is the identity that releases leases whose caller has gone."""
        self._broker_id = broker_id
        self._settings = settings
        self._proof = proof
        self._dial = dial
        self._links: dict[tuple[str, str], AskingLink] = {}
        self._opening: dict[tuple[str, str], asyncio.Task[AskingLink]] = {}
        self._strangers = LogLimiter()
        self.own = own
        self._count = count
        self._giving_back: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def describe(self) -> dict[str, int]:
        found = {"opening": len(self._opening), "giving_back": len(self._giving_back)}
        for link in tuple(self._links.values()):
            for name, count in link.describe().items():
                found[name] = found.get(name, 0) + count
        return found

    async def close(self) -> None:
        self._is_closed = True
        tasks = (*self._opening.values(), *self._giving_back)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in tuple(self._links.values()):
            link.end("this broker stops")
        self._links.clear()

    async def publish(
        self,
        owner: Owner,
        identity: Identity,
        name: PartitionName,
        batches: list[bytes],
        *,
        expected_offset: int | None = None,
        access: int | None = None,
        is_single: bool = False,
    ) -> Stored:
        operation = Publish(name, batches, expected_offset, access, is_single)
        found = await self.ask(owner, identity, operation)
        assert isinstance(found, Stored)
        return found

    async def read(
        self, owner: Owner, identity: Identity, operation: Read, wait_s: float = 0.0
    ) -> Given:
        """Read at the owner.

        The wait is a separate, short operation: only a read that finds messages needs room for
        them.
        """
        found = await self.ask(owner, identity, operation)
        assert isinstance(found, Given)
        if found.batches or wait_s <= 0:
            return found
        wait = Await(operation.name, found.following, round(wait_s * 1000), operation.compacted)
        awaited = await self.ask(owner, identity, wait, wait_s)
        assert isinstance(awaited, Awaited)
        if not awaited.is_there:
            return found
        again = msgspec.structs.replace(operation, at=found.following)
        found = await self.ask(owner, identity, again)
        assert isinstance(found, Given)
        return found

    async def read_stream(
        self, owner: Owner, identity: Identity, operation: ReadStream
    ) -> StreamPage:
        """Read a stream at the owner; a wait is separate, as in `read`."""
        once = msgspec.structs.replace(operation, wait_ms=0)
        found = await self.ask(owner, identity, once)
        assert isinstance(found, StreamPage)
        if found.batches or found.closed or not operation.wait_ms:
            return found
        wait = AwaitStream(operation.name, found.following, operation.wait_ms)
        awaited = await self.ask(owner, identity, wait, operation.wait_ms / 1000)
        assert isinstance(awaited, Awaited)
        if not awaited.is_there:
            return found
        found = await self.ask(owner, identity, msgspec.structs.replace(once, at=found.following))
        assert isinstance(found, StreamPage)
        return found

    async def send_body(
        self,
        owner: Owner,
        identity: Identity,
        begin: BeginBody,
        pieces: Pieces,
        measured: Measured = lambda work: work,
    ) -> LargeStored | None:
        """Send a body; the outcome is unknown only if the whole body was sent."""
        name, body, number = begin.name, begin.body, 0
        async with aclosing(pieces), aclosing(_or_nothing(pieces, measured)) as coming:
            try:
                taken = await self._ask_for(owner, identity, begin, PieceTaken)
                while taken.wants_more and (piece := await anext(coming, None)) is not None:
                    add = AddPiece(name, body, number, piece)
                    number += 1
                    taken = await self._ask_for(owner, self.own, add, PieceTaken)
            except BaseException as error:
                self.tell(owner, EndBody(name, body, GIVEN_UP))
                if isinstance(error, OperationOutcomeUnknown):
                    raise _unreachable(owner, "it broke off during a large message") from error
                raise
        return (
            await self._ask_for(owner, self.own, EndBody(name, body, number), BodyStored)
        ).stored

    async def _ask_for(
        self, owner: Owner, identity: Identity, operation: AnyOperation, kind: type[Answer]
    ) -> Answer:
        found = await self.ask(owner, identity, operation)
        assert isinstance(found, kind)
        return found

    async def ask(
        self, owner: Owner, identity: Identity, operation: AnyOperation, wait_s: float = 0.0
    ) -> AnyAnswer:
        """Ask the owner; after `OwnerUnreachable` or `NotOwner` nothing was done."""
        self._count()
        rule = RULES[type(operation)]
        payload = encode_request(identity, owner.incarnation, operation)
        patience_s = self._settings.peer_answer_timeout_ms / 1000 + wait_s
        deadline_s = asyncio.get_running_loop().time() + patience_s
        try:
            link = await self._link(owner)
            found = await link.ask(
                payload,
                priority=rule.priority,
                reserve=reserve_of(operation),
                deadline_s=deadline_s,
                unwanted=self._unwanted(owner, operation),
            )
            return decode_answer(operation, found)
        except AnswerRefused as error:
            raise error_of(decode_refusal(error.payload)) from None
        except AnswerLost as error:
            if error.sent and not rule.may_repeat:
                raise _unknown(owner, operation, str(error)) from error
            raise _unreachable(owner, str(error)) from error

    def _unwanted(self, owner: Owner, operation: AnyOperation) -> Unwanted | None:
        if not isinstance(operation, Receive):
            return None

        def give_back(payload: bytes) -> None:
            leases = decode_answer(operation, payload)
            assert isinstance(leases, Leases)
            if ack_ids := leases.ack_ids:
                unread = Settle(operation.name, operation.subscription, unread=ack_ids)
                self.tell(owner, unread)  # if this fails, they end after the ack timeout

        return give_back

    def tell(self, owner: Owner, operation: AnyOperation) -> None:
        task = asyncio.ensure_future(self._tell(owner, operation))
        self._giving_back.add(task)
        task.add_done_callback(self._giving_back.discard)

    async def _tell(self, owner: Owner, operation: AnyOperation) -> None:
        with suppress(OctavoError):
            await self.ask(owner, self.own, operation)

    async def _link(self, owner: Owner) -> AskingLink:
        if self._is_closed:
            raise _unreachable(owner, "this broker stops")
        key = (owner.broker_id, owner.url)
        link = self._links.get(key)
        if link is not None and link.is_open:
            return link
        opening = self._opening.get(key)
        if opening is None:
            opening = asyncio.ensure_future(self._open(owner))
            self._opening[key] = opening
            opening.add_done_callback(lambda done: self._opened(key, done))
        return await asyncio.shield(opening)

    def _opened(self, key: tuple[str, str], done: asyncio.Task[AskingLink]) -> None:
        del self._opening[key]
        if (
            done.cancelled() or done.exception() is not None
        ):  # the tasks that wait for it raise the error
            return
        link = done.result()
        if link.is_open:
            self._links[key] = link
            link.closed.add_done_callback(lambda _: self._closed(key, link))

    def _closed(self, key: tuple[str, str], link: AskingLink) -> None:
        if self._links.get(key) is link:
            del self._links[key]

    async def _open(self, owner: Owner) -> AskingLink:
        upgrade = Upgrade(self._broker_id, owner.broker_id, self._proof.draw_nonce())
        place = place_of(owner.url)
        opening = _Opening(
            request_head(place.authority, upgrade, self._proof.secret),
            lambda theirs: self._new_link(owner, place, (upgrade.nonce, theirs)),
        )
        try:
            async with asyncio.timeout(self._settings.peer_connect_timeout_ms / 1000 * 2):
                await self._dial(place, lambda: opening)
                accepted = await opening.accepted
                if opening.link is None:
                    raise self._not_accepted(owner, accepted)
                hello = await opening.link.greeted
        except (OSError, TimeoutError, AnswerLost, BrokenChannel) as error:
            opening.end(str(error))
            raise _unreachable(owner, str(error) or type(error).__name__) from error
        except BaseException:
            opening.end("given up")
            raise
        found = msgspec.msgpack.decode(hello, type=Hello)
        if found.version != VERSION:
            opening.end("another version")
            raise self._other(owner, f"version {found.version}")
        return opening.link

    def _new_link(self, owner: Owner, place: Place, nonces: tuple[str, str]) -> AskingLink:
        keys = keys_of(self._proof.secret, self._broker_id, owner.broker_id, nonces)
        sends = Seals(keys.asking, first_only=place.is_tls)
        receives = Seals(keys.answering, first_only=place.is_tls)
        return AskingLink(hello_of(self._broker_id), sends, receives)

    def _not_accepted(self, owner: Owner, accepted: Accepted) -> Exception:
        if accepted.status == 503:
            return NotOwner(f"broker {owner.broker_id} at {owner.url} starts, stops or is gone")
        speaks = accepted.protocol or "none"
        return self._other(owner, f"{speaks}; it answered {accepted.status}")

    def _other(self, owner: Owner, speaks: str) -> OtherProtocol:
        now_s = asyncio.get_running_loop().time()
        if count := self._strangers.count(now_s, owner.broker_id):
            log.error(
                "broker_of_other_version",
                owner=owner.broker_id,
                url=owner.url,
                wanted=PROTOCOL,
                speaks=speaks,
                count=count,
            )
        return OtherProtocol(
            f"broker {owner.broker_id} at {owner.url}, which owns the partition, does not speak "
            f"{PROTOCOL} ({speaks}): all brokers of a cluster must have the same version; restart "
            "the older brokers"
        )


class _Opening(asyncio.Protocol):
    def __init__(self, head: bytes, new_link: Callable[[str], AskingLink]) -> None:
        self._head = head
        self._new_link = new_link
        self._came = b""
        self._transport: asyncio.Transport | None = None
        self.accepted: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self.link: AskingLink | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._transport.write(self._head)  # type: ignore[union-attr]

    def data_received(self, data: bytes) -> None:
        if self.link is not None:  # the transport does not know the link yet
            self.link.data_received(data)
            return
        self._came += data
        try:
            found = read_answer(self._came)
        except BrokenChannel as error:
            self._fail(error)
            return
        if found is None or self.accepted.done():
            return
        accepted, rest = found
        assert self._transport is not None
        if accepted.status == 101 and accepted.protocol == PROTOCOL:
            self.link = self._new_link(accepted.nonce)
            self._transport.set_protocol(self.link)
            self.link.connection_made(self._transport)
            if rest:
                self.link.data_received(rest)
        self.accepted.set_result(accepted)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.link is not None:
            self.link.connection_lost(exc)
        self._fail(ConnectionResetError(str(exc) if exc else "the connection was closed"))

    def end(self, reason: str) -> None:
        if self.link is not None:
            self.link.end(reason)
        elif self._transport is not None:
            self._transport.abort()
        self._fail(ConnectionAbortedError(reason))

    def _fail(self, error: Exception) -> None:
        if not self.accepted.done():
            self.accepted.set_exception(error)
            self.accepted.exception()  # no caller may be waiting for it


async def _or_nothing(pieces: Pieces, measured: Measured) -> Pieces:
    """Yield pieces, and empty pieces meanwhile: they keep the body alive at the owner."""
    coming: asyncio.Task[bytes | None] | None = None
    try:
        while True:
            if coming is None:
                coming = asyncio.ensure_future(_next_of(pieces, measured))
            await asyncio.wait((coming,), timeout=NOTHING_AFTER_S)
            if not coming.done():
                yield b""
                continue
            piece, coming = coming.result(), None
            if piece is None:
                return
            yield piece
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.gather(coming, return_exceptions=True)


async def _next_of(pieces: Pieces, measured: Measured) -> bytes | None:
    return await measured(anext(pieces, None))


def hello_of(broker_id: str) -> bytes:
    return msgspec.msgpack.encode(Hello(VERSION, broker_id))


def seals_of(keys: Keys, *, is_tls: bool) -> tuple[Seals, Seals]:
    return Seals(keys.answering, first_only=is_tls), Seals(keys.asking, first_only=is_tls)


def place_of(url: str) -> Place:
    found = urlsplit(url)
    is_tls = found.scheme == "https"
    return Place(found.hostname or "", found.port or (443 if is_tls else 80), is_tls, found.netloc)


def error_of(refusal: Refusal) -> Exception:
    if refusal.status == 503 and refusal.code in MOVING_CODES:
        return NotOwner(refusal.detail)
    if refusal.status == 503 and refusal.code == TopicChanged.name:
        return TopicChanged(refusal.detail)
    return Refused(refusal)


def _unreachable(owner: Owner, reason: str) -> OwnerUnreachable:
    return OwnerUnreachable(
        f"broker {owner.broker_id}, which owns the partition, cannot be reached at {owner.url} "
        f"({reason}); another broker takes over when its session has ended"
    )


def _unknown(owner: Owner, operation: AnyOperation, reason: str) -> OperationOutcomeUnknown:
    if isinstance(operation, BrokerOperation):
        return OperationOutcomeUnknown(
            f"broker {owner.broker_id} did not answer ({reason}); the operation may or may not "
            "have happened. Repeating is safe"
        )
    return OperationOutcomeUnknown(
        f"broker {owner.broker_id}, which owns the partition, did not answer "
        f"({reason}); the operation may or may not have happened. "
        "Repeating is safe for an ack, and for a publish with the same Producer-Id, Epoch and Seq"
    )
