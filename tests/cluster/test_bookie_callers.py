"""Bookies identify callers: nodes, readers, owners of certificates; strangers are refused."""

from __future__ import annotations

import asyncio
import random
import re
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from octavo.bookie.node import BookieNode
from octavo.bookie.wire import caller as caller_module
from octavo.clock import wall_clock_ms
from octavo.ledger.client import LedgerClient
from octavo.ledger.options import LedgerOptions
from octavo.metadata.secret import ClusterSecret, cluster_secret
from octavo.process.copies import kept_copies
from octavo.protocol import extension, v3
from octavo.protocol.answers import AddRefused, BatchReadAnswer, ReadAnswer
from octavo.protocol.auth import AUTH_DISABLED, OCTAVO, AuthMessage
from octavo.protocol.codes import Code, OctavoError
from octavo.protocol.frames import Flag, auth_frame, batch_read_request, read_request
from octavo.security.bookie_tokens import BookieTokens, Prove
from octavo.security.identity.api_keys import line_of, make_key
from octavo.security.identity.opening import open_authenticator
from octavo.security.identity.users import UserStore, scram_records
from octavo.security.principal import ANONYMOUS, Identity, Shown, Standing, Unauthenticated
from octavo.security.settings import SecurityConfig
from tests.support.certificates import certificates, make
from tests.support.cluster import QUICK, Cluster, add_many, payload_of, running_cluster
from tests.support.raw_bookie import KEY, RawClient, add_of, adds_of, on_both_loops, until
from tests.support.v3_frames import V3Client, add_frame, request_frame

event_loop_policy = on_both_loops
EUA = v3.STATUS[Code.UNAUTHORIZED]
OK = v3.STATUS[Code.OK]
V3_FIELDS: dict[v3.Op, tuple[str, dict[str, Any]]] = {
    v3.Op.READ: ("readRequest", {"ledgerId": 1, "entryId": 0}),
    v3.Op.ADD: ("addRequest", {}),
    v3.Op.WRITE_LAC: ("writeLacRequest", {"ledgerId": 1, "lac": 0, "masterKey": KEY, "body": b""}),
    v3.Op.READ_LAC: ("readLacRequest", {"ledgerId": 1}),
    v3.Op.BOOKIE_INFO: ("getBookieInfoRequest", {"requested": 3}),
    v3.Op.FORCE: ("forceLedgerRequest", {"ledgerId": 1}),
    v3.Op.LIST_ENTRIES: ("getListOfEntriesOfLedgerRequest", {"ledgerId": 1}),
}
BODIES: dict[extension.Op, dict[str, Any]] = {
    extension.Op.READ_LAC: {"ledger": 1},
    extension.Op.WRITE_LAC: {"ledger": 1, "key": KEY, "lac": 0},
    extension.Op.WAIT_LAC: {"ledger": 1, "after": 99, "timeout_ms": 60_000},
    extension.Op.FORCE: {"ledger": 1},
    extension.Op.LIST_ENTRIES: {"ledger": 1},
    extension.Op.NODE_INFO: {},
    extension.Op.FETCH_COPIES: {"ledger": 1, "first": 0, "last": 0},
}


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, 1, guarded=True) as cluster:
        yield cluster


async def as_node(cluster: Cluster, node: BookieNode) -> RawClient:
    client = await RawClient.connect(node)
    client.send(auth_frame(OCTAVO, (await cluster.tokens()).node("test", node.bookie_id)))
    assert await client.answer() == AuthMessage(OCTAVO, b"")
    return client


async def shown(node: BookieNode, token: bytes | str) -> tuple[RawClient, str]:
    client = await RawClient.connect(node)
    client.send(auth_frame(OCTAVO, token if isinstance(token, bytes) else token.encode()))
    answer = await client.answer()
    assert isinstance(answer, AuthMessage)
    assert answer.plugin == OCTAVO
    return client, answer.payload.decode()


async def stored(cluster: Cluster) -> BookieNode:
    node = cluster.nodes["b1"]
    await cluster.secure(("user:alice", "consume", "topic:public/flights"))
    client = await as_node(cluster, node)
    for ledger in (1, 2):
        client.send(adds_of(ledger, range(3)))
        await client.acked(3)
    client.close()
    return node


