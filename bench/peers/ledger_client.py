"""Add entries to a ledger as fast as possible, like B2's writer."""

from __future__ import annotations

import random
from typing import Any

import structlog
import uvloop

from bench.b2_three_bookies import ledger_client, write
from bench.peers.figures import Stopwatch


def ledger(job: dict[str, Any]) -> dict[str, Any]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    return uvloop.run(_ledger(job))


async def _ledger(job: dict[str, Any]) -> dict[str, Any]:
    payload = random.Random(7).randbytes(job["entry_bytes"])
    acked, figures = 0, {}
    async with ledger_client(job["url"]) as client:
        for seconds in (job["warm_s"], job["seconds"]):
            watch = Stopwatch()
            writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            count, _ = await write(writer, payload, seconds)
            await writer.close()
            figures = watch.figures(count)
            await client.delete(writer.ledger_id)
            acked += count
    return {**figures, "acked": acked}
