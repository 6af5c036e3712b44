"""Every route and operation, tried by callers without a right to it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import time
from pathlib import Path

from octavo.bookie import node
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from tests.attack.secured.attempts import bearer, request, secured
from tests.attack.secured.world import OPEN_TOPIC, STRANGER, VAULT, SecuredWorld
from tests.attack.world import exchange, said_in

OPEN = frozenset({"healthz", "readyz", "openapi"})
PARTS = {
    "namespace": "vault", "topic": "secret", "partition": "0", "subscription": "s",
    "bulk_load": "night", "batch": "0", "entry": "0", "subject": "anonymous", "broker": "broker-0",
    "group": "g", "member": "m", "schema_subject": "secret", "version": "latest",
    "message": "0", "user": "bob",
}  # fmt: skip
AUDIT = "/v1/topics/octavo/audit"
LISTS = frozenset({("list_namespaces", "alice"), ("list_namespaces", "mallory"),
                   ("list_topics", "alice")})  # fmt: skip
"""Calls that show callers only their own objects, and each object's readers."""


def path_of(route: Route, world: SecuredWorld) -> str:
    path = route.path.replace("{ledger}", str(world.ledger))
    for name, value in PARTS.items():
        path = path.replace("{" + name + "}", value)
    assert "{" not in path, path
    return path


def enter_route(route: Route) -> None:
    """Enter an attempt for each call and each caller without a right to it."""

    async def by(world: SecuredWorld, who: str | None) -> None:
        for broker in range(len(world.brokers)):
            for kind, body in (("text/plain", b"stolen"), ("application/json", b"{}")):
                body = b"" if route.method in ("GET", "DELETE") else body
                said = await world.ask(
                    route.method, path_of(route, world), body, broker=broker, who=who,
                    Content_Type=kind,
                )  # fmt: skip
                world.guard(said.body)
                if who is STRANGER:
                    inner = 403 if getattr(route, "inner", False) else 401
                    assert said.status in (401, inner, 403 if said.code == "brokers-only" else 401)
                elif (route.name, who) in LISTS:
                    assert said.status == 200, said
                    assert b"secret" not in said.body, said
                    assert (b'"vault"' in said.body) is (who == "alice"), "a part of it is hers"
                else:
                    assert said.status == 403, said

    if route.name in OPEN:
        return
    former = "" if route.path in {one.path for one in ROUTES} else ", by its former name"
    for who, name in ((STRANGER, "a stranger"), ("alice", "alice"), ("mallory", "mallory")):

        async def run(world: SecuredWorld, who: str | None = who) -> None:
            await by(world, who)

        secured(f"door: {route.method} {route.path}{former}, {name}")(run)


for one in FormerNames().routes(ROUTES):
    enter_route(one)


@secured("what anybody may ask shows nothing")
async def open_calls(world: SecuredWorld) -> None:
    assert {route.name for route in ROUTES} >= OPEN
    for route in ROUTES:
        if route.name in OPEN:
            said = await world.ask(route.method, route.path, who=STRANGER)
            assert said.status == 200, said
            for word in (b"vault", b"secret_", b"mallory", b"sqlite", b"3181"):
                assert word not in said.body, (route.name, word)


@secured("the audit log is muted or forged, by who may do anything to its topic but administer")
async def muted_audit(world: SecuredWorld) -> None:
    partition = f"{AUDIT}/partitions/0"
    for method, path, body in (
        ("POST", f"{partition}/producer-access", {"producer": "me", "fencing": True}),
        ("DELETE", f"{partition}/producer-access?epoch=1", b""),
        ("POST", f"{partition}/messages", b"forged"),
        ("POST", f"{AUDIT}/large", b"forged"),
        ("PUT", AUDIT, {"partitions": 1}),
        ("PATCH", AUDIT, {"retention": {"time": "1s"}}),
        ("DELETE", f"{partition}/messages?before=latest", b""),
        ("PUT", "/v1/namespaces/octavo", {"message_bytes_max": 1}),
        ("PUT", AUDIT.replace("topics", "durable-streams"), b"forged"),
        ("POST", AUDIT.replace("topics", "durable-streams"), b"forged"),
        ("DELETE", AUDIT, b""),
    ):
        for broker in range(len(world.brokers)):
            said = await world.ask(method, path, body, broker=broker, who="auditor")
            assert said.status == 403, (method, path, said)
    until_s = time.monotonic() + 30
    mark = f"forbidden-{until_s}".encode().replace(b".", b"-")
    await world.ask("GET", f"/v1/topics/vault/{mark.decode()}/messages", who="mallory")
    while time.monotonic() < until_s:
        path = f"{AUDIT}/messages?from=earliest&limit=10000"
        said = await world.ask("GET", path, who="root")
        if mark in said.body:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("what was done since is not in the audit log")


