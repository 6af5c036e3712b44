"""The right to send dead letters to a topic: checked once, when the subscription is created."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.memory_cluster import Running, running

TOPIC = "/v1/topics/public/one"
NEW = TOPIC + "/subscriptions/new"
SOME = [
    "allow user:ann all *",
    "allow user:bob consume topic:public/one",
    "allow user:bob consume,create subscription:public/one/*",
]
DEADLY = {"max_deliveries": 3, "dead_letter_topic": "other/dead"}


@pytest.fixture
async def secured() -> AsyncIterator[tuple[Running, FakeAuthority]]:
    authority = FakeAuthority()
    authority.secure(*SOME)
    async with running(1, authority=authority, authenticator=FakeAuthenticator()) as one:
        ann = as_user("ann")
        assert (await one.api.put("/v1/namespaces/other", headers=ann)).status == 201
        assert (await one.api.put(TOPIC, headers=ann)).status == 201
        yield one, authority


async def make(one: Running, body: dict[str, Any]) -> Any:
    return await one.api.put(NEW, json=body, headers=as_user("bob"))


@pytest.mark.parametrize(
    ("rules", "lacks"),
    [
        ([], "produce on topic:other/dead"),
        (["allow user:bob produce topic:other/dead"], "create on topic:other/dead"),
        (
            ["allow user:bob produce,create topic:other/dead"],
            "create on subscription:other/dead/new",
        ),
        (
            [
                "allow user:bob produce,create topic:other/dead",
                "allow user:bob create subscription:other/dead/new",
            ],
            "consume on topic:other/dead",
        ),
    ],
)
async def test_each_right_is_needed(
    secured: tuple[Running, FakeAuthority], rules: list[str], lacks: str
) -> None:
    one, authority = secured
    authority.secure(*SOME, *rules)
    answer = await make(one, DEADLY)
    assert answer.status == 403, answer
    assert lacks.split(" on ")[0] in answer.json()["detail"]
    assert lacks.split(" on ")[1] in answer.json()["detail"]
    assert (await make(one, {})).status == 201, "without dead letters it needs none of them"


async def test_with_all_of_them_it_is_made(secured: tuple[Running, FakeAuthority]) -> None:
    one, authority = secured
    rules = [
        "allow user:bob produce,create,consume topic:other/dead",
        "allow user:bob create subscription:other/dead/new",
    ]
    authority.secure(*SOME, *rules)
    answer = await make(one, DEADLY)
    assert answer.status == 201, answer
    settings = answer.json()["settings"]
    assert settings["dead_letter_topic"] == "other/dead"
    assert settings["dead_letter_subscription"] == "new"


async def test_nobody_writes_to_the_audit_log_by_way_of_dead_letters(
    secured: tuple[Running, FakeAuthority],
) -> None:
    one, _ = secured
    body = {"max_deliveries": 3, "dead_letter_topic": "octavo/audit"}
    answer = await one.api.put(NEW, json=body, headers=as_user("ann"))
    assert (answer.status, answer.json()["code"]) == (403, "audit-topic")


async def test_a_retry_topic_takes_the_same_rights(
    secured: tuple[Running, FakeAuthority],
) -> None:
    one, authority = secured
    retried = {"retry_topic": "other/dead"}
    authority.secure(*SOME, "allow user:bob produce,create topic:other/dead")
    answer = await make(one, retried)
    assert (answer.status, "subscription:other/dead/new" in answer.json()["detail"]) == (403, True)
    rules = [
        "allow user:bob produce,create,consume topic:other/dead",
        "allow user:bob create subscription:other/dead/new",
    ]
    authority.secure(*SOME, *rules)
    answer = await make(one, retried)
    assert answer.status == 201, answer
    settings = answer.json()["settings"]
    assert (settings["retry_topic"], settings["retry_deliveries"]) == ("other/dead", 1)
    assert settings["retry_subscription"] == "new"
