"""Every block of README and the guides is pasted, in order, in one fresh folder, on one cluster.
`<!-- not pasted: REASON -->` above a block leaves it out; a block with `<!-- pasted for 3 s -->`
runs until Ctrl-C, and must still be running then. Only the address is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from octavo import Client
from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled, find_class_path, find_java
from octavo.standalone.child import is_child
from octavo.standalone.cluster_file import read_cluster
from octavo.standalone.ports import free_port
from tests.support.processes.standalone import OCTAVO, Standalone, environment, octavo, standalone

ROOT = Path(__file__).parents[2]
BY_HAND = "A cluster with ZooKeeper, by hand"
NOT_PASTED = {
    "README.md": 2,
    "docs/topics.md": 0,
    "docs/http.md": 0,
    "docs/durable_streams.md": 1,
    "docs/python.md": 0,
    "docs/spark.md": 3,
    "docs/tables.md": 1,
}
"""The number of blocks of each page that are not pasted; each has its reason on the page."""
IN_ORDER = ["README.md", "docs/topics.md", "docs/http.md", "docs/durable_streams.md"]
QUICK = ["README.md", "docs/python.md"]
LIMIT_S = 600
SPARK_WAITS = {
    "PYSPARK_SUBMIT_ARGS": "--conf spark.python.authenticate.socketTimeout=10m "
    "--conf spark.ui.enabled=false pyspark-shell",
    "SPARK_AUTH_SOCKET_TIMEOUT": "600",
}
"""Spark waits 15 s for its Python to connect: too short on a busy machine."""
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>not pasted: [^\n]+|pasted for (?P<seconds>\d+) s) -->\n)?"
    r"```(?P<language>sh|python)\n(?P<text>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    page: str
    line: int
    language: str
    text: str
    skipped: str
    seconds: int | None
    section: str


def blocks_of(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start()) + 1,
            found["language"],
            found["text"],
            (found["mark"] or "").partition("not pasted: ")[2],
            int(found["seconds"]) if found["seconds"] else None,
            (re.findall(r"^## (.+)$", text[: found.start()], re.MULTILINE) or [""])[-1],
        )
        for found in _BLOCK.finditer(text)
    ]


@pytest.mark.parametrize("page", NOT_PASTED)
def test_a_block_is_pasted_or_says_why_not(page: str) -> None:
    text = (ROOT / page).read_text()
    blocks = blocks_of(page)
    assert len(blocks) == len(re.findall(r"^```(?:sh|python)$", text, re.MULTILINE))
    marks = len(re.findall(r"<!-- (?:not )?pasted", text))
    assert marks == sum(bool(one.skipped or one.seconds) for one in blocks), "one before no block"
    skipped = [one for one in blocks if one.skipped]
    assert all(len(one.skipped.split()) >= 3 for one in skipped), "a reason has some words"
    assert len(skipped) == NOT_PASTED[page]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("pages") / "octavo-data") as one:
        yield one


def paste(block: Block, running: Standalone) -> str:
    """Return its output; fail if it ends with an error or, when it should run on, if it ends."""
    url = running.cluster.urls[0]
    text = block.text.replace("localhost:8080", url.removeprefix("http://"))
    return run(block._replace(text=text), running.folder.parent, {"OCTAVO_URL": url})


def run(block: Block, folder: Path, variables: dict[str, str]) -> str:
    text = block.text
    if block.language == "sh":
        text = re.sub(r"\bcurl ", "curl -sS --fail-with-body ", text)
        command = ["bash", "-euo", "pipefail", "-c", text]
    else:
        command = [sys.executable, "-c", text]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    process = subprocess.Popen(
        command,
        cwd=folder,
        env={**environment(), **SPARK_WAITS, **variables, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    where = f"{block.page}:{block.line}"
    try:
        said, complaint = process.communicate(timeout=block.seconds or LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)
        said, complaint = process.communicate(timeout=60)
        assert block.seconds, f"{where} has not ended after {LIMIT_S} s: {said}{complaint}"
        assert "Traceback" not in complaint, f"{where}: {complaint}"
        return said
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert not block.seconds, f"{where} ended, and should go on: {said}{complaint}"
    assert process.returncode == 0, f"{where}: {said}{complaint}"
    assert "Traceback" not in complaint, f"{where}: {complaint}"
    return said


def one_session(page: str) -> list[Block]:
    """Paste a page's shell blocks, then its Python blocks as one, with an end for their queries."""
    blocks = [one for one in blocks_of(page) if not one.skipped]
    python = [one for one in blocks if one.language == "python"]
    text = "\n".join(one.text for one in python) + SPARK_ENDS
    shell = [one for one in blocks if one.language == "sh"]
    return [*shell, python[0]._replace(text=text)]


