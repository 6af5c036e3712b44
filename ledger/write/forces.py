"""Make bookies sync the adds whose sync was deferred.

Every live bookie must make all entries up to `wanted` durable: only then the writer releases them.
A bookie that failed has to ack and force again; its `Force` tells to which request an answer
belongs. Apache bookies sync before they ack, so their acks count as forced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from octavo.ledger.write.bookie_channel import BookieChannel
from octavo.ledger.write.writer_state import ADDABLE, Force, WriterState
from octavo.protocol.codes import OctavoError, TooManyRequests
from octavo.protocol.extension import Op


class Forces:
    def __init__(
        self,
        core: WriterState,
        timeout_s: float,
        on_forced: Callable[[Force], None],
        on_failed: Callable[[str, OctavoError], None],
    ) -> None:
        """Ask for syncs; `on_forced(asked)` is called when the entries are durable.

        `on_failed(bookie_id, error)`: also after `timeout_s`.
        """
        self._core = core
        self._timeout_s = timeout_s
        self._on_forced = on_forced
        self._on_failed = on_failed
        self._asked: dict[str, object] = {}
        self._resting: dict[str, None] = {}
        """Bookies that were too busy: not asked until the next tick."""
        self.wanted = -1
        """The last entry to make durable."""

    def describe(self) -> dict[str, int]:
        return {"asked": len(self._asked)}

    @property
    def are_owed(self) -> bool:
        """Whether a wanted entry is not confirmed, or a bookie has to be asked."""
        return self.wanted > self._core.lac or bool(self._behind())

    def _behind(self) -> list[int]:
        """Return the positions with acked entries that are not forced."""
        core, wanted = self._core, self.wanted
        durable, written = core.acks.acked_to, core.received.acked_to
        return [p for p in core.live if durable[p] < min(wanted, written[p])]

    def pump(self, channels: Sequence[BookieChannel]) -> None:
        core = self._core
        if not core.deferred or core.state not in ADDABLE:
            return
        for position in self._behind():
            bookie, asked = channels[position].bookie, core.to_force(position)
            bookie_id, connection = bookie.bookie_id, bookie.connection
            if connection is None:
                continue
            if bookie.is_foreign:
                self._on_forced(asked)
            elif bookie_id not in self._asked and bookie_id not in self._resting:
                self._asked[bookie_id] = question = object()
                body = {"ledger": core.metadata.ledger_id}
                done = partial(self._answered, asked, question)
                connection.request(Op.FORCE, body, done, timeout_s=self._timeout_s)

    def rested(self) -> None:
        self._resting.clear()

    def forget(self, bookie_id: str) -> None:
        """Ignore the answer to its request."""
        self._asked.pop(bookie_id, None)

    def _answered(
        self,
        asked: Force,
        question: object,
        error: OctavoError | None,
        _body: dict[str, Any],
    ) -> None:
        bookie_id = asked.bookie_id
        if self._asked.get(bookie_id) is not question:
            return
        del self._asked[bookie_id]
        if error is None:
            self._on_forced(asked)
        elif isinstance(error, TooManyRequests):
            self._resting[bookie_id] = None
        else:
            self._on_failed(bookie_id, error)
