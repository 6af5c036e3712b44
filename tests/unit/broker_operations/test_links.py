"""Two brokers' ends of a connection over a socket: answers, refusals, cancellation, ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from octavo.broker.errors import NotOwner, OwnerUnreachable
from octavo.broker.operations import upgrade as upgrades
from octavo.broker.operations.channel import Answering, Priority, Windows
from octavo.broker.operations.frames import Frame, Kind, keys_of
from octavo.broker.operations.kinds import (
    REFUSAL_BYTES_MAX,
    RULES,
    Await,
    Awaited,
    Fate,
    Given,
    GivenBatch,
    Leases,
    OperationOutcomeUnknown,
    OtherProtocol,
    Publish,
    Read,
    Receive,
    Refusal,
    Refused,
    Request,
    Settle,
    Settled,
    Stored,
    decode_request,
    encode_answer,
)
from octavo.broker.operations.links import AnsweringLink, Reply
from octavo.broker.operations.processor_time import Measured
from octavo.broker.operations.remote import Place, Proof, Remote, hello_of, seals_of
from octavo.broker.operations.stream_kinds import AwaitStream, ReadStream, StreamPage
from octavo.broker.operations.upgrade import (
    FROM_HEADER,
    NONCE_HEADER,
    NONCES_KEPT,
    PATH,
    PROOF_HEADER,
    PROTOCOL,
    TO_HEADER,
    Nonces,
    Upgrade,
    answer_head,
    headers_of,
    read_upgrade,
    request_head,
)
from octavo.broker.state.stream import StreamConfig
from octavo.broker.types import Delivery, MessageId, Nack, Owner, PartitionName, Published
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch
from octavo.security.principal import Identity
from tests.support.cluster import until

NAME = PartitionName("public", "t", 0)
BATCH = build_batch([Record(b"k", b"v", (), 1)])
HEADER = read_header(BATCH)._replace(max_timestamp=77)
SECRET = b"the cluster's secret"
ALICE = Identity("user:alice", frozenset({"group:staff"}), "token", 99.5)
OWN = Identity("node:asking", source="node")
STORED = Stored([Fate(Published(0, 0, 1, 2, 1, False))], 3)

Run = Callable[[Request, float], Awaitable[Any]]


class Settings:
    peer_connect_timeout_ms = 2_000
    peer_answer_timeout_ms = 20_000


class Server(asyncio.Protocol):
    """A broker that answers the upgrade, then operations with `run`."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.came = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        self.came += data
        if b"\r\n\r\n" not in self.came:
            return
        if self.world.says is not None:
            self.transport.write(self.world.says)
            return
        lines = dict(line.split(": ", 1) for line in self.came.decode().split("\r\n")[1:-2])
        nonces = (lines[NONCE_HEADER], "2" * 32)
        keys = keys_of(self.world.secret, "asking", self.world.name, nonces)
        hello = hello_of(self.world.name) if self.world.hello is None else self.world.hello
        link = AnsweringLink(hello, *seals_of(keys, is_tls=False), self.world.answer)
        self.world.links.append(link)
        if self.world.dies_after is not None:
            end_after(link, self.world.dies_after)
        self.transport.write(answer_head("2" * 32))
        self.transport.set_protocol(link)
        link.connection_made(self.transport)


def end_after(link: AnsweringLink, pieces: int) -> None:
    """End the connection after this many pieces of answers."""
    write, count = link._write, iter(range(pieces))

    def counted(frame: Frame) -> None:
        write(frame)
        if frame.kind is Kind.MORE and next(count, None) is None:
            link.end("dies")

    link._write = counted  # type: ignore[method-assign]


class World:
    """One broker that asks, one that answers."""

    def __init__(self) -> None:
        self.name, self.secret = "b", SECRET
        self.says: bytes | None = None
        self.hello: bytes | None = None
        self.dies_after: int | None = None
        """Frames of answers until it dies; the first answer of each connection does not count."""
        self.links: list[AnsweringLink] = []
        self.seen: list[Request] = []
        self.deadlines_s: list[float] = []
        self.undelivered: Callable[[], object] | None = None
        self.work: Callable[[Request], Awaitable[Any]] = self.at_once
        self.remote: Remote
        self.owner: Owner

    async def at_once(self, request: Request) -> Any:
        return STORED

    async def answer(self, payload: bytes, deadline_s: float) -> Reply:
        request = decode_request(payload)
        self.seen.append(request)
        self.deadlines_s.append(deadline_s)
        found = await self.work(request)
        return Reply(encode_answer(found), isinstance(found, Refusal), self.undelivered)

    def publish(self, batch: bytes = BATCH) -> Awaitable[Any]:
        return self.remote.publish(self.owner, ALICE, NAME, [batch])

    def at_rest(self) -> bool:
        sides = [self.remote.describe(), *(link.describe() for link in self.links)]
        return not any(count for side in sides for count in side.values())


