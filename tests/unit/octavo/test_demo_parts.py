"""The demonstrations' judgement finds every kind of mistake; and how logs are followed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from octavo.examples.checking import FlightCheck
from octavo.examples.flights import Flights, load_flights
from octavo.examples.following import LogFollower
from octavo.log_messages import in_words, recovery_step_in_words

HEADER = "year,dep_time,tailnum,origin,time_hour"
LINES = [
    "2013,517,N1,EWR,2013-01-01T10:00:00Z",
    "2013,NA,N2,LGA,2013-01-01T10:00:00Z",
    "2013,533,N1,JFK,2013-01-01T11:00:00Z",
    "2013,NA,NA,EWR,2013-01-01T11:00:00Z",
    "2013,600,N1,EWR,2013-01-01T12:00:00Z",
]
Delivered = tuple[int, int, bytes | None, dict[str, Any]]


def flights() -> Flights:
    return Flights(HEADER, list(LINES))


def delivered() -> list[Delivered]:
    """Return all rows as they should come: N1 in partition 0, the others in partition 1."""
    table = flights()
    places = [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]
    found: list[Delivered] = []
    for row, (partition, offset) in enumerate(places):
        key = table.key(row)
        found.append((partition, offset, key.encode() if key else None, table.value(row)))
    return found


def judge(messages: list[Delivered]) -> Any:
    check = FlightCheck(flights())
    for message in messages:
        check.see(*message)
    return check.verdict()


def test_a_row_as_a_message() -> None:
    table = flights()
    assert table.value(1) == {
        "row": 1,
        "year": 2013,
        "dep_time": None,
        "tailnum": "N2",
        "origin": "LGA",
        "time_hour": "2013-01-01T10:00:00Z",
    }
    assert table.key(0) == "N1"
    assert table.key(3) is None
    assert table.timestamp_ms(0) == 1357034400000


def test_the_real_table() -> None:
    table = load_flights()
    assert len(table) == 336_776
    first = table.value(0)
    assert first["tailnum"] == "N14228"
    assert first["dep_time"] == 517
    assert sum(table.key(row) is None for row in range(len(table))) == 2_512


def test_all_is_well() -> None:
    found = judge(delivered())
    assert found.good
    assert (found.expected, found.found, found.keys, found.redelivered) == (5, 5, 2, 0)


def test_a_redelivery_is_no_duplicate() -> None:
    messages = delivered()
    found = judge([*messages, messages[0]])
    assert found.good
    assert found.redelivered == 1


def lose(messages: list[Delivered]) -> None:
    del messages[4]


def double(messages: list[Delivered]) -> None:
    messages.append((0, 3, *messages[4][2:]))


def alter(messages: list[Delivered]) -> None:
    messages[1] = (*messages[1][:3], {**messages[1][3], "origin": "XXX"})


def change_key(messages: list[Delivered]) -> None:
    messages[1] = (messages[1][0], messages[1][1], b"N3", messages[1][3])


def misplace(messages: list[Delivered]) -> None:
    messages[4] = (1, 2, *messages[4][2:])


def reorder(messages: list[Delivered]) -> None:
    messages[0], messages[2] = ((0, 0, *messages[2][2:]), (0, 1, *messages[0][2:]))


def invent(messages: list[Delivered]) -> None:
    messages.append((1, 2, None, {"row": 99}))


@pytest.mark.parametrize(
    ("mistake", "where"),
    [
        (lose, "lost"),
        (double, "doubled"),
        (alter, "altered"),
        (change_key, "altered"),
        (misplace, "misplaced"),
        (reorder, "unordered"),
        (invent, "altered"),
    ],
)
def test_each_mistake_is_found(mistake: Callable[[list[Delivered]], None], where: str) -> None:
    messages = delivered()
    mistake(messages)
    found = judge(messages)
    assert not found.good
    assert getattr(found, where)


def test_a_hole_in_the_offsets_is_found() -> None:
    messages = delivered()
    messages[4] = (0, 7, *messages[4][2:])
    assert judge(messages).gaps == ["partition 0: 3 messages, last offset 7"]


async def test_following_logs(tmp_path: Path) -> None:
    path = tmp_path / "broker-1.jsonl"
    path.write_text('not json\n{"event": "old", "ts": "1"}\n')
    follower = LogFollower(tmp_path)
    follower.skip()
    heard: list[str] = []
    follower.listeners.append(lambda event: heard.append(event.event))
    following = asyncio.create_task(follower.run())
    with path.open("a") as log:
        log.write('{"event": "a", "ts": "2", "x": 1}\nTraceback (most')
        log.flush()
        found = await follower.wait_for(lambda event: event.event == "a", 5)
        assert found is not None
        assert (found.node, found.fields) == ("broker-1", {"x": 1})
        log.write(' recent call last)\n{"event": "b", "ts": "3"}\n')
        log.flush()
        assert await follower.wait_for(lambda event: event.event == "b", 5)
    assert await follower.wait_for(lambda event: event.event == "c", 0.05) is None
    following.cancel()
    assert heard == ["a", "b"]


def test_recovery_in_words() -> None:
    said = recovery_step_in_words(
        json.loads(
            '{"step": 3, "what": "FenceAnswered", "bookie_id": "b1", "answer": "last entry 9", '
            '"last_add_confirmed": 8}'
        )
    )
    assert said == "step 3: fence b1: last entry 9, last confirmed 8"
    assert in_words("nothing_special", {}) is None
    assert in_words("bookie_lost", {"bookie": "b", "reason": "this client is closing"}) is None
