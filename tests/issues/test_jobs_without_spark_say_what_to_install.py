"""Without Spark every command of `octavo pipeline` said "this should not have happened"."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from octavo.pipeline import session
from octavo.pipeline.session import SparkMissing, check_java

WITHOUT_SPARK = textwrap.dedent(
    """
    import importlib.util, sys
    ABSENT = ("pyspark", "pyarrow", "pandas")

    class Absent:
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] in ABSENT:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Absent())
    real = importlib.util.find_spec
    importlib.util.find_spec = lambda name, *a: None if name in ABSENT else real(name, *a)
    from octavo.cli.main import run

    for line in sys.stdin.read().splitlines():
        print("$", line, flush=True, file=sys.stderr)
        print("exit", run(line.split()), flush=True, file=sys.stderr)
    """
)
COMMANDS = (
    "pipeline verify orders",
    "pipeline report orders",
    "pipeline audit",
    "pipeline scrub",
    "pipeline gc",
    "pipeline compact orders",
    "pipeline replay orders again",
    "demo pipeline",
)


def test_every_job_says_it() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SPARK],
        input="\n".join(COMMANDS),
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=120,
        check=True,
    )
    said = done.stderr.split("$ ")[1:]
    assert len(said) == len(COMMANDS)
    for one in said:
        assert "jobs need pyspark, which is not installed: pip install 'octavo[spark]'" in one, one
        assert "should not have happened" not in one, one
        assert ("exit 3" if one.startswith("pipeline") else "exit 1") in one, one


def test_without_java_it_is_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(
        SparkMissing, match=f"Java {session.JAVA_MIN} or newer: no java on the PATH"
    ):
        check_java()
