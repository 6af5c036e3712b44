"""Due times of messages: an invalid time is refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.memory_cluster import Running

ONE = "/v1/topics/public/one"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ({"value": 1, "deliver_at": 5, "deliver_after": 5}, "both deliver_at and deliver_after"),
        ({"value": 1, "deliver_after": "soon"}, "deliver_after is 'soon'"),
        ({"value": 1, "deliver_after": -1}, "deliver_after is -1"),
        ({"value": 1, "deliver_after": "400d"}, "the most is 366 days"),
        ({"value": 1, "deliver_at": -1}, "-1 ms"),
        ({"value": 1, "deliver_at": "2031-01-01T00:00:00"}, "no time zone"),
        ({"value": 1, "deliver_in": 1}, "deliver_in"),
    ],
)
async def test_what_is_no_due_time(one: Running, message: Any, says: str) -> None:
    await one.api.put(ONE)
    answer = await one.api.post(ONE + "/messages", json=message)
    assert answer.status == 422, answer
    assert says in answer.json()["detail"]


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"Octavo-Deliver-At": "soon"}, 400, "Octavo-Deliver-At 'soon'"),
        ({"Octavo-Deliver-After": "later"}, 400, "Octavo-Deliver-After 'later'"),
        ({"Octavo-Deliver-After": "1s", "Octavo-Deliver-At": "1"}, 400, "give one of them"),
        ({"Octavo-Deliver-After": "400d"}, 422, "the most is 366 days"),
    ],
)
async def test_what_is_no_due_time_in_a_header(
    one: Running, headers: dict[str, str], status: int, says: str
) -> None:
    await one.api.put(ONE)
    answer = await one.api.post(ONE + "/messages", b"x", headers=headers)
    assert answer.status == status, answer
    assert says in answer.json()["detail"]