async def test_a_cluster_that_is_not_secured_asks_nobody(world: Cluster) -> None:
    node = world.nodes["b1"]
    client = await RawClient.connect(node)
    client.send(auth_frame("SomePlugin", b"token"))
    assert await client.answer() == AuthMessage(AUTH_DISABLED, b"")
    assert await client.add(add_of(1, 0)) is Code.OK
    asked = await V3Client.connect(node)
    answer = await asked.ask(v3.Op.AUTH, "authRequest", authPluginName="x", payload=b"y")
    assert answer.authResponse.authPluginName == AUTH_DISABLED
    assert answer.status == OK


@pytest.mark.parametrize("op", [op for op in extension.Op if op is not extension.Op.ADDED])
async def test_a_stranger_is_refused_our_own_operations(world: Cluster, op: extension.Op) -> None:
    node = await stored(world)
    client = await RawClient.connect(node)
    answer = await client.call(op, **BODIES[op])
    assert answer.code is Code.UNAUTHORIZED
    assert "prove" in answer.body["reason"]


async def test_a_stranger_is_refused_in_v2_frames(world: Cluster) -> None:
    node = await stored(world)
    client = await RawClient.connect(node)
    assert await client.read(1, 0) is Code.UNAUTHORIZED
    assert await client.fence(1) is Code.UNAUTHORIZED
    client.send(batch_read_request(1, 0, 5, 10, 1000))
    answer = await client.answer()
    assert isinstance(answer, BatchReadAnswer)
    assert (answer.code, answer.entries) == (Code.UNAUTHORIZED, [])
    bad = add_of(1, 5, lac=9)
    client.send(adds_of(1, range(3, 5)) + bad + add_of(3, 0, flags=0))
    refused = [await client.answer() for _ in range(4)]
    assert set(refused) == {
        AddRefused(Code.UNAUTHORIZED, *ids) for ids in ((1, 3), (1, 4), (1, 5), (3, 0))
    }
    trusted = await as_node(world, node)
    assert await trusted.read(1, 3) is Code.NO_ENTRY, "nothing was stored"
    assert await trusted.add(add_of(1, 3)) is Code.OK, "and nothing fenced"


@pytest.mark.parametrize("op", sorted(set(v3.Op) - {v3.Op.AUTH, v3.Op.START_TLS}))
async def test_a_stranger_is_refused_in_v3_frames(world: Cluster, op: v3.Op) -> None:
    node = await stored(world)
    client = await V3Client.connect(node)
    if op is v3.Op.ADD:
        assert await client.add(1, 3) == EUA
        client.send(b"".join(add_frame(1, entry, txn=entry) for entry in range(3, 40)))
        for entry in range(3, 40):
            answer = await client.answer()
            assert (answer.header.txnId, answer.status) == (entry, EUA)
    field, body = V3_FIELDS[op]
    if op is not v3.Op.ADD:
        assert (await client.ask(op, field, **body)).status == EUA
    assert (await client.ask(v3.Op.START_TLS, "startTLSRequest")).status == v3.STATUS[
        Code.BAD_REQUEST
    ], "told that there is none here"


async def test_a_stranger_that_asks_what_nobody_knows_is_refused_or_cut_off(
    world: Cluster,
) -> None:
    node = await stored(world)
    client = await V3Client.connect(node)
    assert (await client.ask(99)).status == EUA
    other = await RawClient.connect(node)
    other.send(extension.encode_request(extension.Op.ADDED, 1, {"ledger": 1}))
    assert await other.is_closed()


async def test_refusals_are_told_once_a_minute(world: Cluster) -> None:
    node = await stored(world)
    with capture_logs() as logs:
        client = await RawClient.connect(node)
        for _ in range(50):
            assert await client.read(1, 0) is Code.UNAUTHORIZED
    told = [line for line in logs if line["event"] == "caller_refused"]
    assert len(told) == 1, "and none of whom was let in"
    assert told[0]["who"] == "anonymous"


