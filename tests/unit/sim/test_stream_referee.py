"""The referee of durable streams fails each story in which X20 is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from octavo.broker.state.stream import Append
from octavo.broker.types import TopicName
from tests.sim.stream_audit import StreamHistory

Story = Callable[[StreamHistory], object]


def _stored(log: StreamHistory, *values: str, closed: bool = False, **said: object) -> None:
    sent = log.sends(values, Append(**said))  # type: ignore[arg-type]
    log.acked(sent, log.seen_end + len(values), new=True, closed=closed)


def _one_and_two(log: StreamHistory) -> None:
    _stored(log, "one", producer="p")
    _stored(log, "two", producer="p", sequence=1)
    log.shows(0, ["one", "two"], 2)


def _lost(log: StreamHistory) -> None:
    _stored(log, "one")
    log.seen_end = 0
    log.check_whole(0, closed=False)


def _shorter(log: StreamHistory) -> None:
    _one_and_two(log)
    log.check_whole(1, closed=False)


def _changed(log: StreamHistory) -> None:
    _one_and_two(log)
    log.shows(1, ["one"], 2)


def _invented(log: StreamHistory) -> None:
    log.shows(0, ["one"], 1)


def _miscounted(log: StreamHistory) -> None:
    log.sends(["one"], Append())
    log.shows(0, ["one"], 2)


def _twice(log: StreamHistory) -> None:
    _stored(log, "one", producer="p")
    log.shows(0, ["one", "one"], 2)
    log.check_whole(2, closed=False)


def _new_twice(log: StreamHistory) -> None:
    sent = log.sends(["one"], Append("p"))
    log.acked(sent, 1, new=True, closed=False)
    log.acked(sent, 1, new=True, closed=False)


def _gap(log: StreamHistory) -> None:
    _stored(log, "one", producer="p")
    _stored(log, "three", producer="p", sequence=2)
    log.shows(0, ["one", "three"], 2)
    log.check_whole(2, closed=False)


def _old_epoch(log: StreamHistory) -> None:
    _stored(log, "one", producer="p", epoch=2)
    _stored(log, "two", producer="p", epoch=1)
    log.shows(0, ["one", "two"], 2)
    log.check_whole(2, closed=False)


def _seq_back(log: StreamHistory) -> None:
    _stored(log, "one", stream_seq="b")
    _stored(log, "two", stream_seq="b")
    log.shows(0, ["one", "two"], 2)
    log.check_whole(2, closed=False)


def _torn(log: StreamHistory) -> None:
    log.sends(["one", "two"], Append())
    log.shows(0, ["one"], 1)
    log.check_whole(1, closed=False)


def _longer_than_its_end(log: StreamHistory) -> None:
    log.ends(1, closed=True)
    log.ends(2, closed=False)


def _closed_before_its_end(log: StreamHistory) -> None:
    log.ends(2, closed=False)
    log.ends(1, closed=True)


def _stored_behind_the_close(log: StreamHistory) -> None:
    log.ends(1, closed=True)
    log.acked(log.sends(["late"], Append()), 1, new=True, closed=True)


def _a_close_that_does_not_close(log: StreamHistory) -> None:
    _stored(log, "last", closes=True)


def _behind_the_last(log: StreamHistory) -> None:
    log.sends(["last"], Append(closes=True))
    log.sends(["more"], Append())
    log.shows(0, ["last", "more"], 2)
    log.check_whole(2, closed=False)


def _open_again(log: StreamHistory) -> None:
    log.ends(0, closed=True)
    log.sends(["late"], Append())
    log.shows(0, ["late"], 1)
    log.closed_at = 1
    log.check_whole(1, closed=True)


def _open_in_the_end(log: StreamHistory) -> None:
    _one_and_two(log)
    log.ends(2, closed=True)
    log.check_whole(2, closed=False)


STORIES = [one for name, one in globals().items() if name.startswith("_") and callable(one)]


@pytest.mark.parametrize(
    "story",
    [one for one in STORIES if one not in (_stored, _one_and_two)],
    ids=lambda s: s.__name__,
)
def test_a_story_in_which_it_is_broken(story: Story) -> None:
    failures: list[str] = []
    story(StreamHistory(TopicName("public", "s"), failures.append, is_json=True, repeats=False))
    assert failures
    assert all(one.startswith("X20 ") for one in failures)


def test_a_fork_begins_with_what_its_source_has() -> None:
    failures: list[str] = []
    source = StreamHistory(TopicName("public", "s"), failures.append, is_json=True, repeats=False)
    _one_and_two(source)
    fork = StreamHistory(
        TopicName("public", "f"),
        failures.append,
        is_json=True,
        repeats=False,
        source=source,
        base=1,
    )
    _stored(fork, "own")
    fork.shows(0, ["one", "own"], 2)
    fork.check_whole(2, closed=False)
    assert not failures
    fork.shows(0, ["two"], 1)
    assert failures


def test_a_story_in_which_all_is_well() -> None:
    failures: list[str] = []
    log = StreamHistory(TopicName("public", "s"), failures.append, is_json=True, repeats=False)
    _one_and_two(log)
    _stored(log, "three", "four", closed=True, producer="p", epoch=1, closes=True)
    log.shows(1, ["two", "three", "four"], 4)
    log.check_whole(4, closed=True)
    assert not failures
