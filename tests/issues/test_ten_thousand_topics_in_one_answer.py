"""`GET` of a namespace with 10,000 topics gave all of them at once, with no way to ask for less."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from octavo import AsyncClient
from octavo.broker.http.api import topics as api_topics
from tests.support.fake_broker import Running, running

TOPICS = "/v1/topics/public"
COUNT = 25


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    async with running(1) as one:
        for number in range(COUNT):
            assert (await one.api.put(f"{TOPICS}/t{number:02}")).status == 201
        yield one


async def test_a_page_says_where_to_go_on(one: Running) -> None:
    seen, path = [], f"{TOPICS}?limit=10"
    for wanted in (10, 10, 5):
        answer = await one.api.get(path)
        page = answer.json()
        assert len(page["topics"]) == wanted
        seen += page["topics"]
        if page["next"] is None:
            assert "Link" not in answer.headers
        else:
            assert page["next"] == seen[-1]
            link, rel = answer.headers["Link"].split("; ")
            assert rel == 'rel="next"'
            path = link.strip("<>")
    assert seen == [f"t{number:02}" for number in range(COUNT)]
    assert page["next"] is None


async def test_a_place_to_go_on_need_not_exist_any_more(one: Running) -> None:
    answer = await one.api.get(f"{TOPICS}?after=t225&limit=1")
    assert answer.json()["topics"] == ["t23"]
    answer = await one.api.get(f"{TOPICS}?after=z")
    assert answer.json() == {"namespace": "public", "topics": [], "next": None}
    assert (await one.api.get(f"{TOPICS}?limit=0")).status in (400, 422)


async def test_without_a_limit_there_is_one(one: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_topics, "TOPICS_SHOWN", 7)
    assert len((await one.api.get(TOPICS)).json()["topics"]) == 7


async def test_the_client_asks_for_all_pages(one: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("octavo.client.topic_list.TOPICS_AT_ONCE", 10)
    async with AsyncClient(one.api.url) as client:
        assert await client.topics() == [f"t{number:02}" for number in range(COUNT)]