SPARK_ENDS = """
for query in spark.streams.active:
    query.processAllAvailable()
    query.stop()
for topic in ("totals", "copies"):
    rows = spark.read.format("octavo").options(service=service, subscribe=topic).load()
    print(topic, sorted((bytes(row.key or b""), bytes(row.value)) for row in rows.collect()))
print("late", spark.read.parquet("late").count())
"""


def pasted(page: str, running: Standalone) -> list[str]:
    blocks = [one for one in blocks_of(page) if not one.skipped and one.section != BY_HAND]
    said = [paste(block, running) for block in blocks]
    _SHAPES[page](said, running.folder.parent)
    return said


def _readme(said: list[str], _: Path) -> None:
    shell = "".join(said[:-1])
    assert "hello, world" in shell, "what was published was received"
    assert '"acked"' in shell, "what was received was acknowledged"
    assert "one more" in shell, "the command consumed what it published"
    lines = said[-1].splitlines()
    assert len(lines) == len(set(lines)) == 10_000


def _topics(_: list[str], folder: Path) -> None:
    first, second = (
        {one["key"] for one in json.loads((folder / name).read_text())["messages"]}
        for name in ("first.json", "second.json")
    )
    assert first, "worker-1 holds messages"
    assert second, "worker-2 was given those of other keys"
    assert not first & second, "a key is one consumer's"


def _http(said: list[str], _: Path) -> None:
    assert '"forked_from"' in said[0]


def _streams(said: list[str], _: Path) -> None:
    assert '[{"a": 1},{"b": 2}]' in "".join(said)
    assert "Once upon a time there was a log." in "".join(said)
    assert '{"order":2}' in "".join(said)
    assert said[-1].splitlines() == [
        "Once upon a time.",
        "Once upon a time. There was a log.",
        "[{'step': 2}, {'step': 3}] False",
    ]


def _python(said: list[str], _: Path) -> None:
    assert "Client(http" in said[0]
    assert "Position(" in said[1]
    assert said[2].startswith("value['at'][0]: JSON has no datetime")
    assert len(said[3].splitlines()) == 1003
    assert "b'kitchen': {'celsius': 21.6}" in said[4]
    assert "hot: b'attic'" in said[5]


def _spark(said: list[str]) -> None:
    told = said[-1].splitlines()
    assert "late 3" in told
    totals = next(line for line in told if line.startswith("totals "))
    assert """(b'AA', b'{"carrier":"AA","count":1}')""" in totals
    assert """(b'UA', b'{"carrier":"UA","count":2}')""" in totals
    copies = next(line for line in told if line.startswith("copies "))
    assert copies == "copies [(b'', b''), (b'', b'no large message')]"


def _tables(said: list[str], _: Path) -> None:
    assert "len" in said[-1]
    assert said[-1].count("3") >= 1, "the table has the three messages"


_SHAPES = {
    "docs/tables.md": _tables,
    "README.md": _readme,
    "docs/topics.md": _topics,
    "docs/http.md": _http,
    "docs/durable_streams.md": _streams,
    "docs/python.md": _python,
}
needs_shell = pytest.mark.skipif(
    shutil.which("curl") is None or shutil.which("bash") is None,
    reason="the pages' lines need curl and bash",
)


@needs_shell
def test_the_first_pages(running: Standalone) -> None:
    for page in QUICK:
        pasted(page, running)


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_S)
@needs_shell
def test_all_pages_in_order(tmp_path: Path) -> None:
    with standalone(tmp_path / "octavo-data") as running:
        for page in [*IN_ORDER, "docs/python.md"]:
            pasted(page, running)


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_S)
@needs_shell
def test_the_page_about_spark(tmp_path: Path) -> None:
    """Its snippets named a missing topic, used an unknown name, and shared a checkpoint."""
    if shutil.which("java") is None:
        assert not os.environ.get("REQUIRE_JAVA"), "CI installs Java: there this is never skipped"
        pytest.skip("Spark needs Java 17")
    with standalone(tmp_path / "octavo-data") as running:
        _spark([paste(block, running) for block in one_session("docs/spark.md")])