@asynccontextmanager
async def opened() -> AsyncIterator[World]:
    world = World()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Server(world), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    nonces = iter(f"{n:032x}" for n in range(100))

    async def dial(place: Place, protocol: Callable[[], asyncio.Protocol]) -> object:
        return await loop.create_connection(protocol, place.host, place.port)

    proof = Proof(SECRET, lambda: next(nonces))
    world.remote = Remote("asking", Settings(), proof, dial, OWN)
    world.owner = Owner("b", f"http://127.0.0.1:{port}", False, "i1")
    try:
        yield world
    finally:
        await world.remote.close()
        server.close()
        for link in world.links:
            link.end("the test is over")


async def test_an_operation_comes_with_its_caller_and_its_topic() -> None:
    async with opened() as world:
        assert await world.publish() == STORED
        (request,) = world.seen
        assert request.caller.identity == ALICE
        assert request.incarnation == "i1"
        assert request.operation == Publish(NAME, [BATCH])
        assert world.at_rest()


async def test_each_of_many_gets_its_own_answer() -> None:
    async with opened() as world:

        async def work(request: Request) -> Any:
            assert isinstance(request.operation, Publish)
            size = len(request.operation.batches[0])
            await asyncio.sleep(0.001 * (size % 7))
            return Stored([Fate(Published(size, size, 1, 2, 1, False))], 1)

        world.work = work
        found = await asyncio.gather(*(world.publish(b"x" * n) for n in range(100)))
        assert [one.fates[0].published.first_offset for one in found] == list(range(100))
        assert len(world.links) == 1
        assert world.at_rest()


async def test_a_long_answer_comes_whole() -> None:
    async with opened() as world:
        page = Given([GivenBatch(5, 1, 2, HEADER, b"d" * 3_000_000)], 5, 6, 1)

        async def work(_: Request) -> Any:
            return page

        world.work = work
        asked = Read.of(NAME, 5, 4_000_000, 10, compacted=False)
        assert await world.remote.read(world.owner, ALICE, asked) == page
        assert world.at_rest()


async def test_a_read_that_finds_nothing_waits_and_reads_again() -> None:
    async with opened() as world:
        answers = iter(
            [Given([], 7, 7, 1), Awaited(True), Given([GivenBatch(7, 1, 2, HEADER, b"d")], 7, 8, 1)]
        )

        async def work(_: Request) -> Any:
            return next(answers)

        world.work = work
        asked = Read.of(NAME, "latest", 1000, 10, compacted=False)
        found = await world.remote.read(world.owner, ALICE, asked, 5.0)
        assert found.following == 8
        first, wait, again = (request.operation for request in world.seen)
        assert first == asked
        assert wait == Await(NAME, 7, 5_000)
        assert again == Read.of(NAME, 7, 1000, 10, compacted=False)


async def test_a_read_of_a_stream_that_finds_nothing_waits_and_reads_again() -> None:
    """Unless the stream has ended; a wait that ends without news is answered by the first read."""
    config = StreamConfig("text/plain")
    empty = StreamPage(config, "i1", [], 7, 7, True, False)
    full = StreamPage(config, "i1", [GivenBatch(7, 1, 2, HEADER, b"d")], 7, 8, True, False)
    ended = StreamPage(config, "i1", [], 7, 7, True, True)
    asked = ReadStream(NAME, None, 1000, 10, 5_000)
    once = replace(asked, wait_ms=0)
    wait, again = AwaitStream(NAME, 7, 5_000), replace(once, at=7)
    cases: list[tuple[list[Any], list[Any]]] = [
        ([empty, Awaited(True), full], [once, wait, again]),
        ([empty, Awaited(False)], [once, wait]),
        ([full], [once]),
        ([ended], [once]),
    ]
    for said, operations in cases:
        async with opened() as world:
            answers = iter(said)

            async def work(_: Request, answers: Any = answers) -> Any:
                return next(answers)

            world.work = work
            found = await world.remote.read_stream(world.owner, ALICE, asked)
            assert found == ([one for one in said if isinstance(one, StreamPage)][-1])
            assert [request.operation for request in world.seen] == operations