async def test_another_plugin_proves_nothing(world: Cluster) -> None:
    node = await stored(world)
    client = await RawClient.connect(node)
    client.send(auth_frame("sasl", b"hello"))
    answer = await client.answer()
    assert isinstance(answer, AuthMessage)
    assert answer.plugin == OCTAVO
    assert b"plugin octavo" in answer.payload
    asked = await V3Client.connect(node)
    answer = await asked.ask(v3.Op.AUTH, "authRequest", authPluginName="sasl", payload=b"y")
    assert answer.status == EUA
    assert answer.authResponse.authPluginName == OCTAVO


async def test_a_node_may_do_everything_in_v3_frames_too(world: Cluster) -> None:
    node = await stored(world)
    client = await V3Client.connect(node)
    token = (await world.tokens()).node("test", "b1")
    answer = await client.ask(v3.Op.AUTH, "authRequest", authPluginName=OCTAVO, payload=token)
    assert (answer.status, answer.authResponse.payload) == (OK, b"")
    assert await client.add(1, 3) == OK
    assert (await client.read(1, 3)).status == OK


async def test_requests_right_behind_the_proof_are_served(world: Cluster) -> None:
    node = await stored(world)
    client = await RawClient.connect(node)
    token = (await world.tokens()).node("test", "b1")
    client.send(auth_frame(OCTAVO, token) + adds_of(1, range(3, 9)) + read_request(1, 0))
    assert await client.answer() == AuthMessage(OCTAVO, b"")
    found = [await client.answer(), await client.answer()]
    assert any(isinstance(one, ReadAnswer) and one.code == Code.OK for one in found)


