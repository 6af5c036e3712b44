"""Report to operators: the last rounds, why each log stays, and the bytes of each ledger."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from octavo.bookie.entrylog.log import EntryLogs
from octavo.bookie.gc.compaction import Cleared
from octavo.bookie.gc.rules import Action, Decision, LogFacts
from octavo.protocol.codes import BookieIOError

_ROUNDS_KEPT = 10


@dataclass(slots=True)
class Round:
    started_ms: int = 0
    seconds: float = 0.0
    metadata_error: str = ""
    """Why no ledger could be proven gone."""
    ledgers_deleted: int = 0
    logs: int = 0
    logs_removed: int = 0
    reclaimed_bytes: int = 0
    read_bytes: int = 0
    copied_bytes: int = 0
    markers_dropped: int = 0


class CollectorStatus:
    def __init__(self) -> None:
        self.rounds: deque[Round] = deque(maxlen=_ROUNDS_KEPT)
        self.running = False
        self.quarantined = 0
        self.total = Round()
        self.count = 0
        self._logs: dict[int, LogFacts] = {}
        self._decisions: dict[int, Decision] = {}

    @property
    def last(self) -> Round:
        return self.rounds[-1]

    def begin(self, now_ms: int) -> None:
        self.running = True
        self.rounds.append(Round(now_ms))

    def end(self, seconds: float) -> None:
        self.running = False
        self.count += 1
        done, total = self.last, self.total
        done.seconds = seconds
        for name in ("ledgers_deleted", "logs_removed", "reclaimed_bytes", "read_bytes"):
            setattr(total, name, getattr(total, name) + getattr(done, name))
        total.copied_bytes += done.copied_bytes
        total.markers_dropped += done.markers_dropped
        total.seconds += seconds

    def planned(self, logs: Iterable[LogFacts], decisions: Iterable[Decision]) -> None:
        self._logs = {log.log_id: log for log in logs}
        self._decisions = {decision.log_id: decision for decision in decisions}

    def cleared(self, done: Cleared) -> int:
        if done.removed:
            self._decisions.pop(done.log_id, None)
            return self._logs.pop(done.log_id).bytes
        self._decisions[done.log_id] = Decision(done.log_id, Action.KEEP, done.reason)
        return 0

    def newest(self) -> LogFacts | None:
        return self._logs[max(self._logs)] if self._logs else None

    def bytes_by_state(self) -> dict[str, tuple[int, int]]:
        found = {"current": (0, 0), "keep": (0, 0), "rewrite": (0, 0), "unlink": (0, 0)}
        for log_id, log in self._logs.items():
            state = "current" if log.current else self._decisions[log_id].action.value
            count, size = found[state]
            found[state] = (count + 1, size + log.bytes)
        return found

    @property
    def live_bytes(self) -> int:
        """Return the bytes of ledgers that are not deleted, by the maps."""
        return sum(log.live_bytes for log in self._logs.values())

    def as_json(self, limit: int) -> dict[str, Any]:
        logs = sorted(self._logs.values(), key=lambda log: (log.ratio, log.log_id))
        return {
            "running": self.running,
            "rounds": self.count,
            "quarantined_ledgers": self.quarantined,
            "last_rounds": [asdict(done) for done in reversed(self.rounds)],
            "total": asdict(self.total),
            "log_count": len(logs),
            "logs": [
                {
                    "log_id": log.log_id,
                    "bytes": log.bytes,
                    "live_bytes": log.live_bytes,
                    "live_ratio": round(log.ratio, 3),
                    "action": self._decisions[log.log_id].action.value,
                    "reason": self._decisions[log.log_id].reason,
                }
                for log in logs[:limit]
            ],
        }


async def ledger_sizes(logs: EntryLogs, limit: int) -> dict[str, Any]:
    """Return the longest ledgers first, and the sums over all."""
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
    longest = sorted(found.items(), key=lambda one: (-one[1][0], one[0]))[:limit]
    return {
        "ledger_count": len(found),
        "bytes": sum(stored for stored, _ in found.values()),
        "ledgers": [
            {"ledger_id": ledger_id, "stored_bytes": stored, "logs": count}
            for ledger_id, (stored, count) in longest
        ],
        "unreadable_logs": unreadable,
    }
