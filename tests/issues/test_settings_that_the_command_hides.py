"""`octavo topic describe` did not show settings that have parts: no backlog quota, no compaction.

Whoever pasted the guide set a quota and saw none. `octavo subscription create` showed such settings
as Python writes them, and had no way to say most of them: filter, limits, durable. Found as a user.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from octavo.cli.main import run
from tests.support.cluster import Cluster, running_cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=1) as found:
        yield found


async def test_all_settings_are_shown_and_can_be_said(
    cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    async def octavo(*arguments: str) -> dict[str, str]:
        capsys.readouterr()
        assert await asyncio.to_thread(run, [*arguments, "--url", cluster.api.url]) == 0
        lines = capsys.readouterr().out.splitlines()
        return {line.split()[0]: " ".join(line.split()[1:]) for line in lines if line.split()}

    await octavo("topic", "create", "orders", "--set", 'backlog_quota={"size": "1GB"}')
    await octavo("topic", "update", "orders", "--set", 'compaction={"delete_raw": true}')
    shown = await octavo("topic", "describe", "orders")
    assert shown["backlog_quota"] == "size 1,000,000,000"
    assert shown["compaction"].endswith("delete_raw yes")
    assert "retention" not in shown
    shown = await octavo(
        "subscription", "create", "orders", "eu", "--type", "shared", "--backoff", "1s,5m",
        "--set", 'filter={"key_prefix": "eu-"}', "--set", "durable=false",
    )  # fmt: skip
    assert shown["retry_backoff"] == "first 1, most 300, factor 2.0"
    assert shown["filter"].endswith("key_prefix eu-")
    assert shown["durable"] == "no"
