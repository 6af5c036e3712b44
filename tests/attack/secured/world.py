"""A secured cluster, its secret, and its attackers."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import itertools
import json
import os
import re
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from octavo.metadata.opening import open_store
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.security.policy import POLICY_PATH, PolicyStore, make_rule, secured, with_rule
from octavo.tls.contexts import client_context
from tests.attack.canary import CA, TOKEN
from tests.attack.world import ANSWER_S, Attempt, Said, World, exchange, said_in, whole_length
from tests.support.processes.standalone import Standalone

ISSUER = AUDIENCE = KID = "octavo"
_OF_ALGORITHM = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}


def packed(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def claims_of(name: str, **changes: Any) -> dict[str, Any]:
    """Return a good token's claims; changes to None leave a claim out."""
    now = int(time.time())
    found = {
        "iss": ISSUER, "aud": AUDIENCE, "sub": name, "iat": now - 1, "exp": now + 3600,
        "jti": "00" * 12, "groups": [], **changes,
    }  # fmt: skip
    return {key: value for key, value in found.items() if value is not None}


def signed(
    key: bytes,
    claims: Mapping[str, Any] | str,
    *,
    algorithm: str = "HS256",
    kid: str | None = KID,
    **head: Any,
) -> str:
    """Sign with `key`, whatever its `algorithm` says."""
    named = {"alg": algorithm, "typ": "JWT", **({} if kid is None else {"kid": kid}), **head}
    text = claims if isinstance(claims, str) else json.dumps(claims)
    body = f"{packed(json.dumps(named).encode())}.{packed(text.encode())}"
    digest = _OF_ALGORITHM.get(algorithm, hashlib.sha256)
    return f"{body}.{packed(hmac.digest(key, body.encode(), digest))}"


def unsigned(claims: Mapping[str, Any], algorithm: str, **head: Any) -> str:
    return signed(b"", claims, algorithm=algorithm, **head).rpartition(".")[0] + "."


LOOT = "loot-6b0d27f4c1"
"""The message in `vault/secret`: only `root` and `keeper` may ever see it."""
VAULT = "/v1/topics/vault/secret"
SEALED = "sealed"
OPEN_TOPIC = "/v1/topics/vault/open"
TAKEN_S = 6.0
"""After this time every process has the policy."""
STRANGER = None
DOORS_GROUP = "doors"
RULES = [
    ("user:canary", "all", "topic:public/canary"),
    ("user:keeper", "produce,consume", "topic:vault/secret"),
    ("user:alice", "produce,consume", "topic:vault/open"),
    ("user:alice", "all", "subscription:vault/open/*"),
    ("user:mallory", "all", "namespace:tenant"),
    ("user:mallory", "all", "topic:tenant/*"),
    ("user:mallory", "all", "topic:vaults/*"),
    ("user:mallory", "all", "subscription:tenant/*"),
    ("user:mallory", "all", "transaction:mallory-*"),
    ("user:mallory", "produce,consume", "topic:shared/*"),
    ("user:mallory", "create", "topic:shared/*"),
    ("user:alice", "produce,consume", "topic:shared/*"),
    ("user:alice", "produce", "topic:strict/t*"),
    ("user:alice", "alter", "topic:strict/hers"),
    ("user:auditor", "all", "topic:octavo/*"),
    ("user:auditor", "all", "namespace:octavo"),
    (f"group:{DOORS_GROUP}", "all", "namespace:doors*"),
    (f"group:{DOORS_GROUP}", "all", "topic:doors*"),
    (f"group:{DOORS_GROUP}", "all", "subscription:doors*"),
]
"""`alice` has rights next to the secret topic, `mallory` on a tenant whose namespaces look like
the vault's, `auditor` too many rights on the audit log."""


