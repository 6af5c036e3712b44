"""Every route and operation, tried by callers without a right to it."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from octavo.bookie import node
from octavo.broker.http.former_names import FormerNames
from octavo.broker.http.router import Route
from octavo.broker.http.routes import ROUTES
from tests.attack.secured.world import (
    OPEN_TOPIC,
    STRANGER,
    VAULT,
    SecuredWorld,
    another_address,
    bearer,
    request,
)
from tests.attack.secured.world import secured_attempt as secured
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


TENANT = "/v1/topics/tenant"
GET_OF_SECRET = "messages?from=earliest"
PATHS = {
    "dots": f"{TENANT}/../vault/secret/{GET_OF_SECRET}",
    "dots, encoded": f"{TENANT}/%2e%2e/vault/secret/{GET_OF_SECRET}",
    "dots, half encoded": f"{TENANT}/.%2e/vault/secret/{GET_OF_SECRET}",
    "dots, encoded twice": f"{TENANT}/%252e%252e/vault/secret/{GET_OF_SECRET}",
    "dots as long as UTF-8 can make them": f"{TENANT}/%c0%ae%c0%ae/vault/secret/{GET_OF_SECRET}",
    "dots behind a name": f"{TENANT}/own/../../vault/secret/{GET_OF_SECRET}",
    "dots and a semicolon": f"{TENANT}/..;/vault/secret/{GET_OF_SECRET}",
    "a backslash": f"{TENANT}\\..\\vault\\secret\\{GET_OF_SECRET}",
    "a backslash, encoded": f"{TENANT}/..%5cvault%5csecret/{GET_OF_SECRET}",
    "a slash, encoded": f"{TENANT}/..%2fvault%2fsecret/{GET_OF_SECRET}",
    "a slash in the namespace": f"/v1/topics/tenant%2f..%2fvault/secret/{GET_OF_SECRET}",
    "a slash for one that is there": f"/v1/topics/vault%2fsecret/{GET_OF_SECRET}",
    "a slash as long as UTF-8 can make it": f"/v1/topics/vault%c0%afsecret/{GET_OF_SECRET}",
    "two slashes": f"/v1/topics//vault/secret/{GET_OF_SECRET}",
    "two slashes before": f"//v1/topics/vault/secret/{GET_OF_SECRET}",
    "two slashes behind the namespace": f"/v1/topics/vault//secret/{GET_OF_SECRET}",
    "a host before": f"//tenant/v1/topics/vault/secret/{GET_OF_SECRET}",
    "a dot for a step": f"/v1/topics/./vault/secret/{GET_OF_SECRET}",
    "a dot at the end of the topic": f"/v1/topics/vault/secret./{GET_OF_SECRET}",
    "a dot at the end of the namespace": f"/v1/topics/vault./secret/{GET_OF_SECRET}",
    "a slash at the end": "/v1/topics/vault/secret/messages/?from=earliest",
    "a space at the end": f"/v1/topics/vault/secret%20/{GET_OF_SECRET}",
    "a space before": f"/v1/topics/%20vault/secret/{GET_OF_SECRET}",
    "a plus for a space": f"/v1/topics/vault/secret+/{GET_OF_SECRET}",
    "a tab": f"/v1/topics/vault/secret%09/{GET_OF_SECRET}",
    "a zero byte at the end": f"/v1/topics/vault/secret%00/{GET_OF_SECRET}",
    "a zero byte before the rest": f"{TENANT}/own%00/../../vault/secret/{GET_OF_SECRET}",
    "a line's end": f"/v1/topics/vault/secret%0a/{GET_OF_SECRET}",
    "a line's end and a header": f"/v1/topics/vault/secret%0d%0aX:%20y/{GET_OF_SECRET}",
    "capital letters": f"/v1/topics/VAULT/SECRET/{GET_OF_SECRET}",
    "a capital letter": f"/v1/topics/Vault/secret/{GET_OF_SECRET}",
    "capital letters of the call": f"/V1/TOPICS/vault/secret/{GET_OF_SECRET}",
    "wide letters": f"/v1/topics/%EF%BD%96ault/secret/{GET_OF_SECRET}",
    "a letter that looks alike": f"/v1/topics/v%D0%B0ult/secret/{GET_OF_SECRET}",
    "a letter with a long s": f"/v1/topics/vault/%C5%BFecret/{GET_OF_SECRET}",
    "an accent of its own": f"/v1/topics/vault/se%CC%81cret/{GET_OF_SECRET}",
    "a letter of no width": f"/v1/topics/vault%E2%80%8B/secret/{GET_OF_SECRET}",
    "right to left": f"/v1/topics/%E2%80%AEtluav/secret/{GET_OF_SECRET}",
    "a semicolon": f"/v1/topics/vault/secret;a=b/{GET_OF_SECRET}",
    "a colon": f"/v1/topics/vault:secret/{GET_OF_SECRET}",
    "a star": f"/v1/topics/vault/*/{GET_OF_SECRET}",
    "a star for both": f"/v1/topics/*/*/{GET_OF_SECRET}",
    "a question mark, encoded": f"/v1/topics/vault/secret%3f/{GET_OF_SECRET}",
    "a number sign": f"{TENANT}/own#/../../vault/secret/{GET_OF_SECRET}",
    "a percent sign alone": f"/v1/topics/vault/secret%/{GET_OF_SECRET}",
    "a percent sign and no digits": f"/v1/topics/vault/secret%zz/{GET_OF_SECRET}",
    "percent u": f"/v1/topics/vault/%u0073ecret/{GET_OF_SECRET}",
    "a whole address": f"https://localhost/v1/topics/vault/secret/{GET_OF_SECRET}",
    "another's whole address": f"http://evil.example/v1/topics/vault/secret/{GET_OF_SECRET}",
    "a granted prefix, gone on": f"{TENANT}/../vaults/../vault/secret/{GET_OF_SECRET}",
    "a name as long as may be": f"{TENANT}/{'a' * 249}/../../vault/secret/{GET_OF_SECRET}",
    "a name longer than the bound": f"/v1/topics/{'tenant' * 100}/secret/{GET_OF_SECRET}",
    "a path longer than any": f"/v1/topics/vault/secret/{'./' * 3_000}{GET_OF_SECRET}",
    "a parameter that names another": "/v1/topics/tenant/own/messages?topic=vault/secret&from=0",
    "a parameter twice": "/v1/topics/tenant/own/messages?from=0&from=../../vault/secret",
    "a partition of another": f"{TENANT}/own/partitions/..%2f..%2fvault%2fsecret/{GET_OF_SECRET}",
    "the topic's ledger": "/v1/ledgers/{ledger}/entries/0",
    "the topic's ledger, by another number": "/v1/ledgers/%30{ledger}/entries/0",
    "the bulk load's prefix, gone on": "/v1/bulk-loads/mallory-%2f..%2fnight",
    "the call's former name": "/v1/transactions/night",
}  # fmt: skip


def enter_path(name: str, path: str) -> None:
    """Try it as a stranger and as mallory, whose rules have prefixes."""

    async def run(world: SecuredWorld) -> None:
        there = path.replace("{ledger}", str(world.ledger))
        for who in (STRANGER, "mallory"):
            lines = [] if who is STRANGER else [bearer(world.tokens[who])]
            for broker in range(len(world.brokers)):
                for method in ("GET", "DELETE", "PUT", "POST"):
                    body = b"" if method in ("GET", "DELETE") else b"{}"
                    data = request(method, there, [b"Content-Type: application/json", *lines], body)
                    said = await world.refused(
                        data, (0, 400, 401, 403, 404, 405, 414, 421, 422, 431), broker=broker
                    )
                    assert who is not STRANGER or said.status != 403, said

    secured(f"path: {name}")(run)


for path_case, where in PATHS.items():
    enter_path(path_case, where)


@secured("names that a rule's prefix must not reach")
async def beside_the_prefix(world: SecuredWorld) -> None:
    """`topic:tenant/*` does not match `tenant2/…`, nor `vaults/*` `vault/…`."""
    for path in ("/v1/topics/tenant2/own", "/v1/topics/tenan/own", "/v1/topics/vault/s",
                 "/v1/topics/vault2/secret", "/v1/namespaces/tenant2"):  # fmt: skip
        for method in ("GET", "PUT", "DELETE"):
            said = await world.ask(method, path, who="mallory")
            assert said.status == 403, (method, path, said)


@secured("topics that their maker would take for others'")
async def made_to_look_alike(world: SecuredWorld) -> None:
    """Every topic that mallory can make is below `tenant/` for the code, whatever it looks like."""
    for name in ("..", "%2e%2e", "own%2f..%2f..%2fvault%2fmine", ".", "own%00", "*", "%2a"):
        said = await world.ask("PUT", f"{TENANT}/{name}", {}, who="mallory")
        assert said.status in (400, 403, 404, 405, 422), (name, said)
    said = await world.ask("GET", "/v1/topics/vault", who="root")
    assert b"mine" not in said.body, said


EVIL = b"Origin: https://evil.example"
SOCKET = [
    b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
]  # fmt: skip
FOREIGN = {
    "its origin": [EVIL],
    "an origin of nowhere": [b"Origin: null"],
    "an origin in the same network": [b"Origin: http://127.0.0.1:1"],
    "what browsers say of it": [b"Sec-Fetch-Site: cross-site"],
    "both": [EVIL, b"Sec-Fetch-Site: cross-site"],
    "the same site by another name": [b"Origin: https://a.localhost", b"Sec-Fetch-Site: same-site"],
}
SIMPLE = (b"text/plain", b"application/x-www-form-urlencoded", b"multipart/form-data; boundary=x")


def enter_page(name: str, lines: list[bytes]) -> None:
    """Send the token of an administrator, as if the browser had stored it."""

    async def run(world: SecuredWorld) -> None:
        root = bearer(world.tokens["root"])
        for broker in range(len(world.brokers)):
            for kind in (*SIMPLE, b"application/json"):
                for method, path in (
                    ("POST", f"{VAULT}/messages"), ("PUT", "/v1/topics/vault/made"),
                    ("DELETE", VAULT), ("POST", f"{VAULT}/subscriptions/s/seek"),
                ):  # fmt: skip
                    head = [*lines, root, b"Content-Type: " + kind]
                    data = request(method, path, head, b'{"to":"latest"}')
                    await world.refused(data, (400, 403), broker=broker)
            stream = request(path=f"{VAULT}/subscriptions/s/stream", lines=[*lines, root])
            await world.refused(stream, (400, 403), broker=broker)
            socket = request(
                path=f"{VAULT}/subscriptions/s/stream", lines=[*lines, root, *SOCKET], close=False
            )
            await world.refused(socket, (400, 403), broker=broker)

    secured(f"page: {name}")(run)


for page_case, what in FOREIGN.items():
    enter_page(page_case, what)


@secured("page: asks whether it may call")
async def preflight(world: SecuredWorld) -> None:
    for broker in range(len(world.brokers)):
        for path in (VAULT, f"{VAULT}/messages", "/", "/v1/cluster"):
            ask = [EVIL, b"Access-Control-Request-Method: DELETE",
                   b"Access-Control-Request-Headers: authorization"]  # fmt: skip
            found = await world.all_of(request("OPTIONS", path, ask), broker=broker)
            assert not re.search(rb"(?i)access-control-", found), found
            assert re.match(rb"HTTP/1\.1 4", found), found


@secured("page: looks at answers that somebody else may see")
async def answers(world: SecuredWorld) -> None:
    root = bearer(world.tokens["root"])
    for path in ("/v1/cluster", "/", "/metrics", "/openapi.json", "/v1/namespaces", "/healthz"):
        found = await world.all_of(request(path=path, lines=[EVIL, root]))
        assert not re.search(rb"(?i)access-control-", found), found[:800]
        assert not re.search(rb"(?i)\r\nset-cookie:", found), found[:800]
        assert re.search(rb"(?i)\r\nx-content-type-options: nosniff", found), found[:800]
        assert re.search(rb"(?i)\r\ncache-control: no-store", found), found[:800]
    page = await world.all_of(request(path="/", lines=[root]))
    assert re.search(rb"(?i)frame-ancestors 'none'", page), page[:800]
    assert not re.search(rb"(?i)<script|unsafe-inline", page), page[:2000]


@secured("page: under a name of its own that leads here")
async def rebinding(world: SecuredWorld) -> None:
    for host in (
        b"evil.example", b"127.0.0.1.evil.example", b"localhost.evil.example",
        b"localhost@evil.example", b"evil.example:8080", b"[::1].evil.example",
    ):  # fmt: skip
        for lines in ([], [bearer(world.tokens["root"])]):
            data = request(lines=lines).replace(b"Host: localhost", b"Host: " + host)
            await world.refused(data, (400, 421))
        admin = b"GET /metrics HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
        for address in world.admin_ports():
            answer = await world.at(address, admin)
            assert b" 200 " not in answer[:20], answer[:300]


@secured("page: a form at a bookie's admin port")
async def admin_forms(world: SecuredWorld) -> None:
    for lines in FOREIGN.values():
        head = b"\r\n".join([b"POST /gc HTTP/1.1", b"Host: localhost", *lines, b"", b""])
        for address in world.admin_ports():
            answer = await world.at(address, head)
            assert b" 200 " not in answer[:20], answer[:300]


Make = Callable[[bytes, bytes], bytes]
"""(lines of the allowed head, hidden request) → bytes."""
PUBLISH = f"POST {OPEN_TOPIC}/messages HTTP/1.1\r\nHost: localhost\r\n".encode()
KIND = b"Content-Type: text/plain\r\n"
WAIT_S = 2.0


def _first(lines: bytes, more: bytes, body: bytes) -> bytes:
    return PUBLISH + KIND + lines + more + b"\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked\r\n"
HIDDEN: dict[str, Make] = {
    "behind a length that is short": lambda a, h: _first(a, b"Content-Length: 2\r\n", b"{}" + h),
    "behind no length": lambda a, h: _first(a, b"", h),
    "length and chunks, the length long": lambda a, h: _first(
        a, b"Content-Length: %d\r\n" % (len(h) + 5) + CHUNKED, b"0\r\n\r\n" + h),
    "chunks and length, the length short": lambda a, h: _first(
        a, CHUNKED + b"Content-Length: 4\r\n", b"%x\r\n%s\r\n0\r\n\r\n" % (len(h), h)),
    "two lengths, the first short": lambda a, h: _first(
        a, b"Content-Length: 2\r\nContent-Length: %d\r\n" % (2 + len(h)), b"{}" + h),
    "two lengths, the first long": lambda a, h: _first(
        a, b"Content-Length: %d\r\nContent-Length: 2\r\n" % (2 + len(h)), b"{}" + h),
    "two lengths in one": lambda a, h: _first(
        a, b"Content-Length: 2, %d\r\n" % (2 + len(h)), b"{}" + h),
    "a length with a sign": lambda a, h: _first(a, b"Content-Length: +2\r\n", b"{}" + h),
    "a length with zeros": lambda a, h: _first(a, b"Content-Length: 0002\r\n", b"{}" + h),
    "a length in sixteens": lambda a, h: _first(a, b"Content-Length: 0x2\r\n", b"{}" + h),
    "a length in other digits": lambda a, h: _first(
        a, b"Content-Length: \xd9\xa2\r\n", b"{}" + h),
    "a length with a line": lambda a, h: _first(a, b"Content-Length: 2_0\r\n", b"{}" + h),
    "a length below zero": lambda a, h: _first(a, b"Content-Length: -1\r\n", h),
    "a length behind a space": lambda a, h: _first(
        a, b"Content-Length : %d\r\n" % len(h), h),
    "a length on a folded line": lambda a, h: _first(
        a, b"Content-Length:\r\n 2\r\n", b"{}" + h),
    "a length behind a line feed alone": lambda a, h: _first(
        a, b"A: b\nContent-Length: 2\r\n", b"{}" + h),
    "chunks behind a line feed alone": lambda a, h: _first(
        a, b"Content-Length: %d\r\nA: b\nTransfer-Encoding: chunked\r\n" % (5 + len(h)),
        b"0\r\n\r\n" + h),
    "chunks by another name": lambda a, h: _first(
        a, b"Content-Length: 5\r\nTransfer-Encoding: xchunked\r\n", b"0\r\n\r\n" + h),
    "chunks, then none": lambda a, h: _first(
        a, b"Transfer-Encoding: chunked, identity\r\n", b"0\r\n\r\n" + h),
    "chunks, twice": lambda a, h: _first(a, CHUNKED + CHUNKED, b"0\r\n\r\n" + h),
    "chunks, behind a space": lambda a, h: _first(
        a, b"Transfer-Encoding : chunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + h),
    "chunks, behind a tab": lambda a, h: _first(
        a, b"Transfer-Encoding:\tchunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + h),
    "chunks, behind a control character": lambda a, h: _first(
        a, b"Transfer-Encoding: \x0bchunked\r\nContent-Length: 5\r\n", b"0\r\n\r\n" + h),
    "chunks, in quotes": lambda a, h: _first(
        a, b'Transfer-Encoding: "chunked"\r\nContent-Length: 5\r\n', b"0\r\n\r\n" + h),
    "a chunk with an extension": lambda a, h: _first(
        a, CHUNKED, b"2;a=b\r\n{}\r\n0;" + b"x" * 100 + b"\r\n\r\n" + h),
    "a chunk with an extension of lines": lambda a, h: _first(
        a, CHUNKED, b"2;a=\nb\r\n{}\r\n0\r\n\r\n" + h),
    "a chunk of more than there are numbers": lambda a, h: _first(
        a, CHUNKED, b"f" * 20 + b"\r\n{}\r\n0\r\n\r\n" + h),
    "a chunk with a sign": lambda a, h: _first(a, CHUNKED, b"+2\r\n{}\r\n0\r\n\r\n" + h),
    "a chunk that ends in a line feed alone": lambda a, h: _first(
        a, CHUNKED, b"2\n{}\n0\n\n" + h),
    "a chunk that is longer than it says": lambda a, h: _first(
        a, CHUNKED, b"2\r\n{}x\r\n0\r\n\r\n" + h),
    "trailers that are headers": lambda a, h: _first(
        a, CHUNKED, b"2\r\n{}\r\n0\r\nContent-Length: 0\r\nAuthorization: x\r\n\r\n" + h),
    "trailers without an end": lambda a, h: _first(
        a, CHUNKED, b"2\r\n{}\r\n0\r\nA: b\r\n" + h),
    "an upgrade to another protocol": lambda a, h: _first(
        a, b"Connection: Upgrade\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
        b"Content-Length: 2\r\n", b"{}" + h),
    "a body that waits for leave": lambda a, h: _first(
        a, b"Expect: 100-continue\r\nContent-Length: 2\r\n", b"{}" + h),
    "HTTP/1.0 that is kept alive": lambda a, h: _first(
        a, b"Connection: keep-alive\r\nContent-Length: 2\r\n", b"{}" + h
    ).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "HTTP/1.0 with chunks": lambda a, h: _first(
        a, CHUNKED + b"Connection: keep-alive\r\n", b"0\r\n\r\n" + h
    ).replace(b"HTTP/1.1", b"HTTP/1.0", 1),
    "HTTP/0.9": lambda a, h: b"GET " + VAULT.encode() + b"/messages\r\n" + h,
    "a GET with a body": lambda a, h: b"GET " + OPEN_TOPIC.encode() + b" HTTP/1.1\r\n"
        b"Host: localhost\r\n" + a + b"Content-Length: %d\r\n\r\n" % len(h) + h,
    "a GET with a body that is not told": lambda a, h: b"GET " + OPEN_TOPIC.encode()
        + b" HTTP/1.1\r\nHost: localhost\r\n" + a + b"\r\n" + h,
    "in a header": lambda a, h: _first(
        a, b"A: " + h.replace(b"\r\n", b"\r\n ") + b"\r\nContent-Length: 2\r\n", b"{}"),
    "in the request line": lambda a, h: b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n"
        + a + b"\r\n\r\n" + h,
    "behind an empty line": lambda a, h: b"\r\n\r\n" + h,
    "behind spaces": lambda a, h: b"  " + h,
}  # fmt: skip


def enter_hidden(name: str, make: Make) -> None:
    """The first request is alice's and allowed; the hidden request has no token, or mallory's,
    and gets nothing from the vault at either broker."""

    async def run(world: SecuredWorld) -> None:
        alice = bearer(world.tokens["alice"]) + b"\r\n"

        async def one(broker: int, hidden: bytes) -> None:
            found = await world.all_of(make(alice, hidden), broker=broker, wait_s=WAIT_S)
            for status in re.findall(rb"HTTP/1\.[01] (\d+)", found)[1:]:
                assert status[:1] == b"4", found[:1500]

        await asyncio.gather(
            *(
                one(broker, hidden)
                for broker in range(len(world.brokers))
                for lines in ([], [bearer(world.tokens["mallory"])])
                for hidden in (
                    request(lines=lines),
                    request("DELETE", VAULT, lines),
                    request("GET", "/v1/operations", lines),
                )
            )
        )

    secured(f"hidden: {name}")(run)


for hidden_case, hidden_what in HIDDEN.items():
    enter_hidden(hidden_case, hidden_what)


@secured("a second request on a connection that has shown a token")
async def nothing_is_remembered(world: SecuredWorld) -> None:
    alice = bearer(world.tokens["alice"])
    mine = request(path=f"{OPEN_TOPIC}/messages?from=earliest", lines=[alice], close=False)
    for second, status in (
        (request(path=f"{OPEN_TOPIC}/messages?from=earliest"), b"401"),
        (request(), b"401"),
        (request(lines=[alice]), b"403"),
        (request("POST", f"{OPEN_TOPIC}/messages", [b"Content-Type: text/plain"], b"x"), b"401"),
    ):
        for broker in range(len(world.brokers)):
            found = await world.all_of(mine + second, broker=broker)
            statuses = re.findall(rb"HTTP/1\.1 (\d+)", found)
            assert len(statuses) == 2, found[:1500]
            assert statuses[0] in (b"200", b"204"), found[:1500]
            assert statuses[1] == status, found[:1500]


@secured("a message whose head is known, with another's token, and with none")
async def on_the_short_way(world: SecuredWorld) -> None:
    """The fast publish path remembers heads; it must not remember their callers."""

    def publish(token: bytes) -> bytes:
        lines = [b"Content-Type: text/plain", *([bearer(token)] if token else [])]
        return request("POST", f"{OPEN_TOPIC}/messages", lines, b"x", close=False)

    alice, mallory = (world.tokens[name].encode() for name in ("alice", "mallory"))
    bad = alice[:-3] + (b"AAA" if alice[-3:] != b"AAA" else b"BBB")
    for broker in range(len(world.brokers)):
        for token, status in ((alice, 200), (alice, 200), (mallory, 403), (b"", 401), (bad, 401)):
            source = another_address() if token == bad else ""
            said = await world.refused(publish(token), (status,), broker=broker, source=source)
            assert said.status == status


@secured("a message through the short way, with a second one hidden in its body")
async def hidden_on_the_short_way(world: SecuredWorld) -> None:
    alice = bearer(world.tokens["alice"])
    first = request(
        "POST", f"{OPEN_TOPIC}/messages", [b"Content-Type: text/plain", alice], b"x", close=False
    )
    hidden = request("POST", f"{VAULT}/messages", [b"Content-Type: text/plain"], b"x")
    for broker in range(len(world.brokers)):
        found = await world.all_of(first + first + hidden, broker=broker)
        statuses = re.findall(rb"HTTP/1\.1 (\d+)", found)
        assert statuses == [b"200", b"200", b"401"], found[:1500]
