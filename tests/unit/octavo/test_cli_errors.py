"""What the command says when something is wrong: one line with the cause, never a stack trace."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer

from octavo.cli.main import app, run

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OCTAVO_URL", "OCTAVO_DATA", "OCTAVO_METADATA_URL", "OCTAVO_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("octavo.cli.topic.RETRY_S", 0.1)
    monkeypatch.setattr("octavo.cli.publish.RETRY_S", 0.1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["topic", "list", "--url", NOBODY], "no answer from http://127.0.0.1:9"),
        (["topic", "create", "x", "--set", "partitions=2", "--url", NOBODY], "no answer from http"),
        (["topic", "create", "x", "--set", "topic=y", "--url", NOBODY], "that is no setting"),
        (["topic", "list", "--url", "localhost"], "write http://host:port"),
        (["topic", "create", "a/b/c", "--url", NOBODY], "write topic or namespace/topic"),
        (["topic", "update", "t", "--url", NOBODY], "nothing to change"),
        (["topic", "update", "t", "--set", "x"], "write --set name=value"),
        (["publish", "t", "hello", "--url", NOBODY], "no answer from"),
        (["publish", "t", "hello", "--file", "x"], "choose one"),
        (["publish", "t", "hello", "--producer-id", "x"], "--producer-id needs keys"),
        (["consume", "t", "-s", "x", "--partition", "1"], "--partition goes with a plain read"),
        (["consume", "t", "-s", "x", "--compacted"], "--compacted goes with a plain read"),
        (["stream", "show", "s", "--url", NOBODY], "no answer from"),
        (["stream", "show", "a/b/c", "--url", NOBODY], "write topic or namespace/topic"),
        (["stream", "append", "s", "x", "--file", "x"], "choose one"),
        (["stream", "append", "s", "--file", "x", "--seq", "1"], "--seq is of one append"),
        (["stream", "create", "s", "--expires-at", "2026-01-01"], "write a time with its zone"),
        (["stream", "create", "s", "--ttl-s", "1", "--expires-at", "x"], "choose one"),
        (["ledger", "list"], "which cluster?"),
        (["ledger", "list", "--data", "none"], "holds no standalone cluster"),
        (["ledger", "show", "1", "--metadata", "redis://x"], "names no metadata store"),
        (["bookies", "--metadata", "redis://x"], "names no metadata store"),
        (["bookie", "--metadata", "file:///tmp/x"], "name at least one folder"),
        (["bookie", "--data", "d"], "which metadata store?"),
        (["bookie", "--data", "d", "--set", "prot=1"], "did you mean port"),
        (["bookie", "--data", "d", "--set", "port=x"], "it should be a valid integer"),
        (["broker", "--config", "none.toml"], "No such file"),
        (["broker"], "which metadata store?"),
        (["standalone", "--set", "port=1"], "write section.name=value"),
        (["standalone", "--set", "bookie.port=1"], "standalone chooses it"),
        (["demo", "--data", "."], "is not empty"),
    ],
)
def test_an_error_is_one_clear_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "something").touch()
    assert run(arguments) == (1 if "no answer" in said else 2)
    out, err = capsys.readouterr()
    assert said in " ".join(err.split())
    assert err.startswith("error:")
    assert "Traceback" not in err
    assert out == ""


@contextmanager
def another_program(status: int, kind: str, body: bytes) -> Iterator[str]:
    """The URL of a server that is no broker: to every call it answers this."""

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            self.wfile.write(body)

        def do_DELETE(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [
        (["topic", "describe", "flights"], "GET /v1/topics/public/flights"),
        (["broker", "list"], "GET /v1/brokers"),
        (["publish", "flights", "1"], "GET /v1/topics/public/flights"),
        (["topic", "delete", "flights", "--yes"], "DELETE /v1/topics/public/flights"),
        (["stream", "read", "flights"], "GET /v1/durable-streams/public/flights"),
        (["subscription", "list", "flights"], "GET /v1/topics/public/flights/subscriptions"),
    ],
)
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, "application/json", b'{"error": "not found"}'), "404 Not Found"),  # a bookie's admin
        ((200, "text/plain", b"up 1\n"), "200 OK"),  # many a port of metrics
        ((200, "application/json", b"{}"), "200 OK"),
    ],
)
def test_an_answer_that_is_no_brokers_says_what_was_asked_and_what_to_check(
    arguments: list[str],
    asked: str,
    answer: tuple[int, str, bytes],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with another_program(*answer) as url:
        assert run([*arguments, "--url", url]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    told = " ".join(err.split())
    assert told.startswith(f"error: {asked}: {url} answered {said}, and not as a broker of Octavo")
    assert "does --url (or OCTAVO_URL) name the HTTP port of a broker?" in told


@pytest.mark.parametrize(
    "arguments",
    [["nonsense"], ["topic", "create"], ["publish"], ["standalone", "--bookies", "none"]],
)
def test_bad_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(arguments) == 2
    assert "Usage:" in capsys.readouterr().err


def _commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """All that can be called, those within groups included."""
    if not hasattr(group, "commands") or group.invoke_without_command:
        yield path
    for name, command in getattr(group, "commands", {}).items():
        if not command.hidden:
            yield from _commands(command, (*path, name))


@pytest.mark.parametrize("command", [*_commands(typer.main.get_command(app))], ids=" ".join)
def test_help_has_an_example(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example" in out
    assert f"octavo {' '.join(command)}" in out.partition("Example")[2]


def test_bad_line_of_ndjson_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from octavo.cli.publish import BadLine, _lines, _Reading

    path = tmp_path / "lines"
    path.write_text('{"a": 1}\n{"a": \n')
    lines = _lines(path, _Reading(None, "a", ndjson=True, envelope=False))
    assert next(lines).key == "1"
    with pytest.raises(BadLine, match="line 2 is not JSON"):
        next(lines)
