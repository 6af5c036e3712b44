"""The attempts against a secured cluster, by name."""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.attack.attempts import Attempt
from tests.attack.secured.world import VAULT, SecuredWorld

Run = Callable[[SecuredWorld], Awaitable[None]]

SECURED: dict[str, Attempt] = {}
_ADDRESSES = itertools.count()


def secured(
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

        secured(f"{prefix}: {name}")(run)


def another_address() -> str:
    number = next(_ADDRESSES)
    return f"127.9.{number // 250}.{number % 250 + 1}"
