"""Report each decision of the gate, or count it: as a log event, and in the audit topic.

An event has `time` (RFC 3339), `principal`, `source` (what authenticated the principal),
`operation`, `resource`, `peer` (the address), `allowed`, `reason`, `call`, `broker`, `count` (how
often since the last report) and, if events were dropped for lack of room, `lost`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import structlog

from octavo.broker.audit.writer import EVERY_S, AuditWriter, PassOn
from octavo.broker.broker import Broker
from octavo.broker.internal_topics import AUDIT_TOPIC
from octavo.security.audit import REASON_CHARS, AuditBook, Decided, Deed, deed_of
from octavo.security.principal import ANONYMOUS

CLOSE_S = 3.0
"""How long a stopping broker tries to store waiting events."""
_LEVELS = {name: getattr(logging, name.upper()) for name in ("debug", "info", "warning", "error")}

log = structlog.get_logger()


class AuditLog:
    """The audit log of a broker. `start` begins to write; `close` stores waiting events."""

    def __init__(
        self,
        broker: Broker,
        pass_on: PassOn,
        *,
        clock: Callable[[], int],
        rng: random.Random,
        count_lost: Callable[[], object] = lambda: None,
        count_written: Callable[[int], object] = lambda _count: None,
    ) -> None:
        """`clock`: milliseconds since 1970."""
        self._broker = broker
        self._clock = clock
        self._level = _LEVELS[broker.config.audit_log_level]
        self._book = AuditBook()
        self._loop = asyncio.get_running_loop()
        self._writer = AuditWriter(
            broker, pass_on, rng=rng, count_lost=count_lost, count_written=count_written
        )
        self._task: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Events that are not in the topic yet."""
        return self._writer.waiting

    def start(self) -> None:
        """Write waiting events once a second from now on."""
        self._task = asyncio.create_task(self._run(), name="audit")

    async def close(self) -> None:
        """Report counted decisions and store waiting events, within `CLOSE_S`. May be repeated."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        self._tell_due(all_of_it=True)
        try:
            async with asyncio.timeout(CLOSE_S):
                await self._writer.write_all()
        except TimeoutError:
            log.error("audit_lost", topic=str(AUDIT_TOPIC), count=self.waiting)

    def on_decision(self, found: Decided) -> None:
        """Note an allowed or refused operation. Never waits."""
        if not self._book.wants(found.identity, found.operation, found.allowed):
            return
        if found.resource.name.startswith(_OWN) and found.identity.is_node:
            return
        self._note(deed_of(found))

    def on_unauthenticated(self, peer: str, call: str, reason: str) -> None:
        """Note a caller without valid credentials."""
        who, why = ANONYMOUS, reason[:REASON_CHARS]
        self._note(Deed(who.name, who.source, "authenticate", "cluster", peer, False, why, call))

    def _note(self, deed: Deed) -> None:
        if self._book.note(deed, self._loop.time()):
            self._tell(deed, 1)

    def _tell_due(self, *, all_of_it: bool = False) -> None:
        for deed, count in self._book.due(self._loop.time(), all_of_it=all_of_it):
            self._tell(deed, count)

    def _tell(self, deed: Deed, count: int) -> None:
        now_ms = self._clock()
        said: dict[str, Any] = {
            name: value for name, value in deed._asdict().items() if value != ""
        }
        said["count"] = count
        log.log(self._level, "audit", **said)
        if self._broker.config.audit_topic:
            time = datetime.fromtimestamp(now_ms / 1000, UTC).isoformat(timespec="milliseconds")
            event = {"time": time, **said, "broker": self._broker.broker_id}
            self._writer.add(event, now_ms)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(EVERY_S)
            self._tell_due()
            await self._writer.write_all()


_OWN = str(AUDIT_TOPIC)
