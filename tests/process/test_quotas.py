"""Quotas of a real cluster: set by the command while it runs, kept by all brokers, lifted again."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import Client
from tests.support.processes.standalone import Standalone, octavo, standalone, until


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Standalone]:
    with standalone(tmp_path / "data") as one:
        yield one


def refused(url: str, size: int) -> dict[str, Any]:
    path = f"{url}/v1/topics/public/mine/messages"
    asked = urllib.request.Request(path, b"x" * size, {"Content-Type": "text/plain"})
    try:
        with urllib.request.urlopen(asked, timeout=20):
            return {}
    except urllib.error.HTTPError as error:
        found: dict[str, Any] = json.load(error)
        return {**found, "retry_after": int(error.headers["Retry-After"])}


@pytest.mark.long
def test_a_quota_holds_at_every_broker_until_it_is_removed(running: Standalone) -> None:
    data = ("--data", str(running.folder))
    urls = running.cluster.urls
    with Client(urls) as client:
        client.create_topic("mine")
        client.publish("mine", "first")
        said = octavo("quota", "set", "anonymous", "publish_bytes=2kB", *data)
        assert said.returncode == 0, said.stderr
        shown = octavo("quota", "show", "anonymous", "--json", *data)
        assert json.loads(shown.stdout)["publish_bytes"] == 2000
        for url in urls:
            until(lambda url=url: bool(refused(url, 8000)), "it holds", 20)  # type: ignore[misc]
            found = refused(url, 1)
            assert (found["status"], found["code"]) == (429, "quota-exceeded")
            assert (found["subject"], found["quota"]) == ("anonymous", "publish_bytes")
            assert 1 <= found["retry_after"] <= 4
        began = time.monotonic()
        client.publish("mine", "patient")
        assert time.monotonic() - began > 0.5, "it came again when it was told to"
        assert octavo("quota", "remove", "anonymous", *data).returncode == 0
        for url in urls:
            until(lambda url=url: not refused(url, 8000), "it is lifted", 20)  # type: ignore[misc]
            assert not any(refused(url, 8000) for _ in range(3))
        values = [one.value for one in client.messages("mine")]
        assert values.count(b"patient") == 1