class SecuredWorld(World):
    """Every answer to its attackers is searched for the secret."""

    def __init__(self, cluster: Standalone) -> None:
        super().__init__(cluster)
        self.folder = cluster.folder / "tls"
        self.ca = str(self.folder / "ca.pem")
        self.tls = client_context(ca=self.ca)
        self.key = b""
        self.node_keys: dict[str, bytes] = {}
        """Use → key with which the cluster's processes authenticate one another."""
        self.tokens: dict[str | None, str] = {}
        self.ledger = -1
        self.store: MetadataStore | None = None
        self.calls = 0
        self._before: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, CA: self.ca, TOKEN: self.tokens["canary"]}

    async def prepare(self) -> None:
        self.store = open_store(self.cluster.cluster.metadata_url)
        await self.store.start()
        secret = await cluster_secret(self.store)
        self.key = secret.key("tokens")
        uses = ("nodes", "bookies", "bookie readers", "calls between brokers")
        self.node_keys = {use: secret.key(use) for use in uses}
        for name in ("root", "canary", "keeper", "alice", "mallory", "auditor"):
            self.tokens[name] = signed(self.key, claims_of(name))
        await self._secure()
        await self._until_taken()
        for namespace in ("vault", "tenant", "shared", "strict"):
            await self._must("PUT", f"/v1/namespaces/{namespace}", {})
        await self._must("PUT", f"/v1/namespaces/{SEALED}", {"encrypted": True})
        for path in (VAULT, OPEN_TOPIC, "/v1/topics/tenant/own", "/v1/topics/public/canary"):
            await self._must("PUT", path, {})
        for topic in (VAULT, OPEN_TOPIC, "/v1/topics/tenant/own"):
            await self._must("PUT", f"{topic}/subscriptions/s", {})
        said = await self.ask(
            "POST", f"{VAULT}/messages", LOOT.encode(), who="keeper", Content_Type="text/plain"
        )
        assert said.status == 200, said
        found = json.loads((await self._must("GET", f"{VAULT}/partitions/0")).body)
        self.ledger = int(found["ledgers"][-1]["id"])
        read = await self.ask("GET", f"{VAULT}/messages?from=earliest", who="keeper")
        assert LOOT.encode() in read.body, "it can be had by those who may"
        self._before = await self._state()

    async def _secure(self) -> None:
        assert self.store is not None
        policies = PolicyStore(self.store)
        await policies.change(lambda record: secured(record, "user:root"))
        for who, operations, resource in RULES:
            rule = make_rule(who, operations, resource, allow=True)
            await policies.change(lambda record, rule=rule: with_rule(record, rule))

    async def _until_taken(self) -> None:
        wanted: list[tuple[str | None, str, tuple[int, ...]]] = [
            (STRANGER, "/v1/cluster", (401,)),
            ("root", "/v1/cluster", (200,)),
            ("mallory", "/v1/topics/tenant", (200, 404)),
        ]
        until_s = time.monotonic() + TAKEN_S
        for broker in range(len(self.brokers)):
            for one, path, statuses in wanted:
                while (said := await self.ask("GET", path, broker=broker, who=one)).status not in (
                    statuses
                ):
                    assert time.monotonic() < until_s, f"{one or 'a stranger'}, {path}: {said}"
                    await asyncio.sleep(0.1)

    async def close(self) -> None:
        if self.store is not None:
            await self.store.close()

    async def _must(self, method: str, path: str, body: Any = b"") -> Said:
        said = await self.ask(method, path, body, who="root")
        assert 200 <= said.status < 300, said
        return said

    async def harm(self) -> list[str]:
        after = await self._state()
        pairs = zip(self._before, after, strict=True)
        return [f"{before} is now {now}" for before, now in pairs if before != now]

    async def _state(self) -> list[str]:
        """Return the state that only root could change, without values that change by
        themselves."""
        assert self.store is not None
        found = [repr((await self.store.get(POLICY_PATH)).value)]
        for path in ("/v1/namespaces", "/v1/topics/vault", f"{VAULT}/partitions/0",
                     f"{VAULT}/subscriptions", f"{VAULT}/subscriptions/s"):  # fmt: skip
            said = await self.ask("GET", path, who="root")
            # The audit log makes its namespace with its first record, and the row that tries the
            # quota of every door makes many.
            kept = re.sub(rb'"(octavo|doors[^"]*)",', b"", said.body)
            kept = re.sub(rb'"(ledgers|owner|stored_bytes)":(\[.*?\]|[^,}]*)', b"", kept)
            found.append(f"{path} {said.status} {kept.decode()}")
        return found

    def admin_ports(self) -> list[tuple[str, int]]:
        members = self.cluster.cluster.of_kind("bookie")
        return [
            (host, one.admin_port) for one, (host, _) in zip(members, self.bookies, strict=True)
        ]

    async def ask(  # type: ignore[override]
        self, method: str, path: str, body: Any = b"", *, broker: int = 0, who: str | None = "root",
        **headers: str,
    ) -> Said:  # fmt: skip
        if who is not STRANGER:
            headers.setdefault("Authorization", f"Bearer {self.tokens[who]}")
        return await super().ask(method, path, body, broker=broker, **headers)

    async def all_of(
        self, data: bytes, *, broker: int = 0, wait_s: float = 3.0, tls: Any = "own"
    ) -> bytes:
        context: ssl.SSLContext | None = self.tls if tls == "own" else tls
        found = await exchange(self.brokers[broker], data, wait_s, tls=context)
        self.guard(found)
        return found

    async def at(self, address: tuple[str, int], data: bytes, wait_s: float = 10.0) -> bytes:
        found = await exchange(address, data, wait_s, tls=self.tls)
        self.guard(found)
        return found

    def guard(self, found: bytes) -> None:
        assert LOOT.encode() not in found, found[:2000]

    async def refused(
        self,
        data: bytes,
        statuses: tuple[int, ...] = (400, 401, 403),
        *,
        broker: int = 0,
        source: str = "",
    ) -> Said:
        """Check that these bytes, from `source`, get one of these answers; 0: the connection
        ends."""
        answer = await exchange(
            self.brokers[broker], data, ANSWER_S, whole_length, self.tls, source
        )
        self.guard(answer)
        said = said_in(answer)
        assert said.status in statuses, said
        assert b"Traceback" not in answer
        return said


