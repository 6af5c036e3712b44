"""`octavo acl --url`: an administrator without access to the metadata changes rules."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from octavo import ApiError, AsyncClient, NotFound
from octavo.cli import policy_place
from octavo.cli.main import run
from octavo.security.authority import Authority
from octavo.security.identity.users import UserStore
from octavo.security.policy import PolicyStore, make_rule, with_rule
from tests.support.fake_security import FakeAuthenticator
from tests.support.memory_cluster import Running, running
from tests.unit.broker_http.test_http_policy import refresh, secure

ORDERS = "topic:payments/orders"


@pytest.fixture
async def one(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Running]:
    monkeypatch.setenv("OCTAVO_TOKEN", "ann")
    monkeypatch.setenv("OCTAVO_METADATA_URL", "file:///nowhere/metadata.db")  # `--url` wins
    async with running(1, authenticator=FakeAuthenticator()) as cluster:
        cluster.servers[0]._gate._authority = Authority(cluster.store)
        await secure(cluster)
        yield cluster


async def acl(one: Running, *arguments: str) -> int:
    """Run the command; return the exit code. `capsys` has the output."""
    code = await asyncio.to_thread(run, ["acl", *arguments, "--url", one.api.url])
    await refresh(one)
    return code


def told(capsys: Any) -> Any:
    """Return the command's JSON output, among the broker's logs."""
    lines = capsys.readouterr().out.splitlines()
    return json.loads([line for line in lines if line[:1] in ("[", "{")][-1])


async def rules(one: Running) -> set[str]:
    found, _ = await PolicyStore(one.store).read_record()  # type: ignore[arg-type]
    return {f"{one.allow} {one.principal} {one.operations} {one.resource}" for one in found.rules}


async def test_rules_and_roles_come_and_go(one: Running, capsys: Any) -> None:
    before = await rules(one)
    assert await acl(one, "allow", "user:bob", "produce,consume", ORDERS) == 0
    assert await acl(one, "deny", "user:bob", "all", "topic:payments/salaries*") == 0
    assert await rules(one) - before == {
        f"True user:bob consume,produce {ORDERS}", "False user:bob all topic:payments/salaries*",
    }  # fmt: skip
    assert await acl(one, "role", "add", "group:ops", "role:ops") == 0
    capsys.readouterr()
    assert await acl(one, "role", "list", "--json") == 0
    roles = told(capsys)
    assert {"principal": "group:ops", "role": "role:ops"} in roles
    assert await acl(one, "list", "--principal", "user:bob", "--json") == 0
    assert [found["effect"] for found in told(capsys)] == ["allow", "deny"]
    assert await acl(one, "role", "remove", "group:ops", "role:ops") == 0
    assert await acl(one, "remove", "user:bob", "consume,produce", ORDERS) == 0
    assert await acl(one, "remove", "user:bob", "all", "topic:payments/salaries*") == 0
    assert await rules(one) == before
    assert await acl(one, "remove", "user:bob", "all", "topic:x/y") == 2
    assert "there is no rule of user:bob" in " ".join(capsys.readouterr().err.split())


async def test_why_with_the_groups_of_a_record_and_of_a_token(one: Running, capsys: Any) -> None:
    await acl(one, "allow", "group:billing", "consume", ORDERS)
    capsys.readouterr()
    assert await acl(one, "explain", "user:bob", "consume", ORDERS, "--json") == 0
    assert not told(capsys)["allowed"], "there is no record of bob's"
    assert await acl(one, "explain", "user:bob", "consume", ORDERS, "--group", "billing") == 0
    assert "\nyes: " in "\n" + capsys.readouterr().out
    users = UserStore(one.store)
    await users.create("bob", groups=("billing", "staff"))
    assert await acl(one, "explain", "user:bob", "consume", ORDERS, "--json") == 0
    assert told(capsys)["allowed"]
    async with AsyncClient(one.api.url, token="ann") as client:
        assert await client.user_groups("bob") == ["group:billing", "group:staff"]
        assert await client.user_groups("nobody") == []
        with pytest.raises(ApiError, match="name"):
            await client.user_groups("no name")
    async with AsyncClient(one.api.url, token="bob") as client:
        with pytest.raises(ApiError) as refused:
            await client.user_groups("bob")
        assert refused.value.code == "forbidden"
    assert await acl(one, "explain", "anonymous", "consume", ORDERS, "--json") == 0
    assert "through a broker" not in told(capsys)["why"][-1]


async def test_a_broker_of_before_cannot_tell_groups(
    one: Running, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    async def unknown(self: AsyncClient, user: str) -> list[str]:
        raise NotFound(404, {"code": "no-such-call"}, "GET")

    monkeypatch.setattr(AsyncClient, "user_groups", unknown)
    assert await acl(one, "explain", "user:bob", "consume", ORDERS, "--json") == 0
    found = told(capsys)
    assert not found["allowed"]
    assert "groups of the record of user:bob are not known through a broker" in found["why"][-1]


async def test_quotas_through_a_broker(
    one: Running, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    async def quota(*arguments: str) -> int:
        return await asyncio.to_thread(run, ["quota", *arguments, "--url", one.api.url])

    assert await quota("set", "user:*", "requests=50", "streams=unlimited") == 0
    assert await quota("set", "user:alice", "publish_bytes=10MB") == 0
    assert await quota("set", "user:alice", "requests=100") == 0
    capsys.readouterr()
    assert await quota("list", "--json") == 0
    assert told(capsys) == [
        {"subject": "user:*", "requests": 50, "streams": -1},
        {"subject": "user:alice", "requests": 100, "publish_bytes": 10_000_000},
    ]
    assert await quota("show", "user:alice", "--json") == 0
    shown = told(capsys)
    assert (shown["requests"], shown["streams"], shown["read_bytes"]) == (100, -1, None)
    assert await quota("remove", "user:alice", "requests") == 0
    assert await quota("remove", "user:*") == 0
    capsys.readouterr()
    assert await quota("list", "--json") == 0
    assert told(capsys) == [{"subject": "user:alice", "publish_bytes": 10_000_000}]
    assert await quota("set", "user:alice", "speed=1") == 2
    monkeypatch.setenv("OCTAVO_TOKEN", "bob")
    assert await quota("remove", "user:alice") != 0
    assert "user:bob may not" in " ".join(capsys.readouterr().err.split())


async def test_who_may_not_administer_is_refused(
    one: Running, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    before = await rules(one)
    for token, said in (("bob", "user:bob may not admin cluster"), ("bad", "not one of ours")):
        monkeypatch.setenv("OCTAVO_TOKEN", token)
        assert await acl(one, "allow", "user:bob", "all", "*") != 0
        assert said in " ".join(capsys.readouterr().err.split())
    assert await rules(one) == before


async def test_nobody_shuts_themselves_out(one: Running, capsys: Any) -> None:
    before = await rules(one)
    assert await acl(one, "deny", "user:ann", "all", "*") != 0
    assert "could not change it again" in " ".join(capsys.readouterr().err.split())
    assert await rules(one) == before


async def test_what_others_change_meanwhile_stays(
    one: Running, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Another administrator is faster twice, each time with a new rule."""
    policies = PolicyStore(one.store)
    loop, faster, numbers = asyncio.get_running_loop(), list[str](), itertools.count()
    made_of = policy_place.record_of

    def slowly(found: Any) -> Any:
        if len(faster) < 2:
            name = f"user:fast{next(numbers)}"
            faster.append(name)
            rule = make_rule(name, "consume", ORDERS, allow=True)
            change = policies.change(lambda record: with_rule(record, rule))
            asyncio.run_coroutine_threadsafe(change, loop).result(20)
        return made_of(found)

    monkeypatch.setattr(policy_place, "record_of", slowly)
    assert await acl(one, "allow", "user:slow", "consume", ORDERS) == 0
    found = await rules(one)
    assert {f"True {name} consume {ORDERS}" for name in ("user:slow", *faster)} <= found
    monkeypatch.setattr(policy_place, "ATTEMPTS", 1)
    faster.clear()
    assert await acl(one, "allow", "user:late", "consume", ORDERS) != 0
    assert "read the policy again" in " ".join(capsys.readouterr().err.split())


async def test_a_cluster_that_is_not_secured_says_how_to(
    monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("OCTAVO_TOKEN", "ann")
    async with running(1, authenticator=FakeAuthenticator()) as cluster:
        code = await asyncio.to_thread(
            run, ["acl", "allow", "user:bob", "all", "*", "--url", cluster.api.url]
        )
        assert code != 0
        assert "octavo security secure" in " ".join(capsys.readouterr().err.split())


def test_the_folder_beside_it_says_whose_ca_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str | None, Path | None]] = []
    monkeypatch.setattr(
        policy_place, "broker_urls", lambda url, data: asked.append((url, data)) or ["x"]
    )
    policy_place._place("https://a", None, tmp_path)
    assert asked == [(None, tmp_path), ("https://a", None)]
