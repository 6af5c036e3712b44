"""`octavo stream` as people and scripts use it: with pipes, to its end, and interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from octavo import Client
from tests.support.processes.standalone import OCTAVO, Standalone, environment, octavo, standalone

END = "0000000000000000_{:016d}".format


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("streams") / "data") as one:
        yield one


def said(running: Standalone, *arguments: str, stdin: str | None = None) -> str:
    done = octavo("stream", *arguments, "--data", str(running.folder), stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(running: Standalone, *arguments: str, stdin: str | None = None, code: int = 1) -> str:
    done = octavo("stream", *arguments, "--data", str(running.folder), stdin=stdin)
    assert (done.returncode, done.stdout) == (code, "")
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.split())


def shown(running: Standalone, *arguments: str, stdin: str | None = None) -> Any:
    return json.loads(said(running, *arguments, "--json", stdin=stdin))


@pytest.mark.long
def test_json_is_kept_as_it_is_written_and_printed_a_line_each(running: Standalone) -> None:
    assert shown(running, "create", "events") == {"stream": "public/events", "created": True}
    assert shown(running, "create", "events")["created"] is False
    assert shown(running, "append", "events", '{"a": 1.50}', "[1,\n12345678901234567890]") == {
        "messages": 2, "next_offset": END(2), "closed": False,
    }  # fmt: skip
    lines = '\n"x"\n  \nnull'
    assert shown(running, "append", "events", stdin=lines)["next_offset"] == END(4)
    assert said(running, "read", "events").splitlines() == [
        '{"a":1.50}', "[1,12345678901234567890]", '"x"', "null",
    ]  # fmt: skip
    part = '{"messages":["x",null],"next_offset":"%s","closed":false}\n' % END(4)  # noqa: UP031
    assert said(running, "read", "events", "--from", END(2), "--json") == part
    assert said(running, "read", "events", "--from", "latest") == ""
    assert shown(running, "fork", "events", "again", "--at", END(1))["stream"] == "public/again"
    assert said(running, "read", "again") == '{"a":1.50}\n'
    assert shown(running, "close", "events", '"end"') == {"next_offset": END(5), "closed": True}
    assert shown(running, "show", "events") == {
        "stream": "public/events", "content_type": "application/json", "next_offset": END(5),
        "closed": True, "ttl_s": None, "expires_at": None,
    }  # fmt: skip
    assert said(running, "read", "events", "--from", END(4), "--follow") == '"end"\n'
    said(running, "delete", "again", "--yes")
    assert "there is no stream public/again" in told(running, "read", "again")


def test_bytes_go_in_and_come_out_as_they_are(running: Standalone, tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(bytes(range(256)) * 20_000)
    made = ("create", "raw", "-t", "application/octet-stream", "--expires-at")
    said(running, *made, "2100-01-01T01:00:00+01:00")
    assert shown(running, "show", "raw")["expires_at"] == "2100-01-01T00:00:00+00:00"
    first = shown(running, "append", "raw", "first ", "appended\n", "--seq", "1")
    assert first == {"bytes": 15, "next_offset": END(1), "closed": False}
    added = shown(running, "append", "raw", "--file", str(file), "--close")
    assert (added["bytes"], added["closed"]) == (5_120_000, True)
    assert int(added["next_offset"][-16:]) > 2
    read = subprocess.run(
        [*OCTAVO, "stream", "read", "raw", "--data", str(running.folder)],
        capture_output=True, env=environment(), check=True,
    )  # fmt: skip
    assert read.stdout == b"first appended\n" + file.read_bytes()
    assert f"next offset {added['next_offset']}, closed" in read.stderr.decode()
    parts = [json.loads(line) for line in said(running, "read", "raw", "--json").splitlines()]
    assert [part["closed"] for part in parts] == [False] * (len(parts) - 1) + [True]
    data = [
        b64decode(part["base64"]) if "base64" in part else part["text"].encode() for part in parts
    ]
    assert b"".join(data) == read.stdout
    said(running, "create", "words", "-t", "text/plain", "--ttl-s", "60")
    said(running, "append", "words", stdin="Grüße")
    assert shown(running, "read", "words")["text"] == "Grüße"


@pytest.mark.long
def test_what_is_wrong_is_said_and_what_would_be_right(running: Standalone) -> None:
    for name in ("show", "append", "read", "close", "delete", "fork"):
        more = {"append": ["1"], "delete": ["--yes"], "fork": ["x"]}.get(name, [])
        why = told(running, name, "nothing", *more)
        assert "there is no stream public/nothing; octavo stream create nothing makes it" in why
    with Client(running.cluster.urls) as client:
        client.create_topic("two", partitions=2)
        client.create_topic("one")
    assert "has 2 partitions: it is no durable stream" in told(running, "show", "two")
    assert "is a topic, and no durable stream" in told(running, "read", "one")
    said(running, "create", "few")
    assert "another content type" in told(running, "create", "few", "-t", "text/plain")
    assert "message 2 must be JSON" in told(running, "append", "few", "1", "hello")
    assert "message must be JSON" in told(running, "close", "few", "hello")
    why = told(running, "append", "few", stdin="1\n2\n{\n4\n")
    assert "line 3 must be JSON" in why
    assert "the lines before it are appended" in why
    assert said(running, "read", "few") == "1\n2\n"
    assert "it must be -1, now, or an offset" in told(running, "read", "few", "--from", "3")
    assert "ends before" in told(running, "read", "few", "--from", END(9))
    said(running, "append", "few", "3", "--seq", "b")
    assert "must be greater than the last, 'b'" in told(running, "append", "few", "4", "--seq", "a")
    said(running, "close", "few")
    assert "the stream is closed" in told(running, "append", "few", "5")


def test_followed_each_message_is_out_at_once_until_it_is_told_to_stop(
    running: Standalone,
) -> None:
    said(running, "create", "live")
    with (
        Client(running.cluster.urls) as client,
        subprocess.Popen(
            [*OCTAVO, "stream", "read", "live", "--follow", "--data", str(running.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), "PYTHONUNBUFFERED": ""},
        ) as following,
    ):
        try:
            assert following.stdout is not None
            assert following.stderr is not None
            for number in range(3):
                client.stream("live").append(number)
                assert following.stdout.readline() == f"{number}\n"
            following.send_signal(signal.SIGINT)
            assert following.wait(20) == 0
            assert following.stderr.read() == f"next offset {END(3)}\n"
        finally:
            following.kill()
