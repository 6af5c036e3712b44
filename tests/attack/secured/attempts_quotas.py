"""Try every call that carries messages against a quota, of a user and of a namespace. Each case
has its own user or namespace, whose first message leaves a debt of a minute. A user without a
quota does the same work twice; before it ends, the case must be refused or stay behind, however
fast the machine is."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from octavo.protocol.records import Record, build_batch
from octavo.security.quotas import QuotasRecord, quota_store, with_quota, without_quota
from tests.attack.attempts_requests import BATCH, SOCKET
from tests.attack.secured.world import (
    DOORS_GROUP,
    OPEN_TOPIC,
    SecuredWorld,
    another_address,
    bearer,
    claims_of,
    request,
    signed,
)
from tests.attack.secured.world import secured_attempt as secured
from tests.attack.world import TURN_S_MAX, Said, open_to

SIZE = 30_000
RATE = SIZE // 60
"""Bytes a second: a message of `SIZE` leaves the longest debt, a minute's worth."""
TOKEN_RATE = 5
"""For the answer of `reader-token`, which has a few hundred bytes."""
CALLS = 4
STORED = 40
"""More than any single page of a stream."""
FORCE_S = 20.0
CASE_S = 60.0
BODY = b"x" * SIZE
JSON_BODY = json.dumps({"value_text": BODY.decode()}).encode()
LINE = JSON_BODY + b"\n"
EVENTS, NDJSON, TEXT, JSON = "text/event-stream", "application/x-ndjson", "text/plain", (
    "application/json"
)  # fmt: skip
_TOPIC, _STREAM = "/v1/topics/{t}", "/v1/durable-streams/{t}"
_SUB = f"{_TOPIC}/subscriptions/{{s}}"


class Door(NamedTuple):
    """A call that carries messages. In its path `{t}` is a topic, `{s}` a subscription, `{n}` a
    number that is new for each call."""

    name: str
    method: str
    path: str
    body: bytes = b""
    kind: str = ""
    """Its `Content-Type`, or what it accepts."""
    lasts: bool = False
    socket: bool = False
    slow: str = ""
    """The kind of subject whose quota slows this call down: the broker answers late."""
    namespaces: bool = True
    rate: int = RATE

    @property
    def brings(self) -> bool:
        return bool(self.body)

    @property
    def amounts(self) -> dict[str, int]:
        """The quota that it exceeds with its first message."""
        return {"publish_bytes" if self.brings else "read_bytes": self.rate}


def _one_batch() -> bytes:
    return build_batch([Record(None, BODY, (), 0)])


DOORS = (
    Door("publish", "POST", f"{_TOPIC}/messages", BODY, TEXT),
    Door("publish to a partition", "POST", f"{_TOPIC}/partitions/0/messages", BODY, TEXT),
    Door("publish JSON", "POST", f"{_TOPIC}/messages", JSON_BODY, JSON),
    Door("publish lines", "POST", f"{_TOPIC}/messages", LINE, NDJSON, slow="user"),
    Door("publish several at once", "POST", f"{_TOPIC}/messages?results=all",
         b'{"messages":[%b,%b]}' % (JSON_BODY, JSON_BODY), JSON),
    Door("publish a batch", "POST", f"{_TOPIC}/messages", _one_batch(), BATCH),
    Door("publish batches", "POST", f"{_TOPIC}/messages", _one_batch() * 2, BATCH,
         slow="namespace"),
    Door("a large message", "POST", f"{_TOPIC}/large", BODY, TEXT, slow="user"),
    Door("a large message by PUT", "PUT", f"{_TOPIC}/large", BODY, TEXT, slow="user"),
    Door("a durable PUT", "PUT", f"{_STREAM}-{{n}}", BODY, TEXT),
    Door("a durable append", "POST", _STREAM, BODY, TEXT),
    Door("read", "GET", f"{_TOPIC}/messages?from=earliest&limit=1"),
    Door("read batches", "GET", f"{_TOPIC}/messages?from=earliest&max_bytes=1", kind=BATCH),
    Door("a message's body", "GET", f"{_TOPIC}/messages/0/body"),
    Door("receive", "POST", f"{_SUB}/receive?max=1"),
    Door("peek", "GET", f"{_SUB}/peek?max=1"),
    Door("a durable read", "GET", _STREAM),
    Door("a durable long poll", "GET", f"{_STREAM}?offset=-1&live=long-poll"),
    Door("reader tokens", "POST", f"{_TOPIC}/reader-token", rate=TOKEN_RATE, namespaces=False),
    Door("follow as events", "GET", f"{_TOPIC}/messages?from=earliest", kind=EVENTS, lasts=True),
    Door("follow as lines", "GET", f"{_TOPIC}/messages?from=earliest&follow=true", kind=NDJSON,
         lasts=True),
    Door("follow as batches", "GET", f"{_TOPIC}/messages?from=earliest&follow=true", kind=BATCH,
         lasts=True),
    Door("a subscription's events", "GET", f"{_SUB}/stream", kind=EVENTS, lasts=True),
    Door("a subscription's lines", "GET", f"{_SUB}/stream", kind=NDJSON, lasts=True),
    Door("a subscription's WebSocket", "GET", f"{_SUB}/stream", lasts=True, socket=True),
    Door("a WebSocket of batches", "GET", f"{_SUB}/stream?form=batches", lasts=True, socket=True),
    Door("durable events", "GET", f"{_STREAM}?offset=-1&live=sse", lasts=True),
)  # fmt: skip


