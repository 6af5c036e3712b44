"""The command line and the end of the programs in this folder.

Numbers are above 0, unless an option has the type `or_zero`. The last line of output is a JSON
document; `--json FILE` also writes it to a file.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


def or_zero(text: str) -> int:
    if (found := int(text)) < 0:
        raise argparse.ArgumentTypeError(f"{text} is below 0")
    return found


def _above_0(number: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not (found := number(text)) > 0:
            raise argparse.ArgumentTypeError(f"{text} is not above 0")
        return found

    return read


def several(known: Iterable[str] = ()) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [one for one in found if one not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(known)}")
        return found

    return read


def rates(text: str) -> list[float]:
    try:
        return [_above_0(float)(one) for one in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not numbers with commas") from None


def arguments(doc: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.register("type", int, _above_0(int))
    parser.register("type", float, _above_0(float))
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document there, too")
    return parser


def end(options: argparse.Namespace, bench: str, **found: Any) -> None:
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