def certificate_folder(world: SecuredWorld, name: str) -> Path:
    folder = world.cluster.folder / "attacker" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


Run = Callable[[SecuredWorld], Awaitable[None]]

SECURED: dict[str, Attempt] = {}
_ADDRESSES = itertools.count()


def secured_attempt(
    name: str, *, long: bool = False, turn_s_max: float | None = None
) -> Callable[[Run], Run]:
    def enter(run: Run) -> Run:
        assert name not in SECURED, name

        async def of_world(world: Any) -> None:
            assert isinstance(world, SecuredWorld)
            await run(world)

        SECURED[name] = Attempt(name, of_world, long, turn_s_max=turn_s_max)
        return run

    return enter


def request(
    method: str = "GET",
    path: str = f"{VAULT}/messages?from=earliest",
    lines: Sequence[bytes] = (),
    body: bytes = b"",
    *,
    close: bool = True,
) -> bytes:
    head = [f"{method} {path} HTTP/1.1".encode(), b"Host: localhost", *lines]
    if close:
        head.append(b"Connection: close")
    if body or method not in ("GET", "HEAD", "DELETE"):
        head.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*head, b"", b""]) + body


def bearer(token: str | bytes) -> bytes:
    return b"Authorization: Bearer " + (token.encode() if isinstance(token, str) else token)


def enter_each(
    prefix: str,
    cases: Sequence[tuple[str, Callable[[SecuredWorld], bytes]]],
    statuses: tuple[int, ...] = (401,),
) -> None:
    """Enter an attempt for each request, at every broker. Each comes from a new address, because
    a broker soon refuses an address with forged proofs unread."""
    for name, make in cases:
        source = another_address()

        async def run(
            world: SecuredWorld,
            make: Callable[[SecuredWorld], bytes] = make,
            source: str = source,
        ) -> None:
            for broker in range(len(world.brokers)):
                await world.refused(make(world), statuses, broker=broker, source=source)

        secured_attempt(f"{prefix}: {name}")(run)


def another_address() -> str:
    number = next(_ADDRESSES)
    return f"127.9.{number // 250}.{number % 250 + 1}"
