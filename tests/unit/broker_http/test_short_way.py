"""The fast publish path against the full path: two worlds get the same bytes; one remembers no
heads.

Their answers must be the same, byte for byte, and so must the stored messages.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from octavo.broker import errors
from octavo.broker.http.api import fast_publish
from octavo.broker.http.api.fast_publish import FastPublish, shape_of
from octavo.broker.http.connections import Connection
from tests.support.fake_security import FakeAuthenticator, FakeAuthority
from tests.support.http_api import until
from tests.support.memory_cluster import NOW_MS, Running, running

TOPIC = "/v1/topics/public/one"
WIDE = "/v1/topics/public/wide"


class Wire:
    """A connection, kept alive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def to(cls, one: Any) -> Wire:
        host, _, port = one.servers[0].url.removeprefix("http://").partition(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    async def answer(self) -> bytes:
        """Return the next whole answer, without values that depend on the world or the moment."""
        async with asyncio.timeout(20):
            head = await self.reader.readuntil(b"\r\n\r\n")
            found = re.search(rb"(?i)content-length: (\d+)", head)
            body = await self.reader.readexactly(int(found[1])) if found else b""
        head = re.sub(rb"Date: [^\r]*", b"Date: now", head)
        head = re.sub(rb"http://127.0.0.1:\d+", b"http://here", head)
        status, *headers = head.split(b"\r\n")  # a forwarded answer has another order
        return b"\r\n".join([status, *sorted(headers[:-2]), b"", b""]) + body

    async def ask(self, *pieces: bytes) -> bytes:
        for piece in pieces:
            self.writer.write(piece)
            await asyncio.sleep(0)
        return await self.answer()


def post(body: bytes, path: str = TOPIC, *lines: bytes, kind: bytes = b"text/plain") -> bytes:
    head = [b"POST %s/messages HTTP/1.1" % path.encode(), b"Host: x", b"Content-Type: " + kind]
    head += [*lines, b"Content-Length: %d" % len(body)]
    return b"\r\n".join(head) + b"\r\n\r\n" + body


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Record, for each request shown to the fast path, whether it took it."""
    found: list[bool] = []
    take = FastPublish.take

    def noted(self: FastPublish, *request: Any) -> bool:
        answered = take(self, *request)
        if request[0].startswith(b"POST"):
            found.append(answered)
        return answered

    monkeypatch.setattr(FastPublish, "take", noted)
    return found


@pytest.fixture
async def one(taken: list[bool]) -> AsyncIterator[Running]:
    async with running(1) as cluster:
        yield cluster


@pytest.fixture
async def two(taken: list[bool]) -> AsyncIterator[Running]:
    async with running(2) as cluster:
        yield cluster


PARTITIONS = (("public/one", 0), ("public/wide", 0), ("public/wide", 1))


async def stored(one: Running) -> dict[str, list[bytes]]:
    return {
        f"{topic}-{number}": [batch.data for batch in await one.batches(topic, number)]
        for topic, number in PARTITIONS
    }


async def owned_by(one: Running, broker: str) -> None:
    for topic, number in PARTITIONS:
        await one.move(topic, broker, number)


def forgetful(one: Running) -> None:
    for server in one.servers:
        server._short_way.learn = lambda head, call: None  # type: ignore[method-assign]


def request(rng: random.Random) -> bytes:
    paths = [TOPIC, TOPIC, f"{TOPIC}/partitions/0", f"{TOPIC}/partitions/7", WIDE,
             f"{WIDE}/partitions/1", "/v1/topics/public/none"]  # fmt: skip
    lines = [
        [], [], [], [b"Octavo-Key: k"], [b"octavo-key: other"], [b"Octavo-Key: two words"],
        [b"Octavo-Key: \xc3\xa4"], [b"Octavo-Key:"], [b"Octavo-Key: a", b"Octavo-Key: b"],
        [b"Octavo-Key: k\r\n folded"], [b"Octavo-Header-A: \xff"], [b"If-Match: \"0\""],
        [b"Octavo-Incarnation: i0"], [b"Octavo-Incarnation: other"], [b"Content-Encoding: gzip"],
        [b"Producer-Id: 7", b"Producer-Epoch: 0", b"Producer-Seq: 0"], [b"Octavo-Timestamp: x"],
        [b"Sec-Fetch-Site: cross-site"], [b"Host: evil.example"], [b"Accept: text/html"],
    ]  # fmt: skip
    bodies = [
        (b"text/plain", b"raw"), (b"text/plain", b"war"), (b"text/plain", b""),
        (b"application/json", b'{"value": 1}'), (b"application/json", b'{"value":[2]}'),
        (b"application/json", b'{"value": 1,'), (b"application/json", b'{"key":"k","value":1}'),
        (b"application/json", b'{"messages":[{"value":1},{"value":2}]}'),
        (b"application/x-ndjson", b'{"value":1}\n{"value":2}\n'), (b"multipart/mixed", b"raw"),
        (b"text/plain", b"x" * 3000),
    ]  # fmt: skip
    kind, body = rng.choice(bodies)
    query = rng.choice(["", "", "", "?results=all", "?odd=1"])
    one = post(body, rng.choice(paths), *rng.choice(lines), kind=kind)
    return one.replace(b"/messages ", b"/messages%s " % query.encode(), 1)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("seed", range(5))
async def test_both_ways_answer_alike(seed: int, elsewhere: bool, taken: list[bool]) -> None:
    rng = random.Random(seed)
    some = [post(b"the usual"), *(request(rng) for _ in range(24))]
    worlds: list[tuple[list[bytes], Any]] = []
    for remembers in (True, False):
        rng = random.Random(seed)
        async with running(1 + elsewhere, line_bytes_max=2000) as one:
            if not remembers:
                forgetful(one)
            assert (await one.api.put(TOPIC)).status == 201
            assert (await one.api.put(WIDE, json={"partitions": 2})).status == 201
            wires = [await Wire.to(one) for _ in range(3)]
            await owned_by(one, "b1" if elsewhere else "b0")
            told = []
            for step in range(300):
                if step == 150:  # another topic of that name
                    assert (await one.api.call("DELETE", TOPIC)).status == 204
                    assert (await one.api.put(TOPIC)).status == 201
                    await owned_by(one, "b1" if elsewhere else "b0")
                number = rng.randrange(3)
                asked = rng.choice(some[:8] if rng.random() < 0.6 else some)
                cut = rng.randrange(len(asked)) if rng.random() < 0.1 else 0
                try:
                    answer = await wires[number].ask(asked[:cut], asked[cut:])
                except (asyncio.IncompleteReadError, ConnectionError):
                    answer = b"cut"
                told.append(answer)
                if b"Connection: close" in answer or answer == b"cut":
                    wires[number] = await Wire.to(one)
            for wire in wires:
                wire.writer.close()
            worlds.append((told, await stored(one)))
        assert any(taken) == remembers
        taken.clear()
    for number, (short, long) in enumerate(zip(worlds[0][0], worlds[1][0], strict=True)):
        assert short == long, number
    assert worlds[0][1] == worlds[1][1]


async def test_the_second_of_a_kind_takes_it(one: Running, taken: list[bool]) -> None:
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    answers = [await wire.ask(post(b"abc")) for _ in range(3)]
    assert taken == [False, True, True]
    assert [re.search(rb'"offset":(\d)', answer)[1] for answer in answers] == [b"0", b"1", b"2"]  # type: ignore[index]
    assert one.servers[0]._services.held.total == 0
    other = await Wire.to(one)  # heads belong to the broker, not to a connection
    await other.ask(post(b"cba"))
    assert taken[-1]
    text = (await one.api.get("/metrics")).body.decode()
    assert 'octavo_http_requests_total{call="publish",status="200"} 4.0' in text
    assert "octavo_messages_published_total 4.0" in text
    wire.writer.close()
    other.writer.close()


async def test_requests_behind_one_another_are_answered_in_order(
    one: Running, taken: list[bool]
) -> None:
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    await wire.ask(post(b"abc"))
    for request in (post(b"1st"), post(b"2nd"), b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
        wire.writer.write(request)
        await asyncio.sleep(0.001)
    answers = [await wire.answer() for _ in range(3)]
    assert [answer.split(b"\r\n")[0] for answer in answers] == [b"HTTP/1.1 200 OK"] * 3
    assert b'"offset":1' in answers[0]
    assert b'"offset":2' in answers[1]
    assert b"offset" not in answers[2]
    assert True in taken
    wire.writer.close()


async def test_a_head_that_names_a_topic_means_no_other_one(
    one: Running, taken: list[bool]
) -> None:
    await one.api.put(WIDE)
    first = (await one.api.put(TOPIC)).json()["incarnation"].encode()
    wire = await Wire.to(one)
    asked = post(b"abc", TOPIC, b"Octavo-Incarnation: " + first)
    assert [(await wire.ask(asked))[9:12] for _ in range(2)] == [b"200"] * 2
    await one.api.call("DELETE", TOPIC)
    await one.api.put("/v1/topics/public/other")
    assert (await one.api.put(TOPIC)).json()["incarnation"].encode() != first
    assert (await wire.ask(asked))[9:12] == b"409"
    assert taken == [False, True, False]
    assert not await one.batches("public/one")
    wire.writer.close()


def fail_with(error: Exception, times: int) -> Callable[[], None]:
    failures = 0

    def before_publish() -> None:
        nonlocal failures
        if failures < times:
            failures += 1
            raise error

    return before_publish


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.NotOwner("moved"), 200),  # nothing was done: the full path finds the owner
        (errors.PartitionMoving("moves"), 200),
        (errors.Overloaded("full"), 429),
        (errors.PublishOutcomeUnknown("who knows"), 504),
    ],
)
async def test_what_fails_is_told_by_the_long_way(
    one: Running, taken: list[bool], error: Exception, status: int
) -> None:
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    await wire.ask(post(b"abc"))
    await one.before_publish("public/one", fail_with(error, 1))
    answer = await wire.ask(post(b"xyz"))
    assert taken == [False, True]
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert one.next_offset("public/one") == 1 + (status == 200)  # once, and not twice
    assert (await wire.ask(post(b"abc"))).startswith(b"HTTP/1.1 200 OK")
    assert one.servers[0]._services.in_hand.count == 0
    wire.writer.close()


async def test_key_and_length_differ_from_message_to_message(
    one: Running, taken: list[bool]
) -> None:
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    for number in range(1, 12):
        body = b"x" * number
        assert (await wire.ask(post(body, TOPIC, b"Octavo-Key: k%d" % number)))[9:12] == b"200"
    assert taken == [False] + [True] * 10
    assert [
        (found.key, found.value) for _, found in (await one.records("public/one")).values()
    ] == [(b"k%d" % number, b"x" * number) for number in range(1, 12)]
    assert (await wire.ask(post(b"", TOPIC)))[9:12] == b"200"  # another shape: it has no key
    assert not taken[-1]
    way = one.servers[0]._short_way
    assert len(way._young) == 2
    wire.writer.close()


async def test_a_key_says_which_partition_also_when_the_head_is_known(
    one: Running, taken: list[bool]
) -> None:
    await one.api.put(WIDE, json={"partitions": 2})
    wire = await Wire.to(one)
    answers: dict[bytes, list[bytes]] = {}
    for key in [b"a", b"b", b"c", b"d"] * 3:
        answer = await wire.ask(post(b"abc", WIDE, b"Octavo-Key: " + key))
        found = re.search(rb'"partition":(\d)', answer)
        assert found is not None, answer
        answers.setdefault(key, []).append(found[1])
    # Each partition is opened by a call that goes the long way.
    assert taken == [False, True, True, False] + [True] * 8
    assert all(len(set(found)) == 1 for found in answers.values())
    assert {found[0] for found in answers.values()} == {b"0", b"1"}
    wire.writer.close()


@pytest.mark.parametrize(
    "line",
    [
        b"Octavo-Key: two words", b"Octavo-Key:k", b"Octavo-Key:\tk", b"Octavo-Key: \xff",
        b"Octavo-Key: k ", b"Octavo-Key: k\r\n more", b"X-Octavo-Key: k", b"Octavo-Key : k",
    ],
)  # fmt: skip
def test_a_key_that_could_be_read_in_two_ways_is_a_part_of_the_head(line: bytes) -> None:
    head = b"POST / HTTP/1.1\r\n" + line + b"\r\n\r\n"
    assert shape_of(head) == (head, None)


async def forwarded(two: Running) -> int:
    text = (await two.api.get("/metrics")).body.decode()
    found = re.search(r"octavo_http_requests_forwarded_total (\d+)", text)
    assert found is not None
    return int(found[1])


async def test_another_brokers_partition_is_passed_on(two: Running, taken: list[bool]) -> None:
    await two.api.put(TOPIC)
    await two.move("public/one", "b1")
    before = await forwarded(two)
    wire = await Wire.to(two)
    for _ in range(3):
        assert (await wire.ask(post(b"abc"))).startswith(b"HTTP/1.1 200 OK")
    assert taken == [False, True, True]  # there they come as operations
    assert len(await two.batches("public/one")) == 3
    text = (await two.api.get("/metrics")).body.decode()
    assert "octavo_messages_published_total 0.0" in text
    assert await forwarded(two) == before + 3
    wire.writer.close()


async def test_those_that_come_together_are_passed_on_together(
    two: Running, taken: list[bool]
) -> None:
    await two.api.put(TOPIC)
    await two.move("public/one", "b1")
    wires = [await Wire.to(two) for _ in range(40)]
    await wires[0].ask(post(b"abc"))
    answers = await asyncio.gather(*(wire.ask(post(b"%03d" % n)) for n, wire in enumerate(wires)))
    records = await two.records("public/one")
    assert len(await two.batches("public/one")) < 30
    for number, answer in enumerate(answers):
        found = re.search(rb'"offset":(\d+),"id":"([\d:]+)"', answer)
        assert found is not None
        at, record = records[int(found[1])]
        assert (str(at).encode(), record.value) == (found[2], b"%03d" % number)
    for wire in wires:
        wire.writer.close()


async def test_no_partition_is_left_out_because_the_long_way_is_taken(
    two: Running, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn that was looked at and not used belongs to the next call; otherwise every second was
    skipped."""
    await two.api.put(WIDE, json={"partitions": 2})
    broker = two.brokers["b0"]
    monkeypatch.setattr(broker.ownership, "other_at_hand", lambda name, incarnation: None)
    wire = await Wire.to(two)
    for _ in range(12):
        assert (await wire.ask(post(b"abc", WIDE)))[9:12] == b"200"
    assert True in taken
    assert [two.next_offset("public/wide", number) for number in range(2)] == [6, 6]
    wire.writer.close()


@pytest.mark.parametrize("error", [errors.NotOwner("moved"), errors.Overloaded("full")])
async def test_what_fails_at_the_owner_is_told_here(
    two: Running, taken: list[bool], error: Exception
) -> None:
    await two.api.put(TOPIC)
    await two.move("public/one", "b1")
    wire = await Wire.to(two)
    await wire.ask(post(b"abc"))
    await two.before_publish("public/one", fail_with(error, 1))
    answer = await wire.ask(post(b"xyz"))
    assert answer[9:12] == (b"200" if isinstance(error, errors.NotOwner) else b"429")
    assert two.next_offset("public/one") == 1 + (answer[9:12] == b"200")
    wire.writer.close()


async def test_an_owner_that_breaks_off_leaves_the_outcome_unknown(
    two: Running, taken: list[bool]
) -> None:
    await two.api.put(TOPIC)
    await two.move("public/one", "b1")
    wire = await Wire.to(two)
    await wire.ask(post(b"abc"))
    two.hold()
    asked = asyncio.ensure_future(wire.ask(post(b"xyz")))
    await until(lambda: two.servers[1]._services.in_hand.count == 1)
    server = two.servers[1]._http
    assert server is not None
    for connection in list(server._connections):
        connection.force_close()
    answer = await asked
    assert answer[9:12] == b"504"
    assert b"outcome-unknown" in answer
    two.go_on()
    wire.writer.close()


async def test_no_room_for_its_body_takes_the_long_way(one: Running, taken: list[bool]) -> None:
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    await wire.ask(post(b"abc"))
    held = one.servers[0]._services.held
    room = held._bytes_max
    await held.take("127.0.0.1", room - room // 4)
    asked = asyncio.ensure_future(wire.ask(post(b"abc")))
    await until(lambda: len(taken) == 2)
    held.give_back("127.0.0.1", room - room // 4)
    assert (await asked).startswith(b"HTTP/1.1 200 OK")
    assert taken == [False, False]
    assert held.total == 0
    wire.writer.close()


async def test_a_stopping_broker_answers_what_it_took_and_hangs_up(
    one: Running, taken: list[bool]
) -> None:
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    await wire.ask(post(b"abc"))
    one.hold()
    asked = asyncio.ensure_future(wire.ask(post(b"xyz")))
    await until(lambda: taken == [False, True])
    stopping = asyncio.ensure_future(one.servers[0].stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    one.go_on()
    answer = await asked
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"Connection: close" in answer
    assert await wire.reader.read() == b""
    await stopping


async def test_a_client_that_is_gone_takes_nothing_with_it(one: Running, taken: list[bool]) -> None:
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    await wire.ask(post(b"abc"))
    wire.writer.write(post(b"xyz"))
    await until(lambda: taken == [False, True])
    wire.writer.transport.abort()
    await until(lambda: one.next_offset("public/one") == 2)
    await until(lambda: one.servers[0]._services.in_hand.count == 0)
    assert one.servers[0]._services.held.total == 0


async def test_who_takes_no_answers_takes_the_long_way(one: Running, taken: list[bool]) -> None:
    """Answers that a client does not take stay in the broker's memory: the fast path adds none."""
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    await wire.ask(post(b"abc"))
    server = one.servers[0]._http
    assert server is not None
    (connection,) = (
        found
        for found in server._connections
        if isinstance(found, Connection) and found.head == post(b"abc")[:-3]
    )
    connection.pause_writing()
    asked = asyncio.ensure_future(wire.ask(post(b"abc")))
    await until(lambda: one.next_offset("public/one") == 2)
    assert taken == [False]
    connection.resume_writing()
    assert (await asked)[9:12] == b"200"
    await until(lambda: connection._waiter is not None)
    await wire.ask(post(b"abc"))
    assert taken == [False, True]
    wire.writer.close()


async def test_a_connection_that_rests_too_long_is_closed(taken: list[bool]) -> None:
    async with running(1, keepalive_timeout_ms=150) as one:
        await one.api.put(TOPIC)
        wire = await Wire.to(one)
        await wire.ask(post(b"abc"))
        for _ in range(4):  # work keeps it open
            await asyncio.sleep(0.06)
            assert (await wire.ask(post(b"abc"))).startswith(b"HTTP/1.1 200 OK")
        assert taken == [False, True, True, True, True]
        async with asyncio.timeout(10):
            assert await wire.reader.read() == b""


async def test_heads_that_come_once_are_forgotten_and_those_in_use_are_not(
    one: Running, taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_publish, "HEADS_KEPT", 4)
    await one.api.put(TOPIC)
    wire = await Wire.to(one)
    for number in range(20):
        await wire.ask(post(b"abc"))
        await wire.ask(post(b"abc", TOPIC, b"Octavo-Header-A: %d" % number))
    assert taken == [False, False, *[True, False] * 19]
    way = one.servers[0]._short_way
    assert len(way._young) + len(way._old) <= 8
    wire.writer.close()


# ---- on a secured cluster


@pytest.fixture
async def secured(taken: list[bool]) -> AsyncIterator[tuple[Running, Any, Any]]:
    authority, authenticator = FakeAuthority(), FakeAuthenticator()
    async with running(2, authority=authority, authenticator=authenticator) as cluster:
        await cluster.api.put(TOPIC)
        await cluster.move("public/one", "b0")
        authority.secure("allow user:bob produce topic:public/one")
        yield cluster, authority, authenticator


BOB = b"Authorization: Bearer bob"


@pytest.mark.parametrize("owner", ["b0", "b1"])
async def test_a_head_is_good_as_long_as_its_caller_is(
    secured: tuple[Running, Any, Any], taken: list[bool], owner: str
) -> None:
    cluster, authority, authenticator = secured
    await cluster.move("public/one", owner)
    wire = await Wire.to(cluster)
    asked = post(b"abc", TOPIC, BOB)

    async def answers(*expected: bytes) -> None:
        taken.clear()
        for status in expected:
            assert (await wire.ask(asked))[9:12] == status

    await answers(b"200", b"200", b"200")
    assert sum(taken) == 2
    authority.secure("allow user:bob produce topic:public/one", "allow user:x all cluster")
    await answers(b"200", b"200")
    assert sum(taken) == 1, "of another generation it is learnt anew"
    authenticator.withdrawn.add("bob")
    await answers(b"401")
    authenticator.withdrawn.clear()
    await answers(b"200", b"200")
    authority.secure("allow user:ann all *")
    await answers(b"403", b"403")
    assert not any(taken)
    count = cluster.next_offset("public/one")
    assert count == 7
    for other in (post(b"abc", TOPIC), post(b"abc", TOPIC, b"Authorization: Bearer eve")):
        assert (await wire.ask(other))[9:12] in (b"401", b"403")
    wire.writer.close()


async def test_a_head_ends_with_the_token(taken: list[bool]) -> None:
    authority, authenticator = FakeAuthority(), FakeAuthenticator()
    now_ms = NOW_MS
    authenticator.expires_at_s = NOW_MS / 1000 + 60
    async with running(
        1, authority=authority, authenticator=authenticator, clock=lambda: now_ms
    ) as one:
        await one.api.put(TOPIC)
        authority.secure("allow user:bob produce topic:public/one")
        wire = await Wire.to(one)
        asked = post(b"abc", TOPIC, BOB)
        assert [(await wire.ask(asked))[9:12] for _ in range(2)] == [b"200"] * 2
        now_ms += 60_000
        assert (await wire.ask(asked))[9:12] == b"401"
        assert taken == [False, True, False]
        wire.writer.close()


async def test_a_head_is_of_the_connections_certificate(
    secured: tuple[Running, Any, Any], taken: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clients send the same bytes; one has shown a certificate, the other none."""
    cluster, _, authenticator = secured
    shown: dict[str, bytes] = {}

    def certificate(self: Connection) -> bytes | None:
        assert self.transport is not None
        return shown.get(str(self.transport.get_extra_info("peername")[1]))

    monkeypatch.setattr(Connection, "certificate", property(certificate))
    authenticator.certificates[b"der of bob"] = "bob"
    bob, nobody = await Wire.to(cluster), await Wire.to(cluster)
    shown[str(bob.writer.get_extra_info("sockname")[1])] = b"der of bob"
    asked = post(b"abc")
    assert [(await bob.ask(asked))[9:12] for _ in range(2)] == [b"200"] * 2
    assert (await nobody.ask(asked))[9:12] == b"401"
    assert taken == [False, True, False]
    bob.writer.close()
    nobody.writer.close()


@pytest.mark.parametrize("elsewhere", [False, True])
async def test_both_ways_let_the_same_callers_in(elsewhere: bool, taken: list[bool]) -> None:
    """Messages of three callers while rules come and go: each answer is as by the full path
    alone."""
    worlds: list[tuple[list[bytes], Any]] = []
    topic = "produce topic:public/one"
    rules = [f"allow user:bob {topic}", "allow group:g produce topic:public/*",
             f"deny user:carol {topic}", f"allow * {topic}"]  # fmt: skip
    lines = [[], [BOB], [b"Authorization: Bearer carol+g"], [b"Authorization: Bearer bad"]]
    for remembers in (True, False):
        rng = random.Random(11)
        authority = FakeAuthority()
        async with running(
            1 + elsewhere, authority=authority, authenticator=FakeAuthenticator()
        ) as one:
            if not remembers:
                forgetful(one)
            await one.api.put(TOPIC)
            await one.move("public/one", "b1" if elsewhere else "b0")
            wires = [await Wire.to(one) for _ in range(2)]
            told = []
            for step in range(300):
                if step % 20 == 0:
                    authority.secure(*(rule for rule in rules if rng.random() < 0.5))
                asked = post(rng.choice((b"a", b"b")), TOPIC, *rng.choice(lines))
                told.append(await rng.choice(wires).ask(asked))
            for wire in wires:
                wire.writer.close()
            worlds.append((told, [batch.data for batch in await one.batches("public/one")]))
        assert any(taken) == remembers
        taken.clear()
    assert worlds[0] == worlds[1]
    assert {answer[9:12] for answer in worlds[0][0]} == {b"200", b"401", b"403"}