@secured("lists show each what is theirs")
async def lists(world: SecuredWorld) -> None:
    for path, who, seen, hidden in (
        ("/v1/namespaces", "mallory", "tenant", "vault"),
        ("/v1/namespaces", "alice", "vault", "tenant"),
        ("/v1/topics/vault", "alice", "open", "secret"),
    ):
        said = await world.ask("GET", path, who=who)
        assert said.status == 200, said
        assert f'"{seen}"'.encode() in said.body or seen.encode() in said.body, said
        assert hidden.encode() not in said.body.replace(path.encode(), b""), said


@secured("rights on one topic, used on another by what the body names")
async def named_in_the_body(world: SecuredWorld) -> None:
    part = {"topic": "vault/secret", "partition": 0, "ledgers": [world.ledger]}
    for step in ("commit", "begin", "abort"):
        for body in (
            {"parts": [part]},
            {"parts": [{**part, "topic": "tenant/own"}, part]},
            {"ledgers": [world.ledger]},
        ):
            path = f"/v1/bulk-loads/mallory-night/batches/0/{step}"
            said = await world.ask("POST", path, body, who="mallory")
            # An abort only names ledgers, and deletes none that a partition has.
            assert said.status in (400, 403, 404, 409, 422) or (
                step == "abort" and json.loads(said.body) == {"ledgers": []}
            ), (step, said)


@secured("rights on a subscription's name, not on its topic, and the other way")
async def half_of_two_rights(world: SecuredWorld) -> None:
    for call in ("receive", "ack", "seek"):
        for topic, name in ((VAULT, "mine"), (OPEN_TOPIC, "mine")):
            path = f"{topic}/subscriptions/{name}/{call}"
            said = await world.ask("POST", path, {"to": "earliest"}, who="mallory")
            assert said.status == 403, said


@secured("a stream of a topic that is not theirs, as events and as a WebSocket")
async def streams(world: SecuredWorld) -> None:
    upgrade = [
        b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ]  # fmt: skip
    for who, status in ((STRANGER, 401), ("alice", 403), ("mallory", 403)):
        known = [] if who is STRANGER else [bearer(world.tokens[who])]
        for path in (f"{VAULT}/messages", f"{VAULT}/subscriptions/s/stream"):
            for lines in ([b"Accept: text/event-stream"], upgrade):
                data = request(path=path, lines=[*known, *lines], close=lines is not upgrade)
                await world.refused(data, (status,))


def admin_calls() -> list[tuple[str, str]]:
    found = [("GET", "/metrics"), ("GET", "/healthz"), ("GET", "/"), ("GET", "/nothing")]
    for part in ast.walk(ast.parse(Path(node.__file__).read_text())):
        if isinstance(part, ast.Call) and ast.unparse(part.func).endswith("admin.route"):
            method, path = (one.value for one in part.args[:2] if isinstance(one, ast.Constant))
            found.append((str(method), str(path)))
    return found


def enter_admin(method: str, path: str) -> None:
    """At every bookie, a stranger learns only whether it lives."""

    async def run(world: SecuredWorld) -> None:
        for lines in (b"", *(f"Authorization: Bearer {world.tokens[who]}\r\n".encode()
                             for who in ("alice", "mallory"))):  # fmt: skip
            for host, port in world.admin_ports():
                data = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n".encode() + lines + b"\r\n"
                answer = await exchange((host, port), data, 10, tls=world.tls)
                world.guard(answer)
                said = said_in(answer)
                if path == "/healthz":
                    assert said.status in (200, 401, 503), said
                    assert len(said.body) < 200 or said.status == 401, "more than that it lives"
                else:
                    assert said.status in (401, 403), said

    secured(f"admin port: {method} {path}")(run)


for some in admin_calls():
    enter_admin(*some)


@secured("admin ports of bookies without TLS")
async def admin_in_the_clear(world: SecuredWorld) -> None:
    for address in world.admin_ports():
        answer = await exchange(address, b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", 5)
        assert said_in(answer).status in (0, 400), answer[:300]


@secured("half a request to every admin port, many times")
async def half_requests(world: SecuredWorld) -> None:
    writers = []
    for host, port in world.admin_ports():
        for _ in range(100):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, port, ssl=world.tls)
                writer.write(b"GET /metrics HTTP/1.1\r\n")
                writers.append(writer)
    await asyncio.sleep(1)
    for writer in writers:
        writer.transport.abort()


@secured("idle TLS connections at every bookie's admin port, from many addresses, and a probe")
async def blinded_probe(world: SecuredWorld) -> None:
    """64 of them kept Kubernetes' probe out."""
    ports = world.admin_ports()
    writers = []
    try:
        for number in range(100):
            for host, port in ports:
                source = (f"127.8.0.{number // 8 + 1}", 0)
                with contextlib.suppress(OSError):
                    _, writer = await asyncio.open_connection(
                        host, port, ssl=world.tls if number % 2 else None, local_addr=source
                    )
                    writers.append(writer)
        for host, port in ports:
            for path in ("/healthz", "/metrics"):
                data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
                for _ in range(5):
                    answer = await exchange((host, port), data, 5, tls=world.tls)
                    assert said_in(answer).status in (200, 401, 403), answer[:300]
    finally:
        for writer in writers:
            writer.transport.abort()
