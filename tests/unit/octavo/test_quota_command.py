"""`octavo quota`: set, list, show, remove; mistakes are named, with the right form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from octavo.cli.main import run
from tests.support.raw_bookie import open_metadata


@pytest.fixture
async def url(tmp_path: Path) -> str:
    async with open_metadata(tmp_path) as store:
        return store.url


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert run(["quota", *arguments]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_a_quota_is_set_shown_and_removed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    at = ("--metadata", url)
    said(capsys, "set", "user:*", "requests=50", "streams=unlimited", *at)
    said(capsys, "set", "user:alice", "publish_bytes=10MB", *at)
    said(capsys, "set", "user:alice", "requests=100", *at)
    assert json.loads(said(capsys, "list", "--json", *at)) == [
        {"subject": "user:*", "requests": 50, "streams": -1},
        {"subject": "user:alice", "requests": 100, "publish_bytes": 10_000_000},
    ]
    assert "publish_bytes=10M" in said(capsys, "list", *at)
    shown = json.loads(said(capsys, "show", "user:alice", "--json", *at))
    assert (shown["requests"], shown["streams"], shown["read_bytes"]) == (100, -1, None)
    assert "no bound" in said(capsys, "show", "user:bob", *at)
    said(capsys, "remove", "user:alice", "requests", *at)
    assert json.loads(said(capsys, "show", "user:alice", "--json", *at))["requests"] == 50
    said(capsys, "remove", "user:alice", *at)
    said(capsys, "remove", "user:*", *at)
    assert json.loads(said(capsys, "list", "--json", *at)) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("set", "alice", "requests=1"), "a quota is for user:NAME"),
        (("set", "user:alice", "request=1"), "it has requests,"),
        (("set", "user:alice", "requests=fast"), "write a whole number"),
        (("set", "user:alice", "requests"), "name=value"),
        (("set", "user:alice", "topics=3"), "counted for each namespace"),
        (("show", "group:staff"), "a quota is for user:NAME"),
        (("remove", "user:alice", "speed"), "it has requests,"),
    ],
)
def test_what_was_typed_wrong(
    url: str, arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["quota", *arguments, "--metadata", url]) == 2
    assert told in " ".join(capsys.readouterr().err.split())