@pytest.mark.long
@pytest.mark.timeout(2 * LIMIT_S)
@needs_shell
def test_the_page_about_tables(tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg", reason="needs octavo[tables]")
    with standalone(tmp_path / "octavo-data") as running:
        pasted("docs/tables.md", running)


@pytest.mark.long
@pytest.mark.zookeeper
@pytest.mark.timeout(2 * LIMIT_S)
@needs_shell
def test_the_cluster_by_hand(tmp_path: Path) -> None:
    """README's processes with ZooKeeper, started singly, and a look at a disk's content."""
    try:
        find_java()
        find_class_path()
    except ZooKeeperNotInstalled as error:
        assert not os.environ.get("REQUIRE_ZOOKEEPER"), "CI installs it: never skipped there"
        pytest.skip(str(error))
    blocks = [one for one in blocks_of("README.md") if one.section == BY_HAND]
    assert len(blocks) == 2
    text = BY_HAND_ENDS + "\n".join(one.text for one in blocks)
    metadata, first, second = free_port(), free_port(), free_port()
    for told, taken in (
        ("--data ./zk", f"--data ./zk --port {metadata}"),
        ("localhost:2181", f"localhost:{metadata}"),
        ("3180 + n", f"{_three_in_a_row()} + n"),
        ("8080", str(first)),
        ("8081", str(second)),
    ):
        assert told in text
        text = text.replace(told, taken)
    url = f"http://localhost:{first}"
    said = run(blocks[0]._replace(text=text), tmp_path, {"OCTAVO_URL": url})
    assert said.count("writable") == 3
    assert ".journal (" in said, "a file of its journal was shown"
    assert "Rebuild the index of a stopped bookie" in said


BY_HAND_ENDS = "trap 'set +e; kill %2 %3 %4 %5 %6; wait %2 %3 %4 %5 %6; kill %1; wait' EXIT\n"
"""ZooKeeper ends last: a process that stops without it waits for it a while."""


def _three_in_a_row() -> int:
    while True:
        first = free_port()
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + 3):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return first - 1


END = "0000000000000000_{:016d}".format


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
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
def test_json_is_kept_as_it_is_written_and_printed_a_line_each(streaming: Standalone) -> None:
    assert shown(streaming, "create", "events") == {"stream": "public/events", "created": True}
    assert shown(streaming, "create", "events")["created"] is False
    assert shown(streaming, "append", "events", '{"a": 1.50}', "[1,\n12345678901234567890]") == {
        "messages": 2, "next_offset": END(2), "closed": False,
    }  # fmt: skip
    lines = '\n"x"\n  \nnull'
    assert shown(streaming, "append", "events", stdin=lines)["next_offset"] == END(4)
    assert said(streaming, "read", "events").splitlines() == [
        '{"a":1.50}', "[1,12345678901234567890]", '"x"', "null",
    ]  # fmt: skip
    part = '{"messages":["x",null],"next_offset":"%s","closed":false}\n' % END(4)  # noqa: UP031
    assert said(streaming, "read", "events", "--from", END(2), "--json") == part
    assert said(streaming, "read", "events", "--from", "latest") == ""
    assert shown(streaming, "fork", "events", "again", "--at", END(1))["stream"] == "public/again"
    assert said(streaming, "read", "again") == '{"a":1.50}\n'
    assert shown(streaming, "close", "events", '"end"') == {
        "next_offset": END(5),
        "closed": True,
    }
    assert shown(streaming, "show", "events") == {
        "stream": "public/events", "content_type": "application/json", "next_offset": END(5),
        "closed": True, "ttl_s": None, "expires_at": None,
    }  # fmt: skip
    assert said(streaming, "read", "events", "--from", END(4), "--follow") == '"end"\n'
    said(streaming, "delete", "again", "--yes")
    assert "there is no stream public/again" in told(streaming, "read", "again")


