"""The referee of times: what retention trims by time, and where a time is said to begin (P60, P61).

It judges by the one true time that only the simulator knows; a message is never younger than its
sending.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.broker.log.ledger_list import end_offset
from octavo.metadata.clock import ClockRecord
from octavo.metadata.topic_records import PartitionLedger, decode_record
from tests.sim.metadata_tree import Change
from tests.sim.topic_audit import LogHistory
from tests.sim.trace import Trace

_SLACK_MS = 150
"""How far clocks may drift in a seed without being doubted, and calls may take."""


class TimeAudit:
    """`retention_ms` is None when more than time may trim."""

    def __init__(
        self,
        retention_ms: int | None,
        now_ms: Callable[[], int],
        trace: Trace,
        fail: Callable[[str], None],
        *,
        two_clocks: bool,
    ) -> None:
        self._retention_ms = retention_ms
        self._now_ms = now_ms
        self._began_ms = now_ms()
        self._trace = trace
        self._fail = fail
        self._two_clocks = two_clocks
        """The metadata store has a clock too; else each broker has only its machine's."""
        self._misled = False
        """A single clock was ahead when the cluster was first used: no broker could know."""

    def _slack_ms(self) -> int:
        return _SLACK_MS + (self._now_ms() - self._began_ms) // 50

    def age_ms(self, stamp_ms: int) -> int:
        """Return the highest possible age of a stamp, by any clock that is rightly believed."""
        if self._misled or not self._two_clocks:
            return 10**18
        return self._now_ms() - stamp_ms + self._slack_ms()

    def clock_written(self, change: Change) -> None:
        assert change.value is not None
        known_ms = decode_record(ClockRecord, change.path, change.value).time_ms
        if known_ms <= self._now_ms() + self._slack_ms():
            return
        if self._two_clocks:
            self._fail(f"P60 the time written down is {known_ms - self._now_ms()} ms ahead")
        self._misled = True

    def trimmed(
        self, log: LogHistory, first: int, end: int, links: Iterable[PartitionLedger] = ()
    ) -> None:
        """Check that retention trimmed `first` up to `end` (excluded); `links` held them."""
        if self._retention_ms is None or self._misled:
            return
        now_ms = self._now_ms()
        dated = [link for link in links if _is_dated(link, now_ms)]
        for offset in range(first, end):
            message = log.at.get(offset)
            stamp_ms = log.time_at(offset)
            if message is None or stamp_ms is None or not message.sent_ms:
                continue
            by_stamp = 0 <= stamp_ms <= message.sent_ms
            by_date = not by_stamp or any(
                link.base_offset <= offset < end_offset(link) for link in dated
            )
            if by_date and not self._two_clocks:
                continue  # dated by an owner with a wrong clock, trimmed by one with a right one
            age_ms = now_ms - (stamp_ms if by_stamp else message.sent_ms)
            self._trace.probe(f"time.trimmed_by_{'stamp' if by_stamp else 'arrival'}")
            if age_ms + self._slack_ms() < self._retention_ms:
                self._fail(
                    f"P60 {log.name} offset {offset} {message.value!r} was trimmed when it was "
                    f"{age_ms} ms old; kept for {self._retention_ms} ms"
                )

    def looked_up(self, log: LogHistory, time_ms: int, found: int, end: int, who: str) -> None:
        """Check the offset where `time_ms` begins, for a caller that saw the log end at `end`."""
        self._trace.probe(f"time.looked_up_by_{who}")
        for offset in range(log.trimmed, found):
            stamp_ms = log.time_at(offset)
            if stamp_ms is not None and stamp_ms >= time_ms:
                self._fail(
                    f"P61 {log.name}: {time_ms} ms begins at offset {offset}, which has "
                    f"{stamp_ms} ms; {who} says {found}"
                )
                return
        stamp_ms = log.time_at(found) if found < end else None
        if stamp_ms is not None and stamp_ms < time_ms:
            self._fail(
                f"P61 {log.name}: {who} says that {time_ms} ms begins at offset {found}, which has "
                f"{stamp_ms} ms"
            )


def _is_dated(link: PartitionLedger, now_ms: int) -> bool:
    """Whether its age is its date's: some message has no time, or a time in the future."""
    return link.aging_since_ms is not None and (link.first_ms < 0 or link.last_ms > now_ms)