async def test_tokens_that_prove_nothing(world: Cluster) -> None:
    node = await stored(world)
    secret = await cluster_secret(world.store)
    tokens = await world.tokens()
    then = BookieTokens(secret, lambda: wall_clock_ms() - 200_000)
    soon = BookieTokens(secret, lambda: wall_clock_ms() + 200_000)
    strange = BookieTokens(ClusterSecret(b"s" * 32), wall_clock_ms)
    good = tokens.node("test", "b1")
    head, body, signature = good.split(b".")
    _, other, of_other = tokens.node("other", "b1").split(b".")
    for token, what in (
        (tokens.node("test", "b2"), "another bookie"),
        (strange.node("test", "b1"), "secret"),
        (then.node("test", "b1"), "ended"),
        (soon.node("test", "b1"), "clocks"),
        (b"", "cannot be read"),
        (b"\xff\xfe" * 50, "cannot be read"),
        (b".".join((head, body, of_other)), "secret"),
        (good[: len(good) // 2], "cannot be read"),
        (b".".join((b"eyJhbGciOiJub25lIiwia2lkIjoibm9kZSJ9", body, b"")), "cannot be read"),
        (b".".join((head, other, signature)), "secret"),
        (b"x" * 300_000, "at most"),
        (b"W" * 400 + b"." + b"a" * 200_000 + b".b", "cannot be read"),
    ):
        client, wrong = await shown(node, token)
        assert what in wrong, (token[:60], wrong)
        assert await client.read(1, 0) is Code.UNAUTHORIZED
        client.close()


async def test_a_connection_has_three_attempts(world: Cluster) -> None:
    node = await stored(world)
    client, _ = await shown(node, b"a.b.c")
    client.send(auth_frame(OCTAVO, b"a.b.d") + auth_frame(OCTAVO, b"a.b.e"))
    assert len(await client.answers_until_closed()) == 2


async def test_a_reader_reads_its_ledgers_and_cannot_fence(world: Cluster) -> None:
    node = await stored(world)
    tokens = await world.tokens()
    alice = Identity("user:alice", source="token")
    token, _ = tokens.reader(alice, "public/flights", [1, 99])
    client, wrong = await shown(node, token)
    assert wrong == ""
    assert isinstance(await client.read(1, 0), bytes)
    assert len(await client.read_all(1, 2)) == 3
    assert (await client.call(extension.Op.READ_LAC, ledger=1)).code is Code.OK
    assert (await client.call(extension.Op.LIST_ENTRIES, ledger=1)).code is Code.OK
    assert (await client.call(extension.Op.NODE_INFO)).code is Code.OK
    assert await client.read(2, 0) is Code.UNAUTHORIZED
    assert await client.fence(1) is Code.UNAUTHORIZED
    assert await client.read(1, 0, Flag.HIGH_PRIORITY) is Code.UNAUTHORIZED
    assert await client.add(add_of(1, 3)) is Code.UNAUTHORIZED
    assert await client.add(add_of(1, 3, flags=Flag.RECOVERY_ADD)) is Code.UNAUTHORIZED
    for op in (extension.Op.WRITE_LAC, extension.Op.FORCE, extension.Op.FETCH_COPIES):
        assert (await client.call(op, **BODIES[op])).code is Code.UNAUTHORIZED
    trusted = await as_node(world, node)
    assert await trusted.add(add_of(1, 3)) is Code.OK, "it was not fenced"


async def test_a_reader_whose_principal_may_not_consume_reads_nothing(world: Cluster) -> None:
    node = await stored(world)
    tokens = await world.tokens()
    for identity, topic in (
        (Identity("user:bob"), "public/flights"),
        (Identity("user:alice"), "public/other"),
        (Identity("user:alice"), None),
    ):
        client, wrong = await shown(node, tokens.reader(identity, topic, [1]).token)
        assert wrong == ""
        assert await client.read(1, 0) is Code.UNAUTHORIZED
        client.close()


async def test_a_reader_is_let_go_when_its_token_ends(world: Cluster) -> None:
    node = await stored(world)
    tokens = await world.tokens()
    alice = Identity("user:alice")
    client, _ = await shown(node, tokens.reader(alice, "public/flights", [1], life_s=2).token)
    assert isinstance(await client.read(1, 0), bytes)
    client.send(
        extension.encode_request(
            extension.Op.WAIT_LAC, 3, {"ledger": 1, "after": 99, "timeout_ms": 60_000}
        )
    )
    async with asyncio.timeout(5):
        assert await client.is_closed()


async def test_a_new_token_prolongs_the_old_one(world: Cluster) -> None:
    node = await stored(world)
    tokens = await world.tokens()
    alice = Identity("user:alice")
    client, _ = await shown(node, tokens.reader(alice, "public/flights", [1], life_s=2).token)
    client.send(auth_frame(OCTAVO, tokens.reader(alice, "public/flights", [1, 2]).token.encode()))
    assert await client.answer() == AuthMessage(OCTAVO, b"")
    await asyncio.sleep(2.5)
    assert isinstance(await client.read(2, 0), bytes)


async def test_a_right_that_is_withdrawn_ends_within_a_second(world: Cluster) -> None:
    node = await stored(world)
    tokens = await world.tokens()
    token = tokens.reader(Identity("user:alice"), "public/flights", [1]).token
    client, _ = await shown(node, token)
    trusted = await as_node(world, node)
    assert isinstance(await client.read(1, 0), bytes)
    client.send(extension.encode_request(extension.Op.WAIT_LAC, 3, BODIES[extension.Op.WAIT_LAC]))
    await world.secure()
    async with asyncio.timeout(1):
        assert await client.is_closed()
    again, _ = await shown(node, token)
    assert await again.read(1, 0) is Code.UNAUTHORIZED
    assert isinstance(await trusted.read(1, 0), bytes), "nodes go on"


RNG = random.Random(55)


@pytest.mark.parametrize("how", ["disabled", "deleted", "revoked", "password", "groups", "key"])
async def test_a_readers_token_ends_with_what_it_was_given_out_for(
    tmp_path: Path, how: str
) -> None:
    """It was valid for ten minutes more, whatever became of its owner."""
    key, keys = make_key(RNG), tmp_path / "keys"
    keys.write_text(line_of("alice", key) + "\n" + line_of("bob", make_key(RNG)) + "\n")
    async with running_cluster(tmp_path / "c", 0, guarded=True) as cluster:
        users = UserStore(cluster.store)
        await users.create("alice", scram_records("correct horse", RNG), ("staff",))
        await users.create("bob")
        config = SecurityConfig(api_keys_file=str(keys), files_reload_ms=5)
        callers = cluster.authenticates = await open_authenticator(
            config, cluster.store, wall_clock_ms, RNG, _no_network
        )
        await callers.start()
        try:
            await cluster.start_bookie("b1")
            node = await stored(cluster)
            tokens = await cluster.tokens()

            async def reading(name: str) -> RawClient:
                shown_key = Shown(f"Bearer {key}")
                identity = (
                    await callers.identify(shown_key)
                    if name == "alice"
                    else callers.held_against_record(Identity(f"user:{name}", source="token"), 1.0)
                )
                client, wrong = await shown(
                    node, tokens.reader(identity, "public/flights", [1]).token
                )
                assert wrong == ""
                return client

            await cluster.secure(
                *((f"user:{name}", "consume", "topic:public/flights") for name in ("alice", "bob"))
            )
            client, other = await reading("alice"), await reading("bob")
            before = tokens.reader(
                await callers.identify(Shown(f"Bearer {key}")), "public/flights", [1]
            ).token
            assert isinstance(await client.read(1, 0), bytes)
            now_s = wall_clock_ms() / 1000
            if how == "disabled":
                await users.set_disabled("alice", True)
            elif how == "deleted":
                await users.delete("alice", now_s)
            elif how == "revoked":
                await users.revoke_tokens("alice", now_s)
            elif how == "password":
                await users.set_password("alice", scram_records("another one", RNG))
            elif how == "groups":
                await users.set_groups("alice", [])
            else:
                keys.write_text(keys.read_text().partition("\n")[2])
            async with asyncio.timeout(20):
                assert await client.is_closed()
            again, wrong = await shown(node, before)
            assert "the token is no longer valid: " in wrong
            assert "Ask for a new token" in wrong
            assert await again.read(1, 0) is Code.UNAUTHORIZED
            assert isinstance(await other.read(1, 0), bytes), "nobody else's"
            if how in ("revoked", "password", "groups"):
                anew = await reading("alice")
                assert isinstance(await anew.read(1, 0), bytes)
        finally:
            await callers.close()


async def _no_network(url: str) -> bytes:
    raise AssertionError(url)


async def test_when_a_cluster_is_secured_strangers_go_and_nodes_stay(world: Cluster) -> None:
    node = world.nodes["b1"]
    trusted = await as_node(world, node)
    stranger = await RawClient.connect(node)
    assert await stranger.add(add_of(1, 0)) is Code.OK
    await world.secure()
    async with asyncio.timeout(1):
        assert await stranger.is_closed()
    assert await trusted.add(add_of(1, 1)) is Code.OK
    await world.secure(secured=False)
    later = await RawClient.connect(node)
    assert isinstance(await later.read(1, 1), bytes)


async def test_who_proves_nothing_is_let_go(
    world: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_module, "PROOF_S", 0.3)
    node = await stored(world)
    trusted = await as_node(world, node)
    stranger = await RawClient.connect(node)
    assert await stranger.read(1, 0) is Code.UNAUTHORIZED
    async with asyncio.timeout(5):
        assert await stranger.is_closed()
    assert isinstance(await trusted.read(1, 0), bytes)


class ByCommonName:
    def __init__(self, pause_s: float = 0.0) -> None:
        self._pause_s = pause_s
        self._revoked: set[str] = {"user:revoked"}
        self._listeners: list[Callable[[], None]] = []

    def on_change(self, listener: Callable[[], None]) -> None:
        self._listeners.append(listener)

    def lapsed(self, identity: Identity, standing: Standing) -> str:
        return "it is revoked" if identity.name in self._revoked else ""

    def revoke(self, name: str) -> None:
        self._revoked.add(name)
        for listener in self._listeners:
            listener()

    async def identify(self, shown: Shown) -> Identity:
        await asyncio.sleep(self._pause_s)
        found = self._known(shown)
        if found.name in self._revoked:
            raise Unauthenticated("it is revoked")
        return found

    def at_hand(self, shown: Shown) -> Identity | None:
        found = self._known(shown)
        return None if self._pause_s or found.name in self._revoked else found

    def _known(self, shown: Shown) -> Identity:
        assert shown.certificate is not None
        subject = x509.load_der_x509_certificate(shown.certificate).subject
        name = str(subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)
        return Identity(f"user:{name}", source="certificate")


@pytest.mark.parametrize("pause_s", [0.0, 0.2], ids=["at hand", "to be waited for"])
async def test_certificates_of_clients_and_rules_about_bookies(
    tmp_path: Path, pause_s: float
) -> None:
    certs = tmp_path / "certs"
    held = certificates(certs, mutual=True)
    for name in ("pulsar", "reader", "nobody", "revoked"):
        make(certs, name)

    def context(name: str) -> ssl.SSLContext:
        found = certificates(certs, name).client
        assert found is not None
        return found

    async with running_cluster(tmp_path / "c", 0, guarded=True, tls=held) as cluster:
        callers = cluster.authenticates = ByCommonName(pause_s)
        node = await cluster.start_bookie("b1")
        await cluster.secure(
            ("user:pulsar", "read,write", "bookies"), ("user:reader", "read", "bookies")
        )

        async def connected(name: str) -> RawClient:
            return RawClient(
                *await asyncio.open_connection("127.0.0.1", node.port, ssl=context(name))
            )

        pulsar = await connected("pulsar")
        assert await pulsar.add(add_of(1, 0)) is Code.OK
        assert isinstance(await pulsar.read(1, 0), bytes)
        pulsar.send(auth_frame("SomePlugin", b""))
        assert await pulsar.answer() == AuthMessage(AUTH_DISABLED, b""), "it is known already"
        copies = await pulsar.call(extension.Op.FETCH_COPIES)
        assert copies.code is Code.UNAUTHORIZED
        reader = await connected("reader")
        assert isinstance(await reader.read(1, 0), bytes)
        assert await reader.fence(1) is Code.UNAUTHORIZED
        assert await reader.add(add_of(1, 1)) is Code.UNAUTHORIZED
        for name in ("nobody", "revoked", "node"):
            stranger = await connected(name)
            assert await stranger.read(1, 0) is Code.UNAUTHORIZED
        assert await pulsar.fence(1) != Code.UNAUTHORIZED
        begun = V3Client(*await asyncio.open_connection("127.0.0.1", node.port))
        begun.send(request_frame(v3.Op.START_TLS, 1, "startTLSRequest"))
        assert (await begun.answer()).status == OK
        await begun.writer.start_tls(context("pulsar"), server_hostname="127.0.0.1")
        assert (await begun.read(1, 0)).status == OK
        begun.send(b"".join(add_frame(5, entry, txn=entry) for entry in range(200)))
        for _ in range(200):
            assert (await begun.answer()).status == OK
        begun.close()
        callers.revoke("user:reader")
        async with asyncio.timeout(2):
            assert await reader.is_closed()
        assert isinstance(await pulsar.read(1, 0), bytes), "nobody else's"


async def test_a_cluster_that_is_secured_works_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 3, guarded=True, patient=True) as cluster:
        before = await cluster.client(1)
        writer = await before.create()
        await add_many(writer, 50)
        await cluster.secure()
        await add_many(writer, 50)
        other = await cluster.client(2)
        assert (await other.recover(writer.ledger_id)).last_entry == 99
        reader = await other.open(writer.ledger_id)
        found = [bytes(one.payload) async for one in reader.entries(0, 99)]
        assert found == [payload_of(entry) for entry in range(100)]
        await reader.close()


async def test_copies_come_back_in_a_secured_cluster(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 3, guarded=True, patient=True) as cluster:
        await cluster.secure()
        client = await cluster.client()
        writer = await client.create()
        await cluster.stop_bookie("b3")
        await add_many(writer, 30)
        await writer.close()
        node = await cluster.start_bookie("b3", copies_retry_ms=100)
        copies = kept_copies(
            node, cluster.store, rng=random.Random(1), prove=await cluster.prove_as("b3")
        )
        async with copies as keeper:
            assert keeper is not None
            await until(lambda: keeper.status.walks > 0)
            metadata = await client.metadata(writer.ledger_id)
            if any("b3" in fragment.bookies for fragment in metadata.fragments):
                await until(lambda: not keeper.status.unfinished)


async def test_a_client_without_the_secret_is_told_what_is_wrong(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, guarded=True) as cluster:
        await cluster.secure()
        wrong = BookieTokens(ClusterSecret(b"w" * 32), wall_clock_ms)

        def other(bookie_id: str) -> bytes:
            return wrong.node("x", bookie_id)

        proofs: tuple[tuple[Prove | None, str], ...] = (
            (None, "prove"),
            (other, "not signed with this cluster's secret"),
        )
        for prove, what in proofs:
            client = LedgerClient(
                cluster.store,
                rng=random.Random(1),
                options=LedgerOptions(**QUICK),
                prove=prove,
            )
            await client.start()
            with pytest.raises(OctavoError, match=what):
                await client.bookies.get("b1").connected()
            await client.close()


async def test_messages_are_published_and_consumed_through_secured_bookies(
    tmp_path: Path,
) -> None:
    async with running_cluster(tmp_path, 3, brokers=2, guarded=True) as cluster:
        await cluster.secure()
        api = cluster.api
        assert (await api.put("/v1/topics/public/t", json={})).status in (200, 201)
        found = await api.post("/v1/topics/public/t/messages", json={"messages": [{"value": "a"}]})
        assert found.status == 200, found


class ByToken:
    """Knows callers by a token that is their name."""

    def on_change(self, listener: Callable[[], None]) -> None:
        pass

    def lapsed(self, identity: Identity, standing: Standing) -> str:
        return ""

    async def identify(self, shown: Shown) -> Identity:
        name = (shown.authorization or "").removeprefix("Bearer ")
        if name == "forged":
            raise Unauthenticated("not ours")
        return Identity(f"user:{name}", source="token") if name else ANONYMOUS

    def at_hand(self, shown: Shown) -> Identity | None:
        return ANONYMOUS


async def asked(node: BookieNode, request: str, token: str = "") -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", node.admin.port)
    shown = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"{request} HTTP/1.1\r\nHost: b\r\n{shown}\r\n".encode())
    answer = (await asyncio.wait_for(reader.read(), 10)).decode()
    writer.close()
    return int(answer.split()[1]), answer