def test_bytes_go_in_and_come_out_as_they_are(streaming: Standalone, tmp_path: Path) -> None:
    file = tmp_path / "bytes"
    file.write_bytes(bytes(range(256)) * 20_000)
    made = ("create", "raw", "-t", "application/octet-stream", "--expires-at")
    said(streaming, *made, "2100-01-01T01:00:00+01:00")
    assert shown(streaming, "show", "raw")["expires_at"] == "2100-01-01T00:00:00+00:00"
    first = shown(streaming, "append", "raw", "first ", "appended\n", "--seq", "1")
    assert first == {"bytes": 15, "next_offset": END(1), "closed": False}
    added = shown(streaming, "append", "raw", "--file", str(file), "--close")
    assert (added["bytes"], added["closed"]) == (5_120_000, True)
    assert int(added["next_offset"][-16:]) > 2
    read = subprocess.run(
        [*OCTAVO, "stream", "read", "raw", "--data", str(streaming.folder)],
        capture_output=True, env=environment(), check=True,
    )  # fmt: skip
    assert read.stdout == b"first appended\n" + file.read_bytes()
    assert f"next offset {added['next_offset']}, closed" in read.stderr.decode()
    parts = [json.loads(line) for line in said(streaming, "read", "raw", "--json").splitlines()]
    assert [part["closed"] for part in parts] == [False] * (len(parts) - 1) + [True]
    data = [
        b64decode(part["base64"]) if "base64" in part else part["text"].encode() for part in parts
    ]
    assert b"".join(data) == read.stdout
    said(streaming, "create", "words", "-t", "text/plain", "--ttl-s", "60")
    said(streaming, "append", "words", stdin="Grüße")
    assert shown(streaming, "read", "words")["text"] == "Grüße"


@pytest.mark.long
def test_what_is_wrong_is_said_and_what_would_be_right(streaming: Standalone) -> None:
    for name in ("show", "append", "read", "close", "delete", "fork"):
        more = {"append": ["1"], "delete": ["--yes"], "fork": ["x"]}.get(name, [])
        why = told(streaming, name, "nothing", *more)
        assert "there is no stream public/nothing; octavo stream create nothing makes it" in why
    with Client(streaming.cluster.urls) as client:
        client.create_topic("two", partitions=2)
        client.create_topic("one")
    assert "has 2 partitions: it is no durable stream" in told(streaming, "show", "two")
    assert "is a topic, and no durable stream" in told(streaming, "read", "one")
    said(streaming, "create", "few")
    assert "another content type" in told(streaming, "create", "few", "-t", "text/plain")
    assert "message 2 must be JSON" in told(streaming, "append", "few", "1", "hello")
    assert "message must be JSON" in told(streaming, "close", "few", "hello")
    why = told(streaming, "append", "few", stdin="1\n2\n{\n4\n")
    assert "line 3 must be JSON" in why
    assert "the lines before it are appended" in why
    assert said(streaming, "read", "few") == "1\n2\n"
    assert "it must be -1, now, or an offset" in told(streaming, "read", "few", "--from", "3")
    assert "ends before" in told(streaming, "read", "few", "--from", END(9))
    said(streaming, "append", "few", "3", "--seq", "b")
    assert "must be greater than the last, 'b'" in told(
        streaming, "append", "few", "4", "--seq", "a"
    )
    said(streaming, "close", "few")
    assert "the stream is closed" in told(streaming, "append", "few", "5")


