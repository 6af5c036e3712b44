"""`python -m tests.apache`: goes through the parts, prints the matrix, writes the page."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tests.apache
from tests.apache.grounds import Ask
from tests.apache.matrix import PAGE, Matrix, written
from tests.apache.parts import PARTS
from tests.interop.processes import Missing, fetch, quiet


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.apache",
        description=tests.apache.__doc__,
        epilog="example: python -m tests.apache --only conversations --json",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", default="", help=f"some of {', '.join(PARTS)}; all when empty")
    parser.add_argument("--short", action="store_true", help="fewer messages, fewer rounds")
    parser.add_argument("--page", action="store_true", help="write the table into the page")
    parser.add_argument(
        "--from", dest="runs", type=Path, nargs="+", default=[], metavar="FILE",
        help="outputs of earlier runs with --json, in full: their rows in place of new rows",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    parser.add_argument(
        "--keep", type=Path, help="keep the parts' folders, with logs, in this folder"
    )
    words = parser.parse_args()
    words.parts = [name for name in words.only.split(",") if name] or list(PARTS)
    unknown = [name for name in words.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if words.page and (words.short or words.only):
        parser.error("--page wants all parts, in full")
    words.earlier = [_last_document(parser, path) for path in words.runs]
    tried = {name for run in words.earlier for name in run["parts"]}
    if words.earlier and (lacks := [name for name in PARTS if name not in tried]):
        parser.error(f"--from wants all parts; these files lack {', '.join(lacks)}")
    return words


def _last_document(parser: argparse.ArgumentParser, path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text().splitlines()[-1])
        parts, short = found["parts"], found["short"]
    except (OSError, IndexError, ValueError, KeyError, TypeError) as error:
        parser.error(f"{path} does not end with what --json says: {error!r}")
    if short or not parts:
        parser.error(f"{path}: a short run; the page is made of full ones")
    return dict(found)


def main() -> int:
    """Return 0 when all is as the page says, 1 when a row is not, 2 when something is missing."""
    words = _words()
    try:
        run = _earlier(words.earlier) if words.earlier else _tried(words)
    except Missing as missing:
        print(f"cannot run: {missing}", file=sys.stderr)
        return 2
    matrix = Matrix()
    for name in run["parts"]:
        matrix.take(run["rows"][name])
    table = matrix.table()
    print(f"\n{table}\n")
    if words.page:
        day, took_s = datetime.date.today().isoformat(), sum(run["seconds"].values())
        PAGE.write_text(written(PAGE.read_text(), table, day, took_s))
    if words.json:
        print(json.dumps(run))
    for row in matrix.news:
        print(f"{row.outcome}: {row.client} · {row.mode} · {row.operation}", file=sys.stderr)
    return 1 if matrix.news else 0


def _earlier(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Merge several documents; for a part in several, the last document counts."""
    of = {name: run for run in runs for name in run["parts"]}
    return {
        "parts": list(PARTS),
        "short": False,
        "seconds": {name: of[name]["seconds"][name] for name in PARTS},
        "rows": {name: of[name]["rows"][name] for name in PARTS},
    }


def _tried(words: argparse.Namespace) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory(prefix="octavo-apache-") as temporary:
        folder = words.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        quiet(folder / "octavo.log")
        lib = fetch()
        for name in words.parts:
            print(f"\n# {name}", flush=True)
            begun, part = time.monotonic(), Matrix()
            PARTS[name](part, Ask(lib, folder / name, words.short))
            seconds[name] = round(time.monotonic() - begun, 1)
            rows[name] = part.as_json()
    return {"parts": words.parts, "short": words.short, "seconds": seconds, "rows": rows}


if __name__ == "__main__":
    sys.exit(main())