async def test_the_admin_port_of_a_secured_bookie(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 0, guarded=True) as cluster:
        cluster.authenticates = ByToken()
        node = await cluster.start_bookie("b1", admin_port=0)
        paths = [one.split() for one in node.admin.paths]
        assert (await asked(node, "GET /metrics"))[0] == 200, "not secured yet"
        await cluster.secure(
            ("user:prometheus", "describe", "cluster"),
            ("user:looks", "describe", "bookies"),
            ("user:works", "admin", "bookies"),
            ("user:else", "all", "topic:*"),
        )
        for who in ("", "else", "forged"):
            status, answer = await asked(node, "GET /healthz", who)
            assert (status, answer.endswith('\r\n\r\n{"healthy": true}\n')) == (200, True), answer
        assert '"bookie_id": "b1"' in (await asked(node, "GET /healthz", "looks"))[1]
        node_token = (await cluster.tokens()).node("cli", "b1").decode()
        for method, path in paths:
            if path == "/healthz":
                continue
            request = f"{method} {path}"
            status, answer = await asked(node, request)
            assert status == 401, request
            assert "WWW-Authenticate: Bearer" in answer
            assert (await asked(node, request, "forged"))[0] == 401
            assert (await asked(node, request, "else"))[0] == 403, request
            for who in ("prometheus", "looks"):
                assert (await asked(node, request, who))[0] == (200 if method == "GET" else 403), (
                    request
                )
            assert (await asked(node, request, "works"))[0] == 200, request
            assert (await asked(node, request, node_token))[0] == 200, request
        assert (await asked(node, "GET /no-such-thing"))[0] == 401, "nor what there is"
        assert (await asked(node, "DELETE /gc", "looks"))[0] == 403