async def test_a_refusal_comes_as_it_was_made() -> None:
    async with opened() as world:
        refusal = Refusal(409, "sequence-gap", "no", False, {"A": "b"}, {"expected_sequence": 4})

        async def work(_: Request) -> Any:
            return refusal

        world.work = work
        with pytest.raises(Refused) as raised:
            await world.publish()
        assert raised.value.refusal == refusal


async def test_a_stale_owner_is_told_apart() -> None:
    async with opened() as world:

        async def work(_: Request) -> Any:
            return Refusal(503, "not-owner", "b1 is", True)

        world.work = work
        with pytest.raises(NotOwner):
            await world.publish()


async def test_a_peer_that_dies_after_it_was_asked_leaves_the_outcome_unknown() -> None:
    async with opened() as world:

        async def work(_: Request) -> Any:
            await asyncio.get_running_loop().create_future()

        world.work = work
        publish = asyncio.ensure_future(world.publish())
        read = asyncio.ensure_future(
            world.remote.read(world.owner, ALICE, Read.of(NAME, 0, 10, 10, compacted=False))
        )
        await until(lambda: len(world.seen) == 2, "it happens")
        world.links[0].end("dies")
        with pytest.raises(OperationOutcomeUnknown):
            await publish
        with pytest.raises(OwnerUnreachable):  # it changes nothing, and may be asked again
            await read
        assert world.at_rest()


async def test_a_peer_that_dies_in_the_middle_of_its_answer() -> None:
    async with opened() as world:

        async def work(_: Request) -> Any:
            return Given([GivenBatch(0, 1, 2, HEADER, b"d" * 3_000_000)], 0, 1, 1)

        world.work = work
        asked = Read.of(NAME, 0, 4_000_000, 10, compacted=False)
        world.dies_after = 3
        reading = asyncio.ensure_future(world.remote.read(world.owner, ALICE, asked))
        with pytest.raises(OwnerUnreachable):
            await reading
        assert world.at_rest()


async def test_a_caller_that_goes_away_ends_the_wait_at_the_owner() -> None:
    async with opened() as world:
        ended = asyncio.Event()

        async def work(_: Request) -> Any:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        world.work = work
        waiting = asyncio.ensure_future(
            world.remote.ask(world.owner, ALICE, Await(NAME, 0, 60_000), 60.0)
        )
        await until(lambda: bool(world.seen), "it happens")
        waiting.cancel()
        async with asyncio.timeout(30):
            await ended.wait()
        await until(world.at_rest, "it happens")


