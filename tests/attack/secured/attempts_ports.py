"""The ports of bookies and brokers, before and without authentication: each operation, forged
brokers, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import ssl
import struct
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

from octavo.broker.operations.upgrade import NONCE_HEADER, PROTOCOL, Upgrade, headers_of
from octavo.protocol import extension, v3
from octavo.protocol.answers import AddRefused, BatchReadAnswer, ReadAnswer
from octavo.protocol.auth import AuthMessage
from octavo.protocol.codes import Code
from octavo.protocol.entry import master_key
from octavo.protocol.frames import LENGTH, Flag, auth_frame, batch_read_request, read_request
from octavo.tls import authority
from octavo.tls.authority import Authority
from tests.attack.secured.world import (
    LOOT,
    VAULT,
    SecuredWorld,
    bearer,
    certificate_folder,
    claims_of,
    request,
    signed,
)
from tests.attack.secured.world import secured_attempt as secured
from tests.attack.world import exchange, open_to, said_in
from tests.support.former_proofs import (
    BY,
    ESCAPED,
    IDENTITY,
    NONCE,
    PROOF,
    SEAL,
    TO,
    former_headers,
)
from tests.support.processes.standalone import standalone
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


USE = "calls between brokers"
SWITCH = "/v1/operations"
READ = f"{VAULT}/messages?from=earliest"
ROOT = json.dumps(["user:root", [], "token", None])
RUN = "0123456789abcdef"


def sent(headers: Mapping[str, str], *lines: bytes, method: str = "GET", path: str = READ) -> bytes:
    made = [
        f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in headers.items()
    ]
    return request(method, path, [*made, *lines])


def forged(world: SecuredWorld, broker: int, key: bytes, path: str = READ) -> dict[str, str]:
    other = world.names[(broker + 1) % len(world.names)]
    return former_headers(key, other, world.names[broker], "GET", path)


def upgrade(world: SecuredWorld, broker: int, key: bytes) -> dict[str, str]:
    world.calls += 1
    other = world.names[(broker + 1) % len(world.names)]
    return headers_of(Upgrade(other, world.names[broker], f"{world.calls:032x}"), key)


def switching(headers: Mapping[str, str]) -> bytes:
    lines = [
        f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in headers.items()
    ]
    return request("GET", SWITCH, [b"Connection: Upgrade", *lines], close=False)


SAID: dict[str, dict[str, str]] = {
    "who it is, and no proof": {BY: "{other}", TO: "{own}"},
    "who it is for, and no proof": {BY: "{other}", TO: "{own}", IDENTITY: ROOT},
    "all of it, and zeros for a proof": {
        BY: "{other}", TO: "{own}", IDENTITY: ROOT, NONCE: f"{RUN}-0", SEAL: "0" * 64,
        PROOF: "0" * 64},
    "all of it, and an empty proof": {
        BY: "{other}", TO: "{own}", IDENTITY: ROOT, NONCE: f"{RUN}-0", SEAL: "", PROOF: ""},
    "all of it, and a proof that is no text": {
        BY: "{other}", TO: "{own}", IDENTITY: ROOT, NONCE: f"{RUN}-0", SEAL: "\udcff" * 64},
    "itself": {BY: "{own}", TO: "{own}", IDENTITY: ROOT, SEAL: "0" * 64},
    "nobody": {BY: "", TO: "", IDENTITY: ROOT, SEAL: "0" * 64},
    "an identity alone": {IDENTITY: ROOT},
    "a node's identity": {IDENTITY: json.dumps(["node:broker-1", [], "node", None])},
    "headers that are escaped": {ESCAPED: "authorization", "Authorization": "Bearer%20x"},
}  # fmt: skip


def enter_said(name: str, headers: Mapping[str, str]) -> None:
    async def run(world: SecuredWorld) -> None:
        for broker, own in enumerate(world.names):
            other = world.names[(broker + 1) % len(world.names)]
            told = {k: v.format(own=own, other=other) if "{o" in v else v
                    for k, v in headers.items()}  # fmt: skip
            await world.refused(sent(told), (401, 503), broker=broker)
            if "Authorization" not in told:
                mallory = bearer(world.tokens["mallory"])
                await world.refused(sent(told, mallory), (403, 503), broker=broker)
            inner = sent(told, path=SWITCH)
            await world.refused(inner, (401, 403, 503), broker=broker)

    secured(f"as a broker: {name}")(run)


for broker_case, what in SAID.items():
    enter_said(broker_case, what)


@secured("as a broker: a proof made with other keys")
async def other_keys(world: SecuredWorld) -> None:
    keys = [b"", bytes(32), world.key]
    keys += [world.node_keys[use] for use in ("nodes", "bookies", "bookie readers")]
    for broker in range(len(world.brokers)):
        for key in keys:
            await world.refused(sent(forged(world, broker, key)), (401,), broker=broker)
            await world.refused(switching(upgrade(world, broker, key)), (403,), broker=broker)


@secured("as a broker: the proofs of former versions, made with the right key")
async def former_proof(world: SecuredWorld) -> None:
    """Brokers of former versions sent calls for others. No broker believes such a call."""
    key = world.node_keys[USE]
    for broker in range(len(world.brokers)):
        headers = forged(world, broker, key)
        for dropped in ((), (SEAL,), (SEAL, IDENTITY), (SEAL, IDENTITY, NONCE), (PROOF,)):
            left = {name: value for name, value in headers.items() if name not in dropped}
            await world.refused(sent(left), (401,), broker=broker)
            mallory = bearer(world.tokens["mallory"])
            await world.refused(sent(left, mallory), (403,), broker=broker)
        for path in (SWITCH, VAULT):
            made = forged(world, broker, key, path)
            await world.refused(sent(made, path=path), (401, 403), broker=broker)


@secured("as a broker: the proof of a connection, shown with another call")
async def proof_elsewhere(world: SecuredWorld) -> None:
    for broker in range(len(world.brokers)):
        shown = upgrade(world, broker, world.node_keys[USE])
        await world.refused(sent(shown), (401,), broker=broker)
        await world.refused(sent(shown, method="DELETE", path=VAULT), (401,), broker=broker)
        mallory = bearer(world.tokens["mallory"])
        await world.refused(sent(shown, mallory), (403,), broker=broker)


@secured("as a broker: a request for a connection that was recorded, made again")
async def replayed(world: SecuredWorld) -> None:
    """Its first use is accepted, and then every operation needs the secret."""
    for broker in range(len(world.brokers)):
        recorded = switching(upgrade(world, broker, world.node_keys[USE]))
        first = await world.all_of(recorded + bytes(100), broker=broker)
        assert first.startswith(b"HTTP/1.1 101"), f"or this attempt tries nothing: {first[:200]!r}"
        for _ in range(3):
            await world.refused(recorded, (403,), broker=broker)


@secured("as a broker: a request for a connection that was recorded, changed")
async def changed(world: SecuredWorld) -> None:
    for broker in range(len(world.brokers)):
        other = (broker + 1) % len(world.brokers)
        real = upgrade(world, broker, world.node_keys[USE])
        for change in (
            {NONCE_HEADER: "f" * 32},
            {"Octavo-Operations-From": world.names[broker]},
            {"Octavo-Operations-To": world.names[other]},
            {"Octavo-Operations-Proof": "0" * 64},
            {"Upgrade": PROTOCOL.upper()},
        ):
            await world.refused(switching({**real, **change}), (403, 503), broker=broker)
        await world.refused(switching(real), (503,), broker=other)


Address = tuple[str, int]


def ports(world: SecuredWorld) -> list[Address]:
    return [*world.brokers, *world.bookies, *world.admin_ports()]


def believing(world: SecuredWorld) -> ssl.SSLContext:
    """Make a client's context that allows what this cluster must refuse."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(world.ca)
    context.check_hostname = False
    return context


