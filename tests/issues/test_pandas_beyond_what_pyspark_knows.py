"""`pip install 'octavo[spark]'` brought pandas 3, of which PySpark 4.3 says that it may not work.

The bound in pyproject is held against PySpark's own check. And the first example of docs/spark.md
had no session, and ran in an active environment only, which it did not say. Found from outside.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark", reason="needs octavo[spark]")
pytest.importorskip("pandas", reason="needs octavo[spark]")

from packaging.requirements import Requirement
from pyspark.errors import PySparkImportError
from pyspark.sql.pandas.utils import require_minimum_pandas_version

ROOT = Path(__file__).resolve().parents[2]


def pyspark_likes(version: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether it takes this pandas without a word."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(__version__=version))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            require_minimum_pandas_version()
        except (PySparkImportError, Warning):
            return False
    return True


@pytest.mark.parametrize("version", ["2.1.4", "2.2.0", "2.3.3", "3.0.0", "3.1.1"])
def test_the_bound_is_that_of_pyspark(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = [
        wanted.specifier
        for extra in ("spark", "demo")
        for text in extras["optional-dependencies"][extra]
        if (wanted := Requirement(text)).name == "pandas"
    ]
    assert len(bounds) == 2
    liked = pyspark_likes(version, monkeypatch)
    assert [bound.contains(version) for bound in bounds] == [liked, liked]


def test_the_first_example_is_whole() -> None:
    text = (ROOT / "docs" / "spark.md").read_text()
    shell, python = (re.search(rf"```{kind}\n(.*?)```", text, re.S) for kind in ("sh", "python"))
    assert shell is not None
    assert "/bin/activate" in shell[1]
    assert python is not None
    bound: set[str] = set()
    for statement in ast.parse(python[1]).body:
        names = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        assert used <= bound, f"{used - bound} come from nowhere"
        bound |= {node.id for node in names if isinstance(node.ctx, ast.Store)}
        if isinstance(statement, ast.ImportFrom):
            bound |= {alias.name for alias in statement.names}
