"""The bookies' port and its three kinds of frames: each operation without a proof and with bad
proofs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from octavo.protocol import extension, v3
from octavo.protocol.answers import AddRefused, BatchReadAnswer, ReadAnswer
from octavo.protocol.auth import AuthMessage
from octavo.protocol.codes import Code
from octavo.protocol.entry import master_key
from octavo.protocol.frames import Flag, auth_frame, batch_read_request, read_request
from tests.attack.secured.attempts import secured
from tests.attack.secured.tokens import claims_of, signed
from tests.attack.secured.world import LOOT, SecuredWorld
from tests.attack.world import exchange, open_to
from tests.support.raw_bookie import RawClient, add_of
from tests.support.v3_frames import V3Client, add_frame, read_frame, request_frame

PLUGIN = "octavo"
KEY = master_key(b"")
NOT = {Code.UNAUTHORIZED}
TXN = 77

Frame = Callable[[int], bytes]
V2: dict[str, Frame] = {
    "read": lambda one: read_request(one, 0),
    "read the last": lambda one: read_request(one, -1),
    "read, in front of others": lambda one: read_request(one, 0, int(Flag.HIGH_PRIORITY)),
    "read and fence": lambda one: read_request(one, -1, int(Flag.FENCE), KEY),
    "read many": lambda one: batch_read_request(one, 0, 1, 100, 1 << 20),
    "read many and fence": lambda one: batch_read_request(
        one, 0, 1, 100, 1 << 20, int(Flag.FENCE), KEY),
    "add": lambda one: add_of(one, 10**6, b"stolen", key=KEY),
    "add as a recovery": lambda one: add_of(
        one, 10**6, b"stolen", key=KEY, flags=int(Flag.CRC32C | Flag.RECOVERY_ADD)),
    "add to a ledger of its own": lambda one: add_of(10**15 + 77, 0, b"mine", key=KEY),
}  # fmt: skip
OF_V3: dict[v3.Op, Frame] = {
    v3.Op.READ: lambda one: read_frame(one, 0, txn=TXN),
    v3.Op.ADD: lambda one: add_frame(one, 10**6, txn=TXN, key=KEY),
    v3.Op.WRITE_LAC: lambda one: request_frame(
        v3.Op.WRITE_LAC, TXN, "writeLacRequest", ledgerId=one, lac=1, masterKey=KEY, body=b"x"),
    v3.Op.READ_LAC: lambda one: request_frame(
        v3.Op.READ_LAC, TXN, "readLacRequest", ledgerId=one),
    v3.Op.BOOKIE_INFO: lambda one: request_frame(
        v3.Op.BOOKIE_INFO, TXN, "getBookieInfoRequest", requested=3),
    v3.Op.FORCE: lambda one: request_frame(v3.Op.FORCE, TXN, "forceLedgerRequest", ledgerId=one),
    v3.Op.LIST_ENTRIES: lambda one: request_frame(
        v3.Op.LIST_ENTRIES, TXN, "getListOfEntriesOfLedgerRequest", ledgerId=one),
}  # fmt: skip
FREE_OF_V3 = {v3.Op.AUTH, v3.Op.START_TLS}
assert OF_V3.keys() | FREE_OF_V3 == set(v3.Op), "an operation that nobody tries"
BODIES: dict[extension.Op, dict[str, Any]] = {
    extension.Op.READ_LAC: {}, extension.Op.WRITE_LAC: {"key": KEY, "lac": 1},
    extension.Op.WAIT_LAC: {"after": -1, "timeout_ms": 100, "entry": True},
    extension.Op.FORCE: {}, extension.Op.LIST_ENTRIES: {}, extension.Op.NODE_INFO: {},
    extension.Op.FETCH_COPIES: {"first": 0, "last": 10},
}  # fmt: skip
assert BODIES.keys() | {extension.Op.ADDED} == set(extension.Op), "an operation that nobody tries"


@secured("a fork's reader token reads what its source took later, and what was truncated")
async def behind_the_fork(world: SecuredWorld) -> None:
    source = "/v1/topics/tenant/forked"
    await world.ask("PUT", source, {}, who="mallory")
    for text in (b"gone", b"both"):
        said = await world.ask("POST", f"{source}/messages", text, who="mallory")
        assert said.status == 200, said
    said = await world.ask("POST", f"{source}/fork", {"name": "fork"}, who="mallory")
    assert said.status in (201, 409), said
    await world.ask("POST", f"{source}/messages", b"later", who="mallory")
    fork = source.replace("forked", "fork")
    await world.ask("DELETE", f"{fork}/messages?before=1", who="mallory")
    given = json.loads((await world.ask("POST", f"{fork}/reader-token", who="mallory")).body)
    frames = [
        frame
        for ledger in given["ledgers"]
        for entry in range(-1, 6)
        for frame in (read_request(ledger, entry), batch_read_request(ledger, entry, 1, 0, 1 << 20))
    ]
    data = auth_frame(PLUGIN, given["token"].encode()) + b"".join(frames)
    found = b"".join([await exchange(one, data, 1.5, tls=world.tls) for one in world.bookies])
    assert b"later" not in found, "of the source"
    assert b"gone" not in found, "truncated"


def proofs(world: SecuredWorld, bookie: str) -> dict[str, bytes | None]:
    """Yield the proofs before the operation; None: no proof."""
    now = int(time.time())
    node_key, reader_key = world.node_keys["bookies"], world.node_keys["bookie readers"]
    node = {"sub": "node:broker-1", "aud": bookie, "iat": now, "exp": now + 60}
    reader = {"sub": "user:mallory", "aud": "bookies", "iat": now, "exp": now + 60, "groups": [],
              "ledgers": [world.ledger]}  # fmt: skip

    def made(key: bytes, kid: str, claims: dict[str, object]) -> bytes:
        return signed(key, claims, kid=kid).encode()

    return {
        "nothing": None,
        "an empty proof": b"",
        "noise": bytes(range(256)),
        "a user's token": world.tokens["root"].encode(),
        "a node's, of another key": made(bytes(32), "node", node),
        "a node's, of no key": made(b"", "node", node),
        "a node's, for another bookie": made(node_key, "node", {**node, "aud": "bookie-x"}),
        "a node's, ended": made(node_key, "node", {**node, "iat": now - 900, "exp": now - 800}),
        "a node's, of the future": made(
            node_key, "node", {**node, "iat": now + 900, "exp": now + 960}),
        "a node's, signed as a reader's": made(reader_key, "node", node),
        "a reader's, signed as a node's": made(node_key, "reader", reader),
        "a reader's that calls itself a node": made(
            reader_key, "reader", {**reader, "sub": "node:broker-1", "ledgers": []}),
        "a reader's, of other ledgers": made(reader_key, "reader", {**reader, "ledgers": [10**14]}),
        "a reader's, of no ledgers": made(reader_key, "reader", {**reader, "ledgers": []}),
        "a reader's, ended": made(reader_key, "reader", {**reader, "exp": now - 1}),
        "a reader's, of a topic that is not its own": made(
            reader_key, "reader", {**reader, "topic": "vault/secret"}),
        "of the form of 64 KiB": b"x" * 65_536,
    }  # fmt: skip


PROOFS = (
    "nothing", "an empty proof", "noise", "a user's token", "a node's, of another key",
    "a node's, of no key", "a node's, for another bookie", "a node's, ended",
    "a node's, of the future", "a node's, signed as a reader's", "a reader's, signed as a node's",
    "a reader's that calls itself a node", "a reader's, of other ledgers",
    "a reader's, of no ledgers", "a reader's, ended", "a reader's, of a topic that is not its own",
    "of the form of 64 KiB",
)  # fmt: skip


@contextlib.asynccontextmanager
async def raw(world: SecuredWorld, address: tuple[str, int]) -> AsyncIterator[RawClient]:
    client = RawClient(*await open_to(address, world.tls))
    try:
        yield client
    finally:
        client.writer.transport.abort()


async def tried(world: SecuredWorld, address: tuple[str, int], proof: bytes | None) -> None:
    """Try every operation of every kind of frames behind this proof, each on a new connection."""
    shown = b"" if proof is None else auth_frame(PLUGIN, proof)
    for name, frame in V2.items():
        async with raw(world, address) as client:
            client.send(shown + frame(world.ledger))
            with contextlib.suppress(EOFError, ConnectionError):
                answer = await client.answer()
                if isinstance(answer, AuthMessage):
                    answer = await client.answer()
                assert isinstance(answer, AddRefused | ReadAnswer | BatchReadAnswer), (name, answer)
                assert answer.code in NOT, (name, answer)
    for op, body in BODIES.items():
        async with raw(world, address) as client:
            about: dict[str, Any] = {"ledger": world.ledger, **body}
            client.send(shown + extension.encode_request(op, 7, about))
            with contextlib.suppress(EOFError, ConnectionError):
                answer = await client.answer()
                if isinstance(answer, AuthMessage):
                    answer = await client.answer()
                assert isinstance(answer, extension.Answer), (op, answer)
                if op is extension.Op.NODE_INFO and answer.code == Code.OK:
                    assert proof is not None, "a stranger learns of the bookie"
                else:
                    assert answer.code in NOT, (op, answer)
    for of_v3, frame in OF_V3.items():
        reader, writer = await open_to(address, world.tls)
        client_v3 = V3Client(reader, writer)
        try:
            if proof is not None:
                client_v3.send(request_frame(
                    v3.Op.AUTH, 1, "authRequest", authPluginName=PLUGIN, payload=proof
                ))  # fmt: skip
            client_v3.send(frame(world.ledger))
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while (found := await client_v3.answer()).header.txnId != TXN:
                    pass
                if of_v3 is v3.Op.BOOKIE_INFO and found.status == v3.STATUS[Code.OK]:
                    assert proof is not None, "a stranger learns of the bookie"
                else:
                    assert found.status == v3.STATUS[Code.UNAUTHORIZED], (of_v3, found.status)
        finally:
            writer.transport.abort()


def enter_proof(name: str) -> None:
    async def run(world: SecuredWorld) -> None:
        for bookie, address in world.named("bookie").items():
            await tried(world, address, proofs(world, bookie)[name])

    secured(f"bookie, every operation: {name}")(run)


for one in PROOFS:
    enter_proof(one)


@secured("bookie: who may, may")
async def those_who_may(world: SecuredWorld) -> None:
    """Check that the same frames work behind good proofs: otherwise the attempts would show
    nothing."""
    now = int(time.time())
    reader = {
        "sub": "user:keeper", "aud": "bookies", "iat": now, "exp": now + 60, "groups": [],
        "ledgers": [world.ledger], "topic": "vault/secret",
    }  # fmt: skip
    held = 0
    for bookie, address in world.named("bookie").items():
        node = {"sub": "node:broker-1", "aud": bookie, "iat": now, "exp": now + 60}
        for use, kid, claims in (("bookies", "node", node), ("bookie readers", "reader", reader)):
            token = signed(world.node_keys[use], claims, kid=kid).encode()
            async with raw(world, address) as client:
                client.send(auth_frame(PLUGIN, token) + V2["read"](world.ledger))
                assert await client.answer() == AuthMessage(PLUGIN, b"")
                answer = await client.answer()
                assert isinstance(answer, ReadAnswer)
                assert answer.code not in NOT, answer
                held += LOOT.encode() in answer.entry
    assert held >= 4, "two bookies have it"


@secured("bookie: many reads in one write, a proof among them")
async def mixed(world: SecuredWorld) -> None:
    for bookie, address in world.named("bookie").items():
        bad = auth_frame(PLUGIN, proofs(world, bookie)["a node's, of another key"] or b"")
        read = read_request(world.ledger, 0)
        found = await exchange(address, read * 20 + bad + read * 20, 1.5, tls=world.tls)
        world.guard(found)


@secured("bookie: other plugins of AUTH")
async def other_plugins(world: SecuredWorld) -> None:
    for address in world.bookies:
        for plugin in ("", "AuthDisabledPlugin", "OCTAVO", "octavo\0", "x" * 1_000, "TLS"):
            async with raw(world, address) as client:
                client.send(auth_frame(plugin, b"root") + read_request(world.ledger, 0))
                with contextlib.suppress(EOFError, ConnectionError):
                    answer = await client.answer()
                    while isinstance(answer, AuthMessage):
                        answer = await client.answer()
                    assert isinstance(answer, ReadAnswer)
                    assert answer.code in NOT, (plugin, answer)


@secured("bookie: a thousand bad proofs, on one connection and on many")
async def guessing(world: SecuredWorld) -> None:
    (bookie, address), *_ = world.named("bookie").items()
    bad = auth_frame(PLUGIN, signed(bytes(32), claims_of("root"), kid="node").encode())
    found = await exchange(address, bad * 1_000, 20, tls=world.tls)
    assert len(found) < len(bad) * 1_000, "it is not answered for ever"
    for _ in range(100):
        world.guard(await exchange(address, bad, 0.1, tls=world.tls))
    assert bookie


@secured("bookie: half an AUTH, and never the rest")
async def half_of_auth(world: SecuredWorld) -> None:
    frame = auth_frame(PLUGIN, b"x" * 60_000)
    for address in world.bookies:
        writers = [(await open_to(address, world.tls))[1] for _ in range(50)]
        for writer in writers:
            writer.write(frame[:30_000])
        await asyncio.sleep(1)
        for writer in writers:
            writer.transport.abort()
