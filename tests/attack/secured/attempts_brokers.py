"""Calls that claim to come from another broker: without proof, with false and with old proofs."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from octavo.broker.http.broker_calls import BrokerProof
from tests.attack.secured.attempts import bearer, request, secured
from tests.attack.secured.world import VAULT, SecuredWorld

BY, TO = "Octavo-Forwarded-By", "Octavo-Forwarded-To"
IDENTITY, NONCE = "Octavo-Forwarded-Identity", "Octavo-Forwarded-Nonce"
PROOF, SEAL, ESCAPED = (
    "Octavo-Forwarded-Proof", "Octavo-Forwarded-Seal", "Octavo-Forwarded-Escaped",
)  # fmt: skip
READ = f"{VAULT}/messages?from=earliest"
ROOT = json.dumps(["user:root", [], "token", None])
RUN = "0123456789abcdef"


def sent(headers: Mapping[str, str], *lines: bytes, method: str = "GET", path: str = READ) -> bytes:
    """Send a call with these headers."""
    made = [
        f"{name}: {value}".encode("utf-8", "surrogateescape") for name, value in headers.items()
    ]
    return request(method, path, [*made, *lines])


def forged(world: SecuredWorld, broker: int, key: bytes, path: str = READ) -> dict[str, str]:
    """Build a broker's headers, as far as they can be guessed, with a proof by `key`."""
    other = (broker + 1) % len(world.names)
    headers = {
        BY: world.names[other], TO: world.names[broker], IDENTITY: ROOT, NONCE: f"{RUN}-0",
    }  # fmt: skip
    for name, covered in (
        (PROOF, (BY, TO, "Octavo-Incarnation", ESCAPED)),
        (SEAL, (BY, TO, "Octavo-Incarnation", ESCAPED, IDENTITY, NONCE)),
    ):
        fields = ("GET", path, *(headers.get(one, "") for one in covered))
        text = "\0".join(fields).encode()
        headers[name] = hmac.digest(key, text, hashlib.sha256).hex()
    return headers


def real(world: SecuredWorld, broker: int, who: str, path: str = READ) -> dict[str, str]:
    """Return a real call of another broker, recorded on the way."""
    from octavo.security.principal import Identity

    headers: dict[str, str] = {}
    other = world.names[(broker + 1) % len(world.names)]
    made: Any = BrokerProof
    key = world.node_keys["calls between brokers"]
    world.calls += 1
    proof = made(key, f"{world.calls:016x}", lambda: True)
    proof.enter(headers, other, world.names[broker], "GET", path, Identity(f"user:{who}"))
    return headers


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
    """Try it as a stranger, and with mallory's good token."""

    async def run(world: SecuredWorld) -> None:
        for broker, own in enumerate(world.names):
            other = world.names[(broker + 1) % len(world.names)]
            told = {k: v.format(own=own, other=other) if "{o" in v else v
                    for k, v in headers.items()}  # fmt: skip
            await world.refused(sent(told), (401, 503), broker=broker)
            if "Authorization" not in told:
                mallory = bearer(world.tokens["mallory"])
                await world.refused(sent(told, mallory), (403, 503), broker=broker)
            inner = sent(told, path="/v1/operations")
            await world.refused(inner, (401, 403, 503), broker=broker)

    secured(f"as a broker: {name}")(run)


for one, what in SAID.items():
    enter_said(one, what)


@secured("as a broker: a proof made with other keys")
async def other_keys(world: SecuredWorld) -> None:
    keys = [b"", bytes(32), world.key]
    keys += [world.node_keys[use] for use in ("nodes", "bookies", "bookie readers")]
    for broker in range(len(world.brokers)):
        for key in keys:
            await world.refused(sent(forged(world, broker, key)), (401,), broker=broker)


@secured("as a broker: the proof of before, which says nothing of whom it is for")
async def former_proof(world: SecuredWorld) -> None:
    """Brokers of 0.1 knew no identity; a secured cluster must not take their proofs."""
    for broker in range(len(world.brokers)):
        headers = forged(world, broker, world.node_keys["calls between brokers"])
        for dropped in ((SEAL,), (SEAL, IDENTITY), (SEAL, IDENTITY, NONCE)):
            left = {name: value for name, value in headers.items() if name not in dropped}
            await world.refused(sent(left), (401,), broker=broker)


@secured("as a broker: a call that was recorded, made again")
async def replayed(world: SecuredWorld) -> None:
    """A forwarded call of keeper is valid once, and for no other call."""
    owner = await world.owner(VAULT)
    for broker in range(len(world.brokers)):
        headers = real(world, broker, "keeper")
        first = await world.ask("GET", READ, broker=broker, who=None, **_named(headers))
        wanted = 200 if broker == owner else 503
        assert first.status == wanted, f"or this attempt tries nothing: {first}"
        for _ in range(3):
            await world.refused(sent(headers), (401, 403, 409, 503), broker=broker)


@secured("as a broker: a call that was recorded, changed")
async def changed(world: SecuredWorld) -> None:
    for broker in range(len(world.brokers)):
        other = (broker + 1) % len(world.brokers)
        nodes = json.dumps(["node:broker-1", [], "node", None])
        for change in (
            {IDENTITY: ROOT},
            {IDENTITY: nodes},
            {NONCE: f"{RUN}-99"},
            {TO: world.names[other]},
            {BY: world.names[broker]},
            {"Octavo-Incarnation": "x"},
            {ESCAPED: "octavo-forwarded-identity"},
        ):
            headers = {**real(world, broker, "mallory"), **change}
            await world.refused(sent(headers), (401, 403, 503), broker=broker)
        headers = real(world, broker, "keeper", f"{VAULT}/messages?from=latest")
        await world.refused(sent(headers), (401,), broker=broker)  # another path
        headers = real(world, broker, "keeper")
        await world.refused(sent(headers, method="POST"), (400, 401), broker=broker)
        await world.refused(sent(headers, method="DELETE", path=VAULT), (401,), broker=broker)
        headers = real(world, broker, "keeper")
        said = await world.refused(sent(headers), (401, 403, 409, 503), broker=other)
        assert said.status, "of another target"


@secured("as a broker: for somebody who may not")
async def for_another(world: SecuredWorld) -> None:
    """A broker too gets for its caller what that caller may have, and no more."""
    for broker in range(len(world.brokers)):
        for who in ("mallory", "alice", "nobody"):
            headers = real(world, broker, who)
            await world.refused(sent(headers), (403,), broker=broker)


@secured("as a broker: an identity whose proof has ended")
async def ended_identity(world: SecuredWorld) -> None:
    from octavo.security.principal import Identity

    for broker in range(len(world.brokers)):
        headers: dict[str, str] = {}
        made: Any = BrokerProof
        world.calls += 1
        proof = made(world.node_keys["calls between brokers"], f"{world.calls:016x}", lambda: True)
        ended = Identity("user:keeper", source="token", expires_at_s=1.0)
        proof.enter(headers, world.names[broker - 1], world.names[broker], "GET", READ, ended)
        await world.refused(sent(headers), (401,), broker=broker)


def _named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("-", "_"): value for name, value in headers.items()}
