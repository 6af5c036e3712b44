"""The referee of published batches reports each lie about a batch, and no true story."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from octavo.broker.types import PartitionName, Published
from octavo.metadata.bulk_loads import BULK_LOADS_ROOT, BulkLoadRecord
from octavo.metadata.topic_records import encode_record
from octavo.protocol.records import Record, build_batch
from tests.sim.published_audit import PublishedAudit, PublishedBatch
from tests.sim.topic_audit import LogHistory
from tests.sim.trace import Trace

A, B = (PartitionName("public", "t", number) for number in (0, 1))


class Story:
    """Events of a batch of a query for the referee, and its reports."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.logs = {name: LogHistory(name, [], Trace(), self.failures.append) for name in (A, B)}
        topics: Any = SimpleNamespace(logs=self.logs)
        self.audit = PublishedAudit(topics, Trace(), self.failures.append)
        self.batch = PublishedBatch("q", 0, {A: ["a1", "a2"], B: ["b1"]})
        self.audit.planned(self.batch)

    def record(self, **fields: Any) -> None:
        self._changed(encode_record(BulkLoadRecord(**fields)))

    def forgotten(self) -> None:
        self._changed(None)

    def _changed(self, value: bytes | None) -> None:
        change: Any = SimpleNamespace(path=f"{BULK_LOADS_ROOT}/q", value=value)
        self.audit.changed(change)

    def stored(self, name: PartitionName, *values: str, at: int, duplicate: bool = False) -> None:
        data = build_batch([Record(None, value.encode(), (), 1) for value in values])
        last = at + len(values) - 1
        self.audit.stored(name, data, Published(at, last, 0, 0, len(values), duplicate))

    def whole(self) -> None:
        self.record(begun=0)
        self.stored(A, "a2", "a1", at=7)
        self.stored(B, "b1", at=3)
        self.record(begun=0, batch=0)
        self.audit.told(self.batch)


@pytest.fixture
def story() -> Story:
    return Story()


def test_a_true_story(story: Story) -> None:
    assert not story.audit.is_begun(story.batch)
    story.record(begun=0)
    assert story.audit.is_begun(story.batch)
    story.whole()
    story.stored(A, "a1", "a2", at=-1, duplicate=True)  # again, in another order
    story.audit.check_whole()
    assert story.failures == []
    assert all(message.acked for log in story.logs.values() for message in log.sent.values())


def test_forgotten_and_used_again(story: Story) -> None:
    story.whole()
    story.forgotten()
    assert not story.audit.is_begun(story.batch)
    story.record(begun=-1, since_ms=7)
    story.audit.told(story.batch)  # by its own first commit, with a late answer
    assert story.failures == []
    story.record(begun=-1, since_ms=7, batch=0)
    assert "X10 q is committed at 0, begun was -1" in story.failures[0]


def test_forgotten_before_it_was_whole(story: Story) -> None:
    story.record(begun=0)
    story.stored(A, "a1", "a2", at=0)
    story.stored(B, "b1", at=3)
    story.record(begun=0, batch=0, complete=False)
    story.forgotten()
    assert story.failures == ["X10 the record of q went before batch 0 was whole"]


def test_committed_without_a_share(story: Story) -> None:
    story.record(begun=0)
    story.stored(A, "a1", "a2", at=0)
    story.record(begun=0, batch=0)
    assert "X10 q batch 0 is committed, and nobody has stored ['b1']" in story.failures[0]


@pytest.mark.parametrize("begun", [-1, 1])
def test_committed_without_having_begun(story: Story, begun: int) -> None:
    story.record(begun=begun)
    story.stored(A, "a1", "a2", at=0)
    story.stored(B, "b1", at=0)
    story.record(begun=begun, batch=0)
    assert f"X10 q is committed at 0, begun was {begun}" in story.failures[0]


def test_told_too_early(story: Story) -> None:
    story.record(begun=0)
    story.audit.told(story.batch)
    assert "X10 q batch 0 was answered, its record is at -1" in story.failures[0]


def test_a_share_in_pieces(story: Story) -> None:
    story.whole()
    story.failures.clear()
    story.logs[A].sent["a1"].offset = 12
    story.audit.check_whole()
    assert "its 2 rows for public/t/0 stand at [7, 12]" in story.failures[0]


def test_other_rows_that_are_seen(story: Story) -> None:
    story.audit.refused({A: ["x"]})
    story.stored(A, "x", at=0)
    assert "'x' was refused, and is here" in story.failures[0]


def test_a_row_twice(story: Story) -> None:
    story.whole()
    story.stored(B, "b1", at=9)
    assert "S9 twice" in story.failures[0]
