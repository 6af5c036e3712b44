"""The command's errors: one line with the cause, never a stack trace."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import typer

from octavo.broker.http.api import topics as api_topics
from octavo.broker.operations import control
from octavo.cli.main import app, run
from octavo.cli.publish import BadLine, _arguments, _Reading
from octavo.client import transport
from octavo.client.errors import Unreachable
from octavo.client.transport import Transport
from octavo.metadata.store import SessionState
from tests.support.cluster import Cluster, RunningBroker, running_cluster
from tests.support.http_api import Answer

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
        (["topic", "create", "x", "--set", "topic=y", "--url", NOBODY], "topic is not a setting"),
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
        (["stream", "append", "s", "--file", "x", "--seq", "1"], "--seq covers a single append"),
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
        ((200, "text/plain", b"up 1\n"), "200 OK"),  # many a metrics port
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


# Exit code 2 for usage errors. The tests walk the tree of commands, so they cover a new command.

ASKS_FIRST = {
    "topic delete",
    "ledger delete",
    "user delete",
    "security open",
    "subscription delete",
    "stream delete",
}


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", {})
    if path and (not children or command.callback is not None):
        yield " ".join(path), command
    for name, child in children.items():
        yield from commands(child, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))
LEAVES = {name: one for name, one in COMMANDS.items() if not hasattr(one, "commands")}


def is_option(parameter: Any) -> bool:
    return parameter.opts[0].startswith("-")


def kind(parameter: Any) -> object:
    return parameter.type_descriptor.annotation


@pytest.fixture
def _usage_plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("OCTAVO_URL", "OCTAVO_DATA", "OCTAVO_METADATA_URL", "OCTAVO_DEBUG"):
        monkeypatch.delenv(name, raising=False)


def options(name: str) -> set[str]:
    return {flag for one in COMMANDS[name].params for flag in one.opts}


def filled(name: str) -> list[str]:
    words = name.split()
    for one in COMMANDS[name].params:
        if not is_option(one) and one.required:
            words += ["1" if kind(one) is int else "some"]
            words += ["0"] * (one.nargs - 1 if one.nargs > 1 else 0)
    return words


def check(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code = run(arguments)
    out, err = capsys.readouterr()
    assert code == 2, (arguments, code, err)
    assert "Traceback" not in err
    assert "should not have happened" not in err
    assert err.strip(), arguments
    assert not out.strip() or "Usage" in out, arguments


@pytest.mark.usefixtures("_usage_plain")
def test_the_walk_finds_commands_of_every_depth() -> None:
    assert {"standalone", "bookie", "bookie forget", "topic create", "pipeline verify"} <= set(
        COMMANDS
    )
    assert len(LEAVES) > 40


@pytest.mark.usefixtures("_usage_plain")
@pytest.mark.parametrize("name", LEAVES)
def test_an_option_that_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check([*filled(name), "--no-such-option"], capsys)


@pytest.mark.usefixtures("_usage_plain")
@pytest.mark.parametrize("name", LEAVES)
def test_an_argument_too_few_or_too_many(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [one for one in COMMANDS[name].params if not is_option(one)]
    if any(one.required for one in arguments):
        check(name.split(), capsys)
    if all(one.nargs == 1 for one in arguments):
        check([*filled(name), *["more"] * (len(arguments) + 1)], capsys)


WRONG_VALUES = [
    (name, one.opts[0])
    for name, command in COMMANDS.items()
    for one in command.params
    if is_option(one) and kind(one) in (int, float)
]


@pytest.mark.usefixtures("_usage_plain")
@pytest.mark.parametrize(("name", "option"), WRONG_VALUES)
def test_a_value_of_the_wrong_kind(
    name: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check([*filled(name), option, "nonsense"], capsys)


@pytest.mark.usefixtures("_usage_plain")
@pytest.mark.parametrize("name", [name for name in COMMANDS if "--config" in options(name)])
def test_a_settings_file_that_is_missing_or_no_toml(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    check([*filled(name), "--config", "none.toml"], capsys)
    (tmp_path / "bad.toml").write_text("port = = 1")
    check([*filled(name), "--config", "bad.toml"], capsys)


@pytest.mark.usefixtures("_usage_plain")
@pytest.mark.parametrize("name", [name for name in COMMANDS if "--set" in options(name)])
def test_a_setting_without_a_value(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    check([*filled(name), "--set", "nonsense"], capsys)


@pytest.mark.usefixtures("_usage_plain")
@pytest.mark.parametrize("name", [name for name in COMMANDS if "--metadata" in options(name)])
def test_a_metadata_url_that_is_none(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ["--data", "folder"] if name in ("bookie", "standalone") else []
    more += ["--yes"] if name in ASKS_FIRST else []
    check([*filled(name), *more, "--metadata", "redis://x"], capsys)


@pytest.mark.usefixtures("_usage_plain")
@pytest.mark.parametrize("name", [name for name in LEAVES if name not in ("standalone",)])
def test_a_url_or_a_folder_of_no_cluster(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    if name.startswith(("pipeline", "demo", "inspect", "zookeeper")):
        pytest.skip("its arguments come first: tests of its own")
    more = ["--yes"] if name in ASKS_FIRST else []
    more += ["--set", "x=1"] if name == "topic update" else []
    more += ["message"] if name == "publish" else []
    if "--url" in options(name):
        check([*filled(name), *more, "--url", "ftp://x"], capsys)
    if "--data" in options(name):
        check([*filled(name), *more, "--data", "no-such-folder"], capsys)


@pytest.mark.usefixtures("_usage_plain")
def test_a_bare_bookie_asks_for_data(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bookie"]) == 2
    assert "give --data DIR" in capsys.readouterr().err
    assert run(["bookie", "--metadata", "file:///tmp/x.db"]) == 2
    assert "give --data DIR" in capsys.readouterr().err


@pytest.fixture
def no_such_host(monkeypatch: pytest.MonkeyPatch) -> None:
    real = asyncio.base_events.BaseEventLoop.getaddrinfo

    async def getaddrinfo(self: Any, host: Any, *args: Any, **named: Any) -> Any:
        if host == "brokr":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return await real(self, host, *args, **named)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "getaddrinfo", getaddrinfo)
    monkeypatch.setattr(transport, "HOPELESS_RETRY_S", 0.2)


@pytest.mark.usefixtures("no_such_host")
async def test_it_is_named_soon() -> None:
    calls = Transport("http://brokr:8080", attempt_s=5, retry_s=60, rng=random.Random(1))
    async with asyncio.timeout(20):
        with pytest.raises(Unreachable, match="there is no host named 'brokr'"):
            await calls.call("GET", "/v1/cluster")
    await calls.close()


@pytest.mark.usefixtures("no_such_host")
async def test_with_another_broker_that_may_come_back_there_is_time() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        other = f"http://127.0.0.1:{taken.getsockname()[1]}"
        calls = Transport(
            ["http://brokr:8080", other], attempt_s=5, retry_s=1.5, rng=random.Random(1)
        )
        begun = time.monotonic()
        with pytest.raises(Unreachable):
            await calls.call("GET", "/v1/cluster")
        assert time.monotonic() - begun > 0.5
        await calls.close()


@pytest.mark.usefixtures("no_such_host")
def test_the_command_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    begun = time.monotonic()
    assert run(["topic", "list", "--url", "http://brokr:8080"]) == 1
    assert time.monotonic() - begun < 15
    assert "there is no host named 'brokr'" in capsys.readouterr().err


# A dead store or a sleeping broker must not hold up the runbook's first steps or a new producer.

AT_ONCE_S = 0.1
BUSY_MACHINE_S = 0.4
TOPIC = "/v1/topics/public/orders"


@contextlib.asynccontextmanager
async def dead_store(node: RunningBroker) -> AsyncIterator[None]:
    """A broker whose store answers nothing, and whose session is in doubt."""
    store: Any = node.store
    dead, alive = threading.Event(), threading.Event()

    def die() -> None:
        dead.set()
        alive.wait()

    store._executor.submit(die)
    await asyncio.to_thread(dead.wait)
    # Let the answer of the last poll pass: it says that the store lives.
    await asyncio.sleep(0.01)
    store._set_state(SessionState.SUSPENDED)
    store._watches.notify_all()  # all known records are in doubt as well
    try:
        yield
    finally:
        alive.set()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path, brokers=2) as cluster:
        assert (await cluster.api.put(TOPIC, json={"partitions": 2})).status == 201
        assert (await cluster.api.get(TOPIC)).status == 200
        yield cluster


async def at_once(asked: Any) -> Answer:
    begun = time.monotonic()
    answer: Answer = await asked
    took_s = time.monotonic() - begun
    assert took_s < AT_ONCE_S + BUSY_MACHINE_S, f"{took_s:.3f} s"
    return answer


async def test_the_cluster_is_shown_as_last_known_and_says_so(cluster: Cluster) -> None:
    node, api = cluster.brokers["broker-0"], cluster.apis["broker-0"]
    before = (await api.get("/v1/cluster")).json()
    assert before["stale"] is None
    assert before["metadata"]["out_of_reach_since"] is None
    assert len(before["bookies"]) == 3
    assert before["topics"] == ["public/orders"]
    now_ms = time.time() * 1000
    async with dead_store(node):
        for _ in range(3):
            answer = await at_once(api.get("/v1/cluster"))
            assert answer.status == 200
            found = answer.json()
            assert found["stale"]["what"] == ["bookies", "brokers", "topics"]
            assert abs(found["stale"]["since"] - now_ms) < 5000
            assert found["metadata"]["session"] == "suspended"
            assert found["metadata"]["out_of_reach_since"] == found["stale"]["since"]
            for name in ("bookies", "topics", "partitions_here"):
                assert found[name] == before[name]
            for broker, same in zip(found["brokers"], before["brokers"], strict=True):
                age_s = same["age"] if broker["age"] is None else broker["age"]
                assert broker == {**same, "age": age_s}, "its figures grow old, and stay"
        page = await at_once(api.get("/"))
        assert page.status == 200
        assert "has not confirmed bookies, brokers and topics for" in page.body.decode()
        bookies = await at_once(api.get("/v1/bookies"))
        assert len(bookies.json()["bookies"]) == 3
        assert bookies.json()["stale"]["what"] == ["bookies"]
        assert (await at_once(api.get("/v1/brokers"))).status == 200
        assert (await at_once(api.get(TOPIC))).status == 200
        ready = await at_once(api.get("/readyz"))
        assert ready.status == 503
        assert "out of reach" in ready.json()["detail"]

    async with asyncio.timeout(10):
        while (await api.get("/v1/cluster")).json()["stale"] is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_what_only_the_store_knows_is_refused_soon(cluster: Cluster) -> None:
    node, api = cluster.brokers["broker-0"], cluster.apis["broker-0"]
    async with dead_store(node):
        for path in ("/v1/ledgers", "/v1/ledgers/0", "/v1/topics/public", "/v1/namespaces"):
            async with asyncio.timeout(8):  # it was 10; a busy machine needs some of it
                answer = await api.get(path)
            assert answer.status == 503, path
            assert answer.json()["code"] == "metadata-unavailable"
            assert "/v1/cluster" in answer.json()["detail"]


@pytest.mark.long
async def test_a_topic_is_shown_although_an_owner_sleeps(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_topics, "FIGURES_WITHIN_S", 0.3)
    owners = [await cluster.owner_of(f"{TOPIC}/partitions/{n}") for n in range(2)]
    asleep = owners[0]
    asked = next(api for name, api in cluster.apis.items() if name != asleep)

    async def never(*_: Any) -> None:
        await asyncio.Event().wait()

    real = control.run

    async def run(broker: Any, partition: Any, operation: Any, rules: Any) -> Any:
        if (await partition.stats()).broker_id == asleep:
            await never()
        return await real(broker, partition, operation, rules)

    monkeypatch.setattr(control, "run", run)
    async with asyncio.timeout(5):
        found = (await asked.get(TOPIC)).json()
    assert found["settings"]["partitions"] == 2
    for number, owner in enumerate(owners):
        shown = found["partitions"][number]
        if owner == asleep:
            assert shown["problem"]["code"] == "no-figures-in-time"
        else:
            assert shown["owner"] == owner


# Options for lines of input were silently ignored with messages as arguments.


def test_arguments_are_read_as_lines_are() -> None:
    keyed = _Reading(None, "who", ndjson=True, envelope=False)
    assert [tuple(line) for line in _arguments(['{"who": "a", "n": 1.50}'], keyed)] == [
        ("a", b'{"who": "a", "n": 1.50}', ())
    ]
    envelope = _Reading("k", None, ndjson=False, envelope=True)
    messages = ['{"key": "a", "value": "x"}', '{"value_text": "x"}', '{"key": null, "value": null}']
    assert [tuple(line) for line in _arguments(messages, envelope)] == [
        (b"a", b'"x"', ()), ("k", b"x", ()), (None, None, ()),
    ]  # fmt: skip
    with pytest.raises(BadLine, match="message 2 is not JSON"):
        _arguments(["1", "x"], _Reading(None, None, ndjson=True, envelope=False))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["publish", "t", "x", "--ndjson", "--url", NOBODY], "message 1 is not JSON"),
        (["publish", "t", "[]", "--key-field", "a", "--url", NOBODY], "must be a JSON object"),
        (["publish", "t", "{}", "--envelope", "--url", NOBODY], "it needs a value, value_text"),
        (["publish", "t", "{}", "--envelope", "--ndjson"], "leave these out"),
    ],
)
def test_bad_messages_are_named_before_anything_is_sent(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("octavo.cli.publish.RETRY_S", 0.1)
    assert run(arguments) != 0
    assert said in capsys.readouterr().err
