"""What the programs of bench/ have in common: a help with examples, and JSON in the end."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

from bench.program import arguments, end

BENCH = Path(__file__).resolve().parents[2] / "bench"
PROGRAMS = [
    path
    for path in sorted(BENCH.glob("*.py"))
    if path.stem != "program" and "arguments(__doc__)" in path.read_text()
]


def test_all_figures_of_the_page_have_a_program() -> None:
    kinds = {path.stem.split("_")[0] for path in PROGRAMS}
    assert {f"b{number}" for number in range(1, 17)} <= kinds


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_a_program_shows_how_it_is_called(path: Path) -> None:
    text = path.read_text()
    doc = ast.get_docstring(ast.parse(text)) or ""
    assert f"python -m bench.{path.stem}" in doc
    assert "end(" in text, "its last line is its document"


def test_the_document_is_the_last_line_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = arguments("What it does.\n\n    python -m bench.it   # an example")
    assert "\n    python -m bench.it   # an example" in parser.format_help()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--job")
    options = parser.parse_args(["--json", str(tmp_path / "it.json")])
    end(options, "it", found=[1.5])
    said = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "it.json").read_text()) == said
    assert (said["bench"], said["settings"], said["found"]) == ("it", {"rounds": 3}, [1.5])
