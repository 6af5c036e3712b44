"""docs/inspect.md shows the commands' output. The lines of a `console` block that begin with
`$ ` are run in order beside `b1`, a copy of the newest folder of tests/fixtures/formats, and
the output is compared. To write it again: python -m tests.unit.octavo.test_inspect_page"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from octavo.cli.main import run
from tests.fixtures.formats import make

PAGE = make.HERE.parents[2] / "docs" / "inspect.md"
SESSION = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def played(commands: list[str], folder: Path) -> str:
    """Return a session as the page shows it."""
    newest = sorted((make.HERE / "bookie").iterdir())[-1]
    shutil.copytree(newest, folder / "b1")
    found: list[str] = []
    before = Path.cwd()
    os.chdir(folder)
    try:
        for command in commands:
            found.append(f"$ {command}")
            text = printed(command).replace(str(folder), "/var/lib/octavo")
            found += [line.rstrip() for line in text.splitlines()]
    finally:
        os.chdir(before)
    return "\n".join(found) + "\n"


def printed(command: str) -> str:
    """Return standard output, then standard error."""
    words = shlex.split(command)
    if words[0] != "octavo":
        done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
        return done.stdout
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        run(words[1:])
    return out.getvalue() + err.getvalue()


def commands_of(session: str) -> list[str]:
    return [line[2:] for line in session.splitlines() if line.startswith("$ ")]


SESSIONS = SESSION.findall(PAGE.read_text())


@pytest.mark.parametrize("session", SESSIONS, ids=range(len(SESSIONS)))
def test_a_session_prints_what_the_page_shows(session: str, tmp_path: Path) -> None:
    assert played(commands_of(session), tmp_path) == session


def test_the_page_shows_every_kind() -> None:
    text = "".join(SESSIONS)
    for kind in ("journal", "entrylog", "index", "cookie", "mark", "state"):
        assert f"$ octavo inspect {kind} " in text


def main() -> None:
    """Write the page's sessions again."""

    def anew(found: re.Match[str]) -> str:
        with tempfile.TemporaryDirectory() as folder:
            return f"```console\n{played(commands_of(found[1]), Path(folder))}```"

    PAGE.write_text(SESSION.sub(anew, PAGE.read_text()))


if __name__ == "__main__":
    sys.exit(main())