async def shaken(address: Address, context: ssl.SSLContext) -> str:
    try:
        async with asyncio.timeout(10):
            _, writer = await asyncio.open_connection(*address, ssl=context)
    except (ssl.SSLError, OSError):
        return ""
    tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
    writer.transport.abort()
    return f"{tls.version()} {tls.cipher()}"


Weaken = Callable[[ssl.SSLContext], None]
DOWNGRADES: dict[str, Weaken] = {}


def weakened(context: ssl.SSLContext, weaken: Weaken) -> ssl.SSLContext:
    """Make a context with weak parameters; where this machine's library lacks them, with similar
    parameters."""
    try:
        weaken(context)
    except (ssl.SSLError, ValueError):
        _ciphers("AES128-SHA")(context)
    return context


def enter_downgrade(name: str, weaken: Weaken) -> None:
    DOWNGRADES[name] = weaken

    async def run(world: SecuredWorld) -> None:
        context = weakened(believing(world), weaken)
        for address in ports(world):
            found = await shaken(address, context)
            assert not found, f"{address} speaks {found}"

    secured(f"downgrade: {name}")(run)


def _at_most(version: ssl.TLSVersion) -> Callable[[ssl.SSLContext], None]:
    def weaken(context: ssl.SSLContext) -> None:
        context.set_ciphers("ALL:@SECLEVEL=0")
        context.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        context.maximum_version = version

    return weaken


def _ciphers(text: str) -> Callable[[ssl.SSLContext], None]:
    def weaken(context: ssl.SSLContext) -> None:
        context.set_ciphers(f"{text}:@SECLEVEL=0")
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    return weaken


