"""Pages of other sites in the browser of a user with rights: they see and change nothing."""

from __future__ import annotations

import re

from tests.attack.secured.attempts import bearer, request, secured
from tests.attack.secured.world import VAULT, SecuredWorld

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


for one, what in FOREIGN.items():
    enter_page(one, what)


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
