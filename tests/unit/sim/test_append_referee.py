"""The referee of append times reports each lie, and no true history."""

from __future__ import annotations

from octavo.broker.types import PartitionName, StoredBatch
from octavo.protocol.append_time import shown, stamped
from octavo.protocol.batch import read_header
from octavo.protocol.records import Record, build_batch
from tests.sim.append_audit import AppendAudit
from tests.sim.clocks import Clocks
from tests.sim.topic_audit import LogHistory
from tests.sim.trace import Trace

NOW = 1_700_000_000_000


class Story:
    """Messages of a partition, each its own batch, and a world clock."""

    def __init__(self, how: str = "append") -> None:
        self.failures: list[str] = []
        self.now_ms = NOW
        self.clocks = Clocks()
        self.log = LogHistory(PartitionName("public", "t", 0), [], Trace(), self.failures.append)
        self.log.appends = AppendAudit(
            how, self.clocks, lambda: self.now_ms, Trace(), self.failures.append
        )

    def stored(self, count: int = 1) -> Story:
        for _ in range(count):
            value, offset = f"v{len(self.log.sent)}", self.log.acked_end
            self.log.sends([value], "p", -1, offset)
            self.log.stamped([value], [5], self.now_ms)
            self.log.acked([value], offset, duplicate=False)
        return self

    def seen(self, offset: int, off_ms: int | None, who: str = "reader v1") -> Story:
        data = build_batch([Record(None, f"v{offset}".encode(), (), 5)])
        header = read_header(data)._replace(base_offset=offset)
        header = shown(header, None) if off_ms is None else stamped(header, NOW + off_ms)
        self.log.batch(StoredBatch(offset, 1, offset, header, data), who)
        return self

    def ended(self) -> list[str]:
        self.log.check_whole(0, self.log.acked_end)
        return self.failures


def test_a_good_history_is_left_alone() -> None:
    story = Story().stored(3).seen(0, 0).seen(1, 0).seen(2, 100).seen(1, 0, "judge")
    assert story.ended() == []
    assert [story.log.time_at(n) for n in range(3)] == [NOW, NOW, NOW + 100]
    story = Story("changes").stored(2).seen(0, None).seen(1, 0)
    assert story.ended() == []
    assert [story.log.time_at(n) for n in range(2)] == [5, NOW]
    assert Story("create").stored().seen(0, None).ended() == []


def test_each_lie_is_told() -> None:
    for story, told in (
        (Story().stored().seen(0, None), "offset 0: reader v1 sees append time None"),
        (Story("create").stored().seen(0, 0), "the topic says create"),
        (Story().stored().seen(0, 0).seen(0, 1), f"before it was {NOW}"),
        (Story().stored(2).seen(0, 9).seen(1, 8), f"one before it at {NOW + 9}"),
        (Story().stored().seen(0, 151), "clocks were off"),
        (Story().stored().seen(0, -151), "clocks were off"),
    ):
        assert any(told in one and one.startswith("P66") for one in story.ended()), told
    story = Story().stored().seen(0, 0)
    story.log.viewed(0, 5, "z1")
    assert "z1 sees 5 in a view" in story.failures[0]


def test_owners_may_have_had_the_clocks_that_were_set() -> None:
    story = Story().stored(2).seen(0, -3_600_000).seen(1, 3_600_100)
    story.clocks.was_set(-3_600_000)
    story.clocks.was_set(3_600_000)
    assert story.ended() == []
