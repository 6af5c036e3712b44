"""Clients that ask more than bookies can bear, and leave in the middle of it (profile `crowd`).

Bounds are tiny and the disks slow, so a resource that a bookie does not get back is missing for the
next client; Q1 finds it, and the ordinary clients have to go on.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from octavo.protocol.codes import OctavoError
from octavo.protocol.extension import Op, encode_request
from octavo.protocol.frames import LENGTH, batch_read_request, read_request
from tests.sim.options import SimOptions
from tests.sim.sim_client import SimClient

if TYPE_CHECKING:
    from tests.sim.ledger_load import LedgerLoad

_CONNECT_S = 0.5
_POLL_MS = (1, 50, 2_000)


def crowded(options: SimOptions, rng: random.Random) -> SimOptions:
    """Return the options of a seed with a crowd: few turns, few tasks, one thread, cold reads."""
    bookie: Mapping[str, Any] = {
        **options.bookie,
        "read_threads": 1,
        "read_tasks_max": rng.choice((2, 4)),
        "reads_waiting_max": rng.choice((2, 4, 16)),
        "read_wait_ms_max": rng.choice((20, 500)),
        "long_polls_max": rng.choice((2, 4)),
        "read_cache_bytes_max": 1_000,
        "write_cache_bytes_max": 700,
        "flush_interval_ms": 200,
    }
    faults = {kind: s for kind, s in options.faults.items() if rng.random() < 0.4}
    faults = {**faults, "slow_disk": 0.3, "reset": rng.choice((0.2, 0.6))}
    return replace(
        options,
        bookie=bookie,
        faults=faults,
        crowd=rng.choice((1, 2, 4)),
        safety_s=rng.choice((0.7, 1.5)),
        ledgers=2,
    )


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None


async def crowd(load: LedgerLoad, client: SimClient) -> None:
    rng = client.rng
    while not load.over:
        bookie = rng.choice(list(load.cluster.bookies))
        try:
            async with asyncio.timeout(_CONNECT_S):
                host, port = await client.ledgers.bookies.address(bookie)
                loop = asyncio.get_running_loop()
                _, connection = await loop.create_connection(_Connection, host, port)
        except (OSError, TimeoutError, OctavoError):
            await asyncio.sleep(rng.uniform(0.01, 0.1))
            continue
        if connection.transport is not None and rng.random() < 0.3:
            connection.transport.pause_reading()
        for _ in range(rng.randint(1, 3)):
            if connection.transport is not None:
                connection.transport.write(_burst(load, rng))
                await asyncio.sleep(rng.choice((0.0, 0.0005, 0.005, 0.05)))
        if connection.transport is not None:
            end = rng.choice((connection.transport.close, connection.transport.abort))
            end()
        load.cluster.trace.probe("crowd.went_away")
        await asyncio.sleep(rng.choice((0.001, 0.02)))


def _burst(load: LedgerLoad, rng: random.Random) -> bytes:
    known = list(load.audit.ledgers) or [0]
    frames = []
    for number in range(rng.randint(2, 30)):
        ledger_id, entry_id = rng.choice(known), rng.randrange(8)
        kind = rng.choice(("read", "read", "batch", "poll"))
        if kind == "read":
            frames.append(read_request(ledger_id, entry_id))
        elif kind == "batch":
            frames.append(batch_read_request(ledger_id, entry_id, number, 10, 500))
        else:
            body = {"ledger": ledger_id, "after": 1_000, "timeout_ms": rng.choice(_POLL_MS)}
            frames.append(encode_request(Op.WAIT_LAC, number, body))
    if rng.random() < 0.4:
        frames.append(LENGTH.pack(20_000) + b"\0" * rng.choice((4, 3_000)))
    return b"".join(bytes(frame) for frame in frames)
