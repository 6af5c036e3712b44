"""`python -m tests.apache`: goes through the parts, prints the matrix, writes the page."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import tempfile
import time
from pathlib import Path

import tests.apache
from tests.apache.grounds import Ask
from tests.apache.matrix import Matrix
from tests.apache.page import PAGE, written
from tests.apache.parts import PARTS
from tests.interop.apache import Missing, fetch
from tests.interop.ours import quiet


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
    parser.add_argument("--json", action="store_true", help="end with a line of JSON")
    parser.add_argument("--keep", type=Path, help="keep the parts' folders, with logs, in this one")
    words = parser.parse_args()
    words.parts = [name for name in words.only.split(",") if name] or list(PARTS)
    unknown = [name for name in words.parts if name not in PARTS]
    if unknown:
        parser.error(f"no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if words.page and (words.short or words.only):
        parser.error("--page wants all parts, in full")
    return words


def main() -> int:
    """0 when all is as the page says, 1 when something is not, 2 when something is missing."""
    words = _words()
    matrix = Matrix()
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="octavo-apache-") as temporary:
        folder = words.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        quiet(folder / "octavo.log")
        try:
            lib = fetch()
            for name in words.parts:
                print(f"\n# {name}", flush=True)
                PARTS[name](matrix, Ask(lib, folder / name, words.short))
        except Missing as missing:
            print(f"cannot run: {missing}", file=sys.stderr)
            return 2
    table = matrix.table()
    print(f"\n{table}\n")
    if words.page:
        day = datetime.date.today().isoformat()
        took = time.monotonic() - begun
        PAGE.write_text(written(PAGE.read_text(), table, day, took))
    if words.json:
        print(json.dumps(matrix.as_json()))
    for row in matrix.news:
        print(f"{row.outcome}: {row.client} · {row.mode} · {row.operation}", file=sys.stderr)
    return 1 if matrix.news else 0


if __name__ == "__main__":
    sys.exit(main())