def test_followed_each_message_is_out_at_once_until_it_is_told_to_stop(
    streaming: Standalone,
) -> None:
    said(streaming, "create", "live")
    with (
        Client(streaming.cluster.urls) as client,
        subprocess.Popen(
            [*OCTAVO, "stream", "read", "live", "--follow", "--data", str(streaming.folder)],
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


LINE_S = 20.0
UNMATCHED = "namespace public shows no topic that matches later-*"


@pytest.fixture(scope="module")
def following(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    folder = tmp_path_factory.mktemp("consume") / "data"
    with standalone(folder, "--session-timeout-ms", "2000") as one:
        yield one


class Consuming:
    def __init__(self, running: Standalone, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*OCTAVO, "consume", *arguments, "--follow", "--json", "--data", str(running.folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**environment(), "PYTHONUNBUFFERED": ""},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Consuming:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def values(self, count: int) -> list[Any]:
        return [json.loads(self._lines.get(timeout=LINE_S))["value"] for _ in range(count)]

    def interrupted(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(10) == 0
        assert self.process.stderr is not None
        assert self._lines.empty()
        return self.process.stderr.read()


@pytest.mark.long
@pytest.mark.parametrize("subscription", [None, "billing"])
def test_each_line_at_once_through_a_killed_owner(
    following: Standalone, subscription: str | None
) -> None:
    topic = f"f-{subscription or 'plain'}"
    how = ["--subscription", subscription] if subscription else []
    with Client(following.cluster.urls) as client:
        client.create_topic(topic)
        client.publish(topic, 0)
        with Consuming(following, topic, *how) as consuming:
            assert consuming.values(1) == [0]
            client.publish(topic, 1)
            assert consuming.values(1) == [1], "it is not kept until there is more"
            owner = client.topic(topic).stats["partitions"][0]["owner"]
            name = next(one["id"] for one in client.brokers() if owner in (one["id"], one["url"]))
            following.kill(name)
            for number in range(2, 12):
                client.publish(topic, number)
            values = consuming.values(10)
            if subscription:  # Leased messages come again when their owner dies.
                again = len({0, 1}.intersection(values))
                values = sorted({*values, *consuming.values(again)} - {0, 1})
            assert values == [*range(2, 12)]
            said = consuming.interrupted()
        assert "messages" in said
        assert "Traceback" not in said


@pytest.mark.parametrize("group", [pytest.param([], marks=pytest.mark.long), ["--group"]])
def test_a_pattern_that_matches_nothing_yet(following: Standalone, group: list[str]) -> None:
    how = ["later-*", "-s", "billing", *group]
    at_once = subprocess.run(
        [*OCTAVO, "consume", *how, "--json", "--data", str(following.folder)],
        capture_output=True, text=True, env=environment(), check=True, timeout=LINE_S,
    )  # fmt: skip
    assert at_once.stdout == ""
    assert at_once.stderr.splitlines() == [UNMATCHED, "0 messages"]
    topic = "later-" + ("shared" if group else "alone")
    with Client(following.cluster.urls) as client:
        with Consuming(following, *how) as consuming:
            assert consuming.process.stderr is not None
            assert (
                consuming.process.stderr.readline()
                == f"{UNMATCHED}; waiting for one (Ctrl-C ends)\n"
            )
            client.create_topic(topic)
            client.publish(topic, 0)
            assert consuming.values(1) == [0]
            assert UNMATCHED not in consuming.interrupted()
        client.delete_topic(topic)


def nothing_is_left(folder: Path) -> bool:
    return not any(is_child(member.pid) for member in read_cluster(folder).members)


@pytest.mark.long
def test_flights(tmp_path: Path) -> None:
    found = octavo("demo", "--rows", "5000", "--data", str(tmp_path / "d"), timeout_s=110)
    said = found.stdout
    assert found.returncode == 0, said + found.stderr
    for line in (
        "kill -9 bookie-2",
        "bookie-4 joins",
        "ensemble changed from entry",
        "owner of partition 0",
        "none lost",
        "none stored twice",
        "order kept per aircraft",
        "no aircraft changed its crew",
        "each aircraft's flights came in order",
        "all checks passed",
    ):
        assert line in said, f"{line!r} is missing in:\n{said}"
    assert "FAILED" not in said
    assert "Traceback" not in said + found.stderr
    assert nothing_is_left(tmp_path / "d")


def test_fencing(tmp_path: Path) -> None:
    found = octavo("demo", "fencing", "--data", str(tmp_path / "d"), timeout_s=110)
    said = found.stdout
    assert found.returncode == 0, said + found.stderr
    for step in range(1, 7):
        assert f"step {step}: " in said, f"step {step} is missing in:\n{said}"
    for line in (
        "the record went OPEN -> IN_RECOVERY -> CLOSED",
        "the publish was not acked",
        "the bookies answered its add: FENCED",
        "acked messages, once, in order",
        "all checks passed",
    ):
        assert line in said, f"{line!r} is missing in:\n{said}"
    assert "FAILED" not in said
    assert nothing_is_left(tmp_path / "d")


SIZES = {"topics": 12, "ledgers": 20, "holes": 1000, "subscriptions": 3, "messages": 2000}


@pytest.mark.long
def test_each_part_measures(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.b15_scale", "--seconds", "0.5"]
    command += ["--json", str(tmp_path / "found.json")]
    for size, count in SIZES.items():
        command += [f"--{size}", str(count)]
    subprocess.run(command, check=True, timeout=300)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["topics"]["topics"] == SIZES["topics"]
    assert found["topics"]["idle"]["broker"]["rss_mib"] > 0
    assert found["ledgers"]["ledgers"] == SIZES["ledgers"]
    for how in ("nacked", "not_due"):
        assert found["holes"][how]["unacked_ranges"] == SIZES["holes"]
    many = found["subscriptions"]["many"]
    assert 0 < many["slowest_k_per_s"] <= many["median_k_per_s"] < many["all_k_per_s"]