async def test_the_deadline_goes_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the time of the asking side is up, the work at the owner ends too."""
    monkeypatch.setattr(Settings, "peer_answer_timeout_ms", 50)
    async with opened() as world:
        ended = asyncio.Event()

        async def work(_: Request) -> Any:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        world.work = work
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(OperationOutcomeUnknown, match="in time"):
            await world.publish()
        async with asyncio.timeout(30):
            await ended.wait()
        assert world.deadlines_s[0] - began_s < 10
        await until(world.at_rest, "it happens")


async def test_a_connection_that_ended_is_opened_anew() -> None:
    async with opened() as world:
        await world.publish()
        world.links[0].end("cut")
        await until(lambda: not world.remote._links, "it happens")
        assert await world.publish() == STORED
        assert len(world.links) == 2


async def test_many_who_ask_first_share_one_connection() -> None:
    async with opened() as world:
        await asyncio.gather(*(world.publish() for _ in range(20)))
        assert len(world.links) == 1


@pytest.mark.parametrize(
    ("says", "error"),
    [
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", NotOwner),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", OtherProtocol),
        (b"HTTP/1.1 426 Upgrade Required\r\nUpgrade: octavo-operations/9\r\n\r\n", OtherProtocol),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n", OwnerUnreachable),
        (b"SSH-2.0-OpenSSH\r\n\r\n", OwnerUnreachable),
        (b"x" * 20_000, OwnerUnreachable),
    ],
)
async def test_a_broker_that_does_not_switch(says: bytes, error: type[Exception]) -> None:
    async with opened() as world:
        world.says = says
        with pytest.raises(error):
            await world.publish()
        assert world.at_rest()


async def test_a_mixed_cluster_fails_with_words() -> None:
    async with opened() as world:
        world.says = b"HTTP/1.1 404 Not Found\r\n\r\n"
        with pytest.raises(
            OtherProtocol, match="all brokers of a cluster must have the same version"
        ):
            await world.publish()
        world.says, world.hello = None, b"\x92\x09\xa1b"
        with pytest.raises(OtherProtocol, match="version 9"):
            await world.publish()


@pytest.mark.parametrize(("name", "secret"), [("c", SECRET), ("b", b"another secret")])
async def test_a_stranger_behind_the_address_is_asked_nothing(name: str, secret: bytes) -> None:
    async with opened() as world:
        world.name, world.secret = name, secret
        with pytest.raises(OwnerUnreachable):
            await world.publish()
        assert world.seen == []
        assert world.at_rest()


async def test_nobody_there() -> None:
    async with opened() as world:
        gone = world.owner._replace(url="http://127.0.0.1:1")
        with pytest.raises(OwnerUnreachable):
            await world.remote.publish(gone, ALICE, NAME, [BATCH])


RECEIVE = Receive(NAME, "s", "c", 10, wait_ms=60_000)


def leases(size: int) -> Leases:
    """The answer to a receive: a message with `size` bytes."""
    record = Record(b"k", b"v" * size, [("name", b"text")], 5)
    return Leases([Delivery("0-7-1-1", 7, MessageId(1, 2, 0), record, 3)], None, [], None, 1)


def take_back(world: World) -> list[Settle]:
    """Return the operations with which the asking side gave messages back."""
    found = [request for request in world.seen if isinstance(request.operation, Settle)]
    assert all(request.caller.identity == OWN for request in found)
    return [request.operation for request in found if isinstance(request.operation, Settle)]


@pytest.mark.parametrize("size", [10, 3_000_000])
async def test_a_receive_waits_and_gets_its_messages(size: int) -> None:
    """Messages longer than the reservation come, too."""
    async with opened() as world:
        there = asyncio.Event()

        async def work(_: Request) -> Any:
            await there.wait()
            return leases(size)

        world.work = work
        waits = [
            asyncio.ensure_future(world.remote.ask(world.owner, ALICE, RECEIVE, 60.0))
            for _ in range(12)
        ]
        await until(lambda: len(world.seen) == 12, "it happens")
        assert world.remote.describe()["reserved_bytes"] <= 12 * REFUSAL_BYTES_MAX
        there.set()
        assert await asyncio.gather(*waits) == [leases(size)] * 12
        assert world.at_rest()


async def test_messages_of_a_receive_that_was_cancelled_are_given_back() -> None:
    """Their answer was on its way."""
    async with opened() as world:
        told: list[str] = []
        world.undelivered = lambda: told.append("undelivered")

        async def work(request: Request) -> Any:
            if isinstance(request.operation, Settle):
                return Settled(0, [], "", 1)
            return leases(10)

        world.work = work
        link = await world.remote._link(world.owner)
        take, frames = link._take, list[Frame]()
        link._take = frames.append  # type: ignore[method-assign, assignment]
        waiting = asyncio.ensure_future(world.remote.ask(world.owner, ALICE, RECEIVE, 60.0))
        await until(lambda: bool(frames), "it happens")
        link._take = take  # type: ignore[method-assign]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        take(frames[0])
        await until(world.at_rest, "it happens")
        assert take_back(world) == [Settle(NAME, "s", unread=["0-7-1-1"])]
        assert told == []


async def test_an_answer_in_the_turn_in_which_its_caller_goes_is_given_back() -> None:
    async with opened() as world:

        async def work(request: Request) -> Any:
            if isinstance(request.operation, Settle):
                return Settled(0, [], "", 1)
            return leases(10)

        world.work = work
        link = await world.remote._link(world.owner)
        take, waiting = link._take, list[asyncio.Future[Any]]()

        def both(frame: Frame) -> None:
            if len(waiting) == 1:
                take(frame)
                waiting.pop().cancel()
            else:
                take(frame)

        link._take = both  # type: ignore[method-assign]
        asking = asyncio.ensure_future(world.remote.ask(world.owner, ALICE, RECEIVE, 60.0))
        waiting.append(asking)
        with pytest.raises(asyncio.CancelledError):
            await asking
        await until(lambda: len(world.seen) == 2 and world.at_rest(), "it happens")
        assert take_back(world) == [Settle(NAME, "s", unread=["0-7-1-1"])]


@pytest.mark.parametrize("ends", ["cancel", "connection"])
@pytest.mark.parametrize("size", [10, 200_000])
async def test_an_answer_that_is_not_sent_is_told_to_its_maker(ends: str, size: int) -> None:
    """So the owner takes back its leases."""
    async with opened() as world:
        told: list[str] = []
        world.undelivered = lambda: told.append("undelivered")
        may_answer = asyncio.Event()

        async def work(request: Request) -> Any:
            await may_answer.wait()
            return leases(size)

        world.work = work
        waiting = asyncio.ensure_future(world.remote.ask(world.owner, ALICE, RECEIVE, 60.0))
        await until(lambda: bool(world.seen), "it happens")
        (link,) = world.links
        link.pause_writing()
        may_answer.set()
        await until(lambda: bool(link.describe()["to_send"]), "it happens")
        if ends == "connection":
            link.end("dies")
            with pytest.raises(OwnerUnreachable):
                await waiting
        else:
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            if size > REFUSAL_BYTES_MAX:  # it was only offered
                await until(lambda: bool(told), "it happens")
            link.resume_writing()
        await until(world.at_rest, "it happens")
        gave_back = [one for one in world.seen if isinstance(one.operation, Settle)]
        assert len(told) + len(gave_back) == 1


async def test_offered_answers_beyond_the_bound_are_refused_and_taken_back() -> None:
    async with opened() as world:
        told: list[str] = []
        world.undelivered = lambda: told.append("undelivered")

        async def work(request: Request) -> Any:
            return leases(900_000)

        world.work = work
        await world.remote._link(world.owner)
        (link,) = world.links
        link._channel = Answering(Windows(offered_bytes=1_000_000))
        link.pause_writing()
        waits = [
            asyncio.ensure_future(world.remote.ask(world.owner, ALICE, RECEIVE, 60.0))
            for _ in range(2)
        ]
        await until(lambda: bool(told), "it happens")
        link.resume_writing()
        found = await asyncio.gather(*waits, return_exceptions=True)
        refused = [one.refusal for one in found if isinstance(one, Refused)]
        assert [(one.status, one.code, one.retryable) for one in refused] == [
            (429, "overloaded", True)
        ]
        assert [one for one in found if isinstance(one, Leases)] == [leases(900_000)]
        assert told == ["undelivered"]


async def test_a_settle_whose_answer_is_lost_is_not_sent_again() -> None:
    async with opened() as world:

        async def work(request: Request) -> Any:
            await asyncio.get_running_loop().create_future()

        world.work = work
        settle = Settle(NAME, "s", nacks=[Nack("0-7-1-1", 5)])
        asking = asyncio.ensure_future(world.remote.ask(world.owner, ALICE, settle))
        await until(lambda: bool(world.seen), "it happens")
        world.links[0].end("dies")
        with pytest.raises(OperationOutcomeUnknown, match="safe for an ack"):
            await asking
        assert [request.operation for request in world.seen] == [settle]


def test_only_what_changes_nothing_that_lasts_is_asked_again() -> None:
    """A receive leases; under its number it gets the same messages again, and leases end."""
    once = {kind.__name__ for kind, rule in RULES.items() if not rule.may_repeat}
    cursors = {"Settle", "Seek", "Skip", "Expire"}
    of_brokers = {"LoadPart", "StoreCopy", "WriteAudit", "Prepare", "Take", "LetGo"}
    of_brokers |= {"BeginLargeCopy", "AddPiece", "EndBody"}
    others = {
        "Publish",
        "BeginUpload",
        "Truncate",
        "Unload",
        "ReleaseAccess",
        "Drain",
        "LeaveGroup",
    }
    streams = {"MakeStream", "AppendToStream", "DeleteStream"}
    assert once == cursors | streams | of_brokers | others
    assert RULES[Publish].priority is Priority.URGENT
    assert RULES[Settle].priority is Priority.URGENT


KEY = b"k" * 32
ASKED = Upgrade("b1", "b2", "0123456789abcdef" * 2)


def test_a_broker_that_has_the_key_is_believed() -> None:
    sent = headers_of(ASKED, KEY)
    assert read_upgrade(sent, KEY) == ASKED
    assert all(value.isascii() for value in sent.values())


def test_the_request_is_http_with_these_headers() -> None:
    first, *lines = request_head("b2:8080", ASKED, KEY).decode().split("\r\n")
    assert first == f"GET {PATH} HTTP/1.1"
    assert lines[-2:] == ["", ""]
    named = dict(line.split(": ", 1) for line in lines[:-2])
    assert named == {"Host": "b2:8080", "Connection": "Upgrade", **headers_of(ASKED, KEY)}
    assert read_upgrade(named, KEY) == ASKED


@pytest.mark.parametrize(
    "changed",
    [
        {FROM_HEADER: "b9"}, {TO_HEADER: "b9"}, {FROM_HEADER: "b1\0b2"}, {FROM_HEADER: "\udcff"},
        {NONCE_HEADER: "f" * 32}, {NONCE_HEADER: ""}, {NONCE_HEADER: ASKED.nonce.upper()},
        {PROOF_HEADER: "0" * 64}, {PROOF_HEADER: ""}, {PROOF_HEADER: "\udcff" * 64},
        {PROOF_HEADER: "\xe9" * 64}, {"Upgrade": "octavo-operations/4"}, {"Upgrade": "websocket"},
    ],
)  # fmt: skip
def test_nothing_of_it_can_be_changed_or_left_out(changed: dict[str, str]) -> None:
    sent = headers_of(ASKED, KEY)
    assert read_upgrade(sent | changed, KEY) is None
    assert read_upgrade({k: v for k, v in sent.items() if k not in changed}, KEY) is None


def test_names_cannot_be_moved_from_one_field_to_the_next() -> None:
    one, other = Upgrade("b", "1b2", ASKED.nonce), Upgrade("b1", "b2", ASKED.nonce)
    assert headers_of(one, KEY)[PROOF_HEADER] != headers_of(other, KEY)[PROOF_HEADER]
    back = Upgrade("b2", "b1", ASKED.nonce)
    assert headers_of(back, KEY)[PROOF_HEADER] != headers_of(ASKED, KEY)[PROOF_HEADER]


def test_another_key_or_another_use_of_the_key_proves_nothing() -> None:
    """Keys of frames are derived from the same secret and are no proofs of upgrades."""
    assert read_upgrade(headers_of(ASKED, b"o" * 32), KEY) is None
    assert read_upgrade({}, KEY) is None
    for key in keys_of(KEY, "b1", "b2", (ASKED.nonce, ASKED.nonce)):
        assert key.hex() != headers_of(ASKED, KEY)[PROOF_HEADER]


@pytest.mark.parametrize("version", [4, 6])
def test_a_proof_of_another_version_is_none(version: int) -> None:
    """Otherwise a connection could be made to begin with another protocol than both sides speak."""
    sent = headers_of(ASKED._replace(protocol=f"octavo-operations/{version}"), KEY)
    assert read_upgrade(sent, KEY) is None
    assert read_upgrade(sent | {"Upgrade": PROTOCOL}, KEY) is None


def test_a_nonce_is_new_once() -> None:
    nonces = Nonces()
    assert nonces.is_new("a")
    assert not nonces.is_new("a")
    assert nonces.is_new("b")
    assert not nonces.is_new("a")


def test_the_nonces_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upgrades, "NONCES_KEPT", 10)
    nonces = Nonces()
    assert all(nonces.is_new(f"{n:032x}") for n in range(1000))
    assert len(nonces._seen) == 10
    assert not any(nonces.is_new(f"{n:032x}") for n in range(990, 1000)), "the newest are known"
    assert NONCES_KEPT * (sys.getsizeof("0" * 32) + 100) < 1 << 20


class Clock:
    """A settable processor-time clock."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


