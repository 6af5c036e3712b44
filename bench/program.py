"""What the programs of this folder have in common: their command line, and how they end.

`--help` shows a program's own first lines, which have its examples. The last line that a program
prints is one JSON document; `--json FILE` has it in a file as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path
from typing import Any


def arguments(doc: str | None) -> argparse.ArgumentParser:
    """A parser whose help begins with `doc`, the first lines of the program."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there, too")
    return parser


def end(options: argparse.Namespace, bench: str, **found: Any) -> None:
    """Print the document: the program's name, the machine, its settings, and what was found."""
    settings = {
        name: value for name, value in vars(options).items() if name != "json" and value is not None
    }
    document = {
        "bench": bench,
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cores": os.cpu_count(),
        "settings": settings,
        **found,
    }
    line = json.dumps(document)
    if options.json:
        options.json.write_text(line + "\n")
    print(line, flush=True)
