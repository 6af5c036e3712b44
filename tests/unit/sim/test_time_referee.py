"""The referee of times reports each lie, and no good history."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from octavo.broker.types import PartitionName
from octavo.metadata.clock import CLOCK_PATH, ClockRecord
from octavo.metadata.topic_records import PartitionLedger, encode_record
from tests.sim.metadata_tree import Change
from tests.sim.time_audit import TimeAudit
from tests.sim.topic_audit import LogHistory
from tests.sim.trace import Trace

NOW = 1_700_000_000_000
KEPT_MS = 1_000


class Story:
    """Messages of a partition, kept for a second, and a world clock."""

    def __init__(self, *, two_clocks: bool = True) -> None:
        self.failures: list[str] = []
        self.now_ms = NOW
        name = PartitionName("public", "t", 0)
        self.log = LogHistory(name, [], Trace(), self.failures.append)
        self.audit = TimeAudit(
            KEPT_MS, lambda: self.now_ms, Trace(), self.failures.append, two_clocks=two_clocks
        )

    def stored(self, *stamps_ms: int) -> Story:
        """Send and ack messages now, one after another, stamped this much before now."""
        for off_ms in stamps_ms:
            value, offset = f"v{len(self.log.sent)}", self.log.acked_end
            self.log.sends([value], "p", -1, offset)
            stamp_ms = -1 if off_ms == -1 else self.now_ms + off_ms
            self.log.stamped([value], [stamp_ms], self.now_ms)
            self.log.acked([value], offset, duplicate=False)
        return self

    def later(self, ms: int) -> Story:
        self.now_ms += ms
        return self

    def trimmed(self, first: int, end: int, *links: PartitionLedger) -> Story:
        self.audit.trimmed(self.log, first, end, links)
        return self

    def asked(self, off_ms: int, found: int) -> Story:
        end = self.log.acked_end
        self.audit.looked_up(self.log, NOW + off_ms, found, end, "owner")
        return self

    def written(self, off_ms: int) -> Story:
        value = encode_record(ClockRecord(self.now_ms + off_ms))
        self.audit.clock_written(Change(0.0, 1, CLOCK_PATH, value, 1, "k1", 1))
        return self


BAD: dict[str, Callable[[], Story]] = {
    "P60 public/t/0 offset 0 'v0' was trimmed when it was 0 ms old": (
        lambda: Story().stored(0).trimmed(0, 1)
    ),
    "P60 public/t/0 offset 1 'v1' was trimmed when it was 500 ms old": (
        lambda: Story().stored(-(10**9), 10**9).later(500).trimmed(0, 2)
    ),
    "P60 public/t/0 offset 0 'v0' was trimmed when it was 200 ms": (
        lambda: Story().stored(-1).later(200).trimmed(0, 1)
    ),
    "P60 the time written down is 5000 ms ahead": lambda: Story().written(5000),
    "P61 public/t/0: 1700000000100 ms begins at offset 0": (
        lambda: Story().stored(100, 10, 110).asked(100, 3)
    ),
    "P61 public/t/0: owner says that 1700000000110 ms begins at offset 1": (
        lambda: Story().stored(100, 10, 110).asked(110, 1)
    ),
}


@pytest.mark.parametrize("said", BAD)
def test_a_lie_is_told(said: str) -> None:
    failures = BAD[said]().failures
    assert any(what.startswith(said) for what in failures), failures


def test_a_good_history_is_left_alone() -> None:
    story = Story().stored(-5_000, -1, 10**9, 0).written(0).trimmed(0, 1).later(2_000)
    story.trimmed(1, 4).stored(100, 10).written(100)
    assert not story.failures
    story = Story().stored(100, 10, 110, 20).asked(0, 0).asked(101, 2).asked(111, 4)
    assert not story.failures


def test_what_one_clock_cannot_know_is_not_asked_of_it() -> None:
    """A machine whose clock was ahead from the beginning, or which dates messages without a
    time."""
    assert not Story(two_clocks=False).written(5_000).stored(0).trimmed(0, 1).failures
    assert not Story(two_clocks=False).stored(-1, 10**9).trimmed(0, 2).failures
    assert Story(two_clocks=False).stored(0).trimmed(0, 1).failures
    link = PartitionLedger(1, 0, 1, first_ms=NOW, last_ms=NOW, aging_since_ms=NOW - 10**6)
    assert Story(two_clocks=False).stored(0).trimmed(0, 1, link).failures, "the stamp is known"
    far = replace(link, last_ms=NOW + 10**9)
    assert not Story(two_clocks=False).stored(0).trimmed(0, 1, far).failures
    assert Story().stored(0).trimmed(0, 1, far).failures
