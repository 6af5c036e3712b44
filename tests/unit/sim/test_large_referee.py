"""The referee of large messages fails each story in which X23 is broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.sim.large_load import LargeHistory, Sent


def _history(failures: list[str]) -> LargeHistory:
    history = LargeHistory(failures.append, repeats=True)
    for name, named, broken in (("a", True, False), ("b", False, False), ("x", True, True)):
        history.sent[name] = Sent(name, name.encode(), named, broken=broken)
    return history


def _lost(log: LargeHistory) -> None:
    log.acked(log.sent["a"], 3)
    log.check_whole({})


def _twice(log: LargeHistory) -> None:
    log.check_whole({1: "a", 2: "a"})


def _acked_elsewhere(log: LargeHistory) -> None:
    log.acked(log.sent["a"], 3)
    log.acked(log.sent["a"], 4)


def _in_part(log: LargeHistory) -> None:
    log.shows(0, "a", b"")


def _broken_off(log: LargeHistory) -> None:
    log.shows(0, "x", b"x")


def _broken_off_and_acked(log: LargeHistory) -> None:
    log.acked(log.sent["x"], 0)


def _invented(log: LargeHistory) -> None:
    log.shows(0, "", b"piece")


def _changed(log: LargeHistory) -> None:
    log.shows(0, "a", b"a")
    log.shows(0, "b", b"b")


@pytest.mark.parametrize(
    "story",
    [
        _lost,
        _twice,
        _acked_elsewhere,
        _in_part,
        _broken_off,
        _broken_off_and_acked,
        _invented,
        _changed,
    ],
)
def test_a_story_in_which_it_is_broken(story: Callable[[LargeHistory], None]) -> None:
    failures: list[str] = []
    story(_history(failures))
    assert failures
    assert all(one.startswith("X23 ") for one in failures)


def test_a_story_in_which_all_is_well() -> None:
    failures: list[str] = []
    log = _history(failures)
    log.acked(log.sent["a"], 3)
    log.shows(3, "a", b"a")
    log.check_whole({3: "a", 4: "b", 5: "b"})
    assert not failures
