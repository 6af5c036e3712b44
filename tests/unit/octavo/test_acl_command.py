"""`octavo acl` and `octavo security`: rules are made, listed, explained; mistakes are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import run
from tests.support.raw_bookie import open_metadata

ORDERS = "topic:payments/orders"


@pytest.fixture
async def at(tmp_path: Path) -> tuple[str, str]:
    async with open_metadata(tmp_path) as store:
        return ("--metadata", store.url)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(arguments) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run(arguments) == 2
    return " ".join(capsys.readouterr().err.split())


def test_two_users_get_different_rights(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(said(capsys, "security", "status", "--json", *at)) == {
        "secured": False, "version": -1, "rules": 0, "admins": [],
    }  # fmt: skip
    said(capsys, "security", "secure", "--admin", "user:ann", *at)
    said(capsys, "acl", "allow", "user:alice", "produce", ORDERS, *at)
    said(capsys, "acl", "allow", "group:billing", "consume", "topic:payments/*", *at)
    said(capsys, "acl", "deny", "user:eve", "all", "*", *at)
    shown = json.loads(said(capsys, "security", "status", "--json", *at))
    assert (shown["secured"], shown["rules"], shown["admins"]) == (True, 4, ["user:ann"])

    def explained(who: str, what: str, which: str, *more: str) -> tuple[bool, list[str]]:
        out = said(capsys, "acl", "explain", who, what, which, "--json", *more, *at)
        found = json.loads(out)
        return found["allowed"], found["why"]

    assert explained("user:alice", "produce", ORDERS)[0]
    allowed, why = explained("user:alice", "consume", ORDERS)
    assert not allowed
    assert "no rule allows user:alice to consume" in why[0]
    assert "not about consume" in why[1]
    assert not explained("user:bob", "consume", ORDERS)[0]
    assert explained("user:bob", "consume", ORDERS, "--group", "billing")[0]
    assert explained("user:ann", "admin", "cluster")[0]
    assert not explained("anonymous", "describe", "cluster")[0]
    assert "denies it" in explained("user:eve", "consume", ORDERS, "--group", "group:billing")[1][0]


def test_the_groups_of_a_user_count(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "security", "secure", "--admin", "user:ann", *at)
    said(capsys, "user", "create", "bob", "--no-password", "--group", "billing", *at)
    said(capsys, "acl", "allow", "group:billing", "consume", ORDERS, *at)
    out = said(capsys, "acl", "explain", "user:bob", "consume", ORDERS, *at)
    assert out.startswith("yes: ")
    assert "user:bob is in group:billing" in out


def test_rules_and_roles_go_as_they_came(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    said(capsys, "acl", "allow", "role:ops", "describe,alter", "cluster", *at)
    said(capsys, "acl", "role", "add", "group:ops", "role:ops", *at)
    said(capsys, "acl", "role", "add", "group:ops", "role:ops", *at)
    (rule,) = json.loads(said(capsys, "acl", "list", "--json", *at))
    assert rule == {
        "effect": "allow", "principal": "role:ops", "operations": ["alter", "describe"],
        "resource": "cluster",
    }  # fmt: skip
    assert json.loads(said(capsys, "acl", "list", "--principal", "user:x", "--json", *at)) == []
    assert json.loads(said(capsys, "acl", "role", "list", "--json", *at)) == [
        {"principal": "group:ops", "role": "role:ops"}
    ]
    said(capsys, "acl", "remove", "role:ops", "alter,describe", "cluster", *at)
    said(capsys, "acl", "role", "remove", "group:ops", "role:ops", *at)
    assert json.loads(said(capsys, "acl", "list", "--json", *at)) == []
    assert json.loads(said(capsys, "acl", "role", "list", "--json", *at)) == []
    assert "there is no rule" in refused(capsys, "acl", "remove", "role:ops", "all", "cluster", *at)


def test_opening_keeps_the_rules(at: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "security", "secure", "--admin", "user:ann", *at)
    said(capsys, "acl", "allow", "user:alice", "produce", ORDERS, *at)
    said(capsys, "security", "open", "--yes", *at)
    shown = json.loads(said(capsys, "security", "status", "--json", *at))
    assert (shown["secured"], shown["rules"]) == (False, 2)
    assert said(capsys, "acl", "explain", "user:bob", "produce", ORDERS, *at).startswith("yes")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("allow", "alice", "produce", ORDERS), "a principal is user:NAME"),
        (("allow", "user:alice", "devour", ORDERS), "operations are produce"),
        (("allow", "user:alice", "produce", "topic:x"), "a resource is cluster"),
        (("explain", "user:alice", "produce", "topic:x/*"), "name a single resource"),
        (("explain", "user:alice", "produce,consume", ORDERS), "a single operation"),
        (("explain", "role:x", "produce", ORDERS), "a principal is"),
        (("role", "add", "role:x", "role:y"), "a principal is"),
        (("role", "add", "user:x", "ops"), "a principal is"),
    ],
)
def test_mistakes_are_told(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    assert told in refused(capsys, "acl", *arguments, *at)
    assert json.loads(said(capsys, "acl", "list", "--json", *at)) == []


def test_an_admin_is_a_user_or_group(
    at: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("ann", "role:x", "*", "node:b"):
        assert "a principal is" in refused(capsys, "security", "secure", "--admin", name, *at)
    assert not json.loads(said(capsys, "security", "status", "--json", *at))["secured"]