async def test_a_broker_gives_a_token_for_the_ledgers_of_a_topic(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, 1, brokers=1, guarded=True) as cluster:
        api, node = cluster.api, cluster.nodes["b1"]
        settings = {
            "partitions": 2,
            **dict.fromkeys(("ensemble_size", "write_quorum", "ack_quorum"), 1),
        }
        assert (await api.put("/v1/topics/public/flights", json=settings)).status == 201
        for number in (0, 1):
            path = f"/v1/topics/public/flights/partitions/{number}/messages"
            assert (await api.post(path, json={"value": "x"})).status == 200
        await cluster.secure(("*", "consume", "topic:public/flights"))
        answer = await api.post("/v1/topics/public/flights/reader-token")
        assert answer.status == 200, answer
        given = answer.json()
        assert len(given["ledgers"]) == 2
        assert 590 < given["expires_at"] / 1000 - wall_clock_ms() / 1000 <= 600
        client, wrong = await shown(node, given["token"])
        assert wrong == ""
        for ledger in given["ledgers"]:
            assert isinstance(await client.read(ledger, 0), bytes)
        of_one = (await api.post("/v1/topics/public/flights/reader-token?partition=1")).json()
        assert len(of_one["ledgers"]) == 1
        refused = await api.post("/v1/topics/public/flights/reader-token?partition=2")
        assert refused.status == 400, refused
        assert (await api.post("/v1/topics/public/none/reader-token")).status == 404
        await cluster.secure()
        async with asyncio.timeout(1):
            assert await client.is_closed()