enter_downgrade("TLS 1.0", _at_most(ssl.TLSVersion.TLSv1))
enter_downgrade("TLS 1.1", _at_most(ssl.TLSVersion.TLSv1_1))
for weak in ("NULL", "aNULL", "RC4", "3DES", "kRSA", "CAMELLIA", "AES128-SHA", "ECDHE+AES+SHA1"):
    enter_downgrade(f"ciphers {weak}", _ciphers(weak))


@secured("no TLS at any port, with a good token")
async def in_the_clear(world: SecuredWorld) -> None:
    """A listener on the way has the token by then."""
    for address in (*world.brokers, *world.admin_ports()):
        answer = await exchange(address, request(lines=[bearer(world.tokens["root"])]), 5)
        world.guard(answer)
        assert said_in(answer).status in (0, 400), answer[:300]
    for address in world.bookies:
        for frame in (read_request(world.ledger, 0), read_frame(world.ledger, 0)):
            answer = await exchange(address, frame, 5)
            world.guard(answer)
            assert len(answer) < 100, answer


@secured("START_TLS with requests behind it, before its answer")
async def injected(world: SecuredWorld) -> None:
    """Bytes injected before TLS must not count as the client's."""
    start = request_frame(v3.Op.START_TLS, 1, "startTLSRequest")
    for address in world.bookies:
        for more in (read_frame(world.ledger, 0, txn=2), read_request(world.ledger, 0), b"\x00"):
            answer = await exchange(address, start + more, 5)
            world.guard(answer)
            assert len(answer) < 100, "one answer, and the end"


@secured("START_TLS, then a request in the clear")
async def not_shaken(world: SecuredWorld) -> None:
    start = request_frame(v3.Op.START_TLS, 1, "startTLSRequest")
    for address in world.bookies:
        reader, writer = await open_to(address)
        writer.write(start)
        async with asyncio.timeout(10):
            await reader.readexactly(LENGTH.unpack(await reader.readexactly(LENGTH.size))[0])
            writer.write(read_frame(world.ledger, 0, txn=2))
            with contextlib.suppress(ConnectionError):
                answer = await reader.read()
                world.guard(answer)
                assert len(answer) < 20, "an alert at most"
        writer.transport.abort()


@secured("requests before START_TLS")
async def before_it(world: SecuredWorld) -> None:
    start = request_frame(v3.Op.START_TLS, 9, "startTLSRequest")
    for address in world.bookies:
        for first in (read_frame(world.ledger, 0), read_request(world.ledger, 0)):
            answer = await exchange(address, first + start, 5)
            world.guard(answer)
            assert len(answer) < 100, answer


