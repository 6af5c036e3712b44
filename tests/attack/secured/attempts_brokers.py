"""Calls that claim to come from another broker: without proof, with false and with old proofs."""

from __future__ import annotations

import json
from collections.abc import Mapping

from octavo.broker.operations.upgrade import NONCE_HEADER, PROTOCOL, Upgrade, headers_of
from tests.attack.secured.attempts import bearer, request, secured
from tests.attack.secured.world import VAULT, SecuredWorld
from tests.support.former_proofs import (
    BY,
    ESCAPED,
    IDENTITY,
    NONCE,
    PROOF,
    SEAL,
    TO,
    former_headers,
)  # fmt: skip

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


for one, what in SAID.items():
    enter_said(one, what)


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