async def test_each_step_counts_and_waiting_does_not() -> None:
    clock, spent = Clock(), list[float]()
    waits = asyncio.get_running_loop().create_future()

    async def work() -> str:
        clock.now_s += 1
        await asyncio.sleep(0)
        clock.now_s += 2
        found: str = await waits
        clock.now_s += 4
        return found

    task = asyncio.ensure_future(_driven(Measured(work(), clock, spent.append)))
    for _ in range(3):
        await asyncio.sleep(0)
    clock.now_s += 100  # another task's
    waits.set_result("done")
    assert await task == "done"
    assert sum(spent) == 7


async def _driven(measured: Measured[str]) -> str:
    return await measured


async def test_an_error_and_its_time_come_through() -> None:
    clock, spent = Clock(), list[float]()

    async def work() -> str:
        await asyncio.sleep(0)
        clock.now_s += 3
        raise KeyError("x")

    with pytest.raises(KeyError):
        await Measured(work(), clock, spent.append)
    assert sum(spent) == 3


async def test_a_cancellation_reaches_the_work_and_may_be_outlived() -> None:
    clock, seen = Clock(), list[str]()

    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise
        return "never"

    task = asyncio.ensure_future(_driven(Measured(work(), clock, lambda _: None)))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == ["cancelled"]

    async def stays() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "last word"
        return "never"

    task = asyncio.ensure_future(_driven(Measured(stays(), clock, lambda _: None)))
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "last word"
