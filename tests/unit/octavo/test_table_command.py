"""`octavo pipeline table`: it needs no Spark, and says which library is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.processes.standalone import OCTAVO, octavo

WITHOUT = """
import sys
for name in {hidden!r}:
    sys.modules[name] = None
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name in {hidden!r} else found(name)
from octavo.cli.main import main
main({arguments!r})
"""
ARGUMENTS = ["pipeline", "table", "flights", "--to"]
NO_CLUSTER = ["--url", "http://127.0.0.1:9"]


def run_without(hidden: list[str], arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in a Python that does not have these packages."""
    program = WITHOUT.format(hidden=hidden, arguments=arguments)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("package", ["pyiceberg", "pyiceberg_core", "pyarrow", "sqlalchemy"])
def test_a_missing_library_is_named_with_its_extra(package: str, tmp_path: object) -> None:
    if package != "pyiceberg":  # the first that is looked for
        pytest.importorskip("pyiceberg", reason="needs octavo[tables]")
    found = run_without([package], [*ARGUMENTS, str(tmp_path)])
    assert found.returncode == 3
    assert f"tables need {package}, which is not installed: pip install 'octavo[tables]'" in (
        found.stderr
    )


def test_it_does_not_import_spark(tmp_path: object) -> None:
    """It goes as far as asking the cluster, which is not there."""
    pytest.importorskip("pyiceberg", reason="needs octavo[tables]")
    found = run_without(["pyspark", "pandas"], [*ARGUMENTS, str(tmp_path), *NO_CLUSTER])
    assert "no broker answers at http://127.0.0.1:9" in found.stderr
    assert found.returncode == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "say where the table is: --to FOLDER, or --catalog"),
        (["--to", "s3://lake/x"], "--to s3://lake/x needs --catalog"),
        (["--to", "a#b"], "PyIceberg cannot read names with ?, # or %"),
        (["--to", "x", "--table", "flights"], "--table flights: give NAMESPACE.NAME"),
        (["--to", "x", "--schema", "none.json"], "none.json"),
        (["--to", "x", "--bad-rows", "keep"], "--bad-rows: use suspend or skip"),
        (["--to", "x", "--catalog-option", "uri"], "write --catalog-option name=value"),
    ],
)
def test_a_mistake_is_said_before_anything_is_made(arguments: list[str], said: str) -> None:
    pytest.importorskip("pyiceberg", reason="needs octavo[tables]")
    found = octavo(*ARGUMENTS[:-1], *arguments, *NO_CLUSTER)
    assert found.returncode == 2, (OCTAVO, found.stderr)
    assert said in found.stderr
