"""The README's lines, and those of pages in docs/, work when pasted, against a real cluster.

Only the address is replaced, for tests take any free port.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes.standalone import Standalone, environment, standalone

README = Path(__file__).parents[2] / "README.md"
TOPICS = README.parent / "docs" / "topics.md"
STREAMS = README.parent / "docs" / "durable_streams.md"
SECTION = "## A cluster on one machine"


def blocks(language: str) -> list[str]:
    """The code blocks of the section, without the one that starts the cluster."""
    text = README.read_text().split(SECTION, 1)[1].split("\n## ", 1)[0]
    found = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return [block for block in found if "octavo standalone" not in block]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    with standalone(tmp_path_factory.mktemp("readme") / "octavo-data") as one:
        yield one


def run(command: list[str], running: Standalone) -> str:
    """Standard output of a command in the cluster's folder; fails with what it said."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    found = subprocess.run(
        command,
        cwd=running.folder.parent,
        env={**environment(), "PATH": path, "OCTAVO_URL": running.cluster.urls[0]},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Traceback" not in found.stderr
    return found.stdout


def here(text: str, running: Standalone) -> str:
    """The same with the address of the cluster of this test."""
    assert "localhost:8080" in text or "octavo " in text
    return text.replace("localhost:8080", running.cluster.urls[0].removeprefix("http://"))


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's lines need curl")
@pytest.mark.skipif(shutil.which("bash") is None, reason="the README's lines need a shell")
def test_shell_lines(running: Standalone) -> None:
    """Pasted one block after the other; an HTTP error counts as a failure."""
    found = blocks("sh")
    assert sum(block.count("curl ") for block in found) >= 6
    script = "\n".join(here(block, running) for block in found)
    script = re.sub(r"\bcurl ", "curl -sS --fail-with-body ", script)
    said = run(["bash", "-euo", "pipefail", "-c", script], running)
    assert "hello, world" in said, "what was published was received"
    assert '"acked"' in said, "what was received was acknowledged"
    assert "one more" in said, "the command consumed what it published"


def test_python_lines(running: Standalone) -> None:
    (block,) = blocks("python")
    said = run([sys.executable, "-c", here(block, running)], running).splitlines()
    assert len(said) == 10_000
    assert len(set(said)) == 10_000


def test_python_lines_of_durable_streams(running: Standalone) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", STREAMS.read_text(), re.DOTALL)
    assert run([sys.executable, "-c", here(block, running)], running).splitlines() == [
        "Once upon a time.",
        "Once upon a time. There was a log.",
        "[{'step': 2}, {'step': 3}] False",
    ]


@pytest.mark.long
@pytest.mark.skipif(shutil.which("curl") is None, reason="the guide's lines need curl")
@pytest.mark.skipif(shutil.which("bash") is None, reason="the guide's lines need a shell")
def test_the_guide_of_topics(running: Standalone) -> None:
    """Its blocks one after the other, in the order of the page."""
    said = []
    for language, block in re.findall(r"```(sh|python)\n(.*?)```", TOPICS.read_text(), re.DOTALL):
        script = here(block, running)
        if language == "sh":
            script = re.sub(r"\bcurl ", "curl -sS --fail-with-body ", script)
            said.append(run(["bash", "-euo", "pipefail", "-c", script], running))
        else:
            said.append(run([sys.executable, "-c", script], running))
    first, second = (
        {one["key"] for one in json.loads((running.folder.parent / name).read_text())["messages"]}
        for name in ("first.json", "second.json")
    )
    assert first, "worker-1 holds messages"
    assert second, "worker-2 was given those of other keys"
    assert not first & second, "a key is one consumer's"