async def test_a_token_reads_what_the_topic_has_and_no_entry_besides(tmp_path: Path) -> None:
    """A fork's token reads neither later nor truncated entries of its source."""
    async with running_cluster(tmp_path, 1, brokers=1, guarded=True) as cluster:
        api, node = cluster.api, cluster.nodes["b1"]
        settings = dict.fromkeys(("ensemble_size", "write_quorum", "ack_quorum"), 1)
        source = "/v1/topics/public/source"
        assert (await api.put(source, json=settings)).status == 201

        async def publish(*texts: str) -> None:
            for text in texts:
                answer = await api.post(f"{source}/messages", text.encode(), "text/plain")
                assert answer.status == 200, answer

        await publish("gone-0", "gone-1", "both-2", "both-3")
        answer = await api.post(f"{source}/fork", json={"name": "fork"})
        assert answer.status == 201, answer
        await publish("later-4", "later-5")
        for topic in ("source", "fork"):
            path = f"/v1/topics/public/{topic}/messages?before=2"
            assert (await api.call("DELETE", path)).status == 200
        await cluster.secure(("*", "consume", "topic:public/*"))

        async def read_by(topic: str, given: dict[str, Any]) -> set[str]:
            """Return all texts that the token gets out of the bookie, by every kind of request."""
            client, wrong = await shown(node, given["token"])
            assert wrong == ""
            found: list[Any] = []
            for ledger in given["ledgers"]:
                for entry in range(-1, 9):
                    found.append(await client.read(ledger, entry))
                    client.send(batch_read_request(ledger, entry, 1, 0, 1 << 20))
                    answer = await client.answer()
                    assert isinstance(answer, BatchReadAnswer), answer
                    found += answer.entries
                    for op, body in (
                        (extension.Op.READ_LAC, {}),
                        (extension.Op.WAIT_LAC, {"after": entry, "timeout_ms": 0, "entry": True}),
                    ):
                        told = await client.call(op, ledger=ledger, **body)
                        found.append(told.body.get("entry", b""))
            client.close()
            texts = b" ".join(one for one in found if isinstance(one, bytes))
            return set(re.findall(r"(?:gone|both|later)-\d", texts.decode("latin-1")))

        async def until_known(topic: str) -> dict[str, Any]:
            while True:
                given = (await api.post(f"/v1/topics/public/{topic}/reader-token")).json()
                if given["ledgers"]:
                    return given
                await asyncio.sleep(0.05)

        of_fork = await until_known("fork")
        (entries,) = of_fork["parts"].values()
        assert entries == [2, 3]
        assert await read_by("fork", of_fork) == {"both-2", "both-3"}
        of_source = await until_known("source")
        assert list(of_source["parts"].values()) == [[2, None]]
        assert {"both-2", "both-3", "later-4"} <= await read_by("source", of_source)
        assert not {"gone-0", "gone-1"} & await read_by("source", of_source)
