"""The policy over HTTP: read, replaced whole, never over an unseen version, with no lock-out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from octavo.broker.http.api.security import RULES_MAX
from octavo.security.authority import Authority
from octavo.security.policy import PolicyStore, secured
from tests.support.fake_security import FakeAuthenticator, as_user
from tests.support.memory_cluster import Running, running

PATH = "/v1/policy"
ANN = as_user("ann")
TOPIC = "/v1/topics/public/one"
ADMIN: dict[str, Any] = {
    "rules": [
        {"effect": "allow", "principal": "role:admin", "operations": "all", "resource": "*"}
    ],
    "roles": [{"principal": "user:ann", "role": "role:admin"}],
}  # fmt: skip


@pytest.fixture
async def one() -> AsyncIterator[Running]:
    """A broker whose policy is in the store, as in a cluster; `refresh` reads it."""
    async with running(1, authenticator=FakeAuthenticator()) as cluster:
        cluster.servers[0]._gate._authority = Authority(cluster.store)  # type: ignore[arg-type]
        yield cluster


async def refresh(one: Any) -> None:
    authority = one.servers[0]._gate._authority
    assert authority is not None
    found = await PolicyStore(one.store).read()  # type: ignore[arg-type]
    authority._take(found.policy, found.version)


async def secure(one: Any) -> None:
    await PolicyStore(one.store).change(lambda record: secured(record, "user:ann"))
    await refresh(one)


async def put(one: Running, body: Any, tag: str) -> Any:
    return await one.api.put(PATH, json=body, headers={"If-Match": tag, **ANN})


async def test_it_is_read_and_replaced(one: Running) -> None:
    await secure(one)
    found = await one.api.get(PATH, headers=ANN)
    assert found.json() == {**ADMIN, "secured": True}
    bob = {"effect": "allow", "principal": "user:bob", "operations": "describe,create",
           "resource": "topic:public/*"}  # fmt: skip
    more = {**ADMIN, "rules": [*ADMIN["rules"], bob]}
    answer = await put(one, more, found.headers["ETag"])
    assert answer.status == 200, answer
    assert answer.json()["rules"][1]["operations"] == "create,describe"
    assert answer.headers["ETag"] != found.headers["ETag"]
    assert (await one.api.put(TOPIC, headers=as_user("bob"))).status == 403, "not heard of yet"
    await refresh(one)
    assert (await one.api.put(TOPIC, headers=as_user("bob"))).status == 201
    assert (await one.api.get(PATH, headers=as_user("bob"))).status == 403


async def test_nobody_writes_over_what_they_have_not_seen(one: Running) -> None:
    await secure(one)
    tag = (await one.api.get(PATH, headers=ANN)).headers["ETag"]
    for wrong in ("", '"17"', "*", tag.strip('"')):
        answer = await put(one, ADMIN, wrong)
        assert (answer.status, answer.json()["code"]) == (412, "policy-changed")
        assert answer.headers["ETag"] == tag
    assert (await put(one, ADMIN, tag)).status == 200


@pytest.mark.parametrize(
    "left",
    [
        {"rules": [], "roles": []},
        {**ADMIN, "roles": [{"principal": "user:eve", "role": "role:admin"}]},
        {**ADMIN, "rules": [*ADMIN["rules"], {"effect": "deny", "principal": "user:ann",
                                              "operations": "admin", "resource": "cluster"}]},
    ],
)  # fmt: skip
async def test_nobody_shuts_themselves_out(one: Running, left: Any) -> None:
    await secure(one)
    tag = (await one.api.get(PATH, headers=ANN)).headers["ETag"]
    answer = await put(one, left, tag)
    assert (answer.status, answer.json()["code"]) == (422, "shut-out")
    assert (await one.api.get(PATH, headers=ANN)).json()["roles"] == ADMIN["roles"]


async def test_nobody_makes_an_open_cluster_theirs(one: Running) -> None:
    found = await one.api.get(PATH)
    assert found.json() == {"rules": [], "roles": [], "secured": False}
    answer = await put(one, ADMIN, found.headers["ETag"])
    assert (answer.status, answer.json()["code"]) == (409, "not-secured")
    assert (await one.api.get(PATH)).json() == found.json()


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"principal": "bob"}, "a principal is"),
        ({"resource": "topic:x"}, "a resource is"),
        ({"operations": "devour"}, "operations are"),
        ({"effect": "perhaps"}, "effect"),
        ({"more": 1}, "more"),
    ],
)
async def test_what_makes_no_sense_is_told(one: Running, rule: Any, told: str) -> None:
    await secure(one)
    tag = (await one.api.get(PATH, headers=ANN)).headers["ETag"]
    body = {**ADMIN, "rules": [*ADMIN["rules"], {**ADMIN["rules"][0], **rule}]}
    answer = await put(one, body, tag)
    assert answer.status == 422, answer
    assert told in answer.json()["detail"]
    assert (await one.api.get(PATH, headers=ANN)).headers["ETag"] == tag


async def test_too_many_rules_are_refused(one: Running) -> None:
    await secure(one)
    tag = (await one.api.get(PATH, headers=ANN)).headers["ETag"]
    body = {**ADMIN, "rules": ADMIN["rules"] * (RULES_MAX + 1)}
    assert (await put(one, body, tag)).status == 422
