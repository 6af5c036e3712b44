"""`octavo namespace` and the policies of `octavo topic`: set by options, shown, and removed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from octavo.cli.main import run
from octavo.cli.policy_options import merged
from tests.support.memory_cluster import Running

Octavo = Callable[..., Any]


@pytest.fixture
def octavo(one: Running, capsys: pytest.CaptureFixture[str]) -> Octavo:
    async def said(*arguments: str, code: int = 0) -> str:
        assert await asyncio.to_thread(run, [*arguments, "--url", one.api.url]) == code
        out, err = capsys.readouterr()
        return err if code else out

    return said


async def test_a_namespace_is_made_shown_changed_and_deleted(octavo: Octavo) -> None:
    await octavo(
        "namespace", "create", "clicks", "--ttl", "1d", "--backlog-size", "10GB",
        "--backlog-policy", "evict", "--publish-messages", "500", "--auto-create",
        '{"partitions": 4}',
    )  # fmt: skip
    policies = json.loads(await octavo("namespace", "show", "clicks", "--json"))["policies"]
    assert policies["ttl"] == 86400
    assert policies["backlog_quota"] == {"size": 10**10, "time": None, "policy": "evict"}
    assert policies["rates"]["publish_messages"] == 500
    assert policies["auto_create"]["partitions"] == 4
    assert "size 10,000,000,000" in await octavo("namespace", "show", "clicks")
    await octavo("namespace", "set", "clicks", "--ttl", "default", "--auto-create", "off")
    policies = json.loads(await octavo("namespace", "show", "clicks", "--json"))["policies"]
    assert "ttl" not in policies
    assert policies["auto_create"] is None
    assert policies["backlog_quota"]["size"] == 10**10, "what is not said stays"
    assert "clicks" in await octavo("namespace", "list")
    await octavo("topic", "create", "clicks/t")
    assert "has topics" in await octavo("namespace", "delete", "clicks", code=1)
    await octavo("topic", "delete", "clicks/t", "--yes")
    await octavo("namespace", "delete", "clicks")
    assert "clicks" not in await octavo("namespace", "list")


async def test_a_topics_policies(octavo: Octavo) -> None:
    await octavo(
        "topic", "create", "t", "--ttl", "90", "--durability", "deferred",
        "--message-time", "append",
    )  # fmt: skip
    await octavo("topic", "alter", "t", "--ttl", "off", "--retention-time", "7d")
    settings = json.loads(await octavo("topic", "describe", "t", "--json"))["settings"]
    assert (settings["ttl"], settings["durability"]) == ("off", "deferred")
    assert settings["message_time"] == "append"
    assert settings["retention"] == {"time": 604800, "size": None}
    for wrong, code, says in (
        (("--ttl", "long"), 1, "ttl is 'long'"),
        (("--durability", "maybe"), 1, "sync, deferred"),
        ((), 2, "nothing to change"),
    ):
        told = await octavo("topic", "update", "t", *wrong, code=code)
        assert says in " ".join(told.split())
    wrong_json = await octavo("namespace", "set", "lab", "--auto-create", "yes", code=2)
    assert "write it as JSON" in " ".join(wrong_json.split())


def test_options_and_sets_say_parts_of_the_same() -> None:
    sets = {"retention": {"time": "1d"}, "partitions": 4}
    assert merged({"retention": {"size": 5}, "ttl": None}, sets) == {
        "retention": {"time": "1d", "size": 5}, "partitions": 4, "ttl": None,
    }  # fmt: skip