NO_HELLOS = {
    "a record of nothing": b"\x16\x03\x01\x00\x00",
    "a record longer than any": b"\x16\x03\x01\xff\xff" + bytes(70_000),
    "a hello of zeros": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(508),
    "a hello of SSL 3": b"\x16\x03\x00\x00\x2f\x01\x00\x00\x2b\x03\x00" + bytes(41),
    "a hello of SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + bytes(37),
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "application data": b"\x17\x03\x03\x00\x20" + bytes(32),
    "a heartbeat that asks for more": b"\x18\x03\x02\x00\x03\x01\x40\x00",
    "a change of ciphers": b"\x14\x03\x03\x00\x01\x01",
    "its first byte alone": b"\x16",
    "noise behind its first byte": b"\x16" + bytes(range(256)) * 40,
    "HTTP behind its first byte": b"\x16GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


def enter_no_hello(name: str, data: bytes) -> None:
    async def run(world: SecuredWorld) -> None:
        for address in ports(world):
            answer = await exchange(address, data, 1.5)
            assert len(answer) < 400, answer[:400]
            assert b"200 OK" not in answer

    secured(f"hello: {name}")(run)


for tls_case, tls_what in NO_HELLOS.items():
    enter_no_hello(tls_case, tls_what)


def of_another_ca(world: SecuredWorld) -> tuple[Path, Path]:
    folder = certificate_folder(world, "other")
    if not (folder / "root.pem").exists():
        Authority.opened(folder)[0].issue("root", ["root", "localhost"], days=1)
    return folder / "root.pem", folder / "root.key"


def long_ago(world: SecuredWorld) -> tuple[Path, Path]:
    """Signed by the cluster's CA, whose key is lent for it."""
    folder = certificate_folder(world, "ended")
    if not (folder / "root.pem").exists():
        for name in ("ca.pem", "ca.key"):
            (folder / name).write_bytes((world.folder / name).read_bytes())
        then = authority._now() - timedelta(days=30)
        with mock.patch.object(authority, "_now", return_value=then):
            Authority.opened(folder)[0].issue("root", ["root"], days=1)
    return folder / "root.pem", folder / "root.key"


def enter_certificate(name: str, files: Callable[[SecuredWorld], tuple[Path, Path]]) -> None:
    async def run(world: SecuredWorld) -> None:
        context = believing(world)
        context.load_cert_chain(*files(world))
        for broker in range(len(world.brokers)):
            with contextlib.suppress(OSError):
                answer = await world.all_of(request(), broker=broker, tls=context)
                assert said_in(answer).status in (0, 401), answer[:500]
        for address in world.bookies:
            with contextlib.suppress(OSError):
                answer = await exchange(address, read_request(world.ledger, 0), 3, tls=context)
                world.guard(answer)

    secured(f"certificate: {name}")(run)


enter_certificate("root's, of another CA", of_another_ca)
enter_certificate("root's, that has ended", long_ago)


@secured("a revoked certificate, where ports ask for certificates")
async def revoked(world: SecuredWorld) -> None:
    """Refuse a certificate that is on the revocation list at the start, and a certificate that
    is added later."""
    folder = certificate_folder(world, "mutual")
    ca, _ = Authority.opened(folder / "tls")
    shown = {name: ca.issue(name, [f"{name}.clients"], days=1) for name in ("good", "bad", "later")}
    ca.revoke(["bad"], days=1)
    how = ("--tls", "--bookies=1", "--brokers=1", "--set=tls.mutual=true", "--set=tls.reload_ms=50")

    async def comes_in(name: str, address: Address, data: bytes) -> bool:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(ca.file)
        context.check_hostname = False
        context.load_cert_chain(shown[name].certificate, shown[name].key)
        with contextlib.suppress(OSError):
            return bool(await exchange(address, data, 3, len, context))
        return False

    starting = standalone(folder, *how, f"--set=tls.crl={ca.revoked_file}")
    cluster = await asyncio.to_thread(starting.__enter__)
    try:
        doors = [
            (
                _address_of(cluster.cluster.of_kind("broker")[0].address),
                request(path="/v1/cluster"),
            ),
            (_address_of(cluster.cluster.of_kind("bookie")[0].address), read_request(1, 0)),
        ]
        for address, data in doors:
            assert await comes_in("good", address, data)
            assert await comes_in("later", address, data)
            assert not await comes_in("bad", address, data), address
        ca.revoke(["later"], days=1)
        for address, data in doors:
            until_s = time.monotonic() + 30
            while await comes_in("later", address, data):
                assert time.monotonic() < until_s, f"{address} has not heard of it"
                await asyncio.sleep(0.1)
            assert await comes_in("good", address, data)
            assert not await comes_in("bad", address, data), address
    finally:
        await asyncio.to_thread(starting.__exit__, None, None, None)


def _address_of(text: str) -> Address:
    host, _, port = text.rpartition("//")[2].rpartition(":")
    return host, int(port)


@secured("a client asks for another protocol within TLS")
async def other_protocols(world: SecuredWorld) -> None:
    context = believing(world)
    context.set_alpn_protocols(["h2", "spdy/3"])
    for address in ports(world):
        reader, writer = await asyncio.open_connection(*address, ssl=context)
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        assert tls.selected_alpn_protocol() is None
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
        async with asyncio.timeout(15):
            with contextlib.suppress(ConnectionError):
                assert b" 200 " not in await reader.read()
        writer.transport.abort()
    assert reader is not None


@secured("a renegotiation, asked for in a handshake of TLS 1.2")
async def renegotiation(world: SecuredWorld) -> None:
    for host, port in (world.brokers[0], world.bookies[0]):
        process = await asyncio.create_subprocess_exec(
            "openssl", "s_client", "-connect", f"{host}:{port}", "-tls1_2", "-quiet",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=dict(os.environ),
        )  # fmt: skip
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5):
                said, _ = await process.communicate(b"R\n")
                world.guard(said)
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
    began = time.monotonic()
    await world.refused(request(), (401,))
    assert time.monotonic() - began < 5


@secured("handshakes that do not end")
async def slow_handshakes(world: SecuredWorld) -> None:
    """Half a hello each, ten times as many as allowed: other clients still get in."""
    half = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64)
    for address in (world.brokers[0], world.bookies[0]):
        writers = []
        for _ in range(2_000):
            with contextlib.suppress(OSError):
                _, writer = await open_to(address)
                writer.write(half)
                writers.append(writer)
        began = time.monotonic()
        context = believing(world)
        while not await shaken(address, context):
            assert time.monotonic() - began < 5, "nobody else comes in"
        for writer in writers:
            writer.transport.abort()


@secured("handshakes by the drop")
async def by_the_drop(world: SecuredWorld) -> None:
    drop = struct.pack(">BHH", 22, 0x0301, 512)
    drips = [await open_to(address) for address in ports(world) for _ in range(10)]
    for at in range(len(drop)):
        for _, writer in drips:
            writer.write(drop[at : at + 1])
        await asyncio.sleep(0.3)
    await world.refused(request(), (401,))
    for _, writer in drips:
        writer.transport.abort()
