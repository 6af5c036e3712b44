"""A client that reaches the bookies writes into other clients' ledgers, with and without their
password."""

from __future__ import annotations

import asyncio
import subprocess

from octavo.protocol.codes import Code
from octavo.protocol.entry import master_key
from octavo.protocol.frames import Flag
from tests.attack.attempts import attempt
from tests.attack.attempts_ids import FOREIGN, newest_ledger, stores
from tests.attack.world import World
from tests.support.processes.standalone import OCTAVO
from tests.support.raw_bookie import OURS, RawClient, add_of

RECOVERY = OURS | int(Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY)
MESSAGES = 5


async def filled(world: World, name: str) -> tuple[str, int]:
    path = await world.topic(name)
    for _ in range(MESSAGES):
        await stores(world, path)
    return path, await newest_ledger(world, path)


async def refused_everywhere(world: World, frames: list[bytes], code: Code) -> None:
    for _, port in world.bookies:
        client = await RawClient.connect_to(port)
        try:
            for frame in frames:
                assert await client.add(frame) is code, frame[:60]
        finally:
            client.close()


async def is_unharmed(world: World, path: str, messages: int) -> None:
    said = await world.ask("GET", f"{path}/messages?from=0", Accept="application/x-ndjson")
    assert said.status == 200, said
    assert said.body.count(b'"x"') == messages, said
    assert b"EVIL" not in said.body
    await stores(world, path)


@attempt("a ledger written into without its password")
async def strangers(world: World) -> None:
    path, ledger = await filled(world, "ledger-of-others")
    frames = [
        add_of(ledger, entry, b"EVIL", flags=flags, key=key)
        for key in (master_key(b""), FOREIGN)
        for flags in (0, OURS, RECOVERY)
        for entry in (0, MESSAGES - 1, MESSAGES, 10**6)
    ]
    await refused_everywhere(world, frames, Code.UNAUTHORIZED)
    await is_unharmed(world, path, MESSAGES)


@attempt("acked entries overwritten, a LAC of a million, by who has the password")
async def a_client_with_a_bug(world: World) -> None:
    path, ledger = await filled(world, "ledger-of-ours")
    command = [*OCTAVO, "ledger", "password", "--data", str(world.cluster.folder)]
    said = await asyncio.to_thread(subprocess.run, command, capture_output=True, check=True)
    key = master_key(said.stdout.strip())
    other_bytes = [
        add_of(ledger, entry, b"EVIL", flags=flags, key=key)
        for flags in (OURS, RECOVERY)
        for entry in range(MESSAGES)
    ]
    false_lac = [add_of(ledger, 10**6, b"EVIL", key=key, lac=lac) for lac in (10**6, 2 * 10**6)]
    await refused_everywhere(world, other_bytes + false_lac, Code.BAD_REQUEST)
    await is_unharmed(world, path, MESSAGES)
