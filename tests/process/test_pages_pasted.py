"""Every block of README and the guides is pasted, in order, in one fresh folder, on one cluster.
`<!-- not pasted: REASON -->` above a block leaves it out; a block with `<!-- pasted for 3 s -->`
runs until Ctrl-C, and must still be running then. Only the address is replaced."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from octavo.metadata.zookeeper_server import ZooKeeperNotInstalled, find_class_path, find_java
from octavo.standalone.ports import free_port
from tests.support.processes.standalone import Standalone, environment, standalone

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
