"""Has bookies make durable what they acked before its sync: for ledgers with deferred syncs.

Up to `wanted` every live bookie is to have everything for good, also when an ack quorum has it:
only then the writer lets go of it. Whatever a bookie has acked and has not forced yet it is asked
to force, one question at a time; what it acks meanwhile is asked for next.
A bookie that failed is asked again, for it has to ack all of that again: the writer state knows by
its `Force` which question an answer belongs to, and `forget` makes room for the new question.
Apache's bookies do not know our operation, and sync an add before they ack it, whatever our flag
says: their acks are as good.
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
    """Those of one writer."""

    def __init__(
        self,
        core: WriterState,
        timeout_s: float,
        on_forced: Callable[[Force], None],
        on_failed: Callable[[str, OctavoError], None],
    ) -> None:
        """`on_forced(asked)` when a bookie has that for good; `on_failed(bookie_id, error)` when
        it could not, or did not answer in `timeout_s`."""
        self._core = core
        self._timeout_s = timeout_s
        self._on_forced = on_forced
        self._on_failed = on_failed
        self._asked: dict[str, object] = {}
        self._resting: dict[str, None] = {}
        """Bookies that have too much to do, until the next tick."""
        self.wanted = -1
        """See above."""

    def describe(self) -> dict[str, int]:
        """Count what is in use now; at rest all of it is 0."""
        return {"asked": len(self._asked)}

    @property
    def are_owed(self) -> bool:
        """Whether something wanted is not confirmed, or a bookie has to be asked for it."""
        return self.wanted > self._core.lac or bool(self._behind())

    def _behind(self) -> list[int]:
        """The positions of those who have something to force."""
        core, wanted = self._core, self.wanted
        durable, written = core.acks.acked_to, core.received.acked_to
        return [p for p in core.live if durable[p] < min(wanted, written[p])]

    def pump(self, channels: Sequence[BookieChannel]) -> None:
        """Ask who has something to force."""
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
        """Who had too much to do may be asked again."""
        self._resting.clear()

    def forget(self, bookie_id: str) -> None:
        """What the bookie was asked counts no more."""
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
