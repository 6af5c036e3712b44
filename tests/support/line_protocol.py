"""A small second protocol: lines over TCP, built on a broker's operations and without HTTP.

    AUTH <token>                                          OK user:ann
    PUB <topic> <partition> <text>                        OK <offset>
    SUB <topic> <partition> <subscription>                OK
    RECV <topic> <partition> <subscription> <consumer>    MSG <ack id> <text>, or NONE
    ACK <topic> <partition> <subscription> <ack id>       OK 1
    JOIN <group> <member> <topic>                         HAS <generation> <partition> ...
    LEAVE <group> <member>                                OK

A refusal is `ERR <code> <why>`. It shows that a protocol gets all rules of the brokers
(permissions, audit, quotas, rates, sizes, schemas) by calling `Operations.run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from octavo.broker.groups.group import Membership
from octavo.broker.operations.asking import Operations
from octavo.broker.operations.kinds import (
    AnyAnswer,
    GroupOperation,
    Heartbeat,
    Leases,
    LeaveGroup,
    LocalOperation,
    Publish,
    Receive,
    Refused,
    Settle,
    Settled,
    Stored,
    Subscribe,
)
from octavo.broker.types import GroupName, PartitionName, TopicName
from octavo.protocol.codes import OctavoError
from octavo.protocol.records import Record, build_batch
from octavo.protocol.topic_patterns import TopicPattern
from octavo.security.principal import ANONYMOUS, Identity, Shown

Identify = Callable[[Shown], Awaitable[Identity]]
WAIT_MS = 2_000


class LineProtocol:
    def __init__(self, operations: Operations, identify: Identify | None = None) -> None:
        self._operations = operations
        self._identify = identify
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, caller = writer.get_extra_info("peername")[0], ANONYMOUS
        while line := (await reader.readline()).decode().rstrip("\n"):
            word, _, rest = line.partition(" ")
            try:
                if word == "AUTH":
                    assert self._identify is not None
                    caller = await self._identify(Shown(f"Bearer {rest}", None, peer))
                    said = f"OK {caller.name}"
                else:
                    operation = _operation(word, rest)
                    said = _said(await self._operations.run(caller, operation, peer))
            except Refused as error:  # another broker refused
                said = f"ERR {error.refusal.code} {error.refusal.detail}"
            except OctavoError as error:
                said = f"ERR {error.name} {error}"
            writer.write(said.encode() + b"\n")
        writer.close()


def _operation(word: str, rest: str) -> LocalOperation | GroupOperation:
    if word in ("JOIN", "LEAVE"):
        group, member, *topics = rest.split(" ")
        name = GroupName(*group.split("/"))
        if word == "LEAVE":
            return LeaveGroup(name, member)
        return Heartbeat(name, member, [TopicPattern.parse(one) for one in topics], [], 0, 30_000)
    return _of_partition(word, rest)


def _of_partition(word: str, rest: str) -> LocalOperation:
    topic, partition, *words = rest.split(" ", 3 if word in ("RECV", "ACK") else 2)
    name: PartitionName = TopicName.parse(topic).partition(int(partition))
    if word == "PUB":
        batch = build_batch([Record(None, words[0].encode())])
        return Publish(name, [batch], is_single=True)
    if word == "SUB":
        return Subscribe(name, words[0])
    if word == "RECV":
        return Receive(name, words[0], words[1], 1, WAIT_MS)
    return Settle(name, words[0], acks=[words[1]])


def _said(answer: AnyAnswer) -> str:
    if isinstance(answer, Stored):
        published = answer.fates[0].published
        assert published is not None
        return f"OK {published.first_offset + answer.fates[0].number}"
    if isinstance(answer, Leases):
        if not answer.deliveries:
            return "NONE"
        (one,) = answer.deliveries
        return f"MSG {one.ack_id} {(one.record.value or b'').decode()}"
    if isinstance(answer, Settled):
        return f"OK {answer.acked}" if answer.problem is None else f"ERR {answer.problem.name}"
    if isinstance(answer, Membership):
        return " ".join(["HAS", str(answer.generation), *map(str, answer.partitions)])
    return "OK"


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def connect(cls, port: int) -> Client:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, line: str) -> str:
        self._writer.write(line.encode() + b"\n")
        return (await asyncio.wait_for(self._reader.readline(), 20)).decode().rstrip("\n")

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()
