"""A secured cluster, what is to be stolen from it, and who tries."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
import time
from pathlib import Path
from typing import Any

from octavo.metadata.opening import open_store
from octavo.metadata.secret import cluster_secret
from octavo.metadata.store import MetadataStore
from octavo.security.policy import POLICY_PATH, PolicyStore, make_rule, secured, with_rule
from octavo.tls.contexts import client_context
from tests.attack.canary import CA, TOKEN
from tests.attack.secured.tokens import claims_of, signed
from tests.attack.world import ANSWER_S, Said, World, exchange, said_in, whole_length
from tests.support.processes.standalone import Standalone

LOOT = "loot-6b0d27f4c1"
"""The message in `vault/secret`: nobody but `root` and `keeper` may ever see it."""
VAULT = "/v1/topics/vault/secret"
SEALED = "sealed"
"""A namespace that the cluster has a key for."""
OPEN_TOPIC = "/v1/topics/vault/open"
TAKEN_S = 6.0
"""After so long a policy is that of every process."""
STRANGER = None
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
]
"""`alice` has rights on topics beside the secret one, `mallory` on all of another tenant, whose
namespaces begin much like the vault's, `auditor` more on the audit log than anybody should have."""


class SecuredWorld(World):
    """Everything that its attackers get back is looked through for the loot."""

    def __init__(self, cluster: Standalone) -> None:
        super().__init__(cluster)
        self.folder = cluster.folder / "tls"
        self.ca = str(self.folder / "ca.pem")
        self.tls = client_context(ca=self.ca)
        self.key = b""
        """Of the cluster's own tokens."""
        self.node_keys: dict[str, bytes] = {}
        """Of what the cluster's processes show one another, by use."""
        self.tokens: dict[str | None, str] = {}
        self.ledger = -1
        """One that the secret topic is in."""
        self.store: MetadataStore | None = None
        self.calls = 0
        """Runs of brokers that attempts have made up, each for one call."""
        self._before: list[str] = []

    @property
    def environment(self) -> dict[str, str]:
        """The canary's."""
        return {**os.environ, CA: self.ca, TOKEN: self.tokens["canary"]}

    # ---- what is there

    async def prepare(self) -> None:
        """Users, rights, a secret."""
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
        """It is over."""
        if self.store is not None:
            await self.store.close()

    async def _must(self, method: str, path: str, body: Any = b"") -> Said:
        said = await self.ask(method, path, body, who="root")
        assert 200 <= said.status < 300, said
        return said

    async def harm(self) -> list[str]:
        """What of it is not as it was."""
        after = await self._state()
        pairs = zip(self._before, after, strict=True)
        return [f"{before} is now {now}" for before, now in pairs if before != now]

    async def _state(self) -> list[str]:
        """All that nobody but root could change; without what moves by itself."""
        assert self.store is not None
        found = [repr((await self.store.get(POLICY_PATH)).value)]
        for path in ("/v1/namespaces", "/v1/topics/vault", f"{VAULT}/partitions/0",
                     f"{VAULT}/subscriptions", f"{VAULT}/subscriptions/s"):  # fmt: skip
            said = await self.ask("GET", path, who="root")
            # The audit log makes its own namespace when there is something to tell.
            kept = said.body.replace(b'"octavo",', b"")
            kept = re.sub(rb'"(ledgers|owner|stored_bytes)":(\[.*?\]|[^,}]*)', b"", kept)
            found.append(f"{path} {said.status} {kept.decode()}")
        return found

    def admin_ports(self) -> list[tuple[str, int]]:
        """Of the bookies."""
        members = self.cluster.cluster.of_kind("bookie")
        return [
            (host, one.admin_port) for one, (host, _) in zip(members, self.bookies, strict=True)
        ]

    # ---- what is tried

    async def ask(  # type: ignore[override]
        self, method: str, path: str, body: Any = b"", *, broker: int = 0, who: str | None = "root",
        **headers: str,
    ) -> Said:  # fmt: skip
        """By `who`, with their token; a stranger shows nothing."""
        if who is not STRANGER:
            headers.setdefault("Authorization", f"Bearer {self.tokens[who]}")
        return await super().ask(method, path, body, broker=broker, **headers)

    async def all_of(
        self, data: bytes, *, broker: int = 0, wait_s: float = 3.0, tls: Any = "own"
    ) -> bytes:
        """All that comes back for these bytes, of however many answers."""
        context: ssl.SSLContext | None = self.tls if tls == "own" else tls
        found = await exchange(self.brokers[broker], data, wait_s, tls=context)
        self.guard(found)
        return found

    async def at(self, address: tuple[str, int], data: bytes, wait_s: float = 10.0) -> bytes:
        """What another port than a broker's says to these bytes."""
        found = await exchange(address, data, wait_s, tls=self.tls)
        self.guard(found)
        return found

    def guard(self, found: bytes) -> None:
        """Nothing of the vault is in what an attacker got."""
        assert LOOT.encode() not in found, found[:2000]

    async def refused(
        self,
        data: bytes,
        statuses: tuple[int, ...] = (400, 401, 403),
        *,
        broker: int = 0,
        source: str = "",
    ) -> Said:
        """These bytes, from `source`, get one of these answers; 0: the connection ends without
        one."""
        answer = await exchange(
            self.brokers[broker], data, ANSWER_S, whole_length, self.tls, source
        )
        self.guard(answer)
        said = said_in(answer)
        assert said.status in statuses, said
        assert b"Traceback" not in answer
        return said


def certificate_folder(world: SecuredWorld, name: str) -> Path:
    """A folder of the attacker's own."""
    folder = world.cluster.folder / "attacker" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder
