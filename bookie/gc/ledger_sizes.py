"""How many bytes each ledger has in the entry logs: what `GET /ledgers` answers.

From the maps of sealed logs; a log without one is stepped through. Read when it is asked for, on a
thread of its own; nothing is kept. Write cache and journal are not counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from octavo.bookie.entrylog.log import EntryLogs
from octavo.protocol.codes import BookieIOError

_LIMIT = 1000


async def ledger_sizes(logs: EntryLogs, query: Mapping[str, str]) -> dict[str, Any]:
    """The longest `limit` ledgers, the longest first, and the sums over all of them.

    Raises `ValueError` for a limit that is no number.
    """
    limit = int(query.get("limit", _LIMIT))
    return await asyncio.get_running_loop().run_in_executor(None, _collect, logs, limit)


def _collect(logs: EntryLogs, limit: int) -> dict[str, Any]:
    found: dict[int, tuple[int, int]] = {}
    unreadable: list[dict[str, Any]] = []
    for log_id in logs.log_ids:
        try:
            sums = logs.ledgers_of(log_id)
        except BookieIOError as error:
            unreadable.append({"log_id": log_id, "reason": str(error)})
            continue
        for ledger_id, size in sums.items():
            stored, count = found.get(ledger_id, (0, 0))
            found[ledger_id] = (stored + size, count + 1)
    longest = sorted(found.items(), key=lambda one: (-one[1][0], one[0]))[: max(limit, 0)]
    return {
        "ledger_count": len(found),
        "bytes": sum(stored for stored, _ in found.values()),
        "ledgers": [
            {"ledger_id": ledger_id, "stored_bytes": stored, "logs": count}
            for ledger_id, (stored, count) in longest
        ],
        "unreadable_logs": unreadable,
    }
