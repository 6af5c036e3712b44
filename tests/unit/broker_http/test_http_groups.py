"""Consumer groups over HTTP: a member's answers and refusals, and which broker keeps the group."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from octavo.broker.errors import GROUP_FULL
from octavo.broker.groups.coordinator import Groups, KeptGroup, coordinator_of, now_ms
from octavo.broker.http.config import HttpConfig
from octavo.broker.types import BrokerInfo, GroupName
from tests.support.fake_security import FakeAuthenticator, FakeAuthority, as_user
from tests.support.kit.refusals import raises_code
from tests.support.memory_cluster import Running, running

MEMBER = "/v1/groups/public/billing/members/"


async def beat(cluster: Running, member: str, broker: int = 0, **body: Any) -> Any:
    return await cluster.apis[broker].call("POST", MEMBER + member, json={"topics": ["t*"], **body})


async def test_any_broker_answers_for_the_one_that_keeps_it(two: Running) -> None:
    await two.api.put("/v1/topics/public/t1", json={"partitions": 2})
    await two.api.put("/v1/topics/public/t2")
    await two.api.put("/v1/topics/public/other")
    told = (await beat(two, "a", broker=0)).json()
    assert told["partitions"] == ["public/t1/0", "public/t1/1", "public/t2/0"]
    assert told["members"] == 1
    held = told["partitions"]
    other = (await beat(two, "b", broker=1)).json()
    assert other["partitions"] == [], "a has not let go of anything"
    mine = (await beat(two, "a", broker=1, holds=held, generation=told["generation"])).json()
    assert len(mine["partitions"]) in (1, 2)
    await beat(two, "a", holds=mine["partitions"], generation=mine["generation"])
    rest = (await beat(two, "b")).json()
    assert sorted(mine["partitions"] + rest["partitions"]) == held
    for broker in (0, 1):
        shown = (await two.apis[broker].get("/v1/groups/public/billing")).json()
        assert [one["name"] for one in shown["members"]] == ["a", "b"]
        assert shown["members"][0]["partitions"] == mine["partitions"]
    assert (await two.apis[1].call("DELETE", MEMBER + "a")).status == 204
    assert (await two.apis[0].call("DELETE", MEMBER + "a")).status == 204
    everything = (await beat(two, "b", holds=rest["partitions"])).json()
    assert everything["partitions"] == held


async def test_it_waits_until_what_a_member_has_changes(one: Running) -> None:
    await one.api.put("/v1/topics/public/t1", json={"partitions": 2})
    told = (await beat(one, "a")).json()
    answer = await one.api.call(
        "POST", MEMBER + "a?wait=100ms", json={"topics": ["t*"], "holds": told["partitions"]}
    )
    assert answer.json()["partitions"] == told["partitions"], "nothing has changed meanwhile"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"topics": []}, 422, "topics"),
        ({"topics": ["t"] * 101}, 422, "topics"),
        ({"topics": ["a/b/c"]}, 422, "the namespace"),
        ({"topics": ["a b"]}, 422, "write topic"),
        ({"topics": ["elsewhere/t"]}, 422, "one namespace"),
        ({"topics": ["none"]}, 404, "no topic public/none"),
        ({"topics": ["t*"], "holds": ["public/t1"]}, 422, "write namespace/topic/partition"),
        ({"topics": ["t*"], "holds": ["public/t/0"] * 10_001}, 422, "holds"),
        ({"topics": ["t*"], "session_timeout": "10ms"}, 422, "from 1 s to 3600 s"),
        ({"topics": ["t*"], "generation": -1}, 422, "generation"),
        ({"topics": ["t*"], "nonsense": 1}, 422, "nonsense"),
    ],
)
async def test_what_cannot_be_is_refused(
    one: Running, body: dict[str, Any], status: int, said: str
) -> None:
    answer = await one.api.call("POST", MEMBER + "a", json=body)
    assert (answer.status, said in answer.json()["detail"]) == (status, True), answer


async def test_what_is_too_much() -> None:
    bounds: dict[str, Any] = {"groups_max": 1, "group_members_max": 1, "group_partitions_max": 3}
    async with running(1, **bounds) as cluster:
        await cluster.api.put("/v1/topics/public/t1", json={"partitions": 4})
        answer = await beat(cluster, "a")
        assert (answer.status, answer.json()["code"]) == (409, "group-full")
        assert "group_partitions_max" in answer.json()["detail"]
        await cluster.api.put("/v1/topics/public/u")
        assert (await beat(cluster, "a", topics=["u"])).status == 200
        answer = await beat(cluster, "b", topics=["u"])
        assert (answer.status, answer.json()["code"]) == (409, "group-full")
        path = "/v1/groups/public/another/members/a"
        answer = await cluster.api.call("POST", path, json={"topics": ["u"]})
        assert (answer.status, answer.json()["code"]) == (409, "group-full")
        assert "groups_max" in answer.json()["detail"]
        await cluster.api.call("DELETE", MEMBER + "a")
        assert (await cluster.api.call("POST", path, json={"topics": ["u"]})).status == 200


async def test_a_member_receives_from_one_partition(one: Running) -> None:
    await one.api.put("/v1/topics/public/t", json={"partitions": 2})
    await one.api.put("/v1/topics/public/t/subscriptions/s", json={"type": "shared"})
    answer = await one.api.post("/v1/topics/public/t/subscriptions/s/receive?generation=1")
    assert (answer.status, answer.json()["code"]) == (422, "partition-required")
    path = "/v1/topics/public/t/partitions/0/subscriptions/s/receive?generation="
    assert (await one.api.post(path + "1")).status == 204
    assert (await one.api.post(path + "-1")).status == 400


def test_the_brokers_agree_on_who_keeps_a_group() -> None:
    brokers = [BrokerInfo(f"b{n}", f"http://b{n}") for n in range(5)]
    names = [GroupName("public", f"g{n}") for n in range(50)]
    before = {name: coordinator_of(name, brokers) for name in names}
    assert len(set(before.values())) == 5
    left = brokers[1:]
    for name in names:
        if before[name] != brokers[0]:
            assert coordinator_of(name, left) == before[name], "only the lost one's move"
    assert coordinator_of(names[0], left[::-1]) == coordinator_of(names[0], left)
    assert coordinator_of(names[0], []) is None


async def test_groups_without_members_are_not_kept() -> None:
    groups = Groups(HttpConfig(groups_max=1))
    assert groups.find(GroupName("public", "a")) is None
    groups.open(GroupName("public", "a"))
    groups.open(GroupName("public", "b"))
    assert groups.find(GroupName("public", "a")) is None


async def test_a_member_holds_nothing_that_it_may_not_consume() -> None:
    """A member claimed partitions of another user's topic, and that user's consumers got none."""
    authority = FakeAuthority()
    async with running(1, authority=authority, authenticator=FakeAuthenticator()) as cluster:
        await cluster.api.put("/v1/topics/public/t1")
        await cluster.api.put("/v1/topics/public/t2")
        authority.secure(
            "allow user:alice all *", "allow user:mallory consume subscription:public/*",
            "allow user:mallory consume topic:public/t2",
        )  # fmt: skip

        async def beats(who: str, **body: Any) -> Any:
            answer = await cluster.api.call(
                "POST", MEMBER + who, json={"topics": ["t*"], **body}, headers=as_user(who)
            )
            assert answer.status == 200, answer
            return answer.json()["partitions"]

        claimed = ["public/t1/0", "public/t2/0", "public/none/0"]
        assert await beats("mallory", holds=claimed) == ["public/t2/0"]
        assert "public/t1/0" in await beats("alice")


def test_one_principal_founds_no_more_than_a_quarter_of_all_groups() -> None:
    """One tenant took all 2,000."""
    groups = Groups(HttpConfig(groups_max=8))

    async def fill() -> None:
        for number in range(2):
            groups.open(GroupName("public", f"m{number}"), "user:mallory")
        with raises_code(GROUP_FULL, match="user:mallory has founded 2"):
            groups.open(GroupName("public", "m2"), "user:mallory")
        groups.open(GroupName("public", "m1"), "user:mallory")  # it exists already
        groups.open(GroupName("public", "a"), "user:alice")
        for number in range(5):
            groups.open(GroupName("public", f"s{number}"))  # of an unknown principal
        with raises_code(GROUP_FULL, match="groups_max"):
            groups.open(GroupName("public", "s5"))

    asyncio.run(with_members(groups, fill))


async def with_members(groups: Groups, fill: Any) -> None:
    """Add a member to every group, so that none is forgotten as empty."""
    made = groups.open

    def opened(name: GroupName, founder: str = "") -> KeptGroup:
        found = made(name, founder)
        found.group.beat(
            "a", founder, [], frozenset(), generation=0, session_ms=60_000, now_ms=now_ms()
        )
        return found

    groups.open = opened  # type: ignore[method-assign]
    await fill()