@dataclass
class Work:
    user: str
    topic: str
    subscription: str
    broker: int
    let_through: int = 0
    """Successful calls, or bytes that came."""
    refused: Said | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: bool = False
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000)))


@dataclass
class Case:
    door: Door
    subject: str
    limited: Work
    free: list[Work]

    def __str__(self) -> str:
        kind = self.subject.partition(":")[0]
        return f"{self.door.name}, quota of a {kind}, by broker {self.limited.broker + 1}"

    @property
    def is_slow(self) -> bool:
        return bool(self.door.slow) and self.subject.startswith(self.door.slow)

    def problem(self) -> str:
        work = self.limited
        if work.refused is not None:
            told = json.loads(work.refused.body) if work.refused.status == 429 else {}
            if told.get("code") != "quota-exceeded" or told.get("subject") != self.subject:
                return f"{self}: {work.refused}"
            if not work.let_through:
                return f"{self}: the first call is refused, before anything was used"
            return ""
        if work.ended:
            return f"{self}: all of it was let through, and the quota has seen nothing"
        return ""


@contextlib.asynccontextmanager
async def _connected(
    world: SecuredWorld, work: Work
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await open_to(world.brokers[work.broker], world.tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def _request(world: SecuredWorld, door: Door, work: Work) -> bytes:
    path = door.path.replace("{t}", work.topic).replace("{s}", work.subscription)
    path = path.replace("{n}", f"{work.user}-{work.broker}-{next(work.numbers)}")
    lines = [f"{door.method} {path} HTTP/1.1", "Host: localhost",
             f"Authorization: Bearer {world.tokens[work.user]}"]  # fmt: skip
    if door.socket:
        lines.append(SOCKET.rstrip())
    if door.kind:
        lines.append(f"{'Content-Type' if door.brings else 'Accept'}: {door.kind}")
    if door.method != "GET":
        lines.append(f"Content-Length: {len(door.body)}")
    return "\r\n".join([*lines, "", ""]).encode() + door.body


async def _answer(reader: asyncio.StreamReader) -> Said:
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, found, rest = head.partition(b"\r\ncontent-length:")
    length = int(rest.split(b"\r\n")[0]) if found else 0
    assert b"chunked" not in head, head
    return Said(int(head.split(b" ", 2)[1]), await reader.readexactly(length))


async def _calls(world: SecuredWorld, door: Door, work: Work) -> None:
    async with _connected(world, work) as (reader, writer):
        for _ in range(CALLS):
            writer.write(_request(world, door, work))
            said = await _answer(reader)
            if not 200 <= said.status < 300:
                work.refused = said
                return
            work.let_through += 1
            work.begun.set()
    work.ended = True


async def _stream(world: SecuredWorld, door: Door, work: Work) -> None:
    async with _connected(world, work) as (reader, writer):
        writer.write(_request(world, door, work))
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split(b" ", 2)[1])
        if status not in (101, 200):
            work.refused = Said(status, await reader.read(1 << 16))
            return
        while work.let_through < STORED * SIZE:
            data = await reader.read(1 << 16)
            if not data:
                return
            work.let_through += len(data)
            work.begun.set()
    work.ended = True


async def _do(world: SecuredWorld, door: Door, work: Work) -> None:
    await (_stream if door.lasts else _calls)(world, door, work)


async def _tried(world: SecuredWorld, case: Case) -> str:
    """Let the limited user begin, let the free user do the same twice; return what is wrong
    then."""
    task = asyncio.ensure_future(_do(world, case.door, case.limited))
    try:
        async with asyncio.timeout(CASE_S):
            if not case.is_slow:
                begun = asyncio.ensure_future(case.limited.begun.wait())
                await asyncio.wait({begun, task}, return_when=asyncio.FIRST_COMPLETED)
                begun.cancel()
            for work in case.free:
                await _do(world, case.door, work)
                if not work.ended:
                    return f"{case}: without a quota it is {work.refused}, {work.let_through}"
        if task.done():
            await task
        return case.problem()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _must(
    world: SecuredWorld, method: str, path: str, body: bytes = b"", kind: str = ""
) -> None:
    said = await world.ask(method, path, body, who="root", Content_Type=kind or TEXT)
    assert 200 <= said.status < 300, (method, path, said)


async def _filled(world: SecuredWorld, door: Door, topic: str) -> None:
    """Make the topic or the stream, with messages if the door reads."""
    stored = STORED if door.lasts else 3 * CALLS
    if "durable" in door.path:
        path = _STREAM.replace("{t}", topic)
        await _must(world, "PUT", path, kind=TEXT)
        if door.name != "a durable PUT" and not door.brings:
            for _ in range(2):  # Together they are more than one answer.
                await _must(world, "POST", path, BODY * (stored // 2), TEXT)
        return
    path = _TOPIC.replace("{t}", topic)
    await _must(world, "PUT", path, b"{}", JSON)
    if door.brings:
        await _must(world, "POST", f"{path}/messages", b"first", TEXT)
    else:
        await _must(world, "POST", f"{path}/messages", _one_batch() * stored, BATCH)


async def _work(world: SecuredWorld, door: Door, user: str, topic: str, number: int) -> Work:
    """Work at the broker `number % 2`, with a new subscription if the door has subscriptions."""
    work = Work(user, topic, f"s{number}", number % len(world.brokers))
    if "{s}" in door.path:
        path = _SUB.replace("{t}", topic).replace("{s}", work.subscription)
        await _must(world, "PUT", path, b'{"type":"shared","start":"earliest"}', JSON)
    return work


async def _cases(world: SecuredWorld, number: int, door: Door) -> list[Case]:
    free_topic, user_topic = f"doors/free-{number}", f"doors/user-{number}"
    await _filled(world, door, free_topic)
    await _filled(world, door, user_topic)
    found = []
    for broker in range(len(world.brokers)):
        user = f"door-{number}"
        kinds = [(f"user:{user}", user, user_topic)]
        if door.namespaces:
            namespace = f"doors-{number}-{broker}"
            await _must(world, "PUT", f"/v1/namespaces/{namespace}", b"{}", JSON)
            await _filled(world, door, f"{namespace}/t")
            kinds.append((f"namespace:{namespace}", "door-free", f"{namespace}/t"))
        for at, (subject, who, topic) in enumerate(kinds):
            limited = await _work(world, door, who, topic, broker)
            numbers = [broker + len(world.brokers) * (2 * at + more) for more in (0, 1)]
            free = [await _work(world, door, "door-free", free_topic, one) for one in numbers]
            found.append(Case(door, subject, limited, free))
    return found


async def _set(world: SecuredWorld, cases: list[Case]) -> None:
    """Set all quotas in one change; return when every broker enforces them."""
    assert world.store is not None
    quotas = {case.subject: case.door.amounts for case in cases} | {
        "user:door-last": {"requests": 1}
    }

    def changed(record: QuotasRecord) -> QuotasRecord:
        for subject, amounts in quotas.items():
            record = with_quota(record, subject, amounts)
        return record

    await quota_store(world.store).change(changed)
    async with asyncio.timeout(FORCE_S):
        for broker in range(len(world.brokers)):
            status = 0
            while status != 429:
                await asyncio.sleep(0.02)
                status = (
                    await world.ask("GET", "/v1/namespaces/doors", who="door-last", broker=broker)
                ).status


async def _unset(world: SecuredWorld, cases: list[Case]) -> None:
    assert world.store is not None
    subjects = {case.subject for case in cases} | {"user:door-last"}

    def changed(record: QuotasRecord) -> QuotasRecord:
        for subject in subjects:
            record = without_quota(record, subject)
        return record

    await quota_store(world.store).change(changed)


@secured("quotas: every door that messages go through counts", turn_s_max=TURN_S_MAX)
async def quotas_at_every_door(world: SecuredWorld) -> None:
    """A durable PUT, `peek` and reader tokens were free."""
    for name in ("door-free", "door-last", *(f"door-{n}" for n in range(len(DOORS)))):
        world.tokens[name] = signed(world.key, claims_of(name, groups=[DOORS_GROUP]))
    await _must(world, "PUT", "/v1/namespaces/doors", b"{}", JSON)
    made = await asyncio.gather(*(_cases(world, n, door) for n, door in enumerate(DOORS)))
    every = [case for cases in made for case in cases]
    await _set(world, every)
    problems: list[str] = []
    try:
        for cases in made:
            problems += filter(None, await asyncio.gather(*(_tried(world, one) for one in cases)))
    finally:
        await _unset(world, every)
    assert not problems, "\n".join(problems)


LOGINS = 10_000
AT_ONCE = 50
ROUND_S = 10.0


async def works(world: SecuredWorld) -> None:
    began = time.monotonic()
    said = await world.ask(
        "POST", f"{OPEN_TOPIC}/messages", b"x", who="alice", Content_Type="text/plain"
    )
    assert said.status == 200, said
    assert time.monotonic() - began < ROUND_S, "who may is answered late"


async def flood(world: SecuredWorld, broker: int, heads: list[bytes], count: int) -> set[bytes]:
    """Send `count` requests over a few connections, from a new address so that failures pause no
    other client; return the statuses."""
    found: set[bytes] = set()
    left, source = count, another_address()

    async def one() -> None:
        nonlocal left
        reader, writer = await open_to(world.brokers[broker], world.tls, source)
        try:
            while left > 0:
                left -= 1
                writer.write(heads[left % len(heads)])
                async with asyncio.timeout(30):
                    head = await reader.readuntil(b"\r\n\r\n")
                    found.add(head[9:12])
                    length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
                    body = await reader.readexactly(int(length))
                world.guard(head + body)
                if b"connection: close" in head.lower():
                    writer.close()
                    reader, writer = await open_to(world.brokers[broker], world.tls, source)
        finally:
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(AT_ONCE)))
    return found


async def beside(world: SecuredWorld, flooding: asyncio.Task[set[bytes]]) -> set[bytes]:
    while not flooding.done():
        await works(world)
        await asyncio.sleep(0.5)
    return await flooding


@secured("ten thousand passwords", long=True)
async def passwords(world: SecuredWorld) -> None:
    """Work is bounded, and the address is paused at last."""
    heads = []
    for number in range(500):
        name = "root" if number % 2 else f"user-{number}"
        proof = base64.b64encode(f"{name}:password-{number}".encode())
        heads.append(request(lines=[b"Authorization: Basic " + proof], close=False))
    found = await beside(world, asyncio.create_task(flood(world, 0, heads, LOGINS)))
    assert found <= {b"401", b"429", b"503"}, found
    await works(world)


@secured("ten thousand tokens, each another one", long=True)
async def tokens(world: SecuredWorld) -> None:
    heads = [
        request(lines=[bearer(signed(bytes(32), claims_of(f"u{number}")))], close=False)
        for number in range(2_000)
    ]
    found = await beside(world, asyncio.create_task(flood(world, 0, heads, LOGINS)))
    assert found <= {b"401", b"429"}, found
    await works(world)


@secured("ten thousand calls without a word of who")
async def strangers(world: SecuredWorld) -> None:
    found = await beside(
        world, asyncio.create_task(flood(world, 1, [request(close=False)], LOGINS))
    )
    assert found <= {b"401", b"429"}, found


@secured("ten thousand calls of one who may not", long=True)
async def forbidden(world: SecuredWorld) -> None:
    heads = [
        request(
            path=f"/v1/topics/vault/t{number}", lines=[bearer(world.tokens["mallory"])], close=False
        )
        for number in range(2_000)
    ]
    found = await beside(world, asyncio.create_task(flood(world, 1, heads, LOGINS)))
    assert found <= {b"403", b"429"}, found


@secured("keys of issuers that are asked for, each another one")
async def unknown_keys(world: SecuredWorld) -> None:
    """No request may go out for each of them."""
    heads = [
        request(
            lines=[bearer(signed(bytes(32), claims_of("root", iss="https://idp.example"),
                                 kid=f"key-{number}", algorithm="RS256"))],
            close=False,
        )
        for number in range(1_000)
    ]  # fmt: skip
    found = await flood(world, 0, heads, 2_000)
    assert found <= {b"401", b"429"}, found


@secured("a long body behind no right to send it")
async def bodies_of_strangers(world: SecuredWorld) -> None:
    """A caller without a right is refused by its head: the broker does not read its 8 MiB."""
    head = request("POST", f"{OPEN_TOPIC}/messages", [b"Content-Type: text/plain"], close=False)
    head = head.replace(b"Content-Length: 0", b"Content-Length: 8000000")
    began = time.monotonic()
    for broker in range(len(world.brokers)):
        await world.refused(head, (401,), broker=broker)
    assert time.monotonic() - began < 5


@secured("connections that show nothing and say nothing")
async def silent(world: SecuredWorld) -> None:
    writers = []
    for _ in range(600):
        with contextlib.suppress(OSError):
            _, writer = await open_to(world.brokers[0], world.tls)
            writers.append(writer)
    await works(world)
    for writer in writers:
        writer.transport.abort()


@secured("48 uploads at a byte a second take the room for bodies")
async def trickled_uploads(world: SecuredWorld) -> None:
    head = request(
        "POST", "/v1/topics/tenant/own/large",
        lines=[bearer(world.tokens["mallory"]), b"Transfer-Encoding: chunked"], close=False,
    ).replace(b"Content-Length: 0\r\n", b"")  # fmt: skip
    began = time.monotonic()
    writers = []
    try:
        for number in range(48):
            _, writer = await open_to(world.brokers[number % len(world.brokers)], world.tls)
            writer.write(head)
            writers.append(writer)
        while time.monotonic() - began < 6.0:
            for writer in writers:
                if not writer.is_closing():
                    writer.write(b"1\r\nx\r\n")
            await works(world)
            body = b"x" * 1_000_000
            said = await world.ask("POST", f"{OPEN_TOPIC}/messages", body, who="alice")
            assert said.status == 200, said
            await asyncio.sleep(1.0)
    finally:
        for writer in writers:
            writer.transport.abort()


@secured("one tenant takes all consumer groups, and claims partitions of another")
async def other_doors(world: SecuredWorld) -> None:
    member = "/v1/groups/tenant/g/members/m"
    body = {"topics": ["own"], "holds": ["vault/secret/0"]}
    said = await world.ask("POST", member, body, who="mallory")
    assert said.status == 200, said
    assert b"vault" not in said.body, said
    statuses = set()
    for number in range(520):
        path = f"/v1/groups/tenant/g{number}/members/m"
        said = await world.ask("POST", path, {"topics": ["own"]}, who="mallory")
        statuses.add(said.status)
    assert 409 in statuses, "one principal founds no more than a part of all groups"
    assert statuses <= {200, 409}, statuses
    for number in range(520):
        await world.ask("DELETE", f"/v1/groups/tenant/g{number}/members/m", who="mallory")
    await world.ask("DELETE", member, who="mallory")
