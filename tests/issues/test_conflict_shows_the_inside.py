"""A topic or subscription with other settings was told as the program's own objects.

`policies is Policies(retention_ms=None, …), not Policies(…)`, and of a subscription all that it
has, not what differs: `SubscriptionSettings(type='shared', …)`. And a field of another name was
answered without those that there are; one that is out of bounds had the core's name and unit,
`ack_timeout_ms`. Found as a user, with curl.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, running_cluster

TOPIC = "/v1/topics/public/orders"


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def test_a_conflict_names_the_settings_that_differ(cluster: Cluster) -> None:
    await cluster.api.put(TOPIC, json={"ttl": "7d", "backlog_quota": {"size": "1GB"}})
    answer = await cluster.api.put(TOPIC, json={"partitions": 2, "backlog_quota": {"size": "1GB"}})
    assert (answer.status, answer.json()["code"]) == (409, "settings-conflict")
    assert answer.json()["detail"] == (
        "topic public/orders exists with other settings: partitions is 1, not 2, "
        "ttl is 604800, not null; an update changes them (octavo topic update, or PATCH)"
    )
    await cluster.api.put(f"{TOPIC}/subscriptions/s", json={"type": "shared"})
    answer = await cluster.api.put(
        f"{TOPIC}/subscriptions/s", json={"type": "exclusive", "filter": {"key_prefix": "eu-"}}
    )
    assert answer.json()["detail"] == (
        "subscription 's' of public/orders exists with other settings: type is \"shared\", not "
        '"exclusive", filter is null, not {"headers":{},"key_prefix":"eu-"}; a subscription keeps '
        "those that it was made with: use it as it is, or another name, or delete it"
    )


@pytest.mark.parametrize(
    ("body", "known"),
    [
        ({"typo": 1}, "type, start, ack_timeout, "),
        ({"filter": {"key": "x"}}, "headers, key_prefix"),
        ({"retry_backoff": {"max": "1m"}}, "first, most, factor"),
    ],
)
async def test_a_field_of_another_name_is_answered_with_those_there_are(
    cluster: Cluster, body: dict[str, object], known: str
) -> None:
    await cluster.api.put(TOPIC, json={})
    answer = await cluster.api.put(f"{TOPIC}/subscriptions/s", json=body)
    assert (answer.status, answer.json()["code"]) == (422, "invalid-body")
    assert f"; known here: {known}" in answer.json()["detail"]


async def test_also_in_a_list(cluster: Cluster) -> None:
    await cluster.api.put(TOPIC, json={})
    await cluster.api.put(f"{TOPIC}/subscriptions/s", json={"type": "shared"})
    nack = {"nack": [{"ack_id": "0-0-1-1", "after": 3}]}
    answer = await cluster.api.post(f"{TOPIC}/subscriptions/s/ack", json=nack)
    assert answer.json()["detail"].endswith("; known here: ack_id, delay"), answer


@pytest.mark.parametrize(
    ("where", "body", "told"),
    [
        ("", {"ttl": 0}, "ttl is 0 s; it must be between 0.001 and "),
        ("", {"backlog_quota": {"policy": "drop"}}, "backlog_quota.policy is 'drop'; it must be"),
        ("", {"compaction": {"dirty_ratio": 7}}, "compaction.dirty_ratio is 7.0; it must be"),
        (
            "/subscriptions/s",
            {"ack_timeout": "0s"},
            "ack_timeout is 0 s; it must be between 0.001 and 86400 s",
        ),
    ],
)
async def test_a_setting_is_called_as_it_was_given(
    cluster: Cluster, where: str, body: dict[str, object], told: str
) -> None:
    await cluster.api.put(TOPIC, json={})
    answer = await cluster.api.put(f"{TOPIC}{where}", json=body)
    assert answer.status == 422
    assert answer.json()["detail"].startswith(told), answer


async def test_what_would_help_is_of_the_call_that_was_made(cluster: Cluster) -> None:
    await cluster.api.put(TOPIC, json={"partitions": 2, "message_bytes_max": 2_000_000})
    answer = await cluster.api.call("DELETE", f"{TOPIC}/messages?before=1")
    assert answer.status == 422
    assert "/partitions/0/messages?before=" in answer.json()["detail"], answer
    answer = await cluster.api.put(f"{TOPIC}/large", data=bytes(3_000_000))
    assert answer.status == 413
    assert "message_bytes_max" in answer.json()["detail"], answer
